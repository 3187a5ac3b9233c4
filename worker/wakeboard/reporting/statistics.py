"""Numbers of the past: deltas that every batch inserts, merged each minute into roll-ups.

Buckets are half powers of two: bucket ``b`` holds times up to ``2 ** ((b - 20) / 2)`` milliseconds, so a
percentile read from them is right to within 19 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from wakeboard.reporting.hourly_rollups import IN_TURN, hour_of

LARGEST_BUCKET = 63

# A delta may be of an hour that was summed long ago: a handler's own transaction has the minute in which it
# began. ON CONFLICT sees the row of the hour as it is, even one that is younger than the statement.
MERGE = f"""
WITH taken AS (
    DELETE FROM wakeboard.statistics_deltas
    WHERE minute < date_trunc('minute', now()) AND (SELECT {IN_TURN})
    RETURNING *
), unsummed AS (
    INSERT INTO wakeboard.statistics_hours AS known (hour)
    SELECT DISTINCT {hour_of("minute")} FROM taken
    ON CONFLICT (hour) DO UPDATE SET summed_at = NULL WHERE known.summed_at IS NOT NULL
)
INSERT INTO wakeboard.statistics_rollups
SELECT minute, job_type, outcome, duration_bucket, wait_bucket, sum(runs), sum(duration_ms),
    max(duration_max_ms), sum(wait_ms), max(wait_max_ms)
FROM taken
GROUP BY minute, job_type, outcome, duration_bucket, wait_bucket
"""


def merge(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Merge the deltas of past minutes; any number of processes may do so at once."""
    return {"rows": connection.execute(MERGE.encode()).rowcount}


def bucket_seconds(bucket: int) -> float:
    """Return the upper bound of ``bucket`` in seconds."""
    return float(2 ** ((bucket - 20) / 2)) / 1000


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the time in seconds that ``share`` (0 to 1) of the runs stayed below, None without runs."""
    return percentiles(buckets, (share,))[0]


def percentiles(buckets: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """Return the times of ascending ``shares`` as ``percentile`` does, in one walk."""
    total = sum(buckets.values())
    if not total:
        return [None for _ in shares]
    ascending = sorted(buckets)
    found: list[float | None] = []
    reached = 0
    for bucket in ascending:
        reached += buckets[bucket]
        while len(found) < len(shares) and reached >= shares[len(found)] * total:
            found.append(bucket_seconds(bucket))
    return found + [bucket_seconds(ascending[-1])] * (len(shares) - len(found))


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

        It is the upper end of the bucket, half a power of two: what it stands for is up to 29 % less. The
        largest bucket has no end, and no bucket reaches past the longest.
        """
        return self.at_most_each((share,))[0]

    def at_most_each(self, shares: tuple[float, ...]) -> tuple[float | None, ...]:
        """Return for each of ascending ``shares`` what ``at_most`` does, in one walk."""
        return tuple(self._known(found) for found in percentiles(self.buckets, shares))

    def _known(self, seconds: float | None) -> float | None:
        if seconds is None or seconds >= bucket_seconds(LARGEST_BUCKET):
            return None if seconds is None else self.longest_seconds
        return min(seconds, self.longest_seconds)


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
