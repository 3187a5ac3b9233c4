"""Indexes of large tables, created concurrently before a migration takes its locks, so that work goes on.

A revision names them in LARGE_INDEXES, unique ones in UNIQUE too, and finds them in place. They can hold only
columns that exist before the whole upgrade. An index whose creation was interrupted is invalid, and is
created anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import psycopg

from wakeboard.database.db import DatabaseError, connect
from wakeboard.database.migrations import current_revision
from wakeboard.database.migrations.locks import PATIENCE_SECONDS

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

STATE = """
SELECT to_regclass(%(table)s) IS NOT NULL,
    (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(name)s))
"""
# CREATE INDEX CONCURRENTLY waits for every transaction on the table, and for every older snapshot.
OLDEST_TRANSACTION = """
SELECT coalesce(nullif(application_name, ''), 'a program without a name'), pid,
    extract(epoch FROM clock_timestamp() - xact_start)::int
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""


def create_large_indexes(url: str, script: ScriptDirectory, target: str | tuple[str, ...] | None) -> None:
    """Create the indexes that the revisions from the schema's to ``target`` name, where their tables exist.

    Others read and write meanwhile. Raises DatabaseError, naming the session in the way, after a wait of
    PATIENCE_SECONDS; the schema is unchanged then.
    """
    with connect(
        url, name="wakeboard migrate", statement_timeout_seconds=0, lock_timeout_seconds=PATIENCE_SECONDS
    ) as connection:
        for step in reversed(list(script.iterate_revisions(target, current_revision(connection)))):
            indexes: Mapping[str, str] = getattr(step.module, "LARGE_INDEXES", {})
            unique: Collection[str] = getattr(step.module, "UNIQUE", ())
            for name, definition in indexes.items():
                _create(connection, name, definition, is_unique=name in unique)


def _create(connection: psycopg.Connection, name: str, definition: str, *, is_unique: bool) -> None:
    """Create the index ``name`` on ``definition``: a table of ours and what follows its name."""
    names = {"table": f"wakeboard.{definition.split()[0]}", "name": f"wakeboard.{name}"}
    has_table, is_valid = connection.execute(STATE, names).fetchone() or (False, None)
    if not has_table or is_valid:
        return
    try:
        if is_valid is False:
            connection.execute(f"DROP INDEX CONCURRENTLY wakeboard.{name}".encode())
        kind = "UNIQUE INDEX" if is_unique else "INDEX"
        connection.execute(f"CREATE {kind} CONCURRENTLY {name} ON wakeboard.{definition}".encode())
    except psycopg.errors.LockNotAvailable as failure:
        raise DatabaseError(_refusal(connection, name)) from failure


def _refusal(connection: psycopg.Connection, name: str) -> str:
    session = connection.execute(OLDEST_TRANSACTION).fetchone()
    who = (
        f"the session of {session[0]} (process {session[1]} of the server) has a transaction that has been "
        f"open for {session[2]} s"
        if session
        else "its table is in use all the time"
    )
    return (
        f"The index {name} cannot be made now: {who}. The schema was not changed. End that transaction, then "
        "run: wakeboard db upgrade"
    )
