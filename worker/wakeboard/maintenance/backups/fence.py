"""Fences a restored database off from the workers that used it before.

A worker that was cut off may still hold a run that it claimed after the backup, and come back. None of its
answers may fit: every epoch jumps far ahead, every lease ends, every worker counts as stopped. No number is
given twice: providers remember idempotency keys made of them, receivers of alerts remember their ids. Every
session ends. To fence twice does no harm: numbers and epochs jump once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.database import audit
from wakeboard.database.audit import Actor

# More than any run can have been claimed, and more runs than can have been made, since the backup.
EPOCHS_AHEAD = 1_000_000
NUMBERS_AHEAD = 1_000_000
NUMBERED = ("job_runs", "job_definitions", "effects", "audit_log", "operations", "alert_messages")

# Succeeded runs can never run again; an old worker could hold any other.
RUNS = f"""
UPDATE wakeboard.job_runs SET lease_epoch = lease_epoch + {EPOCHS_AHEAD},
    locked_until = CASE WHEN status = 'running' THEN least(locked_until, now()) ELSE locked_until END
WHERE status <> 'succeeded'
"""
WORKERS = """
UPDATE wakeboard.workers SET stopped_at = coalesce(stopped_at, now()), idle_since = NULL, running = 0
"""
NUMBERS = """
SELECT setval(s.name::regclass, (coalesce(last_value, 0) / $1 + 2) * $1)
FROM (SELECT pg_get_serial_sequence($2, 'id') AS name) AS s
LEFT JOIN pg_sequences AS q ON format('%I.%I', q.schemaname, q.sequencename) = s.name
"""
# A file of pg_dump has them, a backup of ours has not.
SESSIONS = "DELETE FROM wakeboard.sessions"
PREVIEW = r"""
SELECT current_database() AS database,
    (SELECT count(*) FROM wakeboard.job_runs WHERE status = 'running') AS running,
    (SELECT count(*) FROM wakeboard.job_runs WHERE status <> 'succeeded') AS unended,
    (SELECT coalesce(max(id), 0) FROM wakeboard.job_runs) AS last_run,
    (SELECT count(*) FROM wakeboard.workers WHERE stopped_at IS NULL) AS workers,
    (SELECT count(*) FROM wakeboard.sessions) AS sessions,
    ARRAY(
        SELECT DISTINCT application_name FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND (application_name ~ '^wakeboard (duties|lease|web|alerts|handler)\M'
                -- A URL may set an application name of its own.
                OR (application_name = current_setting('application_name') AND application_name <> ''
                    AND application_name !~ '^wakeboard '))
        ORDER BY 1
    ) AS connected
"""
RUNNING = "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'running'"


@dataclass(frozen=True, slots=True)
class FencePreview:
    """What a fence would change: numbers of rows, and the names of our programs that are connected."""

    database: str
    running: int
    unended: int
    last_run: int
    workers: int
    sessions: int
    connected: list[str]


def preview_fence(connection: Connection) -> FencePreview:
    """Return what ``fence_database`` would change; writes nothing."""
    with connection.cursor(row_factory=class_row(FencePreview)) as cursor:
        (preview,) = cursor.execute(PREVIEW.encode())
    return preview


def fence_database(connection: Connection, actor: Actor, action: str, target: str) -> int:
    """Fence the restored database in one transaction; return how many runs were running.

    It is audited as ``action`` on ``target``: the database, or the file that it came from. The running runs
    have no worker any more: the first reaper takes them as lost, and they run again by their retry rule.
    """
    with audit.audited_transaction(connection):
        connection.execute(RUNS.encode())
        connection.execute(WORKERS)
        connection.execute(SESSIONS)
        for table in NUMBERED:
            psycopg.RawCursor(connection).execute(NUMBERS.encode(), (NUMBERS_AHEAD, f"wakeboard.{table}"))
        ((running,),) = connection.execute(RUNNING).fetchall()
        audit.record(connection, actor, action, "database", target, after={"running": running})
    return int(running)
