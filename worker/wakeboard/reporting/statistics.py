"""Numbers of the past: deltas that every batch inserts, merged each minute into roll-ups.

Buckets are half powers of two: bucket ``b`` holds times up to ``2 ** ((b - 20) / 2)`` milliseconds, so a
percentile read from them is right to within 19 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from wakeboard.reporting.hourly_rollups import IN_TURN, hour_of

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
