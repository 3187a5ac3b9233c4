"""How long the attempts of each type usually take, with which a night is compared.

Read from the hourly rollups where an hour is summed, else from its minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.hourly_rollups import WINDOW_HOURS
from wakeboard.reporting.statistics import bucket_seconds

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# The time before a window of which the median is taken.
PERIOD = timedelta(days=7)
# At most so many rows are read, the newest: an hour has one for each type, a minute one for each outcome,
# duration and wait of it. A week of 500 types is 84,000 rows of hours.
MAX_HOUR_ROWS = 100_000
MAX_MINUTE_ROWS = 200_000
# Types with fewer runs have no median.
MIN_RUNS = 3
# Slow is what took so many times the median, and at least so much longer.
SLOW_FACTOR = 3
SLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The median duration of the successful attempts of one type in seconds, and how many there were."""

    runs: int
    seconds: float

    @property
    def slow_seconds(self) -> float:
        """The duration above which an attempt was slow."""
        return max(SLOW_FACTOR * self.seconds, self.seconds + SLOW_SECONDS)


# Deltas have not been merged yet.
_MINUTES = "\nUNION ALL\n".join(
    f"""
SELECT job_type, duration_bucket, runs, duration_ms FROM wakeboard.{table}
WHERE minute >= unsummed.since AND minute < unsummed.until AND outcome = 'succeeded'
""".strip()
    for table in ("statistics_rollups", "statistics_deltas")
)
# Arrays of one length are unnested side by side: a function in FROM is set up anew for each row.
_DURATIONS = f"""
WITH {WINDOW_HOURS}, in_hours AS (
    SELECT part.* FROM hours CROSS JOIN LATERAL (
        SELECT job_type, duration_buckets, duration_runs, duration_bucket_ms
        FROM wakeboard.statistics_hours_of_types AS summed
        WHERE summed.hour = hours.since AND summed.hour >= %(since)s AND summed.hour < %(until)s
    ) AS part
    WHERE hours.is_summed
    ORDER BY hours.since DESC LIMIT %(max_hour_rows)s
), in_minutes AS (
    -- Hour by hour from the newest on until there are enough rows: a sort would have to read all of them.
    SELECT part.* FROM (SELECT * FROM hours WHERE NOT is_summed ORDER BY since DESC) AS unsummed
    CROSS JOIN LATERAL ({_MINUTES}) AS part
    LIMIT %(max_minute_rows)s
)
SELECT job_type, duration_bucket, sum(runs)::bigint AS runs, sum(duration_ms) AS ms
FROM (
    SELECT job_type, unnest(duration_buckets) AS duration_bucket, unnest(duration_runs) AS runs,
        unnest(duration_bucket_ms) AS duration_ms
    FROM in_hours
    UNION ALL
    SELECT job_type, duration_bucket, runs, duration_ms FROM in_minutes
) AS parts
GROUP BY job_type, duration_bucket
"""


class _Bucket(NamedTuple):
    """How many successful attempts of a type are in a bucket, and their total duration."""

    job_type: str
    duration_bucket: int
    runs: int
    ms: float


def find_baselines(connection: Connection, since: datetime) -> dict[str, Baseline]:
    """Return by type the baseline for a window that begins at ``since``; types of few runs are left out.

    It is of the PERIOD before the hour in which the window begins: for a window of the last day it changes
    once an hour. The median is the mean of the bucket that it lies in.
    """
    until = since.replace(minute=0, second=0, microsecond=0)
    values = {
        "since": until - PERIOD,
        "until": until,
        "by_hours": True,
        "max_hour_rows": MAX_HOUR_ROWS,
        "max_minute_rows": MAX_MINUTE_ROWS,
    }
    by_type: dict[str, list[_Bucket]] = {}
    for bucket in read_all(connection, _DURATIONS, _Bucket, values):
        by_type.setdefault(bucket.job_type, []).append(bucket)
    return {
        name: Baseline(total, _median_seconds(buckets, total))
        for name, buckets in by_type.items()
        if (total := sum(bucket.runs for bucket in buckets)) >= MIN_RUNS
    }


def _median_seconds(buckets: Sequence[_Bucket], total: int) -> float:
    cumulative = 0
    for bucket in sorted(buckets, key=lambda bucket: bucket_seconds(bucket.duration_bucket)):
        cumulative += bucket.runs
        if 2 * cumulative >= total:
            return bucket.ms / bucket.runs / 1000
    raise AssertionError("no bucket holds half of the runs")
