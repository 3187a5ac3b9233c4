"""Locks every table of the schema for a migration, all at once or none, so that it deadlocks with nobody.

Locked in the order of the migration's changes, the tables would deadlock with a transaction that uses them in
another order: PostgreSQL ends one of the two, perhaps that of a program that enqueues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from wakeboard.database.db import DatabaseError

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Less than the second after which PostgreSQL looks for deadlocks and ends a session.
TRY_SECONDS = 0.5
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 10
TABLES = """
SELECT string_agg(format('%I.%I', nspname, relname), ', ' ORDER BY relname)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = 'wakeboard' AND relkind IN ('r', 'p')
"""
# The oldest open transaction that has used our tables.
OLDEST_USER = """
SELECT coalesce(nullif(a.application_name, ''), 'a program without a name'), a.pid,
    extract(epoch FROM clock_timestamp() - min(a.xact_start))::int
FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE c.relnamespace = 'wakeboard'::regnamespace AND l.granted AND a.pid <> pg_backend_pid()
GROUP BY 1, 2 ORDER BY 3 DESC NULLS LAST LIMIT 1
"""


def lock_every_table(connection: Connection) -> None:
    """Lock every table of the schema in the transaction that ``connection`` begins here.

    Others wait behind each try, TRY_SECONDS at most. Raises DatabaseError, naming the session in the way,
    when the tables were not free together for PATIENCE_SECONDS; nothing has changed then.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _try_lock(connection):
        if time.monotonic() > deadline:
            raise DatabaseError(_refusal(connection))
        time.sleep(PAUSE_SECONDS)


def _try_lock(connection: Connection) -> bool:
    tables = connection.execute(text(TABLES)).scalar()
    if not tables:
        return True
    try:
        # One limit for the whole statement: a lock_timeout would begin anew at each table.
        connection.execute(text(f"SET LOCAL statement_timeout = {int(TRY_SECONDS * 1000)}"))
        connection.execute(text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
    except OperationalError as failure:
        if not isinstance(failure.orig, psycopg.errors.QueryCanceled):
            raise
        connection.rollback()
        return False
    return True


def _refusal(connection: Connection) -> str:
    session = connection.execute(text(OLDEST_USER)).first()
    who = (
        f"the session of {session[0]} (process {session[1]} of the server) uses them, in a transaction that "
        f"has been open for {session[2] or 0} s"
        if session
        else "they are in use all the time"
    )
    return (
        f"The tables cannot be changed now: {who}. Nothing was changed. End that transaction, then run: "
        "wakeboard db upgrade"
    )
