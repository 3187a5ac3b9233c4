"""Numbers of the past: deltas that every batch inserts, merged each minute into roll-ups.

Buckets are half powers of two: bucket ``b`` holds times up to ``2 ** ((b - 20) / 2)`` milliseconds, so a
percentile read from them is right to within 19 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

MERGE = """
WITH taken AS (
    DELETE FROM wakeboard.statistics_deltas
    WHERE minute < date_trunc('minute', now()) AND (SELECT pg_try_advisory_xact_lock(7229190502))
    RETURNING *
)
INSERT INTO wakeboard.statistics_rollups
SELECT minute, job_type, outcome, duration_bucket, wait_bucket, sum(runs), sum(duration_ms),
    max(duration_max_ms), sum(wait_ms), max(wait_max_ms)
FROM taken
GROUP BY minute, job_type, outcome, duration_bucket, wait_bucket
"""


def merge(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Merge the deltas of past minutes; any number of processes may do so at once."""
    return {"rows": connection.execute(MERGE).rowcount}


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
