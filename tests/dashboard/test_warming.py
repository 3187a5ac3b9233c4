"""Before it forks, the dashboard has done once what its processes would do; then each makes a first page."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from flask import Flask, template_rendered
from flask.testing import FlaskClient

from tests.browser.places import serving
from tests.conftest import Connection
from tests.processes import free_port, wait_until
from wakeboard.config.settings import Settings
from wakeboard_dashboard import NAVIGATION, create_app
from wakeboard_dashboard.server import serve, turns, warming
from wakeboard_dashboard.web.connection import Database

WEB_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'wakeboard web' AND datname = current_database()
"""


@contextmanager
def pages_of(app: Flask) -> Iterator[list[str]]:
    """Collect the names of the pages that are rendered meanwhile, without those of their fragments."""
    names: list[str] = []

    def remember(_app: Flask, template: object, **_named: object) -> None:
        name = str(getattr(template, "name", ""))
        if name.endswith("/page.html"):
            names.append(name)

    with template_rendered.connected_to(remember, app):
        yield names


def sessions(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM wakeboard.sessions").fetchone()
    assert row is not None
    return int(row[0])


def test_what_asks_no_database_opens_no_connection(client: FlaskClient) -> None:
    app = client.application
    database: Database = app.extensions["wakeboard_database"]
    database.dispose()
    warming.ask_nothing(app)
    assert database.primary.pool.checkedin() == 0
    with app.test_client() as browser:
        assert [browser.get(path).status_code for path in warming.UNASKING] == [200] * len(warming.UNASKING)


def test_each_page_of_the_navigation_is_made_and_leaves_no_connection_and_no_session(
    app: Flask, connection: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Their templates are compiled here too, however busy the machine is.
    monkeypatch.setattr(warming, "LONGEST_SECONDS", 60.0)
    monkeypatch.setattr(warming, "LAST_SECONDS", 90.0)
    with pages_of(app) as made, caplog.at_level(logging.INFO):
        warming.make_pages(app)
    assert len(set(made)) == len(NAVIGATION), caplog.text
    database: Database = app.extensions["wakeboard_database"]
    assert (database.primary.pool.checkedin(), database.primary.pool.checkedout()) == (0, 0)
    # The server's side of a closed connection ends a moment later.
    wait_until(
        lambda: connection.execute(WEB_SESSIONS).fetchone() == (0,),
        sentence="no session is left at the server",
    )
    assert sessions(connection) == 0


def test_what_was_made_ahead_counts_for_no_page(app: Flask, client: FlaskClient) -> None:
    with pages_of(app) as made:
        warming.make_pages(app)
    assert made and client.get("/system.json").get_json()["pages"] == []


def test_a_slow_database_is_not_asked_for_further_pages(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "LONGEST_SECONDS", 0.0)
    with pages_of(app) as made:
        warming.make_pages(app)
    assert len(made) == 1


def test_a_server_that_takes_connections_and_never_answers_holds_the_start_up_for_seconds_at_most(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LAST_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing?connect_timeout=60"
        app = create_app(Settings.load({"database_url": url}, environ={}))
        with caplog.at_level(logging.INFO):
            warming.make_pages(app)
    assert "the database did not answer within" in caplog.text


def test_a_statement_that_hangs_holds_the_start_up_for_seconds_at_most_and_leaves_no_connection(
    app: Flask, connection: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LAST_SECONDS", 0.5)
    with connection.transaction(), caplog.at_level(logging.INFO):
        connection.execute("LOCK TABLE wakeboard.job_runs")
        began = monotonic()
        warming.make_pages(app)
        # A statement of a page may take five.
        assert monotonic() - began < 4
    assert [record.message for record in caplog.records if record.name != "wakeboard.access"] == [
        "pages are not made before the start: the database did not answer within 0.5 s"
    ]
    assert app.extensions["wakeboard_database"].primary.pool.checkedout() == 0


def test_without_a_database_the_dashboard_starts_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    app = create_app(Settings.load({"database_url": url}, environ={}))
    with caplog.at_level(logging.INFO), pages_of(app) as made:
        warming.make_pages(app)
    assert made == []
    assert "pages are not made before the start" in caplog.text


def test_a_process_makes_a_page_before_anybody_asks_and_keeps_the_connection_for_whoever_does(
    app: Flask, connection: Connection
) -> None:
    database: Database = app.extensions["wakeboard_database"]
    with pages_of(app) as made:
        warming.begin(app).join(30)
    assert (made, database.primary.pool.checkedin()) == (["overview/page.html"], 1)
    assert sessions(connection) == 0


def test_each_process_of_the_dashboard_has_opened_its_connection_before_anybody_asks(
    database: str, connection: Connection
) -> None:
    with serving(database):
        wait_until(
            lambda: connection.execute(WEB_SESSIONS).fetchone() == (serve.WORKERS,), 30, "all are connected"
        )


def test_the_first_page_has_a_turn_like_any_other(app: Flask) -> None:
    own = app.extensions[turns.EXTENSION] = turns.Turns(longest_seconds=60.0)
    with pages_of(app) as made:
        another = own.take()
        first = warming.begin(app)
        wait_until(lambda: len(own) == 1, 20, "the first page waits for its turn")
        assert made == []
        own.give_back(another)
        first.join(30)
    assert len(made) == 1
    own.give_back(own.take())


def test_no_page_is_made_ahead_where_the_database_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    app = create_app(Settings.load({"database_url": url}, environ={}))
    own = app.extensions[turns.EXTENSION] = turns.Turns(longest_seconds=60.0)
    with caplog.at_level(logging.INFO):
        warming.make_first(app)
    assert "no page is made before somebody asks" in caplog.text
    own.give_back(own.take())


def test_what_no_page_needs_is_not_loaded(database: str) -> None:
    code = (
        "import logging, sys\n"
        "from wakeboard_dashboard import create_app; from wakeboard_dashboard.server import serve, warming\n"
        "from wakeboard.config.settings import Settings\n"
        "app = create_app(Settings.load({'database_url': sys.argv[1]}, environ={}))\n"
        "warming.LONGEST_SECONDS, warming.LAST_SECONDS = 60.0, 90.0\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "warming.ask_nothing(app)\n"
        "warming.make_pages(app)\n"
        "print(*{'pdb', 'alembic', 'flask.testing'} & set(sys.modules))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, database], capture_output=True, text=True, check=True, timeout=60
    )
    assert (ran.stdout.split(), ran.stderr) == ([], "")


def test_a_start_without_tables_says_in_a_line_what_to_run(
    empty_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings.load({"database_url": empty_database}, environ={}))
    with caplog.at_level(logging.INFO):
        warming.make_pages(app)
        warming.make_first(app)
    said = [record.message for record in caplog.records if record.name == "wakeboard.web"]
    assert len(said) == 2
    assert all(line.endswith("Run: wakeboard db upgrade") and "SELECT" not in line for line in said)
