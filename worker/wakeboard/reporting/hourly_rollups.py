"""Hours of statistics that are over, each summed once from its minutes, so that nobody reads those again.

A row of ``statistics_hours`` says what its minutes say of all types together, those of
``statistics_hours_of_types`` of each type. They are right while ``summed_at`` is there; whoever reads takes
every other hour from the minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from wakeboard.core.states import FAILURES, sql_list

HOUR = timedelta(hours=1)
# Retention keeps statistics for so long: pages ask for hours and days, a month is for comparing.
STATISTICS_DAYS = 35
# Hours, and steps that part them evenly or are made of them, begin so many lengths after it, in UTC.
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
# An hour is settled this long after it began: late batches have committed, a replica has caught up.
SETTLED = timedelta(minutes=90)
# Slices of an hour, of which each type tells when its attempts ran. A start further back than the longest one
# is told from there: before every window that is drawn.
SLICE_MINUTES = 5
LONGEST_MINUTES = 10 * 24 * 60
# Whoever has it changes roll-ups, or sums them, until its transaction ends.
IN_TURN = "pg_try_advisory_xact_lock(7229190502)"


def hour_of(moment: str) -> str:
    """Return the SQL of when the hour of ``moment``, an expression, began by the clock of UTC."""
    return f"date_bin('1 hour', {moment}, TIMESTAMPTZ '{BEGINNING}')"


def floored(moment: datetime, step: timedelta) -> datetime:
    """Return when the ``step`` of ``moment`` began, in UTC."""
    return BEGINNING + (moment - BEGINNING) // step * step


# A sum that is lost in a crash is made again, so nobody waits for the disk.
_BEGIN = f"SELECT {IN_TURN}, set_config('synchronous_commit', 'off', true)"
# The newest first: these are what pages ask for. Before the first minute there is nothing to sum, and hours
# that retention is about to remove are left to it.
_NEXT = f"""
SELECT each.hour
FROM (SELECT minute FROM wakeboard.statistics_rollups ORDER BY minute LIMIT 1) AS first
CROSS JOIN generate_series(
    {hour_of(f"greatest(first.minute, now() - interval '{STATISTICS_DAYS} days' + interval '1 hour')")},
    {hour_of("now() - %(settled)s")}, '1 hour'
) AS each (hour)
WHERE each.hour <> ALL (%(left)s::timestamptz[]) AND NOT EXISTS (
    SELECT FROM wakeboard.statistics_hours AS known
    WHERE known.hour = each.hour AND known.summed_at IS NOT NULL
)
ORDER BY each.hour DESC LIMIT 1
"""
_FORGET = "DELETE FROM wakeboard.statistics_hours WHERE hour = %(hour)s"
_COLUMNS = """succeeded, failed, duration_ms, duration_max_ms, succeeded_max_ms, wait_max_ms,
    duration_buckets, duration_runs, duration_bucket_ms, wait_buckets, wait_runs"""
_OF_A_TYPE = """attempts, lost, busy_ms, slice_minutes, slice_starts, slice_ends, slice_attempts,
    slice_failed"""


def first_minute(minute: str) -> str:
    """Return the SQL of the minute in which the first attempt of a row began that ended in ``minute``."""
    return f"{minute} - floor(least(duration_max_ms / 60000, {LONGEST_MINUTES}))"


# Types are never empty: '' stands for all of them together.
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
    ) AS judged
    GROUP BY job_type, duration_bucket, wait_bucket
), whole AS (
    SELECT coalesce(job_type, '') AS job_type, coalesce(sum(succeeded), 0) AS succeeded,
        coalesce(sum(failed), 0) AS failed, coalesce(sum(duration_ms), 0) AS duration_ms,
        sum(runs) AS attempts, coalesce(sum(lost), 0) AS lost, sum(busy_ms) AS busy_ms,
        coalesce(max(duration_max_ms), 0) AS duration_max_ms,
        coalesce(max(succeeded_max_ms), 0) AS succeeded_max_ms, coalesce(max(wait_max_ms), 0) AS wait_max_ms
    FROM ended GROUP BY GROUPING SETS ((job_type), ())
), ran AS (
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
), waited AS (
    SELECT job_type, array_agg(wait_bucket ORDER BY wait_bucket) AS wait_buckets,
        array_agg(runs ORDER BY wait_bucket) AS wait_runs
    FROM (
        SELECT coalesce(job_type, '') AS job_type, wait_bucket, sum(runs) AS runs
        FROM ended GROUP BY GROUPING SETS ((job_type, wait_bucket), (wait_bucket))
    ) AS buckets
    GROUP BY job_type
), sliced AS (
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
), told AS (
    SELECT job_type, succeeded, failed, duration_ms, duration_max_ms, succeeded_max_ms, wait_max_ms, attempts,
        lost, busy_ms, coalesce(duration_buckets, '{{}}') AS duration_buckets,
        coalesce(duration_runs, '{{}}') AS duration_runs,
        coalesce(duration_bucket_ms, '{{}}') AS duration_bucket_ms,
        coalesce(wait_buckets, '{{}}') AS wait_buckets, coalesce(wait_runs, '{{}}') AS wait_runs
    FROM whole LEFT JOIN ran USING (job_type) LEFT JOIN waited USING (job_type)
), of_all AS (
    INSERT INTO wakeboard.statistics_hours (hour, summed_at, {_COLUMNS})
    SELECT %(hour)s, now(), {_COLUMNS} FROM told WHERE job_type = ''
)
INSERT INTO wakeboard.statistics_hours_of_types (hour, job_type, {_COLUMNS}, {_OF_A_TYPE})
SELECT %(hour)s, job_type, {_COLUMNS}, {_OF_A_TYPE}
FROM told JOIN sliced USING (job_type) WHERE job_type <> ''
"""


class NotSummed(Exception):
    """The server refused to sum one hour: it took longer than a statement may, say. Others may go well."""

    def __init__(self, hour: datetime, reason: str) -> None:
        super().__init__(f"The hour of {hour:%Y-%m-%d %H:%M %Z} could not be summed: {reason}")
        self.hour = hour


def sum_next(connection: psycopg.Connection[Any], left: Collection[datetime] = ()) -> datetime | None:
    """Sum the newest hour that is settled, not summed and not in ``left``; return it.

    ``connection`` is in autocommit. None when there is no such hour, and while another process
    merges or sums. Raises NotSummed.
    """
    hour: datetime | None = None
    try:
        with connection.transaction():
            # Looked at after the turn has come, by a statement of its own: it sees what whoever had it left.
            if not (connection.execute(_BEGIN.encode()).fetchone() or (False,))[0]:
                return None
            found = connection.execute(_NEXT.encode(), {"settled": SETTLED, "left": list(left)}).fetchone()
            if found is None:
                return None
            hour = found[0]
            connection.execute(_FORGET, {"hour": hour})
            connection.execute(_SUM.encode(), {"hour": hour})
    except psycopg.Error as failure:
        if hour is None or connection.broken:
            raise
        raise NotSummed(hour, str(failure).strip()) from failure
    return hour
