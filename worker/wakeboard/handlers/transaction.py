"""``transaction()``: the handler's own writes and the end of its run in one commit.

SQLAlchemy is imported here, so only a handler with a transaction pays for it. The run's row is locked just
before the commit and not earlier; nothing here retries.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine, event
from sqlalchemy.pool import StaticPool

from wakeboard.core.process.exits import is_success
from wakeboard.handlers.captured_output import captured_output
from wakeboard.handlers.effects import LeaseLost
from wakeboard.queue.engine.endings import MARK, SUCCEED_ALONE
from wakeboard.queue.handler_connection import (
    ThreadConnection,
    close_thread_connection,
    current_transaction,
    join_transaction,
    thread_connection,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection as SqlConnection

    from wakeboard.handlers.context import Context

_OUTPUT_BYTES = 8_192
# The longest limit of a statement that PostgreSQL knows; a run may take longer.
MOST_MS = 2**31 - 1
_ENDS_TRANSACTION = re.compile(
    r"\s*(?:commit|end|abort|rollback(?!\s+(?:work\s+|transaction\s+)?to\b)|prepare\s+transaction)\b", re.I
)
_REFUSED = (
    "transaction() commits by itself when its block ends, together with the run's finish, so nothing else "
    "may commit or roll back its connection. Leave the block to commit, raise to roll back, or "
    "use a savepoint: "
    "connection.begin_nested()."
)

# The block may run and wait for locks as long as the run itself may.
_BEGIN = f"""
SELECT set_config('{MARK}', %s, true), set_config('lock_timeout', '0', true),
    set_config('statement_timeout', %s, true)
"""
_IS_SAME = f"SELECT coalesce(current_setting('{MARK}', true) = %s, false)"


class TransactionEnded(Exception):
    """The block's transaction was committed or rolled back before its end."""

    error_code = "transaction_ended"


class FencedEngine:
    """A SQLAlchemy engine for one psycopg connection; its transactions end only while ``may_end`` is set."""

    def __init__(self, driver: psycopg.Connection) -> None:
        self.may_end, self.is_refused = True, False
        self.engine = create_engine(
            "postgresql+psycopg://", creator=lambda: driver, poolclass=StaticPool, use_native_hstore=False
        )
        event.listen(self.engine, "commit", self._refuse)
        event.listen(self.engine, "rollback", self._refuse)
        event.listen(self.engine, "before_cursor_execute", self._refuse_text)

    def _refuse(self, _connection: SqlConnection) -> None:
        if not self.may_end:
            self.is_refused = True
            raise TransactionEnded(_REFUSED)

    def _refuse_text(
        self, connection: SqlConnection, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if _ENDS_TRANSACTION.match(statement):
            self._refuse(connection)


@contextlib.contextmanager
def finishing_transaction(context: Context) -> Iterator[SqlConnection]:
    """Yield a SQLAlchemy connection; at the block's end finish the run and commit, both or neither.

    An exception rolls back and goes on; ``sys.exit(0)`` commits and goes on, as a ``return`` does. Raises
    LeaseLost (and rolls back) when the run is not this attempt's any more, TransactionEnded when the block
    ended its transaction itself, RuntimeError inside another ``transaction()``. Outside of the database
    worker it is an ordinary transaction.
    """
    if current_transaction() is not None or thread_connection().in_transaction:
        raise RuntimeError("transaction() is open already; use the connection of the outer block.")
    if context.committed:
        raise RuntimeError(
            "transaction() has finished this run already; put all of its writes into one block."
        )
    own = thread_connection()
    fenced: FencedEngine = own.fenced or FencedEngine(own.connection)
    own.fenced = fenced
    with _drop_if_interrupted(own), join_transaction(own), fenced.engine.connect() as connection:
        fenced.may_end = fenced.is_refused = False
        root, mark = connection.begin(), uuid4().hex
        success: BaseException | None = None
        try:
            most_ms = min(MOST_MS, max(1, int(context.seconds_left * 1000)))
            own.connection.execute(_BEGIN, (mark, f"{most_ms}ms"))
            try:
                yield connection
            except BaseException as error:
                if not is_success(error):
                    raise
                success = error
            _check_transaction(own.connection, root.is_active and not fenced.is_refused)
            if context.worker_id:
                _finish_run(context, own.connection, mark)
            else:
                row = own.connection.execute(_IS_SAME, (mark,)).fetchone()
                _check_transaction(own.connection, row == (True,))
            own.connection.commit()
            context.committed = bool(context.worker_id)
        finally:
            fenced.may_end = True
            _end(connection, own.connection)
        if success is not None:
            raise success


@contextlib.contextmanager
def _drop_if_interrupted(own: ThreadConnection) -> Iterator[None]:
    """Drop the connection at the end when an interruption left it in the middle of a statement."""
    try:
        yield
    finally:
        if own.connection.closed or own.connection.info.transaction_status != TransactionStatus.IDLE:
            close_thread_connection()


def _end(connection: SqlConnection, driver: psycopg.Connection) -> None:
    """Roll back what is still open, or close the connection when that fails."""
    if driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with contextlib.suppress(psycopg.Error):
            driver.rollback()
    if driver.closed or driver.info.transaction_status != TransactionStatus.IDLE:
        connection.invalidate()


def _check_transaction(driver: psycopg.Connection, is_same: bool) -> None:
    """Raise TransactionEnded unless the block ends in the transaction in which it began."""
    if driver.info.transaction_status == TransactionStatus.INERROR:
        raise TransactionEnded(
            "A statement in transaction() failed and its error was swallowed: PostgreSQL has given the whole "
            "block up. Let the error out, or wrap what may fail in connection.begin_nested()."
        )
    if not is_same:
        raise TransactionEnded(_REFUSED)


def _finish_run(context: Context, driver: psycopg.Connection, mark: str) -> None:
    """Finish the run inside the open transaction.

    Raises LeaseLost when it is not this attempt's any more, TransactionEnded in a transaction that does not
    have the block's mark.
    """
    seconds = max(0.0, context.timeout_seconds - context.seconds_left)
    values = (
        context.worker_id, context.run_id, context.lease_epoch, seconds,
        captured_output(_OUTPUT_BYTES) or None, context.timeout_seconds, mark,
    )  # fmt: skip
    row = psycopg.RawCursor(driver).execute(SUCCEED_ALONE.encode(), values, prepare=True).fetchone()
    has_ended, is_same = row or (False, False)
    _check_transaction(driver, is_same)
    if not has_ended:
        raise LeaseLost(
            f"Run {context.run_id} belongs to a later attempt or was ended by somebody; what this block "
            "wrote is rolled back."
        )
