"""Connections to PostgreSQL: the only place that knows how a session is set up.

psycopg connections serve the engine's moves; SQLAlchemy engines (imported only when asked for) serve pages
and handlers' transactions. Every session sets its own time zone, isolation and time limits, so a role's
or server's settings cannot change what our statements mean. Behind a pooler in transaction mode no session
is ours: there nothing is prepared, and nothing is set that the pooler would hand to the next who comes.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from wakeboard.database.timed_connection import TimedConnection, answer_timeout

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

# A dead peer is noticed within about 15 s; the kernel's own limit is a quarter of an hour.
TRANSPORT: dict[str, str | int] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
SESSION = {
    "client_encoding": "UTF8",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "idle_in_transaction_session_timeout": "30s",
    # A session waits for work, a migration holds its lock beside another session, a handler's transaction
    # takes as long as its timeout.
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "exit_on_error": "off",
    # The meaning of a NULL, a backslash and a comparison with NULL in a statement.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    "quote_all_identifiers": "off",
    "client_min_messages": "warning",
    # Our statements take milliseconds; the server estimates some as expensive enough to compile them first.
    "jit": "off",
}
# Settings that older servers do not know → the version that added them.
ADDED_IN = {"transaction_timeout": 170_000}
# Planner settings for the engine's statements. A plan is made once, perhaps on the empty table of a new
# installation, and kept until the table is analyzed: a finish planned then cost 750 µs a run at 25,000 rows,
# and 45 with these settings.
PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # On an analyzed table with few due runs a claim used the status index and a sort for each priority:
    # 94 ms instead of 13 with 30,000 dead rows under an old snapshot.
    "enable_sort": "off",
}
# Settings that a pooler tracks for each client and applies wherever its statements run.
TRACKED_BY_POOLERS = ("client_encoding", "timezone", "datestyle")
# A pooled connection that was used within this time is taken without a check, which costs a round trip.
CHECK_AFTER_SECONDS = 1.0
# How much longer than a statement may take the server has to report that it took too long.
ANSWER_SECONDS = 2.0
# How long the server may take to answer a check of a connection.
CHECK_SECONDS = 3.0
# How many statements of an engine stay prepared in a session. PostgreSQL keeps plans for most of them, made
# for the tables as they were then; they are discarded after PLAN_SECONDS.
MOST_PREPARED = 200
PLAN_SECONDS = 60.0
OLDEST_SERVER = 160_000

# Another transaction holds a row, or waits for one of ours.
LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
# The tables do not exist, or are older than this version.
MISSING_TABLE_ERRORS = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
)
MISSING_TABLE_STATES = frozenset(error.sqlstate for error in MISSING_TABLE_ERRORS)


class DatabaseError(Exception):
    """The database cannot be used; ``str()`` is a sentence that says why and what to do."""


class UnsupportedDatabaseError(DatabaseError):
    """The server is too old, or the database is in an encoding that lacks characters: no retry helps.

    ``str()`` names no host and no role: everybody may read it.
    """


class RefusedError(DatabaseError):
    """A server answered and refuses the connection, for a reason that somebody can remove.

    Such as a wrong password, a missing database, a standby. ``shown`` is the message without the names of
    hosts and roles, which belong in the log alone.
    """

    def __init__(self, reason: str, shown: str) -> None:
        super().__init__(f"{shown} The server said: {reason}")
        self.shown = shown


# Message of libpq or PostgreSQL → what it means and what to do, in words that everybody may read.
_REFUSALS = {
    r"password authentication failed|no password supplied|\w+ authentication failed": (
        "the user or the password is not right. Correct WAKEBOARD_DATABASE_URL, or the role's password."
    ),
    'database ".*" does not exist': (
        "there is no such database. Make it (createdb --encoding=UTF8 --template=template0 NAME), or correct "
        "its name in WAKEBOARD_DATABASE_URL."
    ),
    'role ".*" (does not exist|is not permitted to log in)': (
        "there is no such role that may log in. Make it (createuser NAME), or correct WAKEBOARD_DATABASE_URL."
    ),
    "permission denied for database": (
        "the role may not connect to this database. As its owner: GRANT CONNECT ON DATABASE … TO …"
    ),
    "no pg_hba.conf entry": (
        "its pg_hba.conf lets nobody in from here in this way. Add a line there, or correct sslmode=."
    ),
    "does not support SSL|certificate verify failed|root certificate|SSL error: certificate": (
        "the encryption is not agreed on. Correct sslmode= in WAKEBOARD_DATABASE_URL."
    ),
    "session is read-only|hot standby": (
        "it is a standby, or takes no writes from this role. Name the primary in WAKEBOARD_DATABASE_URL, or "
        "all hosts; where it is the role: ALTER ROLE … RESET default_transaction_read_only."
    ),
    "too many (clients|connections)|connection slots": (
        "all of its connections are in use. Raise its max_connections, or wait."
    ),
    "FATAL:": "the log of the dashboard and of the worker has its reason.",
}
# Messages of a server that starts or stops: it answers in a moment.
_TRANSIENT = "starting up|shutting down|in recovery mode|not yet accepting"


def explain_missing_tables(failure: Exception) -> str:
    """Return the sentence that says what a ``failure`` of MISSING_TABLE_ERRORS means, and what to do."""
    message = " ".join(str(failure).split("\n")[0].split()) or type(failure).__name__
    return f"The database lacks Wakeboard's tables or has older ones ({message}). Run: wakeboard db upgrade"


def connect(
    url: str,
    *,
    name: str,
    autocommit: bool = True,
    statement_timeout_seconds: float = 30,
    lock_timeout_seconds: float = 5,
    answer_seconds: float | None = None,
) -> TimedConnection:
    """Open a psycopg connection and set its session up.

    ``url`` is any libpq URL or key=value string (several hosts allowed: the writable one is chosen);
    ``name`` appears as application_name. A server that does not answer a statement for ``answer_seconds`` is
    given up (None: never), see ``database.timed_connection``.

    Raises UnsupportedDatabaseError when the server is too old or the database is not in UTF8, RefusedError
    when a server answers and refuses, and DatabaseError when nothing answers.
    """
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    defaults = TRANSPORT | {"target_session_attrs": "read-write", "application_name": name}
    added = {key: value for key, value in defaults.items() if key not in parameters}
    try:
        conninfo = psycopg.conninfo.make_conninfo(url, **added)
        connection = TimedConnection.connect(conninfo, autocommit=autocommit)
    except psycopg.OperationalError as failure:
        raise _connect_error(str(failure)) from failure
    connection.answer_seconds = answer_seconds
    if (reason := _unsupported(connection)) is not None:
        connection.close()
        raise UnsupportedDatabaseError(reason)
    limits = {
        "statement_timeout": f"{int(statement_timeout_seconds * 1000)}ms",
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}ms",
    }
    if _is_behind_pooler(connection):
        connection.prepare_threshold = None
        configure(connection, {key: SESSION[key] for key in TRACKED_BY_POOLERS})
    else:
        version = connection.info.server_version
        session = {key: value for key, value in SESSION.items() if version >= ADDED_IN.get(key, 0)}
        configure(connection, session | limits)
    return connection


def _connect_error(message: str) -> DatabaseError:
    """Return the error for the ``message`` of libpq, which has a line for each host of the address."""
    lines = [line.strip("- ") for line in message.strip().splitlines()]
    reasons = [line for line in lines if not line.startswith("multiple connection attempts")] or ["no reason"]
    for reason in reasons:
        if re.search(_TRANSIENT, reason):
            continue
        for pattern, meaning in _REFUSALS.items():
            if re.search(pattern, reason):
                return RefusedError(reason, f"The database answers and refuses the connection: {meaning}")
    return DatabaseError(
        f"The database does not answer: {reasons[0]}. Check WAKEBOARD_DATABASE_URL and that the server runs."
    )


def _unsupported(connection: psycopg.Connection) -> str | None:
    """Return why this database can never be used, None when it can."""
    version, encoding = connection.info.server_version, connection.info.parameter_status("server_encoding")
    if version < OLDEST_SERVER:
        return (
            f"The server is PostgreSQL {version // 10_000}; Wakeboard needs PostgreSQL "
            f"{OLDEST_SERVER // 10_000} or newer. Upgrade that server, or use another one."
        )
    if encoding not in (None, "UTF8"):
        return (
            f"The database is in the encoding {encoding}, which cannot hold every text. Make one in UTF8: "
            "createdb --encoding=UTF8 --locale=C.UTF-8 --template=template0 NAME"
        )
    return None


def configure(connection: psycopg.Connection, values: dict[str, str]) -> None:
    """Set session variables on ``connection`` in one round trip."""
    pairs = sql.SQL(", ").join(
        sql.SQL("set_config({}, {}, false)").format(sql.Literal(key), sql.Literal(value))
        for key, value in values.items()
    )
    autocommit = connection.autocommit
    connection.execute(sql.SQL("SELECT {}").format(pairs))
    if not autocommit:
        connection.commit()


def is_pooled(connection: psycopg.Connection) -> bool:
    """Return whether ``connect`` reached a pooler.

    The next statement may then run in another session, without what this one has prepared or set.
    """
    return connection.prepare_threshold is None


def _is_behind_pooler(connection: psycopg.Connection) -> bool:
    """Return whether statements run in another server process than the one named at the connect.

    A pooler invents that process id: no single server process belongs to it.
    """
    row = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid


def engine(
    url: str, *, name: str, statement_timeout_seconds: float = 5, pool_size: int = 5, read_only: bool = False
) -> Engine:
    """Return a SQLAlchemy engine over ``connect``; sessions made for a replica may be read-only.

    A server that is silent for ANSWER_SECONDS longer than a statement may take is given up.
    """
    from sqlalchemy import create_engine, event

    target = "any" if read_only else "read-write"
    if "target_session_attrs" not in psycopg.conninfo.conninfo_to_dict(url):
        url = psycopg.conninfo.make_conninfo(url, target_session_attrs=target)

    # A wait for a lock ends before its statement does, so it is told apart from a slow one. 0 is no limit.
    lock_seconds = min(5.0, 0.8 * statement_timeout_seconds or 5.0)
    answer_seconds = statement_timeout_seconds + ANSWER_SECONDS if statement_timeout_seconds else None

    def create() -> TimedConnection:
        return connect(
            url, name=name, autocommit=False, statement_timeout_seconds=statement_timeout_seconds,
            lock_timeout_seconds=lock_seconds, answer_seconds=answer_seconds,
        )  # fmt: skip

    # The connection used last is used next: it has most statements prepared, and the others may rest.
    pooled_engine = create_engine(
        "postgresql+psycopg://", creator=create, pool_size=pool_size, max_overflow=10, hide_parameters=True,
        pool_use_lifo=True,
    )  # fmt: skip

    def on_connect(connection: TimedConnection, entry: ConnectionPoolEntry) -> None:
        if not is_pooled(connection):
            connection.prepared_max, connection.prepare_threshold = MOST_PREPARED, 1
        entry.info["planned_at"] = monotonic()

    def on_checkin(_connection: TimedConnection | None, entry: ConnectionPoolEntry) -> None:
        entry.info["used_at"] = monotonic()

    def on_checkout(
        connection: TimedConnection, entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection
    ) -> None:
        now = monotonic()
        if now - entry.info["planned_at"] > PLAN_SECONDS:
            _check(connection, "DISCARD PLANS")
            entry.info["planned_at"] = now
        elif connection.closed or now - entry.info.get("used_at", now) > CHECK_AFTER_SECONDS:
            _check(connection, "SELECT")

    event.listen(pooled_engine, "connect", on_connect)
    event.listen(pooled_engine, "checkin", on_checkin)
    event.listen(pooled_engine, "checkout", on_checkout)
    return pooled_engine


def _check(connection: TimedConnection, statement: str) -> None:
    """Execute ``statement`` on a pooled connection, in no transaction; the pool replaces a dead one."""
    from sqlalchemy.exc import InvalidatePoolError

    try:
        with answer_timeout(connection, CHECK_SECONDS):
            connection.autocommit = True
            connection.execute(statement.encode(), prepare=False)
            connection.autocommit = False
    except psycopg.Error as failure:
        raise InvalidatePoolError(str(failure)) from failure
