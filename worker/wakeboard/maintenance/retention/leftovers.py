"""One batch of everything else that piles up: audit rows, effects, statistics, old sign-ins and the like.

A table that grows by id is walked by id behind a cursor, and left as soon as a batch holds nothing old. The
others are small, or have an index on their time. Rows that somebody holds are skipped until the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from wakeboard.maintenance.retention.keep import EFFECTS_DAYS, TRACES_DAYS, Keep
from wakeboard.reporting.hourly_rollups import STATISTICS_DAYS

ROWS = 1000
Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of ``table`` (alias x) that go ``days`` (%(days)s) after ``at``, where ``which`` holds too.

    ``name`` is what the numbers call them. ``days`` None: kept for ever. ``by_id``: walked by id.
    """

    name: str
    table: str
    at: str
    days: int | None
    which: str = "true"
    by_id: bool = False


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """How many rows went, and the id to go on behind (None: nothing is left to do)."""

    rows: int
    cursor: int | None


def leftovers(keep: Keep) -> list[RetentionRule]:
    """Return what is tidied, in order."""
    groups = None if keep.longest_days is None else keep.longest_days + TRACES_DAYS
    return [
        RetentionRule("audit_rows", "audit_log", "x.at", keep.audit_days, by_id=True),
        # An unconfirmed effect waits for a person; one whose run is still here may be asked for again.
        RetentionRule("effects", "effects", "greatest(x.created_at, x.finished_at)", EFFECTS_DAYS, by_id=True,
                 which="x.status = 'done' AND NOT EXISTS (SELECT FROM wakeboard.job_runs AS r"
                       " WHERE r.id = x.run_id)"),
        RetentionRule("statistics", "statistics_rollups", "x.minute", STATISTICS_DAYS),
        # With what they say of each type.
        RetentionRule("statistics_hours", "statistics_hours", "x.hour", STATISTICS_DAYS),
        RetentionRule("missed_fires", "missed_fires", "x.noted_at", TRACES_DAYS),
        RetentionRule("messages", "alert_messages", "x.created_at", TRACES_DAYS, by_id=True,
                 which="(x.sent_at IS NOT NULL OR x.gave_up_at IS NOT NULL)"),
        RetentionRule("operation_runs", "operation_runs", f"({_ended('x.operation_id')})", TRACES_DAYS,
                 which="x.operation_id IN (SELECT o.id FROM wakeboard.operations AS o"
                       " WHERE o.finished_at <= now() - make_interval(days => %(days)s))"),
        RetentionRule("operations", "operations", "x.finished_at", TRACES_DAYS,
                 which="NOT EXISTS (SELECT FROM wakeboard.operation_runs AS r WHERE r.operation_id = x.id)"),
        RetentionRule("error_groups", "error_groups", "x.last_seen_at", groups,
                 which="(x.muted_until IS NULL OR x.muted_until <= now())"),
        RetentionRule("tokens", "tokens", "least(x.expires_at, x.revoked_at)", TRACES_DAYS),
        RetentionRule("sessions", "sessions", "x.expires_at", 1),
        RetentionRule("login_links", "login_links", "x.expires_at", 1),
        RetentionRule("login_failures", "login_failures", "x.last_failed_at", 1),
    ]  # fmt: skip


def _ended(operation: str) -> str:
    return f"SELECT o.finished_at FROM wakeboard.operations AS o WHERE o.id = {operation}"


def remove_batch(connection: Connection, leftover: RetentionRule, cursor: int) -> RemovedRows:
    """Remove the next old rows of ``leftover`` behind the id ``cursor``, inside the caller's transaction."""
    if leftover.days is None:
        return RemovedRows(0, None)
    statement = _by_id(leftover) if leftover.by_id else _by_time(leftover)
    values = {"cursor": cursor, "rows": ROWS, "days": leftover.days}
    row: Sequence[Any] | None = connection.execute(statement.encode(), values).fetchone()
    rows, last_id, goes_on = row or (0, None, False)
    return RemovedRows(rows, (last_id or 0) if goes_on else None)


def _old(leftover: RetentionRule) -> str:
    return f"{leftover.at} <= now() - make_interval(days => %(days)s)"


def _by_id(leftover: RetentionRule) -> str:
    table = f"wakeboard.{leftover.table} AS x"
    return f"""
WITH looked AS MATERIALIZED (
    SELECT x.id, {_old(leftover)} AS is_old FROM {table} WHERE x.id > %(cursor)s ORDER BY x.id LIMIT %(rows)s
), held AS MATERIALIZED (
    SELECT x.id FROM looked AS l JOIN {table} ON x.id = l.id
    WHERE l.is_old AND {_old(leftover)} AND {leftover.which} FOR UPDATE OF x SKIP LOCKED
), gone AS (DELETE FROM {table} USING held AS h WHERE x.id = h.id RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT max(id) FROM looked),
    (SELECT coalesce(bool_or(is_old), false) FROM looked)
"""


def _by_time(leftover: RetentionRule) -> str:
    table = f"wakeboard.{leftover.table} AS x"
    return f"""
WITH gone AS (
    DELETE FROM {table} WHERE x.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {table} WHERE {_old(leftover)} AND {leftover.which}
        LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*), NULL, count(*) = %(rows)s FROM gone
"""
