"""A pass over the indexes: drops half-built ones and rebuilds bloated ones while workers run.

REINDEX CONCURRENTLY lets everybody read and write. It waits for each transaction that used the table, and
nobody else may VACUUM or change the table meanwhile. So it begins only when no old transaction is open and
nothing of the kind is under way, and gives up soon. Runs on a connection of its own, outside of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import psycopg
from psycopg import Connection, sql

from wakeboard.config import log
from wakeboard.database import vacuum_blockers
from wakeboard.database.db import configure, connect, is_pooled
from wakeboard.maintenance.indexes.bloat import (
    FLOOR_BYTES,
    HalfBuiltIndex,
    HotIndex,
    find_bloated,
    find_half_built,
    megabytes,
)
from wakeboard.maintenance.indexes.state import POSTPONED_SECONDS, RebuildPass, store

NAME = "wakeboard indexes"
# No statement of a page or a move takes longer; a rebuild waits for every older transaction.
OLD_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 1.0
LOCK_SECONDS = 10
REBUILD_SECONDS = 600
# The next pass begins half an hour after this one began.
LAST_BEGIN_SECONDS = 900.0
# Who holds one of these locks (VACUUM, another rebuild, a migration), or waits for one, conflicts with us.
TABLE_LOCKS = """
SELECT coalesce(nullif(a.application_name, ''), a.backend_type, 'somebody')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = to_regclass(%s) AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
LIMIT 1
"""
SIZE = "SELECT pg_relation_size(oid), reltuples FROM pg_class WHERE oid = to_regclass(%s)"
# With fewer entries the whole pages of a fresh index say nothing about one entry.
FEWEST_ENTRIES = 1000


def open_connection(url: str) -> Connection:
    """Open a connection with the limits of a rebuild, which uses one processor of the server."""
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
    """Drop half-built indexes, rebuild bloated ones, and write the result into the shared row.

    ``pause`` waits for so many seconds and returns whether the process is to stop. What blocks a rebuild for
    more than ``patience_seconds`` ends the pass; the next pass tries again.
    """
    current.waits = current.failed = None
    half_built = find_half_built(connection)
    bloated = find_bloated(connection, current.entry_bytes, floor_bytes=floor_bytes)
    missing_privilege = _find_missing_privilege(half_built, bloated)
    if missing_privilege and missing_privilege != current.missing_privilege:
        log.warn(missing_privilege)
    current.missing_privilege = missing_privilege
    until = monotonic() + LAST_BEGIN_SECONDS
    todo: list[HalfBuiltIndex | HotIndex] = [index for index in half_built if index.may_drop]
    todo += [index for index in bloated if index.may_rebuild and not current.is_resting(index.name)]
    for index in todo:
        current.waits = _wait_for_blockers(connection, index.on_table, pause, patience_seconds)
        if current.waits or monotonic() > until or pause(0):
            break
        if isinstance(index, HotIndex):
            current.record_try(index.name)
            store(connection, current)
        _drop_or_rebuild(connection, index, current, is_stopping=lambda: pause(0))
    store(connection, current)


def _find_missing_privilege(half_built: Sequence[HalfBuiltIndex], bloated: Sequence[HotIndex]) -> str | None:
    """Say what this role may not do, and the statement for somebody who may; None when it may do all."""
    refused = [index for index in bloated if not index.may_rebuild]
    if refused:
        first, others = refused[0], len(refused) - 1
        more = f" (and {others} more)" if others else ""
        return (
            f"{first.sentence} The role {first.role} may not rebuild it{more}. As the owner of wakeboard."
            f"{first.on_table}: {first.rebuild_statement}; or let workers use the role that owns the tables."
        )
    for index in half_built:
        if not index.may_drop:
            return (
                f"{index.name} was left by a rebuild that was cut short. {index.role} may not drop it. "
                f"As the owner of wakeboard.{index.on_table}: {index.drop_statement}"
            )
    return None


def _wait_for_blockers(
    connection: Connection, table: str, pause: Callable[[float], bool], patience_seconds: float
) -> str | None:
    """Wait until nothing blocks a rebuild on ``table``; return what still does after ``patience_seconds``."""
    until = monotonic() + patience_seconds
    while (blocker := _find_blocker(connection, table)) and monotonic() < until:
        if pause(POLL_SECONDS):
            break
    return blocker


def _find_blocker(connection: Connection, table: str) -> str | None:
    """Say who holds an old snapshot or a lock on the whole ``table``; None when nobody does."""
    # Replication slots and standbys hold rows back, but no rebuild waits for them.
    old = [each for each in vacuum_blockers.find_blockers(connection) if (each.seconds or 0.0) > OLD_SECONDS]
    if old:
        return f"{old[0].title} is open"
    holder = connection.execute(TABLE_LOCKS, (f"wakeboard.{table}",)).fetchone()
    return f"{holder[0]} is at {table}" if holder else None


def _drop_or_rebuild(
    connection: Connection,
    index: HalfBuiltIndex | HotIndex,
    current: RebuildPass,
    *,
    is_stopping: Callable[[], bool],
) -> None:
    try:
        if isinstance(index, HalfBuiltIndex):
            statement = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS wakeboard.{}")
            connection.execute(statement.format(sql.Identifier(index.name)))
            log.note("Dropped what a rebuild had left that was cut short.", index=index.name)
        else:
            _rebuild(connection, index, current)
    except psycopg.Error as failure:
        if is_stopping() or isinstance(failure, psycopg.errors.LockNotAvailable):
            current.forget_try(index.name)
        if connection.closed:
            raise
        if is_stopping():
            store(connection, current)
            raise
        error = " ".join(str(failure).split("\n")[0].split())
        if isinstance(index, HotIndex) and isinstance(failure, psycopg.errors.QueryCanceled):
            current.postpone(index.name)
            days = POSTPONED_SECONDS / 86_400
            error = f"cancelled, or not built within {REBUILD_SECONDS} s; it is left for {days:g} days"
        current.failed = f"{index.name}: {error}"[:300]
        log.warn(
            "An index could not be rebuilt or dropped; it stays as it is.", index=index.name, error=error
        )


def _rebuild(connection: Connection, index: HotIndex, current: RebuildPass) -> None:
    """Rebuild ``index``, and record its sizes."""
    started_at = monotonic()
    connection.execute(sql.SQL("REINDEX INDEX CONCURRENTLY wakeboard.{}").format(sql.Identifier(index.name)))
    seconds = monotonic() - started_at
    row = connection.execute(SIZE, (f"wakeboard.{index.name}",)).fetchone()
    size, entries = row or (0, 0.0)
    if entries >= FEWEST_ENTRIES:
        current.entry_bytes[index.name] = size / entries
    before, after = megabytes(index.bytes), megabytes(size)
    log.note("Rebuilt an index.", index=index.name, before=before, after=after, seconds=round(seconds, 2))
    current.record_rebuild(f"{index.name}: {before}, now {after}, in {seconds:.1f} s")
