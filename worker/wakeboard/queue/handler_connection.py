"""The one database connection of a process that runs handlers: opened at first use, after any fork, one per
thread. ``once``, ``transaction`` and ``enqueue(None, …)`` share it; the supervisor never comes here.
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

# A server restarted since then would cost the next run an attempt, so an older connection is tried first.
_TRUSTED_SECONDS = 1.0


class ThreadConnection:
    """A connection and the process that opened it. `fenced` belongs to `transaction()`: its engine."""

    def __init__(self) -> None:
        self.connection = open_connection()
        self.process_id = os.getpid()
        self.used_at = time.monotonic()
        self.in_transaction = False
        self.fenced: Any = None

    def usable(self) -> bool:
        """Whether it is this process's, open, idle, and the server still answers."""
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
        """Close it, unless a parent process opened it: its socket is still in use over there."""
        if self.process_id == os.getpid():
            with contextlib.suppress(psycopg.Error):
                self.connection.close()


class JoinedTransaction:
    """An open ``transaction()``: whoever asks for a connection inside of it gets this one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_open = True


_mine = threading.local()
_joined: ContextVar[JoinedTransaction | None] = ContextVar("wakeboard_transaction", default=None)


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
    # Imported when it is wanted: whoever has a URL needs nothing of it, and Windows cannot.
    try:
        from wakeboard.database import embedded
    except ImportError as refused:
        raise DatabaseError(str(refused)) from refused
    folder = Path(os.environ.get("WAKEBOARD_DATA_DIR") or default_data_dir())
    why = f"no embedded database runs in {folder}"
    try:
        if embedded.is_running(folder):
            return embedded.url(folder)
    except embedded.EmbeddedError as refused:
        why = str(refused).rstrip(".")
    raise DatabaseError(
        f"WAKEBOARD_DATABASE_URL is not set, so there is no database to write to: {why}. Start it with "
        "'wakeboard up', name its folder in WAKEBOARD_DATA_DIR, or export "
        'WAKEBOARD_DATABASE_URL="$(wakeboard db url)".'
    )


def joined() -> JoinedTransaction | None:
    """Return the ``transaction()`` that the caller is inside of, None outside."""
    current = _joined.get()
    return current if current is not None and current.is_open else None


def held() -> ThreadConnection:
    """Return this thread's connection, opened or replaced when there is no usable one."""
    own: ThreadConnection | None = getattr(_mine, "own", None)
    if own is not None and (own.in_transaction or own.usable()):
        return own
    if own is not None:
        own.close()
    _mine.own = None
    _mine.own = own = ThreadConnection()
    return own


def drop() -> None:
    """Close this thread's connection; the next use opens another."""
    own: ThreadConnection | None = getattr(_mine, "own", None)
    _mine.own = None
    if own is not None:
        own.close()


@contextlib.contextmanager
def own_connection() -> Iterator[Connection]:
    """Lend this thread's psycopg connection: autocommit, or the open ``transaction()``'s inside of one.

    Raises DatabaseError when there is no database or nothing answers.
    """
    if (current := joined()) is not None:
        yield current.connection
    elif (own := held()).in_transaction:
        # Another task of this thread holds a transaction that is none of the caller's.
        with contextlib.closing(open_connection()) as apart:
            yield apart
    else:
        yield own.connection


@contextlib.contextmanager
def joining(own: ThreadConnection) -> Iterator[None]:
    """Make ``own`` a transaction's connection: not autocommit, and what ``own_connection`` lends inside."""
    current = JoinedTransaction(own.connection)
    token = _joined.set(current)
    own.in_transaction = True
    try:
        own.connection.autocommit = False
        yield
    finally:
        current.is_open = own.in_transaction = False
        _joined.reset(token)
        _leave(own)


def _leave(own: ThreadConnection) -> None:
    """Return to autocommit, or drop a connection that was left in the middle of something."""
    try:
        own.connection.autocommit = True
    except psycopg.Error:
        drop()
