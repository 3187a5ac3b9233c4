"""Statements of pages are planned once and not at each request, and anew before tables have changed much."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from tests.conftest import Connection
from tests.support.postgres.wire_proxy import between
from wakeboard.database import db
from wakeboard_dashboard.web.connection import Database, reading


def engine_of(app: Flask) -> Any:
    found: Database = app.extensions["wakeboard_database"]
    return found.primary


def test_what_pages_ask_stays_prepared(app: Flask, client: FlaskClient) -> None:
    sessions: list[psycopg.Connection[Any]] = []
    event.listen(engine_of(app), "connect", lambda session, _: sessions.append(session))
    for _ in range(8):
        assert client.get("/types").status_code == 200
    # Who was used last is used next: one browser at a time needs one session.
    (session,) = sessions
    kept = session.execute("SELECT statement, generic_plans + custom_plans FROM pg_prepared_statements")
    used = {statement: times for statement, times in kept.fetchall() if "job_types" in statement}
    assert used and min(used.values()) >= 2


@pytest.mark.parametrize("is_pooled", [True, False])
def test_behind_a_pooler_nothing_is_prepared(database: str, is_pooled: bool) -> None:
    with between(database) as middleman:
        middleman.hides_the_server = is_pooled
        engine = db.engine(middleman.url, name="wakeboard test")
        for _ in range(8):
            with engine.connect() as session:
                kept = session.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
                session.commit()
        engine.dispose()
    assert (kept == 0) is is_pooled


def test_a_statement_whose_columns_changed_their_type_fails_once_and_is_prepared_anew(
    app: Flask, superuser: Connection
) -> None:
    def asked() -> Any:
        with app.test_request_context("/"):
            return reading().execute(text("SELECT version FROM wakeboard.changing")).scalar_one()

    superuser.execute("CREATE TABLE wakeboard.changing AS SELECT 1 AS version")
    superuser.execute("GRANT SELECT ON wakeboard.changing TO PUBLIC")
    assert {asked() for _ in range(8)} == {1}
    superuser.execute("ALTER TABLE wakeboard.changing ALTER version TYPE text")
    with pytest.raises(DBAPIError, match="must not change result type"):
        asked()
    assert asked() == "1"


def test_a_page_answers_though_its_transaction_was_lost(app: Flask, superuser: Connection) -> None:
    with app.test_request_context("/"):
        pid = reading().connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        superuser.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    with app.test_request_context("/"):
        assert reading().connection.driver_connection.info.backend_pid != pid  # type: ignore[union-attr]


def test_plans_are_made_anew_now_and_then(
    app: Flask, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(app).connect() as session:
        pid = session.connection.driver_connection.info.backend_pid

    def last_statement() -> str:
        with engine_of(app).connect():
            row = superuser.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
        assert row is not None
        return str(row[0])

    assert last_statement() != "DISCARD PLANS"
    monkeypatch.setattr(db, "PLAN_SECONDS", 0.0)
    assert last_statement() == "DISCARD PLANS"


def test_a_session_that_ended_while_nobody_used_it_is_replaced(
    app: Flask, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECK_AFTER_SECONDS", "PLAN_SECONDS"):
        with engine_of(app).connect() as session:
            pid = session.connection.driver_connection.info.backend_pid
        superuser.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        monkeypatch.setattr(db, name, 0.0)
        with engine_of(app).connect() as session:
            assert session.connection.driver_connection.info.backend_pid != pid
            assert session.exec_driver_sql("SELECT 1").scalar_one() == 1
