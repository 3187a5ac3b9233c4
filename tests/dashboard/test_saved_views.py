"""Saved views of runs: a filter under a name that everybody finds, and who may change it."""

from __future__ import annotations

import json
from html import unescape

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, page_of
from tests.support.factories import a_run, insert, rows
from wakeboard import cli
from wakeboard.queue import saved_views

JSON = {"Accept": "application/json"}
HOSTILE = "<b>bad</b>\"'"


def save(client: FlaskClient, name: str, query: str, **more: str) -> tuple[int, str]:
    answer = client.post("/runs/views/save", json={"name": name, "query": query, **more}, headers=JSON)
    return answer.status_code, answer.get_json()["message"]


def a_view(
    connection: Connection, name: str = "Dead mail", by: str = "anna", query: str = "status=dead"
) -> int:
    values = {"page": "runs", "name": name, "query": query, "created_by": by}
    return int(insert(connection, "saved_views", values))


def test_a_filter_is_saved_and_found_by_everybody(as_role: AsRole, connection: Connection) -> None:
    operator, viewer = as_role("operator"), as_role("viewer")
    offer = page_of(operator, "/runs?type=mail&status=dead")
    assert "/runs/views/save?query=status%3Ddead%26type%3Dmail" in offer
    form = page_of(operator, "/runs/views/save?query=status%3Ddead%26type%3Dmail")
    assert "status:dead type:mail" in form and 'value="status=dead&amp;type=mail"' in form
    answer = operator.post(
        "/runs/views/save", data={"name": " Dead  mail ", "query": "type=mail&status=dead", "reason": "duty"}
    )
    assert answer.status_code == 303
    (view,) = rows(connection, "saved_views")
    assert (view["page"], view["name"], view["query"]) == ("runs", "Dead mail", "status=dead&type=mail")
    assert view["created_by"] == "operator"
    seen = unescape(page_of(viewer, "/runs"))
    assert 'href="/runs?status=dead&type=mail"' in seen and "Dead mail, saved by operator" in seen
    (audited,) = rows(connection, "audit_log", "action = 'view.save'")
    assert (audited["target_id"], audited["reason"]) == ("Dead mail", "duty")


def test_the_view_that_is_shown_is_marked_and_can_be_removed(
    client: FlaskClient, connection: Connection
) -> None:
    view = a_view(connection)
    assert 'aria-current="page"' in page_of(client, "/runs?status=dead").split('id="view-')[1].split(">")[0]
    assert f"/runs/views/{view}/remove" in page_of(client, "/runs?status=dead")
    assert "/remove" not in page_of(client, "/runs?status=failed")
    assert "Dead mail" in page_of(client, f"/runs/views/{view}/remove")
    assert client.post(f"/runs/views/{view}/remove").status_code == 303
    assert rows(connection, "saved_views") == []
    assert client.get(f"/runs/views/{view}/remove").status_code == 404
    assert client.post(f"/runs/views/{view}/remove", headers=JSON).status_code == 404


def test_only_its_owner_or_an_admin_changes_a_view(as_role: AsRole, connection: Connection) -> None:
    view = a_view(connection, by="bob")
    operator, admin = as_role("operator"), as_role("admin")
    code, sentence = save(operator, "Dead mail", "status=failed")
    assert code == 409 and "bob" in sentence
    assert operator.post(f"/runs/views/{view}/remove", headers=JSON).status_code == 409
    assert save(operator, "Mine", "status=failed")[0] == 200
    assert save(operator, "Mine", "status=failed") == (200, "View “Mine” is this filter already.")
    assert save(operator, "Mine", "status=dead", replace="yes") == (200, "View “Mine” was changed.")
    assert save(admin, "Dead mail", "status=failed", replace="yes")[0] == 200
    saved = {each["name"]: (each["query"], each["created_by"]) for each in rows(connection, "saved_views")}
    assert saved == {"Dead mail": ("status=failed", "bob"), "Mine": ("status=dead", "operator")}


def test_a_view_is_replaced_only_when_that_is_said(client: FlaskClient, connection: Connection) -> None:
    a_view(connection, "Dead mail", query="status=dead")
    sentence = (
        "There is a view “Dead mail” already, for status=dead: say that it is to be replaced, or take "
        "another name."
    )
    assert save(client, "Dead mail", "status=failed") == (400, sentence)
    sent = {"name": "Dead  mail", "query": "status=failed", "reason": "duty"}
    answer = client.post("/runs/views/save", data=sent)
    page = unescape(answer.text)
    assert answer.status_code == 400 and sentence in page and "status:failed" in page
    assert 'value="Dead  mail"' in page and 'value="duty"' in page and 'name="replace"' in page
    assert rows(connection, "saved_views")[0]["query"] == "status=dead"
    assert client.post("/runs/views/save", data=sent | {"replace": "1"}).status_code == 303
    assert rows(connection, "saved_views")[0]["query"] == "status=failed"


def test_a_viewer_reads_views_and_saves_none(as_role: AsRole, connection: Connection) -> None:
    view = a_view(connection)
    viewer = as_role("viewer")
    page = page_of(viewer, "/runs?status=dead")
    assert "Dead mail" in page and "/runs/views/" not in page
    assert save(viewer, "Mine", "status=dead")[0] == 403
    assert viewer.post(f"/runs/views/{view}/remove", headers=JSON).status_code == 403
    assert len(rows(connection, "saved_views")) == 1


@pytest.mark.parametrize(
    ("name", "query", "words"),
    [
        ("", "status=dead", "1 to 60"),
        ("x" * 61, "status=dead", "1 to 60"),
        ("a\x07b", "status=dead", "printable"),
        ("Mine", "", "filter the list first"),
        ("Mine", "colour=red", "There is no filter “colour”"),
        ("Mine", "payload.password=x", "hidden from viewers"),
        ("Mine", "payload.a=" + "%F0%9F%98%80" * 400, "1 to 2000"),
    ],
)
def test_what_cannot_be_a_view_is_refused_in_a_sentence(
    client: FlaskClient, connection: Connection, name: str, query: str, words: str
) -> None:
    code, sentence = save(client, name, query)
    assert code == 400 and words in sentence
    assert rows(connection, "saved_views") == []


def test_there_is_an_end_to_views(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_views, "MOST", 1)
    a_view(connection)
    code, sentence = save(client, "One more", "status=dead")
    assert code == 409 and "remove one first" in sentence


def test_a_hostile_name_stays_text(client: FlaskClient, connection: Connection) -> None:
    view = a_view(connection, HOSTILE, by=HOSTILE, query='status=dead"><script>')
    for path in ("/runs", f"/runs/views/{view}/remove"):
        page = page_of(client, path)
        assert "<b>bad" not in page and "<script>" not in page


def test_a_view_is_used_from_a_terminal_and_narrowed_there(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    dead, bill = a_run(connection, "dead"), a_run(connection, "dead", job_type="bill")
    waiting = a_run(connection)
    a_view(connection)

    def found(*words: str) -> list[int]:
        capsys.readouterr()
        assert cli.run(["runs", "--view", "Dead mail", "--json", *words]) == 0
        return [item["id"] for item in json.loads(capsys.readouterr().out)["items"]]

    assert found() == [bill, dead]
    assert found("type:bill") == [bill]
    assert found("status:queued") == [waiting]
    assert cli.run(["runs", "--view", "None"]) == 2
    assert "there are: “Dead mail”" in capsys.readouterr().err
