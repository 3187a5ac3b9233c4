"""One batch of everything but runs: audit rows, effects, statistics, old sign-ins and the like.

A table that grows by id is walked by id behind a cursor, and left as soon as a batch holds nothing old. The
others are small, or have an index on their time. Rows that somebody has locked are skipped until the next
pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import Connection

from wakeboard.maintenance.retention.policy import EFFECTS_DAYS, HISTORY_DAYS, RetentionPolicy
from wakeboard.reporting.hourly_rollups import STATISTICS_DAYS

ROWS = 1000


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of ``table`` (alias x) that go ``days`` (%(days)s) after ``at``, where ``condition`` holds too.

    ``name`` is what the numbers call them. ``days`` None: kept for ever. ``by_id``: walked by id.
    """

    name: str
    table: str
    at: str
    days: int | None
    condition: str = "true"
    by_id: bool = False

    @property
    def is_old(self) -> str:
        """The SQL that says whether the time of a row is over."""
        return f"{self.at} <= now() - make_interval(days => %(days)s)"

    @property
    def statement(self) -> str:
        """The statement that removes a batch: its rows, the last id looked at, whether there may be more."""
        return self._walk_by_id() if self.by_id else self._find_by_time()

    def _walk_by_id(self) -> str:
        table = f"wakeboard.{self.table} AS x"
        return f"""
WITH scanned AS MATERIALIZED (
    SELECT x.id, {self.is_old} AS is_old FROM {table} WHERE x.id > %(cursor)s ORDER BY x.id LIMIT %(rows)s
), locked AS MATERIALIZED (
    SELECT x.id FROM scanned AS s JOIN {table} ON x.id = s.id
    WHERE s.is_old AND {self.is_old} AND {self.condition} FOR UPDATE OF x SKIP LOCKED
), removed AS (DELETE FROM {table} USING locked AS l WHERE x.id = l.id RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT max(id) FROM scanned),
    (SELECT coalesce(bool_or(is_old), false) FROM scanned)
"""

    def _find_by_time(self) -> str:
        table = f"wakeboard.{self.table} AS x"
        return f"""
WITH removed AS (
    DELETE FROM {table} WHERE x.ctid = ANY (ARRAY(
        SELECT x.ctid FROM {table} WHERE {self.is_old} AND {self.condition}
        LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*), NULL, count(*) = %(rows)s FROM removed
"""


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """How many rows went, and the id to go on behind (None: nothing is left to do)."""

    rows: int
    cursor: int | None


def retention_rules(policy: RetentionPolicy) -> list[RetentionRule]:
    """Return what is removed beside runs, in order."""
    groups = None if policy.longest_days is None else policy.longest_days + HISTORY_DAYS
    return [
        RetentionRule("audit_rows", "audit_log", "x.at", policy.audit_days, by_id=True),
        # An unconfirmed effect waits for a person; one whose run is still here may be asked for again.
        RetentionRule("effects", "effects", "greatest(x.created_at, x.finished_at)", EFFECTS_DAYS, by_id=True,
                 condition="x.status = 'done' AND NOT EXISTS (SELECT FROM wakeboard.job_runs AS r"
                           " WHERE r.id = x.run_id)"),
        RetentionRule("statistics", "statistics_rollups", "x.minute", STATISTICS_DAYS),
        # With what they say of each type.
        RetentionRule("statistics_hours", "statistics_hours", "x.hour", STATISTICS_DAYS),
        RetentionRule("missed_fires", "missed_fires", "x.noted_at", HISTORY_DAYS),
        RetentionRule("messages", "alert_messages", "x.created_at", HISTORY_DAYS, by_id=True,
                 condition="(x.sent_at IS NOT NULL OR x.gave_up_at IS NOT NULL)"),
        RetentionRule("operation_runs", "operation_runs",
                 "(SELECT o.finished_at FROM wakeboard.operations AS o WHERE o.id = x.operation_id)",
                 HISTORY_DAYS,
                 condition="x.operation_id IN (SELECT o.id FROM wakeboard.operations AS o"
                           " WHERE o.finished_at <= now() - make_interval(days => %(days)s))"),
        RetentionRule("operations", "operations", "x.finished_at", HISTORY_DAYS,
                 condition="NOT EXISTS (SELECT FROM wakeboard.operation_runs AS r"
                           " WHERE r.operation_id = x.id)"),
        RetentionRule("error_groups", "error_groups", "x.last_seen_at", groups,
                 condition="(x.muted_until IS NULL OR x.muted_until <= now())"),
        RetentionRule("tokens", "tokens", "least(x.expires_at, x.revoked_at)", HISTORY_DAYS),
        RetentionRule("sessions", "sessions", "x.expires_at", 1),
        RetentionRule("login_links", "login_links", "x.expires_at", 1),
        RetentionRule("login_failures", "login_failures", "x.last_failed_at", 1),
    ]  # fmt: skip


def remove_batch(connection: Connection, rule: RetentionRule, cursor: int) -> RemovedRows:
    """Remove the next old rows of ``rule`` behind the id ``cursor``, inside the caller's transaction."""
    if rule.days is None:
        return RemovedRows(0, None)
    values = {"cursor": cursor, "rows": ROWS, "days": rule.days}
    ((rows, last_id, has_more),) = connection.execute(rule.statement.encode(), values).fetchall()
    return RemovedRows(rows, (last_id or 0) if has_more else None)
