"""What a person asks for from nothing: a new run from a page, and everything held at once and let go."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient
from markupsafe import escape

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, one_line
from tests.support.factories import a_run, a_type, claim, rows

JSON = {"Accept": "application/json"}


def audit(connection: Connection, action: str) -> list[dict[str, Any]]:
    return rows(connection, "audit_log", "action = %s", action)


def paused(connection: Connection) -> set[str]:
    return {row["name"] for row in rows(connection, "job_types", "paused_at IS NOT NULL")}


def test_a_run_is_enqueued_from_a_form(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    page = client.get("/runs/enqueue?type=mail").text
    assert 'name="type" value="mail"' in page and '<option value="mail">' in page
    form = {
        "type": "mail",
        "payload": '{"to": 7}',
        "in": "1h",
        "priority": "0",
        "key": "k",
        "reason": "asked",
    }
    answer = client.post("/runs/enqueue", data=form)
    (run,) = rows(connection, "job_runs")
    assert answer.status_code == 303
    assert (run["job_type"], run["payload"], run["priority"]) == ("mail", {"to": 7}, 0)
    assert (run["idempotency_key"], run["enqueued_by"], run["status"]) == ("k", "admin", "queued")
    assert timedelta(minutes=58) < run["run_at"] - datetime.now(UTC) < timedelta(minutes=61)
    (row,) = audit(connection, "run.enqueue")
    assert (row["target_type"], row["target_id"], row["reason"]) == ("run", str(run["id"]), "asked")
    assert row["after"] == {"status": "queued", "job_type": "mail", "key": "k"}


def test_a_program_gets_the_id_and_the_same_key_gives_the_same_run(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")
    sent = {"type": "mail", "payload": {"to": 7}, "key": "k"}
    first = client.post("/runs/enqueue", json=sent, headers=JSON).get_json()
    again = client.post("/runs/enqueue", json=sent, headers=JSON).get_json()
    assert first["changed"] and first["status"] == "queued"
    assert (again["id"], again["changed"]) == (first["id"], False)
    assert len(rows(connection, "job_runs")) == 1
    assert [row["result"] for row in audit(connection, "run.enqueue")] == ["done", "already"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"type": "mial"}, "Near it: mail"),
        ({"payload": "[1]"}, "must be a JSON object"),
        ({"payload": "{"}, "not JSON"),
        ({"in": "soon"}, "allowed: a duration"),
        ({"in": "never"}, "allowed: a duration"),
        ({"priority": "9"}, "allowed: 0 to 4"),
        ({"max_attempts": "0"}, "allowed: 1 to"),
        ({"key": "k" * 201}, "idempotency key"),
    ],
)
def test_what_cannot_be_a_run_enqueues_nothing(
    client: FlaskClient, connection: Connection, wrong: dict[str, str], says: str
) -> None:
    a_type(connection, "mail")
    answer = client.post("/runs/enqueue", data={"type": "mail"} | wrong, headers=JSON)
    assert answer.status_code == 400 and says in answer.get_json()["message"]
    assert rows(connection, "job_runs") == []


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"type": "mail", "paylod": {"to": 7}}, "There is no field “paylod”; allowed: type, payload, in, at"),
        ({"payload": {"to": 7}}, "Say which type"),
    ],
)
def test_a_program_is_told_what_nobody_would_have_read(
    client: FlaskClient, connection: Connection, sent: dict[str, Any], says: str
) -> None:
    a_type(connection, "mail")
    answer = client.post("/runs/enqueue", json=sent, headers=JSON)
    assert answer.status_code == 400 and says in answer.get_json()["message"]
    assert rows(connection, "job_runs") == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"type": "mial"}, "Near it: mail"),
        ({"payload": '{"to": <7>'}, "not JSON"),
        ({"at": "2026-13-45T25:00"}, "allowed: a duration"),
        ({"max_attempts": "0"}, "allowed: 1 to"),
    ],
)
def test_a_refused_form_is_shown_again_with_what_was_typed(
    client: FlaskClient, connection: Connection, wrong: dict[str, str], says: str
) -> None:
    a_type(connection, "mail")
    typed = {
        "type": "mail", "payload": '{"to": "<anna>"}', "in": "4h", "priority": "0", "max_attempts": "3",
        "key": 'a"key', "reason": "asked", "next": "/runs?status=dead",
    }  # fmt: skip
    answer = client.post("/runs/enqueue", data=typed | wrong)
    html = answer.text
    assert answer.status_code == 400 and rows(connection, "job_runs") == []
    assert says in unescape(html) and 'role="alert"' in html
    assert f"{escape((typed | wrong)['payload'])}</textarea>" in html
    for name in ("type", "max_attempts", "key", "reason", "next"):
        shown = re.escape(str(escape((typed | wrong)[name])))
        assert re.search(rf'name="{name}"[^>]* value="{shown}"', html), name
    html = one_line(html)
    assert '<option value="4h" selected>' in html and '<option value="0" selected>' in html


def test_who_enqueued_a_run_is_led_to_it(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    sent = {"type": "mail", "key": "k", "next": "/runs"}
    for _ in ("made", "known"):
        answer = client.post("/runs/enqueue", data=sent)
        (run,) = rows(connection, "job_runs")
        assert answer.headers["Location"] == f"/runs/{run['id']}"


def test_a_refused_end_is_shown_again_in_each_form_that_pauses(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")
    for path in ("/types/+pause-all", "/types/mail/pause"):
        answer = client.post(path, data={"until_at": "2020-01-01T00:00", "reason": "a move"})
        html = answer.text
        assert answer.status_code == 400 and 'role="alert"' in html
        assert 'value="2020-01-01T00:00"' in html and 'value="a move"' in html
    assert paused(connection) == set()


@pytest.mark.parametrize("job_type", ["command", "command:www-data", "http"])
def test_viewers_enqueue_nothing_and_only_admins_what_is_a_command(
    as_role: AsRole, connection: Connection, job_type: str
) -> None:
    a_type(connection, "mail")
    a_type(connection, job_type)
    assert as_role("viewer").get("/runs/enqueue").status_code == 403
    assert as_role("viewer").post("/runs/enqueue", data={"type": "mail"}).status_code == 403
    assert 'href="/runs/enqueue"' not in as_role("viewer").get("/runs").text
    sent = {"type": job_type, "payload": '{"argv": ["/bin/true"]}'}
    assert as_role("operator").post("/runs/enqueue", data=sent).status_code == 403
    assert rows(connection, "job_runs") == []
    assert as_role("admin").post("/runs/enqueue", data=sent).status_code == 303
    assert as_role("operator").post("/runs/enqueue", data={"type": "mail"}).status_code == 303
    assert len(rows(connection, "job_runs")) == 2


def test_all_types_are_paused_and_resumed_and_what_was_paused_by_itself_stays_so(
    client: FlaskClient, connection: Connection
) -> None:
    for name in ("mail", "report", "sync", "alert"):
        a_type(connection, name)
    client.post("/types/sync/pause", data={"reason": "provider down"})
    asked = client.get("/types/+pause-all").text
    assert '<a href="/types" aria-current="page"' in asked, "it belongs to the types"
    assert "2 types" in asked and "<code>sync</code>" in asked and "<code>alert</code>" not in asked
    answer = client.post("/types/+pause-all", json={"until": "2h", "reason": "a move"}, headers=JSON)
    assert answer.get_json()["message"] == "2 types are paused; what runs goes on."
    assert paused(connection) == {"mail", "report", "sync"}
    mail = rows(connection, "job_types", "name = 'mail'")[0]
    assert (mail["paused_by"], mail["paused_reason"]) == ("admin", "a move")
    assert mail["paused_until"] is not None
    a_run(connection, job_type="mail")
    assert claim(connection, ["mail"]) == []
    assert 'href="/types/+resume-all"' in client.get("/types").text
    client.post("/types/+resume-all", data={"reason": "moved"})
    assert paused(connection) == {"sync"} and len(claim(connection, ["mail"])) == 1
    assert rows(connection, "job_types", "name = 'sync'")[0]["paused_reason"] == "provider down"
    (held,), (gone,) = audit(connection, "type.hold"), audit(connection, "type.let_go")
    assert held["after"]["types"] == gone["after"]["types"] == ["mail", "report"]
    assert (held["reason"], gone["reason"]) == ("a move", "moved")
    assert {row["target_id"] for row in audit(connection, "type.pause")} == {"mail", "report", "sync"}


def test_resume_all_is_offered_where_types_were_paused_together(
    client: FlaskClient, connection: Connection
) -> None:
    offer = 'href="/types/+resume-all"'
    for name in ("mail", "sync"):
        a_type(connection, name)
    assert offer not in client.get("/types").text
    client.post("/types/sync/pause")
    assert offer not in client.get("/types").text, "it is paused by itself"
    client.post("/types/+pause-all")
    for query in ("", "?state=active", "?q=nothing"):
        assert offer in client.get(f"/types{query}").text, query
    client.post("/types/+resume-all")
    assert paused(connection) == {"sync"}
    assert offer not in client.get("/types").text


def test_pausing_or_resuming_all_twice_changes_nothing(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    for path in ("/types/+resume-all", "/types/+pause-all", "/everything/hold"):
        answer = client.post(path, headers=JSON).get_json()
    assert answer["changed"] is False and paused(connection) == {"mail"}
    assert [row["result"] for row in audit(connection, "type.hold")] == ["done", "already"]
    assert client.post("/types/+resume-all", headers=JSON).get_json()["changed"]
    assert paused(connection) == set()


@pytest.mark.parametrize("wrong", ["soon", "2020-01-01T00:00", "400d"])
def test_an_end_that_cannot_be_pauses_nothing(
    client: FlaskClient, connection: Connection, wrong: str
) -> None:
    a_type(connection, "mail")
    assert client.post("/types/+pause-all", data={"until": wrong}, headers=JSON).status_code == 400
    assert paused(connection) == set() and audit(connection, "type.hold") == []


def test_a_viewer_pauses_nothing(as_role: AsRole, connection: Connection) -> None:
    a_type(connection, "mail")
    for path in ("/types/+pause-all", "/types/+resume-all"):
        assert as_role("viewer").post(path).status_code == 403
    assert paused(connection) == set()
    assert 'href="/types/+pause-all"' not in as_role("viewer").get("/types").text


def test_types_are_resumed_together_though_the_audit_log_has_forgotten_their_pause(
    client: FlaskClient, connection: Connection
) -> None:
    for name in ("mail", "report", "sync", "crm"):
        a_type(connection, name)
    for name in ("sync", "crm"):
        assert client.post(f"/types/{name}/pause", headers=JSON).status_code == 200
    assert client.post("/types/+pause-all", headers=JSON).get_json()["changed"] is True
    with connection.transaction():
        connection.execute("SET LOCAL wakeboard.retention = 'on'")
        connection.execute("DELETE FROM wakeboard.audit_log")
    assert 'id="resume-all"' in client.get("/types").text
    asked = client.get("/types/+resume-all").text
    assert "2 types: <code>mail</code>, <code>report</code>." in asked
    assert client.post("/types/+resume-all", headers=JSON).get_json()["changed"] is True
    assert paused(connection) == {"sync", "crm"}
    assert 'id="resume-all"' not in client.get("/types").text
