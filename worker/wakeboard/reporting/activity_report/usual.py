"""How long the attempts of each type usually take: what a night is compared with.

Hours that are summed are read as such, the others by their minutes. Reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.hourly_rollups import hour_of
from wakeboard.reporting.statistics import bucket_seconds

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# How far back a median is taken from.
BEFORE = timedelta(days=7)
# Of so many rows at most, the newest: an hour has one for each type, a minute one for each outcome, run time
# and wait of it. A week of 500 types is 84,000 rows of hours.
MOST_HOURS = 100_000
MOST_MINUTES = 200_000
# A median of fewer runs says nothing, and nobody minds a run that took less than this longer.
FEWEST = 3
SLOWER = 3
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """How long the successful attempts of one type usually took: the median in seconds, of how many."""

    runs: int
    seconds: float

    @property
    def slow_seconds(self) -> float:
        """What took longer than this was slow."""
        return max(SLOWER * self.seconds, self.seconds + LEAST_SECONDS)


# An hour of which a part is asked for is read by its minutes; so are deltas, which no worker has merged yet.
_MINUTES = "\nUNION ALL\n".join(
    f"""
SELECT job_type, duration_bucket, runs, duration_ms FROM wakeboard.{table}
WHERE minute >= other.since AND minute < other.until AND outcome = 'succeeded'
""".strip()
    for table in ("statistics_rollups", "statistics_deltas")
)
# Arrays of one length are unnested side by side: a function in FROM is set up anew for each row.
_USUAL = f"""
WITH asked AS MATERIALIZED (
    SELECT greatest(hour, %(since)s) AS since, least(hour + interval '1 hour', %(until)s) AS until,
        EXISTS (
            SELECT FROM wakeboard.statistics_hours AS known WHERE known.hour = each.hour
                AND known.summed_at IS NOT NULL
                AND each.hour >= %(since)s AND each.hour + interval '1 hour' <= %(until)s
        ) AS is_summed
    FROM generate_series({hour_of("%(since)s")}, %(until)s - interval '1 microsecond', '1 hour')
        AS each (hour)
), in_hours AS (
    SELECT told.* FROM asked CROSS JOIN LATERAL (
        SELECT job_type, duration_buckets, duration_runs, duration_bucket_ms
        FROM wakeboard.statistics_hours_of_types AS summed
        WHERE summed.hour = asked.since AND summed.hour >= %(since)s AND summed.hour < %(until)s
    ) AS told
    WHERE asked.is_summed
    ORDER BY asked.since DESC LIMIT %(most_hours)s
), in_minutes AS (
    -- Hour by hour from the newest on until there are enough: to be sorted, all would have to be read first.
    SELECT told.* FROM (SELECT * FROM asked WHERE NOT is_summed ORDER BY since DESC) AS other
    CROSS JOIN LATERAL ({_MINUTES}) AS told
    LIMIT %(most_minutes)s
)
SELECT job_type, duration_bucket, sum(runs)::bigint AS runs, sum(duration_ms) AS ms
FROM (
    SELECT job_type, unnest(duration_buckets) AS duration_bucket, unnest(duration_runs) AS runs,
        unnest(duration_bucket_ms) AS duration_ms
    FROM in_hours
    UNION ALL
    SELECT job_type, duration_bucket, runs, duration_ms FROM in_minutes
) AS before
GROUP BY job_type, duration_bucket
"""


class _Bucket(NamedTuple):
    """How many successful attempts of a type took about as long, and for how long all of them together."""

    job_type: str
    duration_bucket: int
    runs: int
    ms: float


def usual_until(since: datetime) -> datetime:
    """Return the hour in which a window begins: what was usual is told of the time before it.

    A window of the last day begins a minute later with each minute; its medians are asked once an hour.
    """
    return since.replace(minute=0, second=0, microsecond=0)


def medians(connection: Connection, since: datetime) -> dict[str, Baseline]:
    """Return by type what was usual in the BEFORE days before a window; types of fewer runs are left out.

    The median is the mean of the bucket that it lies in.
    """
    before = usual_until(since)
    values = {
        "since": before - BEFORE,
        "until": before,
        "most_hours": MOST_HOURS,
        "most_minutes": MOST_MINUTES,
    }
    by_type: dict[str, list[_Bucket]] = {}
    for bucket in read_all(connection, _USUAL, _Bucket, values):
        by_type.setdefault(bucket.job_type, []).append(bucket)
    return {
        name: Baseline(total, _median(buckets, total))
        for name, buckets in by_type.items()
        if (total := sum(bucket.runs for bucket in buckets)) >= FEWEST
    }


def _median(buckets: Sequence[_Bucket], total: int) -> float:
    """Return the median in seconds of what is in ``buckets``."""
    reached = 0
    for bucket in sorted(buckets, key=lambda bucket: bucket_seconds(bucket.duration_bucket)):
        reached += bucket.runs
        if 2 * reached >= total:
            return bucket.ms / bucket.runs / 1000
    raise AssertionError("no bucket holds half of the runs")
