"""Indexes of large tables, made before a migration takes its locks: concurrently, so everybody goes on.

A revision names them in LARGE_INDEXES, those that hold each key once in UNIQUE too, and finds them under its
locks. Only columns that stand before the whole upgrade can be in one. What was cut short half way is not
valid, and is made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import psycopg

from wakeboard.database.db import DatabaseError, connect
from wakeboard.database.migrations import current_revision
from wakeboard.database.migrations.locks import PATIENCE_SECONDS

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

FOUND = """
SELECT to_regclass(%(table)s) IS NOT NULL,
    (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(name)s))
"""
# It waits for whoever uses the table, and for every older snapshot of the database.
OLDEST = """
SELECT coalesce(nullif(application_name, ''), 'a program without a name'), pid,
    extract(epoch FROM clock_timestamp() - xact_start)::int
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""


def make_large_indexes(url: str, script: ScriptDirectory, target: str | tuple[str, ...] | None) -> None:
    """Make the indexes that the revisions between the schema and ``target`` name, where their tables stand.

    Others read and write meanwhile. Raises DatabaseError, naming who is in the way, when it had to wait for
    ten seconds; the schema is as it was then.
    """
    with connect(
        url, name="wakeboard migrate", statement_timeout_seconds=0, lock_timeout_seconds=PATIENCE_SECONDS
    ) as connection:
        for step in reversed(list(script.iterate_revisions(target, current_revision(connection)))):
            indexes: Mapping[str, str] = getattr(step.module, "LARGE_INDEXES", {})
            unique: Collection[str] = getattr(step.module, "UNIQUE", ())
            for name, place in indexes.items():
                _make(connection, name, place, is_unique=name in unique)


def _make(connection: psycopg.Connection[Any], name: str, place: str, *, is_unique: bool) -> None:
    """Make the index ``name`` on ``place``, a table of ours and what follows its name."""
    where = {"table": f"wakeboard.{place.split()[0]}", "name": f"wakeboard.{name}"}
    stands, is_valid = connection.execute(FOUND, where).fetchone() or (False, None)
    if not stands or is_valid:
        return
    try:
        if is_valid is False:
            connection.execute(f"DROP INDEX CONCURRENTLY wakeboard.{name}".encode())
        kind = "UNIQUE INDEX" if is_unique else "INDEX"
        connection.execute(f"CREATE {kind} CONCURRENTLY {name} ON wakeboard.{place}".encode())
    except psycopg.errors.LockNotAvailable as failure:
        raise DatabaseError(_refusal(connection, name)) from failure


def _refusal(connection: psycopg.Connection[Any], name: str) -> str:
    found = connection.execute(OLDEST).fetchone()
    who = (
        f"the session of {found[0]} (process {found[1]} of the server) has a transaction that has been open "
        f"for {found[2]} s"
        if found
        else "its table is in use all the time"
    )
    return (
        f"The index {name} cannot be made now: {who}. The schema was not changed. End that transaction, then "
        "run: wakeboard db upgrade"
    )
