"""Pages that a replica serves: a real standby, on time, late, paused and gone; what each page then says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN, items_of
from tests.support.dashboard_apps import an_app
from tests.support.factories import a_run, a_worker
from tests.support.postgres import standbys
from tests.support.postgres.servers import SETTINGS, Server, own_server
from tests.support.postgres.standbys import Node, standby_of
from tests.support.processes import wait_until
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard_dashboard.web import replica
from wakeboard_dashboard.web.connection import Database
from wakeboard_dashboard.web.replica import HEADER, ReplicationLag

# Off by default, and a standby may not have less than its primary.
PREPARING = {"max_prepared_transactions": "2"}


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """A server of this file's own, for a standby copies all of it."""
    with own_server(SETTINGS | PREPARING) as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: Server) -> Iterator[Node]:
    """Its standby."""
    with standby_of(primary, standbys.SETTINGS | PREPARING) as following:
        yield following


@pytest.fixture
def database(primary: Server) -> Iterator[str]:
    """The URL of a fresh database on the primary."""
    name = primary.create()
    yield primary.url(name)
    primary.drop(name)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection to the primary."""
    with db.connect(database, name="wakeboard test") as opened:
        yield opened


@pytest.fixture
def app(database: str, standby: Node) -> Iterator[Flask]:
    """A dashboard whose pages are read from the standby."""
    there = standby.url(database.partition("@/")[2].partition("?")[0])
    made = an_app(database_url=database, read_database_url=there)
    yield made
    engines: Database = made.extensions["wakeboard_database"]
    engines.dispose()


@pytest.fixture
def client(app: Flask, connection: Connection) -> FlaskClient:
    """An operator's browser, once the standby has what the primary has."""
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(connection, "anna", Role.OPERATOR)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    wait_until(lambda: client.get("/runs.json").status_code == 200, 30, "the standby has the tables")
    return client


def queued(client: FlaskClient) -> int:
    return len(items_of(client, "/runs.json"))


def kinds(client: FlaskClient) -> set[str]:
    return {holder["kind"] for holder in client.get("/system.json").get_json()["holders"]}


def test_pages_are_read_from_the_standby_and_the_system_from_the_primary(
    client: FlaskClient, connection: Connection
) -> None:
    a_run(connection)
    wait_until(lambda: queued(client) == 1, 10, "the run arrives")
    answer = client.get("/")
    assert HEADER not in answer.headers
    assert re.search(r'id="behind" role="status"\s+hidden', answer.text)
    body = client.get("/system.json").get_json()
    assert body["pages_replica"]["error"] is None
    assert body["server"]["is_replica"] is False and body["pages_replica"]["is_replica"] is True
    assert body["pages_replica"]["is_connected"] and body["pages_replica"]["error"] is None
    assert body["pages_replica"]["behind_seconds"] < 5
    (following,) = body["replicas"]
    assert following["state"] == "streaming"
    assert "a replica, " in client.get("/system").text


def test_a_late_standby_is_told_on_every_page_until_it_has_caught_up(
    app: Flask,
    client: FlaskClient,
    connection: Connection,
    standby: Node,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "SHOWN_SECONDS", 1)
    client.get("/runs.json")
    standby.tell("SELECT pg_wal_replay_pause()")
    try:
        wait_until(lambda: standby.tell("SELECT pg_get_wal_replay_pause_state()") == "paused", 10)
        a_run(connection)
        a_worker(connection, "w1")
        wait_until(lambda: HEADER in client.get("/runs.json").headers, 20, "the standby is late")
        assert queued(client) == 0
        page = client.get("/runs").text
        assert re.search(r'id="behind" role="status">', page) and re.search(
            r"<b>\d+(\.\d)? s</b> behind", page
        )
        alone = client.get("/_fragments/runs/list", headers={"HX-Request": "true"})
        assert int(alone.headers[HEADER]) >= 1
        # What is about the primary is asked of the primary, and is not late.
        assert HEADER not in client.get("/system").headers
        told = client.get("/system.json").get_json()["pages_replica"]
        assert told["is_paused"] and told["behind_seconds"] > 1
        # A process that has just begun to look tells at once.
        app.extensions["wakeboard_database"] = Database.of(
            app.config["SETTINGS"].database_url, app.config["SETTINGS"].read_database_url, pool_size=2
        )
        assert int(client.get("/runs.json").headers[HEADER]) >= 1
        app.extensions["wakeboard_database"].dispose()
        assert "pg_wal_replay_resume()" in client.get("/_fragments/system/server").text
    finally:
        standby.tell("SELECT pg_wal_replay_resume()")
    wait_until(lambda: HEADER not in client.get("/runs.json").headers, 20, "the standby caught up")
    assert queued(client) == 1


