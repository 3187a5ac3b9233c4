"""Connections to PostgreSQL, and the migrations: the only place that knows how a session is set up.

psycopg connections serve the engine's moves; SQLAlchemy engines (imported only when asked for) serve pages
and handlers' transactions. Every session sets its own time zone, isolation and time limits, so a role's
or server's settings cannot change what our statements mean. Behind a pooler in transaction mode no session
is ours: there nothing is prepared, and nothing is set that the pooler would hand to the next who comes.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib import resources
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from wakeboard.database.answer_timeout import TimedConnection, answering_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config
    from sqlalchemy import Engine

# A dead peer is noticed within about 15 s instead of the kernel's quarter of an hour.
TRANSPORT: dict[str, Any] = {
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
    # What a NULL, a backslash or a comparison with NULL means in a statement.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    "quote_all_identifiers": "off",
    "client_min_messages": "warning",
    # Our statements end after milliseconds; some are reckoned dear enough for a server to compile them first.
    "jit": "off",
}
# Settings that older servers do not know, with the version that brought them.
SINCE = {"transaction_timeout": 170_000}
# What a session needs for the engine's statements. Plans are made once, perhaps on the empty table of a new
# installation, and kept until the table is analyzed: a finish planned then cost 750 µs a run when 25,000 rows
# had come, 45 with these.
PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # On an analyzed table with little to do a claim took the status index and a sort, per priority: 94 ms
    # instead of 13 with 30,000 dead rows under an old snapshot.
    "enable_sort": "off",
}
# What a pooler remembers of each client and sets wherever its statements run.
FOLLOWED_BY_POOLERS = ("client_encoding", "timezone", "datestyle")
MIGRATION_LOCK = 7_229_190_501
# A connection that was used a moment ago is taken without asking whether it lives: that costs a round trip,
# and on a busy machine each waits for its turn.
UNPROVEN_SECONDS = 1.0
# How long a server may take to say that a statement took too long, and to answer the proof that it lives.
ANSWER_SECONDS = 2.0
PROOF_SECONDS = 3.0
# Of the statements of an engine so many stay prepared in a session. PostgreSQL keeps a plan of most of them,
# made for the tables as they were: plans are made anew after this long.
MOST_PREPARED = 200
PLANS_SECONDS = 60.0
MIGRATION_PATIENCE_SECONDS = 60
MIGRATION_PAUSE_SECONDS = 0.2
OLDEST_SERVER = 160_000

# What PostgreSQL says where another transaction holds a row, or waits for one of ours.
LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
# What PostgreSQL says where the tables are not there, or are older than this version.
NO_TABLES = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)
NO_TABLES_STATES = frozenset(error.sqlstate for error in NO_TABLES)
# What is so, and what helps, where a later version has been here before.
NEWER = "it was migrated by a newer Wakeboard."
MEND_NEWER = "Install that version here too."
MEND_UNRELEASED = (
    "It was made before the first release: bring it to revision 0022 with the program that made it, "
    "then run: UPDATE wakeboard.alembic_version SET version_num = '0100'"
)
MEND_OLDER = "Run: wakeboard db upgrade"


class DatabaseError(Exception):
    """The database cannot be used; ``str()`` is a sentence that says why and what to do."""


class UnfitError(DatabaseError):
    """The database answers and stays what it is: too old, or in an encoding that lacks letters.

    To try again helps nobody. ``str()`` names no host and no role: everybody may read it.
    """


class RefusedError(DatabaseError):
    """A server answered and refuses the connection, for a reason that may pass: a password is changed, a
    database made, a standby promoted. ``shown`` says it without the names that only the log shall tell."""

    def __init__(self, reason: str, shown: str) -> None:
        super().__init__(f"{shown} The server said: {reason}")
        self.shown = shown


# What libpq and PostgreSQL say of a refusal → what it means and what helps, in words that everybody may read.
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
# So says a server that comes or goes: it will answer in a moment.
_IN_BETWEEN = "starting up|shutting down|in recovery mode|not yet accepting"


def without_tables(failure: Exception) -> str:
    """Return the sentence that says what a ``failure`` of NO_TABLES means, and what to do."""
    said = " ".join(str(failure).split("\n")[0].split()) or type(failure).__name__
    return f"The database lacks Wakeboard's tables or has older ones ({said}). Run: wakeboard db upgrade"


def connect(
    url: str,
    *,
    name: str,
    autocommit: bool = True,
    statement_timeout_seconds: float = 30,
    lock_timeout_seconds: float = 5,
    answer_seconds: float | None = None,
) -> TimedConnection:
    """Open a psycopg connection whose session is ours.

    ``url`` is any libpq URL or key=value string (several hosts allowed: the writable one is chosen);
    ``name`` appears as application_name. A server that does not answer a statement for ``answer_seconds`` is
    given up (None: never), see ``database.answer_timeout``. Raises UnfitError when the server is too old or
    the database is not in UTF8, RefusedError when a server answers and refuses, and DatabaseError when
    nothing answers.
    """
    connection = _open(url, name, autocommit)
    connection.answer_seconds = answer_seconds
    if (why := _unfit(connection)) is not None:
        connection.close()
        raise UnfitError(why)
    limits = {
        "statement_timeout": f"{int(statement_timeout_seconds * 1000)}ms",
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}ms",
    }
    if _meets_pooler(connection):
        connection.prepare_threshold = None
        configure(connection, {key: SESSION[key] for key in FOLLOWED_BY_POOLERS})
    else:
        version = connection.info.server_version
        known = {key: value for key, value in SESSION.items() if version >= SINCE.get(key, 0)}
        configure(connection, known | limits)
    return connection


def _open(url: str, name: str, autocommit: bool) -> TimedConnection:
    given = psycopg.conninfo.conninfo_to_dict(url)
    defaults = TRANSPORT | {"target_session_attrs": "read-write", "application_name": name}
    extra = {key: value for key, value in defaults.items() if key not in given}
    try:
        return TimedConnection.connect(url, autocommit=autocommit, **extra)
    except psycopg.OperationalError as failure:
        raise _not_connected(str(failure)) from failure


def _not_connected(said: str) -> DatabaseError:
    """Return the error for what libpq ``said`` of the hosts of an address, one after another."""
    lines = [line.strip("- ") for line in said.strip().splitlines()]
    reasons = [line for line in lines if not line.startswith("multiple connection attempts")] or ["no reason"]
    for reason in reasons:
        if re.search(_IN_BETWEEN, reason):
            continue
        for words, meaning in _REFUSALS.items():
            if re.search(words, reason):
                return RefusedError(reason, f"The database answers and refuses the connection: {meaning}")
    return DatabaseError(
        f"The database does not answer: {reasons[0]}. Check WAKEBOARD_DATABASE_URL and that the server runs."
    )


def _unfit(connection: psycopg.Connection[Any]) -> str | None:
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


def configure(connection: psycopg.Connection[Any], values: dict[str, str]) -> None:
    """Set session variables on ``connection`` in one round trip."""
    pairs = sql.SQL(", ").join(
        sql.SQL("set_config({}, {}, false)").format(sql.Literal(key), sql.Literal(value))
        for key, value in values.items()
    )
    autocommit = connection.autocommit
    connection.execute(sql.SQL("SELECT {}").format(pairs))
    if not autocommit:
        connection.commit()


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Return whether ``connect`` met a pooler.

    The next statement may run in another session then, without what this one has prepared or set.
    """
    return connection.prepare_threshold is None


