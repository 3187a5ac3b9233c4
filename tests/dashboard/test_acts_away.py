"""An act that meets a database that is away: what is known of it is said, to everybody in their own shape."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN, AsRole
from tests.support.dashboard_apps import an_app
from tests.support.factories import a_definition, a_run, status
from tests.support.postgres.wire_proxy import Middleman, Way, between
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database.db import DatabaseError
from wakeboard_dashboard.pages import verbs
from wakeboard_dashboard.web import errors

SHAPES = {
    "page": {"Accept": "text/html"},
    "htmx": {"HX-Request": "true"},
    "json": {"Accept": "application/json"},
}
NOT_DONE = f"{errors.ACT_AWAY} {errors.NOT_DONE}"
UNKNOWN = f"{errors.ACT_BROKEN} {errors.UNKNOWN}"


@pytest.fixture
def middleman(database: str) -> Iterator[Middleman]:
    with between(database) as found:
        yield found


@pytest.fixture
def app(middleman: Middleman) -> Iterator[Flask]:
    """The dashboard, with a middleman before its database."""
    made = an_app(database_url=middleman.url)
    yield made
    made.extensions["wakeboard_database"].dispose()


@pytest.fixture
def client(app: Flask, connection: Connection) -> FlaskClient:
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(connection, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    # It knows the name of its cookie then, and has a connection.
    assert client.get("/runs").status_code == 200
    return client


def said(client: FlaskClient, address: str, shape: str) -> tuple[str, bool]:
    """Return what is said of a POST that failed, and whether it is told when to try again."""
    answer = client.post(address, data={"reason": "x"}, headers=SHAPES[shape])
    assert answer.status_code == 503
    text = answer.text
    if shape == "json":
        assert set(answer.get_json()) == {"error", "message", "request_id"}
        assert answer.get_json()["error"] == "Database unreachable"
        text = str(answer.get_json()["message"])
    elif shape == "page":
        assert f'<a class="button primary" href="{address}">Back to the form</a>' in text or UNKNOWN in text
        assert f'data-again="{address}"' in text
        text = re.findall('<p class="sentence">(.*?)</p>', text)[0]
    return text, "Retry-After" in answer.headers


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_refused_at_the_door_was_not_done(
    client: FlaskClient, connection: Connection, middleman: Middleman, shape: str
) -> None:
    run_id = a_run(connection, "queued")
    middleman.refuse()
    assert said(client, f"/runs/{run_id}/cancel", shape) == (NOT_DONE, True)
    assert status(connection, run_id) == "queued"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("way", "becomes"), [(Way.BEFORE, "queued"), (Way.AFTER, "cancelled")])
def test_what_broke_in_the_middle_may_have_been_done(
    client: FlaskClient,
    connection: Connection,
    middleman: Middleman,
    shape: str,
    way: Way,
    becomes: str,
) -> None:
    run_id = a_run(connection, "queued")
    acting = False

    def cut(_name: str, statement: str) -> Way | None:
        nonlocal acting
        acting = acting or "UPDATE wakeboard.job_runs" in statement
        return way if acting and statement.upper().startswith("COMMIT") else None

    middleman.cuts = cut
    assert said(client, f"/runs/{run_id}/cancel", shape) == (UNKNOWN, False)
    middleman.heal()
    assert status(connection, run_id) == becomes


def test_no_connection_for_the_act_means_that_it_was_not_done(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = a_run(connection, "queued")

    def away() -> None:
        raise DatabaseError("The database does not answer: refused.")

    monkeypatch.setattr(verbs, "writing", away)
    assert said(client, f"/runs/{run_id}/cancel", "page") == (NOT_DONE, True)


def test_the_page_leads_to_the_audit_log_where_it_may_have_been_done(
    client: FlaskClient, connection: Connection, middleman: Middleman
) -> None:
    a_definition(connection, "nightly")
    middleman.cuts = lambda _name, text: Way.DURING if "UPDATE wakeboard.job_definitions" in text else None
    answer = client.post("/schedules/nightly/edit", data={"priority": "3", "next": "/schedules"})
    html = answer.text
    assert answer.status_code == 503 and UNKNOWN in html
    assert 'href="/audit">Audit log</a>' in html
    assert 'href="/schedules/nightly/edit?next=%2Fschedules">Back to the form</a>' in html
    # Sent once more it might be done twice.
    assert "load this page again" not in html


def test_a_page_says_as_before_that_it_has_nothing_to_show(client: FlaskClient, middleman: Middleman) -> None:
    middleman.refuse()
    html = client.get("/runs").text
    assert errors.AWAY in html and "Back to the form" not in html and errors.NOT_DONE not in html


def test_nobody_is_told_to_look_at_the_audit_log_before_signing_in(
    client: FlaskClient, middleman: Middleman
) -> None:
    middleman.refuse()
    html = client.post("/login", data={"name": "anna", "password": "x"}).text
    assert "The database does not answer. Try to sign in again." in html and errors.UNKNOWN not in html


def test_a_mistake_of_ours_is_not_said_to_have_changed_nothing(
    as_role: AsRole, monkeypatch: pytest.MonkeyPatch, connection: Connection
) -> None:
    run_id = a_run(connection, "queued")

    def wrong(*_given: object, **_named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(verbs, "respond", wrong)
    answer = as_role("admin").post(f"/runs/{run_id}/cancel", headers=SHAPES["json"])
    assert answer.get_json()["message"] == f"{errors.ACT_WRONG} {errors.UNKNOWN}"
    assert status(connection, run_id) == "cancelled"


def test_a_refused_form_leads_back_to_itself(client: FlaskClient, connection: Connection) -> None:
    for _ in range(101):
        a_run(connection, "dead", job_type="mail")
    answer = client.post("/runs/bulk/retry?status=dead", data={"filter": "status=dead", "confirm": "7"})
    html = answer.text
    assert answer.status_code == 400
    assert 'href="/runs/bulk/retry?status=dead">Back to the form</a>' in html
    assert "load this page again" not in html
