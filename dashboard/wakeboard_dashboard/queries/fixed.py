"""Statements that are always the same, as text with all their values in it.

Nothing is left for which PostgreSQL would plan one anew, so it plans it once in a session; and nobody looks
through it at each request for values and for what it compiles to.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects import postgresql


def fixed(statement: Select[Any]) -> str:
    """Return ``statement``, of constants alone, as ``exec_driver_sql`` takes it."""
    compiled = statement.compile(
        dialect=postgresql.psycopg.dialect(),  # type: ignore[no-untyped-call]
        compile_kwargs={"literal_binds": True},
    )
    return str(compiled)
