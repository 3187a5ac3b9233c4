"""How a migration gets at the tables: all of them at once or none, so that it deadlocks with nobody.

It would otherwise take them in the order of its changes, and meet a transaction that goes the other way
round: PostgreSQL ends one of the two, and that may be the one of somebody who enqueues.
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
# Who has used our tables in a transaction that is still open, the oldest first.
USERS = """
SELECT coalesce(nullif(a.application_name, ''), 'a program without a name'), a.pid,
    extract(epoch FROM clock_timestamp() - min(a.xact_start))::int
FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE c.relnamespace = 'wakeboard'::regnamespace AND l.granted AND a.pid <> pg_backend_pid()
GROUP BY 1, 2 ORDER BY 3 DESC NULLS LAST LIMIT 1
"""


def take_every_table(connection: Connection) -> None:
    """Lock every table of the schema in the transaction that ``connection`` begins here.

    Others wait half a second behind each try. Raises DatabaseError, naming who is in the way, when the tables
    were not free together for ten seconds; then nothing has changed.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _take(connection):
        if time.monotonic() > deadline:
            raise DatabaseError(_refusal(connection))
        time.sleep(PAUSE_SECONDS)


def _take(connection: Connection) -> bool:
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
    found = connection.execute(text(USERS)).first()
    who = (
        f"the session of {found[0]} (process {found[1]} of the server) uses them, in a transaction that has "
        f"been open for {found[2] or 0} s"
        if found
        else "they are in use all the time"
    )
    return (
        f"The tables cannot be changed now: {who}. Nothing was changed. End that transaction, then run: "
        "wakeboard db upgrade"
    )
