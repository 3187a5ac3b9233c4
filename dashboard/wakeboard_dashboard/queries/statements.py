"""What pages make their statements of: short names for SQLAlchemy's types, and statements without values.

A fixed statement is text with all its values in it. Nothing is left for which PostgreSQL would plan it anew,
so it plans it once in a session; and nobody looks through it at each request for values and for what it
compiles to.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select
from sqlalchemy.dialects import postgresql

Statement = Select[Any]
Column = ColumnElement[Any]


def fixed(statement: Statement) -> str:
    """Return ``statement``, of constants alone, as ``exec_driver_sql`` takes it."""
    compiled = statement.compile(
        dialect=postgresql.psycopg.dialect(),  # type: ignore[no-untyped-call]
        compile_kwargs={"literal_binds": True},
    )
    return str(compiled)
