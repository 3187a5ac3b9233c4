"""Rows that the database refuses: by a rule of its owner, or because it cannot keep their data.

The rules are CHECKs, triggers, foreign keys and indexes that somebody put on the tables. A statement for many
rows is refused as a whole for one of them. Its sender sends them again in halves (``Parts``) down to the row
that is refused alone: all others are written, and the database's sentence about that one is shown. A lost
connection, a lock or a statement that took too long and a conflict of two transactions say nothing of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

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
PASSED_BY_SECONDS = 60.0


def is_of_row(sqlstate: str) -> bool:
    """Return whether an error with this SQLSTATE speaks of a row that was to be written."""
    return sqlstate[:2] in _ROW_CLASSES or (len(sqlstate) == 5 and sqlstate[:2] not in _KNOWN_CLASSES)


def is_refusal(failure: Exception) -> bool:
    """Return whether ``failure`` speaks of a row, be it the server's or what the driver cannot send.

    The server's code is its ``sqlstate``, as psycopg's exceptions and those of the worker's channel have it.
    """
    return isinstance(failure, psycopg.DataError) or is_of_row(getattr(failure, "sqlstate", None) or "")


def reason(failure: Exception) -> str:
    """Return the database's own sentence in one line without a full stop, cut to MOST_LETTERS."""
    primary = failure.diag.message_primary if isinstance(failure, psycopg.Error) else None
    text = primary or str(failure) or "no reason was given"
    return " ".join(text.replace("\0", " ").split())[:MOST_LETTERS].rstrip(".")


class Parts(Generic[T]):
    """Rows to be written, in as few statements as the database accepts.

    Iterating takes one part after the other. The sender of a part that was refused calls ``halve``.
    """

    def __init__(self, rows: Sequence[T] = ()) -> None:
        self._parts: deque[Sequence[T]] = deque()
        self.put(rows)

    def __iter__(self) -> Iterator[Sequence[T]]:
        while self._parts:
            yield self._parts.popleft()

    @property
    def rows(self) -> list[T]:
        """All rows that are still to be sent."""
        return [row for part in self._parts for row in part]

    def put(self, part: Sequence[T]) -> None:
        """Send ``part`` next, as it is."""
        if part:
            self._parts.appendleft(part)

    def split(self, part: Sequence[T]) -> bool:
        """Send the two halves of ``part`` next; return False when it is a single row."""
        if len(part) < 2:
            return False
        middle = len(part) // 2
        self._parts.extendleft((part[middle:], part[:middle]))
        return True

    def halve(self, part: Sequence[T], failure: Exception) -> bool:
        """Send a refused ``part`` again in halves; return False when its single row is refused alone.

        Raises ``failure`` when that says nothing of a row. To be called where it is handled.
        """
        if not part or not is_refusal(failure):
            raise failure
        return self.split(part)

    def keep(self, is_kept: Callable[[T], bool]) -> None:
        """Drop the rows that are not to be sent any more."""
        parts = [[row for row in part if is_kept(row)] for part in self._parts]
        self._parts = deque(part for part in parts if part)


class PassedBy:
    """Refused rows that may not even say so: one process leaves each of them alone for a minute."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def add(self, row_id: int) -> None:
        """Leave a row alone from now on."""
        self._until[row_id] = monotonic() + PASSED_BY_SECONDS

    @property
    def ids(self) -> list[int]:
        """The rows whose minute is not over."""
        now = monotonic()
        self._until = {row_id: until for row_id, until in self._until.items() if until > now}
        return list(self._until)


def with_rules_at_once(connection: psycopg.Connection[Any], act: Callable[[], T]) -> T:
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
