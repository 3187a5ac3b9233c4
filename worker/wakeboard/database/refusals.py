"""What the database refuses of one row: a rule of its owner, or data that it cannot keep.

The rules are CHECKs, triggers, foreign keys and indexes that somebody put on the tables. A statement for many
rows is refused as a whole for one of them, so whoever sent it judges the rows in smaller parts, down to one
(``halves``): all others go through, and of the one that is refused alone is told why. A lost connection, a
lock or a statement that took too long and a conflict of two transactions say nothing about a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from wakeboard.database.audit import acting, told_at_the_end

# SQLSTATE classes that speak of what was written: cardinality, data, integrity, triggers and what they call
# (a CASE without a branch for a row and a function that returns nothing for it among them), views with a
# check, program limits, PL/pgSQL's RAISE.
_ROW_CLASSES = frozenset({"09", "20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0"})
# The classes that PostgreSQL knows: any other is of somebody's own RAISE … USING ERRCODE.
_KNOWN_CLASSES = frozenset(
    str(state)[:2] for known in vars(psycopg.errors).values() if (state := getattr(known, "sqlstate", None))
)
T = TypeVar("T")

MOST_LETTERS = 300


def is_of_row(sqlstate: str) -> bool:
    """Return whether an error with this SQLSTATE speaks of a row that was to be written."""
    return sqlstate[:2] in _ROW_CLASSES or (len(sqlstate) == 5 and sqlstate[:2] not in _KNOWN_CLASSES)


def is_refusal(failure: psycopg.Error) -> bool:
    """Return whether ``failure`` speaks of a row, be it the server's or what the driver cannot send."""
    return isinstance(failure, psycopg.DataError) or is_of_row(failure.sqlstate or "")


def said(failure: psycopg.Error) -> str:
    """Return the database's own sentence in one line, cut to MOST_LETTERS."""
    return one_line(failure.diag.message_primary or str(failure) or "no reason was given")


def one_line(text: str) -> str:
    """Return ``text`` in one line without a full stop at its end, cut to MOST_LETTERS."""
    return " ".join(text.replace("\0", " ").split())[:MOST_LETTERS].rstrip(".")


def halves(some: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the two halves of two or more."""
    middle = len(some) // 2
    return some[:middle], some[middle:]


def judged_in_time(connection: psycopg.Connection[Any], act: Callable[[], T]) -> T:
    """Return what ``act`` returns, whose transaction some deferred rule may refuse when it is committed.

    Then it is done once more with all rules judged at each statement, so that ``act`` itself meets the
    refusal and can answer it. Inside of an open transaction that is the business of whoever opened it. What
    was rolled back is in no log.
    """
    is_outermost = connection.info.transaction_status == TransactionStatus.IDLE
    try:
        with told_at_the_end():
            return act()
    except psycopg.Error as refused:
        if not (is_outermost and is_refusal(refused)):
            raise
    with acting(connection):
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return act()
