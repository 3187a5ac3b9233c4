"""Sums each hour of statistics once it is over, so that readers need not read its minutes.

A row of ``statistics_hours`` has the sums of all types together, rows of ``statistics_hours_of_types`` those
of each type. They are valid while ``summed_at`` is set; readers take every other hour from the minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import psycopg
from psycopg.rows import scalar_row

from wakeboard.core.states import FAILURES, sql_list

HOUR = timedelta(hours=1)
# Retention keeps statistics for so long: pages ask for hours and days, a month is for comparing.
STATISTICS_DAYS = 35
# Steps of time are counted from here, in UTC.
_ORIGIN = "TIMESTAMPTZ '2000-01-01 00:00:00+00:00'"
# An hour may be summed this long after it began: late batches have committed, a replica has caught up.
_SETTLE_TIME = timedelta(minutes=90)
# The length of the slices of an hour, for each of which a type has the times and counts of its attempts.
SLICE_MINUTES = 5
# A longer attempt counts as begun this long before its end, which is before every window that is drawn.
MAX_ATTEMPT_MINUTES = 10 * 24 * 60
# The SQL that takes the lock of the rollups until the transaction ends: whoever merges or sums has it.
TRY_LOCK = "pg_try_advisory_xact_lock(7229190502)"


def step_start(step: str, moment: str) -> str:
    """Return the SQL of when the ``step`` (an interval) began in which ``moment`` lies, in UTC."""
    return f"date_bin({step}, {moment}, {_ORIGIN})"


def hour_start(moment: str) -> str:
    """Return the SQL of when the hour began in which ``moment`` (an expression) lies, in UTC."""
    return step_start("'1 hour'", moment)


# The SQL of the CTE ``hours`` of the window %(since)s to %(until)s. ``is_summed``: the hour is wholly in the
# window and its rollup is valid; never where %(by_hours)s is false.
WINDOW_HOURS = f"""hours AS MATERIALIZED (
    SELECT greatest(hour, %(since)s) AS since, least(hour + interval '1 hour', %(until)s) AS until,
        %(by_hours)s AND EXISTS (
            SELECT FROM wakeboard.statistics_hours AS summed WHERE summed.hour = each.hour
                AND summed.summed_at IS NOT NULL
                AND each.hour >= %(since)s AND each.hour + interval '1 hour' <= %(until)s
        ) AS is_summed
    FROM generate_series({hour_start("%(since)s")}, %(until)s - interval '1 microsecond', '1 hour')
        AS each (hour)
)"""

# A sum that is lost in a crash is made again, so the commit need not wait for the disk.
_LOCK = f"SELECT {TRY_LOCK} AS is_locked, set_config('synchronous_commit', 'off', true)"
# The newest first: these are what pages read. Before the first minute there is nothing to sum, and hours that
# retention is about to remove are left to it.
_NEXT_HOUR = f"""
SELECT each.hour
FROM (SELECT minute FROM wakeboard.statistics_rollups ORDER BY minute LIMIT 1) AS first
CROSS JOIN generate_series(
    {hour_start(f"greatest(first.minute, now() - interval '{STATISTICS_DAYS} days' + interval '1 hour')")},
    {hour_start("now() - %(settle_time)s")}, '1 hour'
) AS each (hour)
WHERE each.hour <> ALL (%(skipped)s::timestamptz[]) AND NOT EXISTS (
    SELECT FROM wakeboard.statistics_hours AS summed
    WHERE summed.hour = each.hour AND summed.summed_at IS NOT NULL
)
ORDER BY each.hour DESC LIMIT 1
"""
_DELETE = "DELETE FROM wakeboard.statistics_hours WHERE hour = %(hour)s"
_COLUMNS = """succeeded, failed, duration_ms, duration_max_ms, succeeded_max_ms, wait_max_ms,
    duration_buckets, duration_runs, duration_bucket_ms, wait_buckets, wait_runs"""
_TYPE_COLUMNS = """attempts, lost, busy_ms, slice_minutes, slice_starts, slice_ends, slice_attempts,
    slice_failed"""


def first_minute(minute: str) -> str:
    """Return the SQL of the minute in which the longest attempt of a row began that ended in ``minute``."""
    return f"{minute} - floor(least(duration_max_ms / 60000, {MAX_ATTEMPT_MINUTES}))"


# The type '' stands for all types together: no type has an empty name.
_SUM = f"""
WITH ended AS MATERIALIZED (
    SELECT job_type, duration_bucket, wait_bucket, sum(runs) AS runs,
        sum(runs) FILTER (WHERE is_good) AS succeeded, sum(runs) FILTER (WHERE is_bad) AS failed,
        sum(runs) FILTER (WHERE outcome = 'lost') AS lost, sum(duration_ms) AS busy_ms,
        sum(duration_ms) FILTER (WHERE is_good) AS succeeded_ms,
        sum(duration_ms) FILTER (WHERE is_good OR is_bad) AS duration_ms,
        max(duration_max_ms) FILTER (WHERE is_good OR is_bad) AS duration_max_ms,
        max(duration_max_ms) FILTER (WHERE is_good) AS succeeded_max_ms, max(wait_max_ms) AS wait_max_ms
    FROM (
        SELECT *, outcome = 'succeeded' AS is_good, outcome IN ({sql_list(FAILURES)}) AS is_bad
        FROM wakeboard.statistics_rollups
        WHERE minute >= %(hour)s AND minute < %(hour)s + interval '1 hour'
    ) AS rollups
    GROUP BY job_type, duration_bucket, wait_bucket
), totals AS (
    SELECT coalesce(job_type, '') AS job_type, coalesce(sum(succeeded), 0) AS succeeded,
        coalesce(sum(failed), 0) AS failed, coalesce(sum(duration_ms), 0) AS duration_ms,
        sum(runs) AS attempts, coalesce(sum(lost), 0) AS lost, sum(busy_ms) AS busy_ms,
        coalesce(max(duration_max_ms), 0) AS duration_max_ms,
        coalesce(max(succeeded_max_ms), 0) AS succeeded_max_ms, coalesce(max(wait_max_ms), 0) AS wait_max_ms
    FROM ended GROUP BY GROUPING SETS ((job_type), ())
), durations AS (
    SELECT job_type, array_agg(duration_bucket ORDER BY duration_bucket) AS duration_buckets,
        array_agg(runs ORDER BY duration_bucket) AS duration_runs,
        array_agg(ms ORDER BY duration_bucket) AS duration_bucket_ms
    FROM (
        SELECT coalesce(job_type, '') AS job_type, duration_bucket, sum(succeeded) AS runs,
            sum(succeeded_ms) AS ms
        FROM ended WHERE succeeded > 0
        GROUP BY GROUPING SETS ((job_type, duration_bucket), (duration_bucket))
    ) AS buckets
    GROUP BY job_type
), waits AS (
    SELECT job_type, array_agg(wait_bucket ORDER BY wait_bucket) AS wait_buckets,
        array_agg(runs ORDER BY wait_bucket) AS wait_runs
    FROM (
        SELECT coalesce(job_type, '') AS job_type, wait_bucket, sum(runs) AS runs
        FROM ended GROUP BY GROUPING SETS ((job_type, wait_bucket), (wait_bucket))
    ) AS buckets
    GROUP BY job_type
), type_slices AS (
    SELECT job_type, array_agg(slice ORDER BY slice) AS slice_minutes,
        array_agg(first ORDER BY slice) AS slice_starts, array_agg(last + 1 ORDER BY slice) AS slice_ends,
        array_agg(attempts ORDER BY slice) AS slice_attempts, array_agg(failed ORDER BY slice) AS slice_failed
    FROM (
        SELECT job_type, minute / {SLICE_MINUTES} * {SLICE_MINUTES} AS slice, sum(runs) AS attempts,
            min({first_minute("minute")})::int AS first, max(minute) AS last,
            coalesce(sum(runs) FILTER (WHERE outcome IN ({sql_list(FAILURES)})), 0) AS failed
        FROM (
            SELECT job_type, outcome, runs, duration_max_ms,
                (date_part('epoch', minute - %(hour)s) / 60)::int AS minute
            FROM wakeboard.statistics_rollups
            WHERE minute >= %(hour)s AND minute < %(hour)s + interval '1 hour'
        ) AS ended
        GROUP BY job_type, slice
    ) AS slices
    GROUP BY job_type
), sums AS (
    SELECT job_type, succeeded, failed, duration_ms, duration_max_ms, succeeded_max_ms, wait_max_ms, attempts,
        lost, busy_ms, coalesce(duration_buckets, '{{}}') AS duration_buckets,
        coalesce(duration_runs, '{{}}') AS duration_runs,
        coalesce(duration_bucket_ms, '{{}}') AS duration_bucket_ms,
        coalesce(wait_buckets, '{{}}') AS wait_buckets, coalesce(wait_runs, '{{}}') AS wait_runs
    FROM totals LEFT JOIN durations USING (job_type) LEFT JOIN waits USING (job_type)
), of_all AS (
    INSERT INTO wakeboard.statistics_hours (hour, summed_at, {_COLUMNS})
    SELECT %(hour)s, now(), {_COLUMNS} FROM sums WHERE job_type = ''
)
INSERT INTO wakeboard.statistics_hours_of_types (hour, job_type, {_COLUMNS}, {_TYPE_COLUMNS})
SELECT %(hour)s, job_type, {_COLUMNS}, {_TYPE_COLUMNS}
FROM sums JOIN type_slices USING (job_type) WHERE job_type <> ''
"""


class RollupError(Exception):
    """The server refused to sum ``hour``, for instance by its statement timeout. Other hours may succeed."""

    def __init__(self, hour: datetime, reason: str) -> None:
        super().__init__(f"The hour of {hour:%Y-%m-%d %H:%M %Z} could not be summed: {reason}")
        self.hour = hour


def sum_next_hour(connection: psycopg.Connection, skipped: Collection[datetime] = ()) -> datetime | None:
    """Sum the newest hour that is over for long enough, not summed and not in ``skipped``; return its start.

    ``connection`` is in autocommit. Returns None when there is no such hour, and while another process merges
    or sums. Raises RollupError.
    """
    hour: datetime | None = None
    try:
        with connection.transaction(), connection.cursor(row_factory=scalar_row) as cursor:
            if not cursor.execute(_LOCK.encode()).fetchone():
                return None
            # A statement of its own: it sees what the process before committed.
            values = {"settle_time": _SETTLE_TIME, "skipped": list(skipped)}
            hour = cursor.execute(_NEXT_HOUR.encode(), values).fetchone()
            if hour is not None:
                cursor.execute(_DELETE, {"hour": hour})
                cursor.execute(_SUM.encode(), {"hour": hour})
    except psycopg.Error as failure:
        if hour is None or connection.broken:
            raise
        raise RollupError(hour, str(failure).strip()) from failure
    return hour
