"""Numbers of the past: deltas that every batch inserts, merged each minute into roll-ups.

Buckets are quarter powers of two: bucket ``b`` holds times up to ``2 ** ((b - 140) / 4)`` milliseconds. A
percentile is the geometric middle of its bucket, so it is right to within 10 %. Buckets below 100 are of
earlier versions: half powers of two, up to ``2 ** ((b - 20) / 2)`` milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from wakeboard.reporting.hourly_rollups import IN_TURN, hour_of

# The last bucket has no end; it was the first number in earlier versions.
EARLIER_ENDLESS, FINE, ENDLESS = 63, 100, 260
# From the end of a bucket to its geometric middle.
TO_MIDDLE = 2 ** (-1 / 8)

# A delta has a pair of buckets; nobody asks which run time came with which wait. So the pairs are made anew,
# from the shortest of both on: a minute has as many rows as buckets, not as pairs of them. Each part (runs
# ``upto`` a place in that order) takes its share of the sums of both its buckets.
#
# A delta may be of an hour that was summed long ago: a handler's own transaction has the minute in which it
# began. ON CONFLICT sees the row of the hour as it is, even one that is younger than the statement.


def _by_bucket(name: str, times: str) -> str:
    """Return the CTE ``name`` of what was taken by bucket of ``times``; ``upto`` counts from the shortest."""
    return f"""{name} AS (
    SELECT minute, job_type, outcome, {times}_bucket AS bucket, sum(runs)::bigint AS runs,
        sum({times}_ms) AS ms, max({times}_max_ms) AS max_ms,
        sum(sum(runs)::bigint) OVER (
            PARTITION BY minute, job_type, outcome ORDER BY {times}_bucket
        )::bigint AS upto
    FROM taken GROUP BY minute, job_type, outcome, {times}_bucket
)"""


MERGE = f"""
WITH taken AS (
    DELETE FROM wakeboard.statistics_deltas
    WHERE minute < date_trunc('minute', now()) AND (SELECT {IN_TURN})
    RETURNING *
), unsummed AS (
    INSERT INTO wakeboard.statistics_hours AS known (hour)
    SELECT DISTINCT {hour_of("minute")} FROM taken
    ON CONFLICT (hour) DO UPDATE SET summed_at = NULL WHERE known.summed_at IS NOT NULL
), {_by_bucket("ran", "duration")}, {_by_bucket("waited", "wait")}, part AS (
    SELECT minute, job_type, outcome, upto,
        upto - lag(upto, 1, 0::bigint) OVER (PARTITION BY minute, job_type, outcome ORDER BY upto) AS runs
    FROM (
        SELECT minute, job_type, outcome, upto FROM ran UNION
        SELECT minute, job_type, outcome, upto FROM waited
    ) AS cuts
)
INSERT INTO wakeboard.statistics_rollups
SELECT minute, job_type, outcome, ran.bucket, waited.bucket, part.runs, ran.ms / ran.runs * part.runs,
    ran.max_ms, waited.ms / waited.runs * part.runs, waited.max_ms
FROM part
JOIN ran USING (minute, job_type, outcome)
JOIN waited USING (minute, job_type, outcome)
WHERE part.upto > ran.upto - ran.runs AND part.upto <= ran.upto
    AND part.upto > waited.upto - waited.runs AND part.upto <= waited.upto
"""


def merge(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Merge the deltas of past minutes; any number of processes may do so at once."""
    return {"rows": connection.execute(MERGE.encode()).rowcount}


def bucket_seconds(bucket: int) -> float:
    """Return the end of ``bucket`` in seconds, infinity for the last one."""
    if bucket in (EARLIER_ENDLESS, ENDLESS):
        return math.inf
    power = (bucket - 20) / 2 if bucket < FINE else (bucket - 140) / 4
    return float(2**power) / 1000


def _typical_seconds(bucket: int) -> float:
    """Return what stands for all times of ``bucket``: its middle, the end of one of earlier versions."""
    return bucket_seconds(bucket) * (TO_MIDDLE if bucket >= FINE else 1)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the time in seconds that ``share`` (0 to 1) of the runs did not pass, None without runs.

    Infinity stands for a time in the last bucket.
    """
    return percentiles(buckets, (share,))[0]


def percentiles(buckets: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """Return the times of ascending ``shares`` as ``percentile`` does, in one walk."""
    total = sum(buckets.values())
    if not total:
        return [None for _ in shares]
    ascending = sorted(buckets, key=bucket_seconds)
    found: list[float | None] = []
    reached = 0
    for bucket in ascending:
        reached += buckets[bucket]
        while len(found) < len(shares) and reached >= shares[len(found)] * total:
            found.append(_typical_seconds(bucket))
    return found + [_typical_seconds(ascending[-1])] * (len(shares) - len(found))


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """How long something took, as counts by bucket, and the longest of all."""

    buckets: Mapping[int, int] = field(default_factory=dict)
    longest_seconds: float = 0.0

    @property
    def count(self) -> int:
        """Of how many attempts."""
        return sum(self.buckets.values())

    def at_most(self, share: float) -> float | None:
        """Return the seconds that ``share`` (0 to 1) of them did not pass, None without any.

        It is right to within 10 %, and never more than the longest.
        """
        return self.at_most_each((share,))[0]

    def at_most_each(self, shares: tuple[float, ...]) -> tuple[float | None, ...]:
        """Return for each of ascending ``shares`` what ``at_most`` does, in one walk."""
        found = percentiles(self.buckets, shares)
        return tuple(None if each is None else min(each, self.longest_seconds) for each in found)


def merged_histogram(histograms: Iterable[DurationHistogram]) -> DurationHistogram:
    """Return all of ``histograms`` as one."""
    buckets: dict[int, int] = {}
    longest = 0.0
    for each in histograms:
        for bucket, count in each.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        if each.longest_seconds > longest:
            longest = each.longest_seconds
    return DurationHistogram(buckets, longest)
