"""Behind a real pooler in transaction mode: work goes on by polling, and its other clients notice nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.dashboard_apps import an_app
from tests.support.factories import a_run, row
from tests.support.postgres.pgbouncer import PGBOUNCER, WHY_NOT, pooler
from tests.support.workers.worker_processes import a_worker, insert_many, wait_until_all
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database import db, migrations
from wakeboard.handlers.context import Context
from wakeboard.queue import handler_connection

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason=WHY_NOT)

OURS = (
    "search_path", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "jit",
    "plan_cache_mode", "enable_seqscan", "enable_sort",
)  # fmt: skip


@pytest.fixture
def pooled(database: str) -> Iterator[str]:
    """The database through a pooler whose four server sessions everybody shares."""
    with pooler(database, sessions=4) as url:
        yield url


def test_two_workers_share_four_sessions_and_finish_their_work(pooled: str, connection: Connection) -> None:
    with a_worker(pooled, ready=connection) as one, a_worker(pooled, ready=connection) as other:
        ids = insert_many(connection, "quick", 500)
        wait_until_all(connection, ids, "succeeded", 30)
        for worker in (one, other):
            assert "prepared statement" not in worker.output and "refused" not in worker.output
        held = "SELECT count(*) FROM pg_prepared_statements"
        with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as stranger:
            assert {stranger.execute(held).fetchone() for _ in range(20)} == {(0,)}


def test_pages_and_verbs_answer_through_it(pooled: str, connection: Connection) -> None:
    app = an_app(database_url=pooled)
    run_id = a_run(connection, "dead")
    client = app.test_client()
    client.environ_base["HTTP_SEC_FETCH_SITE"] = "same-origin"
    cookie = sessions.open_session(connection, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    for _ in range(3):
        for path in ("/", "/runs", f"/runs/{run_id}", "/night", "/errors", "/schedules", "/system"):
            assert client.get(path).status_code == 200, path
    answer = client.post(f"/runs/{run_id}/retry", headers={"Accept": "application/json"})
    assert answer.get_json()["message"] and row(connection, run_id)["status"] == "queued"
    app.extensions["wakeboard_database"].dispose()


def test_effects_are_made_through_it(
    pooled: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", pooled)
    handler_connection.close_thread_connection()
    ids = [a_run(connection, "running") for _ in range(7)]
    for run_id in ids:
        context = Context(run_id=run_id, lease_epoch=1, worker_id="w1", timeout_seconds=30)
        assert context.once("mail", lambda: "sent") == "sent"
        with context.transaction() as mine:
            mine.exec_driver_sql(
                "UPDATE wakeboard.effects SET settled_by = 'block' WHERE run_id = %s", (run_id,)
            )
    handler_connection.close_thread_connection()
    assert {row(connection, run_id)["status"] for run_id in ids} == {"succeeded"}
    settled = "SELECT count(*) FROM wakeboard.effects WHERE status = 'done' AND settled_by = 'block'"
    assert connection.execute(settled).fetchone() == (7,)


def test_nothing_is_set_for_whoever_has_the_session_next(database: str, connection: Connection) -> None:
    with pooler(database, sessions=2) as url:
        before = settings(url)
        with a_worker(url, ready=connection):
            wait_until_all(connection, insert_many(connection, "quick", 20), "succeeded", 30)
        with db.connect(url, name="test") as ours:
            assert db.is_pooled(ours)
            assert ours.execute("SELECT current_setting('timezone')").fetchone() == ("UTC",)
        assert migrations.migrate(url) == (migrations.head_revision(), migrations.head_revision())
        assert settings(url) == before
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
        mine = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        assert connection.execute(f"{locks} {mine}".encode()).fetchone() == (0,)


def test_a_schema_is_not_brought_forward_through_it(empty_database: str) -> None:
    with (
        pooler(empty_database, sessions=2) as url,
        pytest.raises(db.DatabaseError, match="leads through a pooler"),
    ):
        migrations.migrate(url)


def settings(url: str) -> set[tuple[object, ...]]:
    """Return what a stranger finds set, in whichever sessions it meets."""
    asked = ", ".join(f"current_setting('{name}')" for name in OURS).encode()
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as stranger:
        return {stranger.execute(b"SELECT " + asked).fetchone() or () for _ in range(20)}


def test_a_session_of_ones_own_keeps_what_is_set_and_prepared(database: str) -> None:
    with db.connect(database, name="test") as ours:
        assert not db.is_pooled(ours)
        assert ours.execute("SELECT current_setting('search_path')").fetchone() == ("pg_catalog",)
