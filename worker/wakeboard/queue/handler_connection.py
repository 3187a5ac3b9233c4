"""The database connection of a thread that runs handlers, opened at first use and after a fork.

``once``, ``transaction`` and ``enqueue(None, …)`` share it. The supervisor uses none of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from wakeboard.config.settings import default_data_dir
from wakeboard.database.db import CHECK_SECONDS, DatabaseError, connect
from wakeboard.database.timed_connection import TimedConnection, answer_timeout

Connection = TimedConnection

# A connection that was used longer ago is tested first: a server that has restarted meanwhile would cost the
# next run an attempt.
_TRUSTED_SECONDS = 1.0


class ThreadConnection:
    """A connection and the process that opened it. `fenced` is the engine of `transaction()`."""

    def __init__(self) -> None:
        self.connection = open_connection()
        self.process_id = os.getpid()
        self.used_at = time.monotonic()
        self.in_transaction = False
        self.fenced: Any = None

    def is_usable(self) -> bool:
        """Return whether this process opened it, and it is open and idle, and the server still answers."""
        if self.process_id != os.getpid() or self.connection.closed:
            return False
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        if time.monotonic() - self.used_at > _TRUSTED_SECONDS:
            try:
                with answer_timeout(self.connection, CHECK_SECONDS):
                    self.connection.execute("")
            except psycopg.Error:
                return False
        self.used_at = time.monotonic()
        return True

    def close(self) -> None:
        """Close it, unless a parent process opened it, which still uses its socket."""
        if self.process_id == os.getpid():
            with contextlib.suppress(psycopg.Error):
                self.connection.close()


class JoinedTransaction:
    """An open ``transaction()``: its connection is the one of the code inside."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = True


_local = threading.local()
_transaction: ContextVar[JoinedTransaction | None] = ContextVar("wakeboard_transaction", default=None)


def open_connection() -> Connection:
    """Open a connection to WAKEBOARD_DATABASE_URL, or to the embedded database where that is not set, with
    the search_path of its role, as handlers expect.

    Raises DatabaseError when there is none or nothing answers.
    """
    url = os.environ.get("WAKEBOARD_DATABASE_URL") or _embedded_url()
    connection = connect(url, name=f"wakeboard handler {os.getpid()}")
    connection.execute("RESET search_path")
    return connection


def _embedded_url() -> str:
    """Return the URL of the embedded server that runs in WAKEBOARD_DATA_DIR. Raises DatabaseError.

    None is started: it would outlive a program that only hands work over.
    """
    # Imported here: a process with a URL does not need it, and it does not exist for Windows.
    try:
        from wakeboard.database import embedded
    except ImportError as refused:
        raise DatabaseError(str(refused)) from refused
    folder = Path(os.environ.get("WAKEBOARD_DATA_DIR") or default_data_dir())
    reason = f"no embedded database runs in {folder}"
    try:
        if embedded.is_running(folder):
            return embedded.url(folder)
    except embedded.EmbeddedError as refused:
        reason = str(refused).rstrip(".")
    raise DatabaseError(
        f"WAKEBOARD_DATABASE_URL is not set, so there is no database to write to: {reason}. Start it with "
        "'wakeboard up', name its folder in WAKEBOARD_DATA_DIR, or export "
        'WAKEBOARD_DATABASE_URL="$(wakeboard db url)".'
    )


def current_transaction() -> JoinedTransaction | None:
    """Return the ``transaction()`` that the caller is inside of, None outside."""
    current = _transaction.get()
    return current if current is not None and current.is_open else None


def thread_connection() -> ThreadConnection:
    """Return this thread's connection, opened or replaced when there is no usable one."""
    own: ThreadConnection | None = getattr(_local, "own", None)
    if own is not None and (own.in_transaction or own.is_usable()):
        return own
    if own is not None:
        own.close()
    _local.own = None
    _local.own = own = ThreadConnection()
    return own


def close_thread_connection() -> None:
    """Close this thread's connection; the next use opens another."""
    own: ThreadConnection | None = getattr(_local, "own", None)
    _local.own = None
    if own is not None:
        own.close()


@contextlib.contextmanager
def own_connection() -> Iterator[Connection]:
    """Yield this thread's psycopg connection: in autocommit, or that of the open ``transaction()``.

    Raises DatabaseError when there is no database or nothing answers.
    """
    if (current := current_transaction()) is not None:
        yield current.connection
    elif (own := thread_connection()).in_transaction:
        # Another task of this thread has opened that transaction.
        with contextlib.closing(open_connection()) as separate:
            yield separate
    else:
        yield own.connection


@contextlib.contextmanager
def join_transaction(own: ThreadConnection) -> Iterator[None]:
    """Make ``own`` the connection of a transaction, without autocommit; ``own_connection`` yields it."""
    current = JoinedTransaction(own.connection)
    token = _transaction.set(current)
    own.in_transaction = True
    try:
        own.connection.autocommit = False
        yield
    finally:
        current.is_open = own.in_transaction = False
        _transaction.reset(token)
        try:
            own.connection.autocommit = True
        except psycopg.Error:
            # It was left in the middle of something.
            close_thread_connection()
