"""Short names of SQLAlchemy's types, and statements that are compiled once.

A fixed statement is text with all its values in it: PostgreSQL plans it once in a session, and SQLAlchemy
compiles it once, not at each request.
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
