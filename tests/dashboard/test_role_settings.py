"""Whatever is set on the role that Wakeboard uses: sessions set what their statements rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg
import pytest
from flask.testing import FlaskClient
from psycopg import sql

from tests.conftest import Connection
from tests.support import factories
from tests.support.postgres.servers import Server
from tests.support.processes import run_wakeboard, wait_until
from tests.support.workers.worker_processes import a_worker, insert, wait_until_status
from wakeboard import enqueue
from wakeboard.database import db, migrations
from wakeboard.runtime.duties.worker_row import WorkerRow
from wakeboard.runtime.worker import Worker

HOSTILE = {
    "idle_session_timeout": "300ms",
    "transaction_timeout": "300ms",
    "idle_in_transaction_session_timeout": "300ms",
    "statement_timeout": "1s",
    "lock_timeout": "1ms",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "exit_on_error": "on",
    "row_security": "off",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "LATIN1",
    "search_path": "pg_temp",
    "client_min_messages": "debug1",
    "default_text_search_config": "pg_catalog.german",
    "plan_cache_mode": "force_generic_plan",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "jit": "on",
    "jit_above_cost": "0",
}
Setting = Callable[[Mapping[str, str]], None]


@pytest.fixture
def set_on_role(superuser: Connection, database: str) -> Setting:
    """Set these for every new session of the role in the test's database."""
    name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])

    def setting(values: Mapping[str, str]) -> None:
        for key, value in values.items():
            if superuser.info.server_version < db.ADDED_IN.get(key, 0):
                continue
            superuser.execute(
                sql.SQL("ALTER ROLE wakeboard IN DATABASE {} SET {} = {}").format(
                    sql.Identifier(name), sql.Identifier(key), _value(key, value)
                )
            )

    return setting


def _value(key: str, value: str) -> sql.Composable:
    """Return the value as the setting takes it: a list of names, or one text."""
    return sql.Identifier(value) if key == "search_path" else sql.Literal(value)


def one_run(database: str) -> int:
    """Register a worker, enqueue a run, claim and finish it, as a worker's sessions do; return the run."""
    with db.connect(database, name="wakeboard test") as connection:
        factories.a_type(connection)
        policy = {"name": "mail", "max_attempts": 3, "backoff": "fixed 1s", "timeout_seconds": 60}
        WorkerRow(Worker("w1")).register(connection, [policy])
        run_id = enqueue(connection, "mail", {"backslash": "\\", "umlaut": "ü日"})
        (claimed,) = factories.claim(connection, limit=1)
        factories.succeed(connection, (claimed.id, claimed.lease_epoch))
        found = factories.row(connection, run_id)
        assert (found["status"], found["payload"]) == ("succeeded", {"backslash": "\\", "umlaut": "ü日"})
        return run_id


@pytest.mark.parametrize("name", HOSTILE)
def test_a_run_goes_its_way_and_is_shown_whatever_is_set_on_the_role(
    database: str, client: FlaskClient, set_on_role: Setting, name: str
) -> None:
    set_on_role({name: HOSTILE[name]})
    run_id = one_run(database)
    assert client.get("/").status_code == 200
    page = client.get(f"/runs/{run_id}")
    assert page.status_code == 200
    assert "ü日" in page.text


def test_sessions_have_the_settings_that_they_rely_on(database: str, set_on_role: Setting) -> None:
    set_on_role(HOSTILE)
    with db.connect(database, name="wakeboard test") as connection:
        version = connection.info.server_version
        for name, value in db.SESSION.items():
            if version >= db.ADDED_IN.get(name, 0):
                (found,) = connection.execute(f"SHOW {name}".encode()).fetchone() or ("",)
                assert found.split(",")[0].lower() == value.lower(), name


def test_a_worker_works_whatever_is_set_on_its_role(
    database: str, connection: Connection, set_on_role: Setting
) -> None:
    set_on_role(HOSTILE)
    with a_worker(database, ready=connection) as worker:
        for job_type, payload in (
            ("quick", {"answer": "ü日"}),
            ("chain", {"links": 1}),
            ("long_transaction", {"seconds": 1.0}),
        ):
            wait_until_status(connection, insert(connection, job_type, payload), "succeeded")
        # Its sessions have been idle for longer than the role's limit.
        seen = "SELECT seen_at - started_at > interval '3 s' FROM wakeboard.workers"
        wait_until(lambda: connection.execute(seen).fetchone() == (True,), 20)
        wait_until_status(connection, insert(connection, "quick"), "succeeded")
        assert worker.terminate() == 0
        said = worker.output
    assert "WARNING" not in said, said


def test_the_schema_is_made_whatever_is_set_on_the_role(server: Server, empty_database: str) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(empty_database)["dbname"])
    with db.connect(server.url(name, admin=True), name="wakeboard test") as superuser:
        for key in ("idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"):
            if superuser.info.server_version >= db.ADDED_IN.get(key, 0):
                superuser.execute(f"ALTER DATABASE {name} SET {key} = '100ms'".encode())
    made = run_wakeboard("db", "upgrade", database=empty_database)
    assert made.returncode == 0, made.stderr
    with db.connect(empty_database, name="wakeboard test") as connection:
        assert migrations.current_revision(connection) == migrations.head_revision()


def test_a_role_that_may_only_read_is_refused_with_what_helps(database: str, set_on_role: Setting) -> None:
    set_on_role({"default_transaction_read_only": "on"})
    with pytest.raises(db.DatabaseError, match=r"takes no writes from this role.*RESET default_transaction"):
        db.connect(database, name="wakeboard test")
