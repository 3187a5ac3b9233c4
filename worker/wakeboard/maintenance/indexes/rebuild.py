"""A pass over the indexes: what a rebuild left behind goes, what is bloated is built anew beside the work.

REINDEX CONCURRENTLY lets everybody read and write. It waits for each transaction that used the table, and
while it runs nobody else may VACUUM or change it; so it begins only when nothing old is open and nothing of
the kind is under way, and gives up soon. Runs on a connection of its own, outside of any transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql

from wakeboard.config import log
from wakeboard.database import vacuum_blockers
from wakeboard.database.db import configure, connect, is_pooled
from wakeboard.maintenance.indexes.bloat import (
    FLOOR_BYTES,
    HalfBuiltIndex,
    Index,
    bloated,
    leftovers,
    megabytes,
)
from wakeboard.maintenance.indexes.state import GIVEN_UP_SECONDS, RebuildPass, store

Connection = psycopg.Connection[Any]

NAME = "wakeboard indexes"
# No statement of a page or a move takes longer; a rebuild waits for whoever has begun before it.
OLD_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 1.0
LOCK_SECONDS = 10
REBUILD_SECONDS = 600
# The next pass begins half an hour after this one began.
LAST_BEGIN_SECONDS = 900.0
# Whoever holds one of these (VACUUM, another rebuild, a migration), or waits for one, would wait for us.
BUSY = """
SELECT coalesce(nullif(a.application_name, ''), a.backend_type, 'somebody')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = to_regclass(%s) AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
LIMIT 1
"""
FRESH = "SELECT pg_relation_size(oid), reltuples FROM pg_class WHERE oid = to_regclass(%s)"
# Of fewer entries the whole pages of a fresh index are no measure.
FEWEST_ENTRIES = 1000


def open_connection(url: str) -> Connection:
    """Open a connection with the limits of a rebuild, for which the server takes one processor."""
    connection = connect(
        url, name=NAME, statement_timeout_seconds=REBUILD_SECONDS, lock_timeout_seconds=LOCK_SECONDS
    )
    if not is_pooled(connection):
        configure(connection, {"max_parallel_maintenance_workers": "0"})
    return connection


def make_pass(
    connection: Connection,
    current: RebuildPass,
    *,
    pause: Callable[[float], bool],
    floor_bytes: int = FLOOR_BYTES,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Drop what is left over, rebuild what is bloated, and write what came of it into the shared row.

    ``pause`` waits for so many seconds and returns whether the process is to stop. What is in the way is
    waited for ``patience_seconds``, then for the next pass.
    """
    current.waits = current.failed = None
    rests, found = leftovers(connection), bloated(connection, current.entry_bytes, floor_bytes=floor_bytes)
    lacks = lacking(rests, found)
    if lacks and lacks != current.lacks:
        log.warn(lacks)
    current.lacks = lacks
    until = monotonic() + LAST_BEGIN_SECONDS
    todo: list[HalfBuiltIndex | Index] = [rest for rest in rests if rest.may_drop]
    todo += [each for each in found if each.may_rebuild and not current.rests(each.name)]
    for each in todo:
        current.waits = _wait(connection, each.on_table, pause, patience_seconds)
        if current.waits or monotonic() > until or pause(0):
            break
        if isinstance(each, Index):
            current.tries(each.name)
            store(connection, current)
        _do(connection, each, current, is_stopping=lambda: pause(0))
    store(connection, current)


def lacking(rests: Sequence[HalfBuiltIndex], found: Sequence[Index]) -> str | None:
    """Say what this role may not do, and the statement for somebody who may; None when it may do all."""
    refused = [index for index in found if not index.may_rebuild]
    if refused:
        first, others = refused[0], len(refused) - 1
        more = f" (and {others} more)" if others else ""
        return (
            f"{first.says} The role {first.role} may not rebuild it{more}. As the owner of "
            f"wakeboard.{first.on_table}: {first.rebuilds}; or let workers use the role that owns the tables."
        )
    for rest in rests:
        if not rest.may_drop:
            return (
                f"{rest.name} was left by a rebuild that was cut short. {rest.role} may not drop it. "
                f"As the owner of wakeboard.{rest.on_table}: {rest.drops}"
            )
    return None


def _wait(
    connection: Connection, table: str, pause: Callable[[float], bool], patience_seconds: float
) -> str | None:
    """Wait until nothing stands in the way; return what still does in the end."""
    until = monotonic() + patience_seconds
    while (hindrance := _hindrance(connection, table)) and monotonic() < until:
        if pause(LOOK_SECONDS):
            break
    return hindrance


def _hindrance(connection: Connection, table: str) -> str | None:
    """Say who holds an old snapshot, or changes the table as a whole; None when nobody does."""
    # Slots and standbys hold rows back, and are waited for by nobody.
    old = [each for each in vacuum_blockers.find_blockers(connection) if (each.seconds or 0.0) > OLD_SECONDS]
    if old:
        return f"{old[0].title} is open"
    busy = connection.execute(BUSY, (f"wakeboard.{table}",)).fetchone()
    return f"{busy[0]} is at {table}" if busy else None


def _do(
    connection: Connection,
    each: HalfBuiltIndex | Index,
    current: RebuildPass,
    *,
    is_stopping: Callable[[], bool],
) -> None:
    try:
        if isinstance(each, HalfBuiltIndex):
            _drop(connection, each)
        else:
            _rebuild(connection, each, current)
    except psycopg.Error as failure:
        if is_stopping() or isinstance(failure, psycopg.errors.LockNotAvailable):
            current.may_be_tried_again(each.name)
        if connection.closed:
            raise
        if is_stopping():
            store(connection, current)
            raise
        said = " ".join(str(failure).split("\n")[0].split())
        if isinstance(each, Index) and isinstance(failure, psycopg.errors.QueryCanceled):
            current.gives_up(each.name)
            days = GIVEN_UP_SECONDS / 86_400
            said = f"cancelled, or not built within {REBUILD_SECONDS} s; it is left for {days:g} days"
        current.failed = f"{each.name}: {said}"[:300]
        log.warn("An index could not be rebuilt or dropped; it stays as it is.", index=each.name, error=said)


def _drop(connection: Connection, rest: HalfBuiltIndex) -> None:
    statement = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS wakeboard.{}")
    connection.execute(statement.format(sql.Identifier(rest.name)))
    log.note("Dropped what a rebuild had left that was cut short.", index=rest.name)


def _rebuild(connection: Connection, index: Index, current: RebuildPass) -> None:
    """Build ``index`` anew, and note its sizes."""
    began = monotonic()
    connection.execute(sql.SQL("REINDEX INDEX CONCURRENTLY wakeboard.{}").format(sql.Identifier(index.name)))
    seconds = monotonic() - began
    row = connection.execute(FRESH, (f"wakeboard.{index.name}",)).fetchone()
    size, entries = row or (0, 0.0)
    if entries >= FEWEST_ENTRIES:
        current.entry_bytes[index.name] = size / entries
    before, after = megabytes(index.bytes), megabytes(size)
    log.note("Rebuilt an index.", index=index.name, before=before, after=after, seconds=round(seconds, 2))
    current.did(f"{index.name}: {before}, now {after}, in {seconds:.1f} s")
