"""Error pages: they ask the database nothing, and each page has one of ours for what the database refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from flask import Flask, Response, g
from flask.testing import FlaskClient
from sqlalchemy import exc
from werkzeug.exceptions import NotFound

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app
from tests.support.every_page import Filling, addresses, furnish, is_page, plain_text
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.database.db import DatabaseError
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.web import connection as connections
from wakeboard_dashboard.web import errors

ANNA = Actor("anna", Role.ADMIN, "web")
# What an app has from its beginning; all else it remembers of what it has read.
LASTING = ("wakeboard_database", "wakeboard_request_metrics")
# Where a page finds out who asks.
IDENTITY = ("installation", "sessions", "users", "tokens")
TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = 'wakeboard' AND tablename <> 'alembic_version' ORDER BY 1
"""


class Untouchable:
    """Stands for the connection of a request: whoever touches it fails the test."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"an error page used the database: {name}")


WRONG: list[Callable[[], BaseException]] = [
    lambda: FilterError("That is no filter."),
    lambda: DatabaseError("The database does not answer."),
    lambda: psycopg.errors.InsufficientPrivilege("permission denied for table job_runs"),
    lambda: psycopg.errors.UndefinedTable("no table"),
    lambda: psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"),
    lambda: psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    lambda: psycopg.OperationalError("the connection is lost"),
    lambda: psycopg.errors.DivisionByZero("a mistake"),
    lambda: exc.OperationalError("SELECT 1", {}, psycopg.errors.LockNotAvailable("locked")),
    lambda: exc.TimeoutError("pool"),
    lambda: NotFound(),
    lambda: errors.NotFoundWithLink("It is gone.", "/runs", "Runs"),
    lambda: ValueError("a mistake of ours"),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_error_page_asks_the_database_nothing(place: int, method: str) -> None:
    # Nothing listens there; a connection would be refused, which is an error of its own.
    app = an_app(database_url="postgresql://nobody@127.0.0.1:1/none")
    with app.test_request_context("/schedules", method=method):
        g.actor, g.request_id = ANNA, "abc"
        g.reading = Untouchable()
        answer = app.handle_user_exception(WRONG[place]())  # type: ignore[arg-type]
        assert isinstance(answer, Response)
        assert answer.status_code >= 400
        assert '<p class="sentence">' in answer.get_data(as_text=True)
        g.pop("reading")


def test_an_error_page_that_cannot_be_made_is_a_bare_one_with_its_sentence(
    app: Flask, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.jinja_env.globals["static"] = None
    answer = client.get("/nothing-here")
    assert answer.status_code == 404
    text = answer.text
    assert "<h1>Not found</h1>" in text and errors.SENTENCES[404] in text and 'href="/"' in text


@pytest.fixture
def house(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Flask, Filling]]:
    """A dashboard with rows of every kind, whose statements give up soon."""
    monkeypatch.setattr(connections, "STATEMENT_SECONDS", 0.1)
    filling = furnish(connection, plain_text(), plain_text("kind"))
    app = an_app(database_url=database)
    yield app, filling
    app.extensions["wakeboard_database"].dispose()


def signed_in(app: Flask, connection: Connection) -> FlaskClient:
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    client.set_cookie(
        f"wakeboard_{users.install_id(connection)}", sessions.open_session(connection, "anna", Role.ADMIN)
    )
    return client


def assert_is_ours(client: FlaskClient, address: str) -> int:
    """Assert that ``address`` answers with its page, or with an error of ours in words; return the code."""
    for name in [each for each in client.application.extensions if each not in LASTING]:
        client.application.extensions.pop(name, None)
    answer = client.get(address, headers={"Accept": "text/html"})
    text = answer.text
    if answer.status_code >= 500:
        if answer.mimetype == "application/json":
            assert len(answer.get_json()["message"]) > 20, address
        else:
            assert re.search('<p class="sentence">[A-Z][^<]{20,}', text), (address, text)
        assert answer.status_code == 503, (address, text)
    return answer.status_code


def test_whatever_table_is_forbidden_every_page_answers_with_a_sentence(
    house: tuple[Flask, Filling], connection: Connection
) -> None:
    app, filling = house
    client = signed_in(app, connection)
    pages = [each[0] for rule, each in addresses(app, filling).items() if is_page(rule)]
    refused = 0
    for (table,) in connection.execute(TABLES).fetchall():
        connection.execute(f"REVOKE ALL ON wakeboard.{table} FROM CURRENT_USER".encode())
        codes = [assert_is_ours(client, page) for page in pages]
        refused += codes.count(503)
        connection.execute(f"GRANT ALL ON wakeboard.{table} TO CURRENT_USER".encode())
    assert refused > len(pages)


def test_whatever_table_is_locked_every_page_answers_with_a_sentence(
    house: tuple[Flask, Filling], connection: Connection
) -> None:
    app, _ = house
    clients = [signed_in(app, connection) for _ in range(8)]
    pages = ("/", "/runs", "/schedules", "/audit", "/types", "/system")
    refused = 0
    for (table,) in connection.execute(TABLES).fetchall():
        # Each page would wait for each of these in vain, before it asks for anything else.
        if table in IDENTITY:
            continue
        with connection.transaction(), ThreadPoolExecutor(len(clients)) as threads:
            connection.execute(f"LOCK TABLE wakeboard.{table} IN ACCESS EXCLUSIVE MODE".encode())
            asked = [
                threads.submit(assert_is_ours, clients[place % len(clients)], page)
                for place, page in enumerate(pages)
            ]
            refused += [each.result() for each in asked].count(503)
    assert refused > len(pages)
