"""Enqueue through the connections of other libraries: what is taken joins their transaction, what is refused
leaves it as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection as CoreConnection
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.conftest import Connection
from tests.support import factories
from wakeboard.queue import EnqueueError, NewRun, enqueue, enqueue_many

HOSTILE = "%s %(a)s :v1 ::int \\ ' \" {a,NULL} $1 日本"
AT = datetime(2031, 3, 4, 5, 6, 7, 891011, UTC)


class Kind(str, Enum):  # noqa: UP042 (whose str() is its name)
    MAIL = "mail"


def keywords(url: str) -> dict[str, Any]:
    return conninfo_to_dict(url)


def core(url: str, driver: str) -> CoreConnection:
    """A connection of SQLAlchemy's, whose driver is another."""
    return create_engine(f"postgresql+{driver}://", connect_args=keywords(url), poolclass=NullPool).connect()


def asyncpg_engine(url: str) -> Any:
    given = keywords(url)
    names = {"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "database"}
    arguments = {names[key]: value for key, value in given.items() if key in names}
    return create_async_engine("postgresql+asyncpg://", connect_args=arguments, poolclass=NullPool)


def apart(work: Callable[[], Any]) -> None:
    """Call where no loop runs, and run a coroutine: a browser's test leaves a loop in the thread of tests."""

    def call() -> None:
        made = work()
        if made is not None:
            asyncio.run(made)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def enqueue_all_ways(target: Any) -> list[int]:
    """Enqueue by each statement there is; the ids of what was asked once."""
    full: dict[str, Any] = {"run_at": AT, "priority": 0, "max_attempts": 3, "enqueued_by": HOSTILE}
    first = enqueue(target, HOSTILE, {"t": HOSTILE}, key=HOSTILE, **full)
    assert enqueue(target, HOSTILE, key=HOSTILE) == first
    plain = enqueue(target, Kind.MAIL, {"n": 1})
    later = enqueue(target, "mail", delay=timedelta(days=400))
    alike = enqueue_many(target, [NewRun(HOSTILE, {"t": HOSTILE}, key=f"a:{n}", **full) for n in range(3)])
    mixed = enqueue_many(target, [NewRun("mail"), NewRun(HOSTILE, {"t": HOSTILE}, key="m", **full)])
    again = enqueue_many(target, [NewRun(HOSTILE, key="m"), NewRun(HOSTILE, key="a:0")])
    assert again == [mixed[1], alike[0]]
    thousands = enqueue_many(target, [NewRun("mail", {"n": n}) for n in range(1500)])
    return [first, plain, later, *alike, *mixed, *thousands]


def check_kept(connection: Connection, ids: list[int]) -> None:
    """What ``enqueue_all_ways`` asked is there, and nothing else."""
    kept = {one["id"]: one for one in factories.rows(connection, "job_runs")}
    assert set(kept) == set(ids)
    for run in (ids[0], *ids[3:6], ids[7]):
        one = kept[run]
        assert (one["job_type"], one["payload"], one["enqueued_by"]) == (HOSTILE, {"t": HOSTILE}, HOSTILE)
        assert (one["run_at"], one["priority"], one["max_attempts"]) == (AT, 0, 3)
    assert (kept[ids[1]]["job_type"], kept[ids[1]]["max_attempts"]) == ("mail", None)
    assert kept[ids[2]]["run_at"] - kept[ids[2]]["created_at"] == timedelta(days=400)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_run_joins_the_transaction_of_sqlalchemy_on_any_driver(
    database: str, connection: Connection, driver: str
) -> None:
    with core(database, driver) as own:
        ids = enqueue_all_ways(own)
        assert factories.rows(connection, "job_runs") == []
        own.commit()
    check_kept(connection, ids)


def test_a_run_joins_the_transaction_of_asyncio_on_asyncpg(database: str, connection: Connection) -> None:
    async def work() -> None:
        engine = asyncpg_engine(database)
        async with engine.connect() as own:
            ids = await own.run_sync(enqueue_all_ways)
            assert factories.rows(connection, "job_runs") == []
            await own.commit()
        check_kept(connection, ids)
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda sync: enqueue(sync, "mail", key="rolled back"))
            await session.rollback()
        assert len(factories.rows(connection, "job_runs")) == len(ids)

    apart(work)


