"""Reads that workers, command line and pages share: plain SQL with ``%(names)s``, rows of a type.

    blockers = read_all(connection, BLOCKERS, VacuumBlocker)

The connection is psycopg's in workers and on the command line, SQLAlchemy's in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg.rows import dict_row

if TYPE_CHECKING:
    import sqlalchemy

    Connection = psycopg.Connection | sqlalchemy.Connection

Row = TypeVar("Row")


def read_all(
    connection: Connection,
    statement: str,
    row: Callable[..., Row],
    values: Mapping[str, object] | None = None,
) -> list[Row]:
    """Return the rows of ``statement``, each made by ``row`` from its columns by name."""
    if isinstance(connection, psycopg.Connection):
        with connection.cursor(row_factory=dict_row) as cursor:
            return [row(**each) for each in cursor.execute(statement.encode(), values or {})]
    result = connection.exec_driver_sql(statement, dict(values or {}))
    return [row(**dict(each)) for each in result.mappings()]


def read_one(
    connection: Connection,
    statement: str,
    row: Callable[..., Row],
    values: Mapping[str, object] | None = None,
) -> Row | None:
    """Return the first row of ``statement`` as ``read_all`` does, None when there is none."""
    return next(iter(read_all(connection, statement, row, values)), None)


def read_flag(connection: Connection, statement: str) -> bool:
    """Return whether the one value that ``statement`` selects is true."""
    return any(read_all(connection, statement, lambda **columns: any(columns.values())))