def _meets_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return whether another process than the one that answered the connect runs the statements.

    A pooler invents the number that it tells at the connect, because no one server process belongs to it.
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
    given = psycopg.conninfo.conninfo_to_dict(url)
    if "target_session_attrs" not in given:
        url = psycopg.conninfo.make_conninfo(url, target_session_attrs=target)

    # A wait for a lock ends before its statement does, so it is told apart from a slow one. 0 is no limit.
    lock_seconds = min(5.0, 0.8 * statement_timeout_seconds or 5.0)

    answer_seconds = statement_timeout_seconds + ANSWER_SECONDS if statement_timeout_seconds else None

    def creator() -> psycopg.Connection[Any]:
        return connect(
            url, name=name, autocommit=False, statement_timeout_seconds=statement_timeout_seconds,
            lock_timeout_seconds=lock_seconds, answer_seconds=answer_seconds,
        )  # fmt: skip

    # Whoever was used last is used next: it has most statements prepared, and others may rest.
    made = create_engine(
        "postgresql+psycopg://", creator=creator, pool_size=pool_size, max_overflow=10, hide_parameters=True,
        pool_use_lifo=True,
    )  # fmt: skip

    def opened(connection: Any, record: Any) -> None:
        if not is_pooled(connection):
            connection.prepared_max, connection.prepare_threshold = MOST_PREPARED, 1
        record.info["planned_at"] = monotonic()

    def used(_connection: Any, record: Any) -> None:
        record.info["used_at"] = monotonic()

    def wanted(connection: Any, record: Any, _: Any) -> None:
        now = monotonic()
        if now - record.info["planned_at"] > PLANS_SECONDS:
            _prove(connection, "DISCARD PLANS")
            record.info["planned_at"] = now
        elif connection.closed or now - record.info.get("used_at", now) > UNPROVEN_SECONDS:
            _prove(connection, "SELECT")

    event.listen(made, "connect", opened)
    event.listen(made, "checkin", used)
    event.listen(made, "checkout", wanted)
    return made