def django_connection(url: str) -> Any:
    """Django's wrapper of a connection, as django.db.connection is one; it has not connected yet."""
    from django.conf import settings
    from django.db.backends.postgresql.base import DatabaseWrapper

    if not settings.configured:
        settings.configure()
    given = keywords(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return DatabaseWrapper(
        {
            **{name: given.get(key) or "" for name, key in names.items()},
            "OPTIONS": {},
            "TIME_ZONE": None,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "AUTOCOMMIT": True,
            "ATOMIC_REQUESTS": False,
        }
    )


def test_a_run_joins_the_transaction_of_django_which_had_not_connected(
    database: str, connection: Connection
) -> None:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if not is_psycopg3:
        pytest.fail("Django took psycopg2 although psycopg 3 is here.")

    def work() -> None:
        own = django_connection(database)
        assert own.connection is None
        own.ensure_connection()
        own.set_autocommit(False)
        lost = enqueue(own, "mail")
        own.rollback()
        ids = enqueue_all_ways(own)
        assert factories.rows(connection, "job_runs") == []
        own.commit()
        own.close()
        assert lost not in ids
        check_kept(connection, ids)
        again = enqueue(own, "mail")
        assert again not in ids
        own.close()

    apart(work)


def statements(own: CoreConnection) -> list[str]:
    """Every statement that goes through ``own`` from here on."""
    sent: list[str] = []
    event.listen(own, "before_cursor_execute", lambda _c, _u, statement, *_: sent.append(statement))
    return sent


def test_a_refusal_of_ours_leaves_the_callers_transaction_as_it_was(database: str) -> None:
    with core(database, "psycopg") as own:
        own.execute(text("CREATE TEMPORARY TABLE mine (n int)"))
        sent = statements(own)
        with pytest.raises(EnqueueError, match="payload is not JSON"):
            enqueue(own, "mail", {"n": object()})
        with pytest.raises(EnqueueError, match="Run number 2"):
            enqueue_many(own, [NewRun("mail"), NewRun("")])
        assert sent == []
        assert own.execute(text("SELECT count(*) FROM mine")).scalar() == 0


def test_a_raw_connection_of_psycopg2_is_told_that_psycopg_3_is_meant(database: str) -> None:
    import psycopg2

    own = psycopg2.connect(database)
    with own.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE mine (n int)")
        for ask in (lambda: enqueue(own, "mail"), lambda: enqueue_many(own, [NewRun("mail")] * 1500)):
            with pytest.raises(EnqueueError, match=r"psycopg2: it must be one of psycopg 3"):
                ask()
        cursor.execute("SELECT count(*) FROM mine")
        assert cursor.fetchone() == (0,)
    own.close()


@pytest.mark.parametrize("make", [lambda: core_of_sqlite(), lambda: Session(create_engine("sqlite://"))])
def test_a_connection_to_another_database_is_told_by_its_name(make: Callable[[], Any]) -> None:
    with make() as own, pytest.raises(EnqueueError, match="a connection to sqlite: runs live in PostgreSQL"):
        enqueue(own, "mail")


def core_of_sqlite() -> CoreConnection:
    return create_engine("sqlite://").connect()


def test_djangos_connection_to_another_database_is_not_even_opened() -> None:
    from django.db.backends.sqlite3.base import DatabaseWrapper

    own = DatabaseWrapper({"NAME": ":memory:", "OPTIONS": {}, "TIME_ZONE": None, "CONN_MAX_AGE": 0})
    with pytest.raises(EnqueueError, match="a connection to sqlite: runs live in PostgreSQL"):
        enqueue(own, "mail")
    assert own.connection is None


def test_sqlalchemys_connections_of_asyncio_are_told_what_to_write(database: str) -> None:
    async def work() -> None:
        engine = asyncpg_engine(database)
        waiting: AsyncConnection = engine.connect()
        for target in (waiting, AsyncSession(engine)):
            with pytest.raises(EnqueueError, match=r"await target\.run_sync\(lambda connection: enqueue"):
                enqueue(target, "mail")
        async with await psycopg.AsyncConnection.connect(database) as raw:
            with pytest.raises(EnqueueError, match="one of asyncio; hand over"):
                enqueue_many(raw, [NewRun("mail")])

    apart(work)
