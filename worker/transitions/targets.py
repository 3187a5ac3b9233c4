"""What a caller enqueues through: a connection of SQLAlchemy's or psycopg's, whose transaction goes on."""

from __future__ import annotations

from typing import Any

from psycopg.rows import tuple_row

from worker.transitions.newrun import EnqueueError


def runner(target: Any) -> Any:
    """Return ``execute(sql, values) -> rows`` for whatever connection the caller holds.

    SQLAlchemy connections are used through ``exec_driver_sql`` so that they know a transaction has begun.
    """
    if hasattr(target, "exec_driver_sql") and not hasattr(target, "__aenter__"):
        return lambda statement, values: target.exec_driver_sql(statement, tuple(values)).fetchall()
    if (
        hasattr(target, "get_bind")
        and callable(getattr(target, "connection", None))
        and not hasattr(target, "__aenter__")
    ):
        return runner(target.connection())
    if is_psycopg(target):
        return lambda statement, values: (
            target.cursor(row_factory=tuple_row).execute(statement, values).fetchall()
        )
    raise _refused(target)


def _refused(target: Any) -> EnqueueError:
    return EnqueueError(
        f"Cannot enqueue through a {type(target).__name__}; hand over a SQLAlchemy connection or session, "
        "a psycopg connection (none of asyncio), or None."
    )


def is_psycopg(target: Any) -> bool:
    """Return whether it is a connection of psycopg's. Raises EnqueueError for one of asyncio."""
    if not (hasattr(target, "execute") and hasattr(target, "pgconn")):
        return False
    if hasattr(target, "__aenter__"):
        raise _refused(target)
    return True
