"""What a restored database needs before anybody works on it: to be out of reach of the life that it left.

A worker that was cut off may still hold a run that it claimed after the backup, and come back. So that none
of its answers fits: every epoch jumps far ahead, every lease ends, every worker is gone, and no number is
given twice: providers remember idempotency keys made of them, receivers of alerts which they have had.
"""

from __future__ import annotations

from typing import Any

import psycopg

from worker import audit
from worker.audit import Actor

# More than any run can have been claimed, and more runs than can have been made, since the backup.
EPOCHS_AHEAD = 1_000_000
NUMBERS_AHEAD = 1_000_000
NUMBERED = ("job_runs", "job_definitions", "effects", "audit_log", "operations", "alert_messages")

# Succeeded runs can never run again; all others could be held by a worker of the old life.
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
RUNNING = "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'running'"


def begin_new_life(connection: psycopg.Connection[Any], actor: Actor, file: str) -> int:
    """Cut the restored database off from the life before, in one transaction; return the running runs.

    Those have no worker any more: the first reaper takes them as lost, and they run again by their rule.
    """
    with audit.acting(connection):
        connection.execute(RUNS.encode())
        connection.execute(WORKERS)
        for table in NUMBERED:
            psycopg.RawCursor(connection).execute(NUMBERS.encode(), (NUMBERS_AHEAD, f"wakeboard.{table}"))
        row = connection.execute(RUNNING).fetchone()
        running = int(row[0]) if row else 0
        audit.record(connection, actor, "database.restore", "database", file, after={"running": running})
    return running
