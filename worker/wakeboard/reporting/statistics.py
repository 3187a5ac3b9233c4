"""Merges the deltas that every batch inserts into rollups by the minute; percentiles of their buckets.

Buckets are quarter powers of two: bucket ``b`` holds times up to ``2 ** ((b - 140) / 4)`` milliseconds. A
percentile is the geometric middle of its bucket, so it is right to within 10 %. Buckets below 100 were
written by earlier versions: half powers of two, up to ``2 ** ((b - 20) / 2)`` milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from wakeboard.reporting.hourly_rollups import TRY_LOCK, hour_start

# The last bucket has no end; in earlier versions its number was the first one. From FINE on buckets are
# quarter powers of two.
EARLIER_ENDLESS, FINE, ENDLESS = 63, 100, 260
# From the end of a bucket to its geometric middle.
TO_MIDDLE = 2 ** (-1 / 8)

# A delta has a pair of buckets, but no page asks which duration came with which wait. So MERGE pairs them
# anew, both in order from the shortest: a minute has as many rows as buckets, not as pairs of them. Each part
# (runs ``upto`` a place in that order) has its share of the sums of both its buckets.
#
# A delta may belong to an hour that was summed long ago: a handler's own transaction has the minute in which
# it began. ON CONFLICT sees the current row of the hour, even one that is younger than the statement.


def _by_bucket(name: str, times: str) -> str:
    """Return the CTE ``name`` of the deltas by bucket of ``times``; ``upto`` counts from the shortest."""
    return f"""{name} AS (
    SELECT minute, job_type, outcome, {times}_bucket AS bucket, sum(runs)::bigint AS runs,
        sum({times}_ms) AS ms, max({times}_max_ms) AS max_ms,
        sum(sum(runs)::bigint) OVER (
            PARTITION BY minute, job_type, outcome ORDER BY {times}_bucket
        )::bigint AS upto
    FROM deltas GROUP BY minute, job_type, outcome, {times}_bucket
)"""


MERGE = f"""
WITH deltas AS (
    DELETE FROM wakeboard.statistics_deltas
    WHERE minute < date_trunc('minute', now()) AND (SELECT {TRY_LOCK})
    RETURNING *
), outdated AS (
    INSERT INTO wakeboard.statistics_hours AS summed (hour)
    SELECT DISTINCT {hour_start("minute")} FROM deltas
    ON CONFLICT (hour) DO UPDATE SET summed_at = NULL WHERE summed.summed_at IS NOT NULL
), {_by_bucket("durations", "duration")}, {_by_bucket("waits", "wait")}, part AS (
    SELECT minute, job_type, outcome, upto,
        upto - lag(upto, 1, 0::bigint) OVER (PARTITION BY minute, job_type, outcome ORDER BY upto) AS runs
    FROM (
        SELECT minute, job_type, outcome, upto FROM durations UNION
        SELECT minute, job_type, outcome, upto FROM waits
    ) AS cuts
)
INSERT INTO wakeboard.statistics_rollups
SELECT minute, job_type, outcome, durations.bucket, waits.bucket, part.runs,
    durations.ms / durations.runs * part.runs, durations.max_ms,
    waits.ms / waits.runs * part.runs, waits.max_ms
FROM part
JOIN durations USING (minute, job_type, outcome)
JOIN waits USING (minute, job_type, outcome)
WHERE part.upto > durations.upto - durations.runs AND part.upto <= durations.upto
    AND part.upto > waits.upto - waits.runs AND part.upto <= waits.upto
"""


def merge_deltas(connection: psycopg.Connection) -> dict[str, int]:
    """Merge the deltas of past minutes and return how many ``rows`` that made.

    Any number of processes may do so at once: one of them merges, the others merge nothing.
    """
    return {"rows": connection.execute(MERGE.encode()).rowcount}


def bucket_seconds(bucket: int) -> float:
    """Return the end of ``bucket`` in seconds, infinity for the last one."""
    if bucket in (EARLIER_ENDLESS, ENDLESS):
        return math.inf
    power = (bucket - 20) / 2 if bucket < FINE else (bucket - 140) / 4
    return float(2**power) / 1000


def _typical_seconds(bucket: int) -> float:
    """Return the time that stands for ``bucket``: its middle, or the end of one of earlier versions."""
    return bucket_seconds(bucket) * (TO_MIDDLE if bucket >= FINE else 1)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the seconds that ``share`` (0 to 1) of the runs did not exceed, None without runs.

    ``buckets`` counts runs by bucket. A time in the last bucket is infinity.
    """
    return percentiles(buckets, (share,))[0]


def percentiles(buckets: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """Return the percentile of each of ascending ``shares``, as ``percentile`` does."""
    total = sum(buckets.values())
    if not total:
        return [None for _ in shares]
    ascending = sorted(buckets, key=bucket_seconds)
    result: list[float | None] = []
    cumulative = 0
    for bucket in ascending:
        cumulative += buckets[bucket]
        while len(result) < len(shares) and cumulative >= shares[len(result)] * total:
            result.append(_typical_seconds(bucket))
    return result + [_typical_seconds(ascending[-1])] * (len(shares) - len(result))


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """Durations, as counts by bucket, and the longest of all in seconds."""

    buckets: Mapping[int, int] = field(default_factory=dict)
    longest_seconds: float = 0.0

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets.values())

    def at_most(self, share: float) -> float | None:
        """Return the seconds that ``share`` (0 to 1) of them did not exceed, None without any.

        The result is right to within 10 %, and never more than the longest.
        """
        return self.at_most_each((share,))[0]

    def at_most_each(self, shares: tuple[float, ...]) -> tuple[float | None, ...]:
        """Return what ``at_most`` does for each of ascending ``shares``."""
        seconds = percentiles(self.buckets, shares)
        return tuple(None if each is None else min(each, self.longest_seconds) for each in seconds)


def merged_histogram(histograms: Iterable[DurationHistogram]) -> DurationHistogram:
    """Return all of ``histograms`` as one."""
    buckets: Counter[int] = Counter()
    longest = 0.0
    for histogram in histograms:
        buckets.update(histogram.buckets)
        longest = max(longest, histogram.longest_seconds)
    return DurationHistogram(buckets, longest)
