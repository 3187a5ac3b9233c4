"""The database of a request: one read-only transaction for a page, a short connection for a verb.

Pages call ``reading()`` and ``as_of()``. Verbs call ``writing()`` and pass the connection to functions of
``wakeboard``, which alone write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import psycopg
from flask import Flask, current_app, g, request
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import Pool

from wakeboard.core.text.tolerant_types import make_readable
from wakeboard.database import db
from wakeboard_dashboard.web import replica

CONNECT_SECONDS = 3
STATEMENT_SECONDS = 5
# After a verb a session reads the primary for so long, so that it sees what it did.
FRESH_SECONDS = 10
FRESH_COOKIE = "wakeboard_fresh"
_NOW = select(func.now())
# Blueprints that always read the primary: a replica has neither its sessions nor its dead rows, and a late
# replica would show loops as late.
ON_PRIMARY = frozenset({"system", "health"})


@dataclass(frozen=True, slots=True)
class Database:
    """The engines of one dashboard process; equal when no replica is configured."""

    primary: Engine
    pages: Engine
    follower: replica.ReplicationLag = field(default_factory=replica.ReplicationLag)

    @classmethod
    def of(cls, url: str, read_url: str | None, pool_size: int) -> Database:
        """Return the engines for libpq URLs ``url`` and ``read_url``; nothing is connected yet."""
        primary = db.engine(
            _bounded(url),
            name="wakeboard web",
            statement_timeout_seconds=STATEMENT_SECONDS,
            pool_size=pool_size,
        )
        if read_url is None:
            return cls(primary, primary)
        pages = db.engine(
            _bounded(read_url),
            name="wakeboard web",
            statement_timeout_seconds=STATEMENT_SECONDS,
            pool_size=pool_size,
            read_only=True,
        )
        return cls(primary, pages)

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.primary.dispose()
        self.pages.dispose()


def _bounded(url: str) -> str:
    """Return ``url`` with a connect timeout, unless it has one: a page must answer 503 in time."""
    if "connect_timeout" in conninfo_to_dict(url):
        return url
    return make_conninfo(url, connect_timeout=CONNECT_SECONDS)


def database() -> Database:
    """Return the engines of the running app."""
    engines = current_app.extensions["wakeboard_database"]
    assert isinstance(engines, Database)
    return engines


def reading() -> Connection:
    """Return this request's one REPEATABLE READ, READ ONLY transaction, opened at first use.

    Raises DatabaseError or SQLAlchemy's OperationalError when the database does not answer.
    """
    if "reading" not in g:
        on_primary = FRESH_COOKIE in request.cookies or request.blueprint in ON_PRIMARY
        engine = database().primary if on_primary else database().pages
        g.reading = open_snapshot(engine)
        try:
            g.as_of = g.reading.execute(_NOW).scalar_one()
            if engine is not database().primary:
                g.behind_seconds = database().follower.look(g.reading, database().primary)
        except BaseException:
            # A session that was cut has no ``as_of``. A further read, as of an error page, opens another.
            close_reading()
            raise
    connection = g.reading
    assert isinstance(connection, Connection)
    return connection


def open_snapshot(engine: Engine) -> Connection:
    """Return a connection of ``engine`` whose transaction reads one snapshot; a replica takes no other."""
    return engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def as_of() -> datetime:
    """Return the database's clock at the start of this request's transaction (aware, UTC)."""
    reading()
    moment = g.as_of
    assert isinstance(moment, datetime)
    return moment


def may_query_for_frame() -> bool:
    """Return whether the frame of a page may query: the page has read, and it is no error page."""
    return "reading" in g and "is_error" not in g and _is_whole(g.reading)


@contextmanager
def writing(pool: Pool | None = None) -> Iterator[psycopg.Connection]:
    """Yield an autocommit psycopg connection to the primary, for ``wakeboard``'s functions.

    It goes back to its pool afterwards, rolled back if its transaction was left open. ``pool`` is another one
    than that of the pages. From here on a verb of this request may have reached the database: ``may_be_done``
    says so.
    """
    borrowed = (pool or database().primary.pool).connect()
    connection = borrowed.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.autocommit = True
    if "may_be_done" in g:
        g.may_be_done = True
    try:
        yield connection
    finally:
        if connection.closed:
            borrowed.invalidate()
        else:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
            connection.autocommit = False
        borrowed.close()


def close_reading(_error: BaseException | None = None) -> None:
    """End the request's transaction; registered as the app's teardown.

    By a COMMIT: after a ROLLBACK psycopg forgets what it has prepared. If it fails, nothing is lost.
    """
    connection = g.pop("reading", None)
    if connection is not None:
        if _is_whole(connection):
            with suppress(SQLAlchemyError):
                connection.commit()
        connection.close()


def _is_whole(connection: Connection) -> bool:
    """Whether no statement of the transaction failed, also not while it was prepared."""
    if connection.invalidated:
        return False
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver.info.transaction_status == TransactionStatus.INTRANS


def engines_of(app: Flask, url: str, read_url: str | None, threads: int) -> set[Engine]:
    """Make the engines of ``app``, for so many ``threads`` of a process, and return them."""
    # A request may need a second connection, to write.
    engines = app.extensions["wakeboard_database"] = Database.of(url, read_url, pool_size=threads + 2)
    return {engines.primary, engines.pages}


def install(app: Flask, engines: set[Engine]) -> None:
    """End each request's transaction, and let pages of a late replica say so."""
    for engine in engines:
        event.listen(engine, "connect", make_readable)
    app.teardown_appcontext(close_reading)
    replica.install(app)
