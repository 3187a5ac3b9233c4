"""Rows that the database refuses: by a rule of its owner, or because it cannot keep their data.

The rules are CHECKs, triggers, foreign keys and indexes that somebody put on the tables. A statement for many
rows is refused as a whole for one of them. Its sender sends them again in halves (``RowBatches``) down to
the row that is refused alone: all others are written, and the database's sentence about that one is shown. A
lost connection, a lock, a timeout and a conflict of two transactions are no refusal of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from wakeboard.database.audit import audited_transaction, log_at_end

# SQLSTATE classes about the data that was written: cardinality, data, integrity, triggers and what they call
# (such as a CASE without a branch for a row), views with a check, program limits, PL/pgSQL's RAISE.
_ROW_CLASSES = frozenset({"09", "20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0"})
# The classes of PostgreSQL itself: any other comes from a RAISE … USING ERRCODE of the owner.
_POSTGRESQL_CLASSES = frozenset(
    str(state)[:2] for error in vars(psycopg.errors).values() if (state := getattr(error, "sqlstate", None))
)
T = TypeVar("T")

MAX_REASON_LENGTH = 300
SKIP_SECONDS = 60.0


def is_row_error(sqlstate: str) -> bool:
    """Return whether an error with this SQLSTATE is about a row that was to be written."""
    return sqlstate[:2] in _ROW_CLASSES or (len(sqlstate) == 5 and sqlstate[:2] not in _POSTGRESQL_CLASSES)


def is_refusal(failure: Exception) -> bool:
    """Return whether ``failure`` is about a row: refused by the server, or not sendable by the driver.

    Its code is ``sqlstate``, an attribute of psycopg's exceptions and of the worker's channel.
    """
    return isinstance(failure, psycopg.DataError) or is_row_error(getattr(failure, "sqlstate", None) or "")


def refusal_reason(failure: Exception) -> str:
    """Return the database's own sentence in one line without a full stop, cut to MAX_REASON_LENGTH."""
    primary = failure.diag.message_primary if isinstance(failure, psycopg.Error) else None
    text = primary or str(failure) or "no reason was given"
    return " ".join(text.replace("\0", " ").split())[:MAX_REASON_LENGTH].rstrip(".")


class RowBatches(Generic[T]):
    """Rows to be written in as few statements as the database accepts.

    Iterating takes one batch after the other. The sender of a batch that was refused calls ``halve``.
    """

    def __init__(self, rows: Sequence[T] = ()) -> None:
        self._batches: deque[Sequence[T]] = deque()
        self.put(rows)

    def __iter__(self) -> Iterator[Sequence[T]]:
        while self._batches:
            yield self._batches.popleft()

    @property
    def rows(self) -> list[T]:
        """All rows that are still to be sent."""
        return [row for batch in self._batches for row in batch]

    def put(self, batch: Sequence[T]) -> None:
        """Send ``batch`` next, as it is."""
        if batch:
            self._batches.appendleft(batch)

    def split(self, batch: Sequence[T]) -> bool:
        """Send the two halves of ``batch`` next; return False when it is a single row."""
        if len(batch) < 2:
            return False
        middle = len(batch) // 2
        self._batches.extendleft((batch[middle:], batch[:middle]))
        return True

    def halve(self, batch: Sequence[T], failure: Exception) -> bool:
        """Send a refused ``batch`` again in halves; return False when its single row is refused alone.

        Raises ``failure`` when it is no refusal of a row: to be called from the ``except`` block.
        """
        if not batch or not is_refusal(failure):
            raise failure
        return self.split(batch)

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Drop the rows that are not to be sent any more."""
        batches = [[row for row in batch if is_wanted(row)] for batch in self._batches]
        self._batches = deque(batch for batch in batches if batch)


class SkippedRows:
    """Refused rows whose refusal cannot be written either: a process skips each of them for a minute."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def add(self, row_id: int) -> None:
        """Skip a row for SKIP_SECONDS."""
        self._until[row_id] = monotonic() + SKIP_SECONDS

    @property
    def ids(self) -> list[int]:
        """The rows to skip now."""
        now = monotonic()
        self._until = {row_id: until for row_id, until in self._until.items() if until > now}
        return list(self._until)


def retry_with_immediate_constraints(connection: psycopg.Connection, act: Callable[[], T]) -> T:
    """Return what ``act`` returns; call it once more when a deferred constraint refuses its commit.

    The second call has all constraints checked at each statement, so that ``act`` itself meets the refusal
    and can answer it. Inside an open transaction nothing is retried: the commit is the opener's. What was
    rolled back is not logged.
    """
    is_outermost = connection.info.transaction_status == TransactionStatus.IDLE
    try:
        with log_at_end():
            return act()
    except psycopg.Error as refused:
        if not (is_outermost and is_refusal(refused)):
            raise
    with audited_transaction(connection):
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return act()