def _prove(connection: TimedConnection, statement: str) -> None:
    """Ask ``statement`` of a pooled connection, in no transaction; if it is dead, the pool makes new ones."""
    from sqlalchemy.exc import InvalidatePoolError

    try:
        with answering_within(connection, PROOF_SECONDS):
            connection.autocommit = True
            connection.execute(statement.encode(), prepare=False)
            connection.autocommit = False
    except psycopg.Error as failure:
        raise InvalidatePoolError(str(failure)) from failure


def alembic_config() -> Config:
    """Return Alembic's configuration, which lives inside the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("wakeboard.database") / "migrations"))
    return config


def head_revision() -> str:
    """Return the revision that this version of the program needs: the number in its last migration's name.

    Alembic knows it too, but takes 15 MB in each process that asks it, which a page shall not.
    """
    return max(_revisions())


def is_newer(revision: str | None) -> bool:
    """Return whether a later version of the program brought the schema to ``revision``: no upgrade helps."""
    return revision is not None and revision > head_revision()


def way_to_head(revision: str | None) -> str | None:
    """Return what to do about a schema at ``revision`` that this version cannot use, None where it can."""
    if revision == head_revision():
        return None
    if revision is None or revision in _revisions():
        return MEND_OLDER
    return MEND_NEWER if is_newer(revision) else MEND_UNRELEASED


def _revisions() -> set[str]:
    versions = resources.files("wakeboard.database") / "migrations" / "versions"
    return {file.name.partition("_")[0] for file in versions.iterdir() if file.name.endswith(".py")}


def current_revision(connection: psycopg.Connection[Any]) -> str | None:
    """Return the revision the database is at, None when it was never migrated."""
    row = connection.execute("SELECT to_regclass('wakeboard.alembic_version') IS NOT NULL").fetchone()
    if not row or not row[0]:
        return None
    row = connection.execute("SELECT version_num FROM wakeboard.alembic_version").fetchone()
    return str(row[0]) if row else None


@contextmanager
def migration_lock(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Hold the advisory lock under which one starter migrates and the others wait (up to 60 s).

    Raises DatabaseError when it was not to be had. It is asked for again and again: who waits inside of the
    server holds a snapshot, and the one who migrates waits for old snapshots.
    """
    deadline = monotonic() + MIGRATION_PATIENCE_SECONDS
    while connection.execute("SELECT pg_try_advisory_lock(%s)", (MIGRATION_LOCK,)).fetchone() != (True,):
        if monotonic() > deadline:
            raise DatabaseError(
                f"Another process has been migrating this database for {MIGRATION_PATIENCE_SECONDS} s. "
                "Wait until it is done, then start this one again."
            )
        sleep(MIGRATION_PAUSE_SECONDS)
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))


def migrate(url: str) -> tuple[str | None, str]:
    """Bring the schema to this version's revision; safe when several processes start at once.

    Returns (revision before, revision after). Raises DatabaseError when the database is newer than we are.
    """
    from alembic import command

    head = head_revision()
    with connect(url, name="wakeboard migrate", lock_timeout_seconds=60) as lock:
        before = current_revision(lock)
        if before == head:
            return before, head
        if is_pooled(lock):
            raise DatabaseError(
                f"The schema has to be brought to revision {head}, which takes a session of its own, and "
                "this address leads through a pooler. Run once with the server's own: wakeboard db upgrade"
            )
        with migration_lock(lock):
            before = current_revision(lock)
            if before == head:
                return before, head
            if is_newer(before):
                raise DatabaseError(
                    f"The schema is at revision {before}, which this version does not know: {NEWER} "
                    f"{MEND_NEWER}"
                )
            if way_to_head(before) == MEND_UNRELEASED:
                raise DatabaseError(f"The schema is at revision {before}. {MEND_UNRELEASED}")
            config = alembic_config()
            config.attributes["url"] = url
            command.upgrade(config, "head")
    return before, head