def test_a_query_on_a_standby_that_holds_rows_back_is_named(client: FlaskClient, standby: Node) -> None:
    standby.tell("ALTER SYSTEM SET hot_standby_feedback = on")
    standby.tell("SELECT pg_reload_conf()")
    wait_until(lambda: "standby" in kinds(client), 20, "what the standby needs is among what is held back")


def test_a_prepared_transaction_that_nobody_ends_is_named(
    client: FlaskClient, connection: Connection
) -> None:
    connection.execute("BEGIN")
    connection.execute("LOCK TABLE wakeboard.operations IN SHARE MODE")
    connection.execute("PREPARE TRANSACTION 'left behind'")
    try:
        found = client.get("/system.json").get_json()["holders"]
        (prepared,) = [holder for holder in found if holder["kind"] == "prepared"]
        assert (prepared["id"], prepared["owner"], prepared["is_long"]) == ("left behind", "wakeboard", False)
        assert prepared["seconds"] is not None and prepared["transactions"] is not None
        assert "left behind" in client.get("/_fragments/system/horizon").text
    finally:
        connection.execute("ROLLBACK PREPARED 'left behind'")


def test_a_replica_that_is_gone_is_told_where_one_can_still_look(
    primary: Server, database: str, connection: Connection
) -> None:
    with standby_of(primary, standbys.SETTINGS | PREPARING) as going:
        there = going.url(database.partition("@/")[2].partition("?")[0])
        app = an_app(database_url=database, read_database_url=there)
        client = app.test_client()
        client.environ_base.update(SAME_ORIGIN)
        cookie = sessions.open_session(connection, "anna", Role.OPERATOR)
        client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
        going.stop()
        assert client.get("/runs.json").status_code == 503
        answer = client.get("/system")
        assert answer.status_code == 200
        assert "The replica that pages are read from does not answer" in answer.text
        assert client.get("/statusz").status_code == 200
        app.extensions["wakeboard_database"].dispose()


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_replica_is_as_late_as_what_it_has_not_reached() -> None:
    clock = Clock()
    follower = ReplicationLag(clock)
    for written in (100, 200, 300):
        follower.note(written)
        clock.now += 10
    assert follower.behind(300, 5.0) == 0.0
    assert follower.behind(250, 5.0) == 10.0
    assert follower.behind(100, 5.0) == 20.0
    assert follower.behind(None, None) is None


def test_looks_that_lie_far_apart_are_filled_by_the_age_of_the_last_change() -> None:
    clock = Clock()
    follower = ReplicationLag(clock)
    follower.note(100)
    assert follower.behind(100, 3600.0) == 0.0
    clock.now += 600
    follower.note(200)
    assert follower.behind(100, 45.0) == 45.0
    assert follower.behind(150, 3600.0) == 600.0
    clock.now += 1
    assert follower.behind(200, 3600.0) == 0.0


def test_who_begins_to_look_while_it_is_late_trusts_its_last_change() -> None:
    clock = Clock()
    follower = ReplicationLag(clock)
    follower.note(500)
    assert follower.behind(100, 900.0) == 900.0
    clock.now += 3
    assert follower.behind(100, 2.0) == 3.0
