"""The connection that a caller enqueues through: SQLAlchemy's or psycopg's, in the caller's transaction.

A statement writes each value as ``%s::type``. psycopg takes it as it is. SQLAlchemy writes it in the style of
the connection's own driver, and every value travels as text: the driver's own types do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from psycopg.rows import tuple_row

from wakeboard.core.run_spec import EnqueueError

if TYPE_CHECKING:
    from sqlalchemy import TextClause

Execute = Callable[[str, Sequence[object]], list[Any]]
ALLOWED = (
    "hand over a SQLAlchemy connection or session, a psycopg 3 connection, django.db.connection, or None for "
    "a connection of our own."
)


def unwrap(target: Any) -> Any:
    """Return the connection that statements go to: psycopg's, SQLAlchemy's, or None for one of our own.

    A session gives its connection, Django's wrapper the one that it has or makes. Raises EnqueueError for
    everything else before a statement is sent: the caller's transaction stays as it is.
    """
    if target is None or is_psycopg(target):
        return target
    if hasattr(target, "__aenter__"):
        raise EnqueueError(_explain_asyncio(target))
    if hasattr(target, "exec_driver_sql"):
        _require_postgresql(target.dialect.name)
        return target
    if hasattr(target, "get_bind") and callable(getattr(target, "connection", None)):
        return unwrap(target.connection())
    if hasattr(target, "ensure_connection") and hasattr(target, "vendor"):
        _require_postgresql(target.vendor)
        target.ensure_connection()
        return unwrap(target.connection)
    if type(target).__module__.partition(".")[0] in ("psycopg2", "psycopg2cffi"):
        raise EnqueueError(
            "Cannot enqueue through a connection of psycopg2: it must be one of psycopg 3 (import psycopg). "
            "Through SQLAlchemy every driver will do; or give None for a connection of our own."
        )
    raise EnqueueError(f"Cannot enqueue through a {type(target).__name__}; {ALLOWED}")


def is_psycopg(target: Any) -> bool:
    """Return whether ``target`` is a connection of psycopg 3, and not of asyncio."""
    return hasattr(target, "execute") and hasattr(target, "pgconn") and not hasattr(target, "__aenter__")


def executor(target: Any) -> Execute:
    """Return ``execute(statement, values) -> rows`` for a connection that ``unwrap`` returned."""
    if is_psycopg(target):
        return lambda statement, values: (
            target.cursor(row_factory=tuple_row).execute(statement, values).fetchall()
        )
    return lambda statement, values: target.execute(
        _text_clause(statement), {f"v{place}": _as_text(value) for place, value in enumerate(values)}
    ).fetchall()


def array(values: Iterable[str | None]) -> str:
    """Return an array of texts as PostgreSQL reads it, in a third of the time that a driver takes."""
    return "{" + ",".join("NULL" if value is None else _quoted(value) for value in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _require_postgresql(name: str) -> None:
    if name != "postgresql":
        raise EnqueueError(f"Cannot enqueue through a connection to {name}: runs live in PostgreSQL.")


def _explain_asyncio(target: object) -> str:
    name = type(target).__name__
    if hasattr(target, "run_sync"):
        return (
            f"Cannot enqueue through a {name} itself, which is one of asyncio; write: "
            "await target.run_sync(lambda connection: enqueue(connection, …))"
        )
    return f"Cannot enqueue through a {name}, which is one of asyncio; {ALLOWED}"


@cache
def _text_clause(statement: str) -> TextClause:
    """Return ``statement`` for SQLAlchemy, its values named v0, v1, … and of type text."""
    from sqlalchemy import Text, bindparam, text

    first, *others = statement.split("%s")
    named = first + "".join(f":v{place}{part}" for place, part in enumerate(others))
    values = [bindparam(f"v{place}", type_=Text()) for place in range(len(others))]
    return text(named.replace("::", r"\:\:")).bindparams(*values)


def _as_text(value: Any) -> str | None:
    """Return a value as PostgreSQL reads it; one of an enumeration by its value, not by its ``str``."""
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
    return array(map(_as_text, value))
