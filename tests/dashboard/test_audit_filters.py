"""Looking for something in the audit log: what can be chosen, what each filter finds, where things lead."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from tests.dashboard.test_audit import an_entry, listed
from tests.support.factories import a_definition, a_run, a_type, a_worker, insert
from wakeboard.reporting.filters import audit as filters
from wakeboard_dashboard.text.targets import log_of, page_of

JSON = {"Accept": "application/json"}


def options(page: str, name: str) -> list[str]:
    """Return the values that the control ``name`` offers."""
    control = re.search(rf'<select name="{name}".*?</select>', page, re.DOTALL)
    assert control, name
    return [unescape(value) for value in re.findall(r'<option value="([^"]*)"', control[0])]


def test_controls_offer_what_there_is(client: FlaskClient, connection: Connection) -> None:
    an_entry(connection, actor="ben", action="type.pause", target_type="type", target_id="mail:out")
    an_entry(connection, actor="carla", target_type="run", target_id="7", source="cli")
    insert(connection, "users", {"name": "dora", "role": "viewer", "password_hash": "x"})
    page = client.get("/audit?who=gone").text
    assert options(page, "who") == ["", "ben", "carla", "dora", "gone"]
    assert options(page, "what") == ["", "run.retry", "type.pause"]
    assert options(page, "kind") == ["", "run", "type"]
    assert ">Retry (run.retry)</option>" in page
    assert '<option value="type:mail:out">' in page and '<option value="run:7">' in page


def test_names_typed_at_the_door_are_no_choice(client: FlaskClient, connection: Connection) -> None:
    an_entry(connection, actor="<admin>", action="login.password", result="denied")
    assert "<admin>" not in options(client.get("/audit").text, "who")
    assert len(listed(client, "?who=<admin>")) == 1


def test_a_kind_and_a_name_find_one_thing(client: FlaskClient, connection: Connection) -> None:
    nightly = an_entry(connection, action="schedule.pause", target_type="schedule", target_id="nightly")
    odd = an_entry(connection, action="type.pause", target_type="type", target_id="run:7")
    an_entry(connection, target_type="run", target_id="7")
    assert listed(client, "?kind=schedule") == listed(client, "?kind=schedule&target=nightly") == [nightly]
    assert listed(client, "?kind=schedule&target=schedule:nightly") == [nightly]
    assert listed(client, "?kind=type&target=run:7") == listed(client, "?target=type:run:7") == [odd]
    assert listed(client, "?kind=run&target=nightly") == []


def test_what_was_refused_is_found_and_shown_as_such(
    client: FlaskClient, connection: Connection, as_role: AsRole
) -> None:
    run = a_run(connection, "dead")
    assert as_role("viewer").post(f"/runs/{run}/retry", headers=JSON).status_code == 403
    client.post(f"/runs/{run}/retry", headers=JSON)
    client.post(f"/runs/{a_run(connection, 'succeeded')}/cancel", headers=JSON)
    page = client.get("/audit?result=forbidden,locked,denied,refused,missing,invalid").text
    assert page.count('<tr id="audit-') == 2
    assert 'class="badge failed"' in page and ">denied</span>" in page and ">forbidden</span>" in page
    assert "their role does not allow it" in page and "selected>refused, in any way<" in page


def test_source_and_reason_find_their_rows(client: FlaskClient, connection: Connection) -> None:
    typed = an_entry(connection, source="cli", reason="the CRM is 100% back")
    an_entry(connection, reason="100 of them")
    assert listed(client, "?source=cli") == listed(client, "?q=crm") == listed(client, "?q=100%25") == [typed]


@pytest.mark.parametrize(
    "query", ["source=cli&limit=2", "who=anna&what=run.retry&limit=2", "kind=run&limit=2"]
)
def test_a_search_that_stops_early_says_so_and_goes_on(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(filters, "WINDOW", 3)
    match = {"source": "cli", "target_type": "run", "target_id": "1"}
    wanted = [an_entry(connection, **match) for _ in range(2)]
    for _ in range(4):
        an_entry(connection, actor="anna", action="login", target_type="session", target_id="anna")
    wanted.append(an_entry(connection, **match))
    found: list[int] = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        body = client.get(f"/audit.json?{query}&limit=2{cursor}").get_json()
        found += [each["id"] for each in body["items"]]
        cursor, pages = f"&cursor={body['next']}" if body["next"] else "", pages + 1
    assert found == wanted[::-1] and pages > 2
    first = client.get(f"/audit?{query}&limit=2").text
    assert "rows were searched from here on" in first and 'rel="next"' in first


def test_two_times_are_chosen_in_the_readers_zone(client: FlaskClient, connection: Connection) -> None:
    inside = an_entry(connection, at="2026-11-20T07:30:00Z")
    an_entry(connection, at="2026-11-20T08:30:00Z")
    client.set_cookie("wakeboard_zone", "Europe/Paris")
    query = "?since=2026-11-20T08:00&until=2026-11-20T09:00"
    assert listed(client, query) == [inside]
    page = client.get(f"/audit{query}").text
    assert 'name="since" value="2026-11-20T08:00"' in page and "Europe/Paris" in page


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        ("since=2026-11-20T08:00&until=2026-11-20T09:00", "?since=2026-11-20T08:00&until=2026-11-20T09:00"),
        ("who=anna&in=&since=2026-11-20T08:00", "?who=anna&since=2026-11-20T08:00"),
        ("in=7d&was.since=1d&shown.since=2026-11-20T08:00&since=2026-11-20T08:00", "?since=7d"),
        ("in=1d&was.since=1d&shown.since=2026-11-20T08:00&since=2026-11-20T07:00", "?since=2026-11-20T07:00"),
        ("in=1d&was.since=1d&shown.since=2026-11-20T08:00&since=", ""),
        ("was.until=2h&shown.until=2026-11-20T08:00&until=2026-11-20T08:00&q=a%26b", "?until=2h&q=a%26b"),
        ("was.until=2h&shown.until=2026-11-20T08:00&until=", ""),
        ("", ""),
    ],
)
def test_the_form_becomes_the_address_that_means_it(client: FlaskClient, asked: str, address: str) -> None:
    answer = client.get(f"/audit/find?{asked}")
    assert (answer.status_code, answer.location) == (303, f"/audit{address}")


def test_times_the_wrong_way_round_come_back_in_the_form(client: FlaskClient) -> None:
    query = "who=anna&since=2026-11-20T09:00&until=2026-11-20T08:00"
    answer = client.get(f"/audit?{query}")
    page = answer.text
    assert answer.status_code == 400 and "is not before “until”" in page
    assert '<input type="hidden" name="who" value="anna">' in page
    for name, typed in (("since", "09:00"), ("until", "08:00")):
        assert f'<input type="datetime-local" name="{name}" value="2026-11-20T{typed}"' in page
    assert client.get(f"/audit.json?{query}").status_code == 400


def test_things_lead_to_their_rows(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead", error_code="smtp_down")
    a_type(connection, "mail:out & in")
    a_worker(connection, "w/1")
    a_definition(connection, "nightly")
    client.post(f"/runs/{run}/retry", headers=JSON)
    insert(connection, "effects", {"scope": f"run:{run}", "key": "k", "run_id": run, "attempt": 1,
                                   "lease_epoch": 1, "status": "started"})  # fmt: skip
    insert(connection, "saved_views", {"page": "runs", "name": "Dead & gone", "query": "status=dead",
                                       "created_by": "anna"})  # fmt: skip
    for path, target in (
        (f"/runs/{run}", f"run:{run}"),
        ("/types/mail%3Aout%20%26%20in", "type:mail:out & in"),
        ("/workers/w%2F1", "worker:w/1"),
        ("/schedules/nightly", "schedule:nightly"),
        ("/effects", "effect:"),
        ("/alerts", "alert:"),
        ("/errors/smtp_down", "error:smtp_down"),
        ("/runs?status=dead", "view:Dead & gone"),
    ):
        links = re.findall(r'href="(/audit\?target=[^"]+)"', client.get(path).text)
        told = [client.get(unescape(link)).text for link in links]
        assert any(target in unescape(page) for page in told), (path, links)


@pytest.mark.parametrize(
    ("row", "page"),
    [
        ({"target_type": "run", "target_id": "7"}, "/runs/7"),
        ({"target_type": "run", "target_id": "7 OR 1"}, None),
        ({"target_type": "schedule", "target_id": "nightly"}, "/schedules/nightly"),
        ({"target_type": "effect", "target_id": "3"}, "/effects#effect-3"),
        ({"target_type": "alert", "target_id": "3"}, "/alerts#rule-3"),
        ({"target_type": "error", "target_id": "http/503"}, "/errors/http%2F503"),
        ({"target_type": "operation", "target_id": "9"}, None),
        (
            {"target_type": "view", "target_id": "Dead", "after": {"query": "status=dead"}},
            "/runs?status=dead",
        ),
        ({"target_type": "view", "target_id": "4", "before": {"query": 'q="><b>'}}, "/runs?q=%22%3E%3Cb%3E"),
        ({"target_type": "view", "target_id": "4"}, None),
        ({"target_type": "user", "target_id": "anna"}, None),
        ({"target_type": "database", "target_id": "x.dump"}, "/system"),
        ({"target_type": None, "target_id": None}, None),
    ],
)
def test_a_row_leads_to_the_page_of_its_thing(row: dict[str, Any], page: str | None) -> None:
    whole = {"before": None, "after": None} | row
    assert page_of(whole, lambda path: not path.startswith("/operations")) == page


def test_an_operation_leads_to_its_page_where_there_is_one(app: Flask) -> None:
    row = {"target_type": "operation", "target_id": "9", "before": None, "after": None}
    assert page_of(row, lambda _path: True) == "/operations/9"
    assert log_of("type", "a/b & c") == "/audit?target=type:a%2Fb%20%26%20c"
