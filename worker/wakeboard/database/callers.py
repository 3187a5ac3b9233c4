"""What a caller enqueues through: a connection of SQLAlchemy's or psycopg's, whose transaction goes on.

A statement here writes each value as ``%s::type``. psycopg takes it as it is. SQLAlchemy writes it in the way
of the connection's own driver, whichever that is, and every value travels as text: so no driver's own idea of
a type counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from psycopg.rows import tuple_row

from wakeboard.core.run_spec import EnqueueError

Execute = Callable[[str, Sequence[Any]], list[Any]]
ALLOWED = (
    "hand over a SQLAlchemy connection or session, a psycopg 3 connection, django.db.connection, or None for "
    "a connection of our own."
)


def unwrap(target: Any) -> Any:
    """Return the connection that statements go to: of psycopg's, of SQLAlchemy's, None for one of our own.

    A session gives its connection, and Django's wrapper the one it has or makes. Raises EnqueueError for
    everything else, before a statement is sent: the caller's transaction stays as it is.
    """
    if target is None or is_psycopg(target):
        return target
    if hasattr(target, "__aenter__"):
        raise EnqueueError(_of_asyncio(target))
    if hasattr(target, "exec_driver_sql"):
        return _on_postgresql(target, target.dialect.name)
    if hasattr(target, "get_bind") and callable(getattr(target, "connection", None)):
        return unwrap(target.connection())
    if hasattr(target, "ensure_connection") and hasattr(target, "vendor"):
        _on_postgresql(target, target.vendor)
        target.ensure_connection()
        return unwrap(target.connection)
    if type(target).__module__.partition(".")[0] in ("psycopg2", "psycopg2cffi"):
        raise EnqueueError(
            "Cannot enqueue through a connection of psycopg2: it must be one of psycopg 3 (import psycopg). "
            "Through SQLAlchemy every driver will do; or give None for a connection of our own."
        )
    raise EnqueueError(f"Cannot enqueue through a {type(target).__name__}; {ALLOWED}")


def is_psycopg(target: Any) -> bool:
    """Return whether it is a connection of psycopg 3, none of asyncio."""
    return hasattr(target, "execute") and hasattr(target, "pgconn") and not hasattr(target, "__aenter__")


def runner(target: Any) -> Execute:
    """Return ``execute(statement, values) -> rows`` for a connection that ``unwrap`` gave."""
    if is_psycopg(target):
        return lambda statement, values: (
            target.cursor(row_factory=tuple_row).execute(statement, values).fetchall()
        )
    return lambda statement, values: target.execute(_core(statement), _named(values)).fetchall()


def array(values: Iterable[str | None]) -> str:
    """Return an array of texts as PostgreSQL reads it: a third of what a driver takes to look at each."""
    return "{" + ",".join("NULL" if value is None else _quoted(value) for value in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _on_postgresql(target: Any, name: str) -> Any:
    if name != "postgresql":
        raise EnqueueError(f"Cannot enqueue through a connection to {name}: runs live in PostgreSQL.")
    return target


def _of_asyncio(target: Any) -> str:
    name = type(target).__name__
    if hasattr(target, "run_sync"):
        return (
            f"Cannot enqueue through a {name} itself, which is one of asyncio; write: "
            "await target.run_sync(lambda connection: enqueue(connection, …))"
        )
    return f"Cannot enqueue through a {name}, which is one of asyncio; {ALLOWED}"


@cache
def _core(statement: str) -> Any:
    """Return ``statement`` for SQLAlchemy, its values named v0, v1, … and of type text."""
    from sqlalchemy import Text, bindparam, text

    first, *others = statement.split("%s")
    named = first + "".join(f":v{place}{part}" for place, part in enumerate(others))
    values = [bindparam(f"v{place}", type_=Text()) for place in range(len(others))]
    return text(named.replace("::", r"\:\:")).bindparams(*values)


def _named(values: Sequence[Any]) -> dict[str, str | None]:
    return {f"v{place}": _text(value) for place, value in enumerate(values)}


def _text(value: Any) -> str | None:
    """Return a value as PostgreSQL reads it, of an enumeration too: by what it is, not by what it shows."""
    match value:
        case None:
            return None
        case str():
            return str.__str__(value)
        case int():
            return int.__repr__(value)
        case float():
            return float.__repr__(value)
        case datetime():
            return value.isoformat()
    return array(map(_text, value))
