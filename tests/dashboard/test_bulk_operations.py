"""All that match: what a person is shown before, has to type, and sees afterwards; without any script."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of, words_of
from tests.support.factories import a_run, a_type, a_worker, rows, status
from tests.support.workers.bulk_operations import begin, finish, operation, step

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def words(client: FlaskClient, path: str) -> str:
    return words_of(client, path).replace("\u202f", " ")


def form_of(client: FlaskClient, path: str) -> dict[str, str]:
    """Return what the form of a preview would send, as a browser without a script fills it in."""
    html = client.get(path).text
    form = html.split('<form class="card form"')[1].split("</form>")[0]
    found = {}
    for tag in re.findall(r"<input [^>]*>", form):
        is_off = 'type="checkbox"' in tag and " checked" not in tag
        name, value = (re.search(rf'{each}="([^"]*)"', tag) for each in ("name", "value"))
        if name and not is_off:
            found[name[1]] = unescape(value[1]) if value else ""
    return found


def many(connection: Connection, count: int) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, lease_epoch, started_at,
            finished_at, failed_at, error_code)
        SELECT 'mail', 'dead', 1, 1, 1, now(), now(), now(), 'smtp_down' FROM generate_series(1, %s)""",
        (count,),
    )


# The list of runs leads there


def test_a_filtered_list_offers_what_can_be_done_with_all_that_match(
    client: FlaskClient, as_role: AsRole, connection: Connection
) -> None:
    many(connection, 60)
    page = client.get("/runs?status=dead").text
    assert 'href="/runs/bulk/retry?status=dead"' in page and "Retry all 60…" in page
    assert 'href="/runs/bulk/cancel?status=dead"' in page and "Cancel all 60…" in page
    page = client.get("/runs?status=succeeded").text
    assert "/runs/bulk/cancel?" not in page, "what succeeded stays so"
    assert "/runs/bulk/retry?" not in client.get("/runs").text, "all runs there are"
    assert "/runs/bulk/retry?" not in as_role("viewer").get("/runs?status=dead").text


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("status=queued", ["cancel"]),
        ("status=running", ["cancel"]),
        ("status=succeeded", ["again"]),
        ("status=dead", ["retry", "cancel", "again"]),
        # More than what is due may match these a moment later.
        ("status=queued,failed", ["retry", "cancel"]),
        ("type=mail", ["retry", "cancel", "again"]),
        # Of those on other pages nothing is known.
        ("status=queued&limit=1", ["retry", "cancel"]),
    ],
)
def test_it_offers_only_what_the_states_that_are_asked_for_allow(
    client: FlaskClient, connection: Connection, query: str, offered: list[str]
) -> None:
    for state in ("queued", "queued", "running", "succeeded", "dead"):
        a_run(connection, state)
    page = client.get(f"/runs?{query}").text
    assert re.findall(r'id="all-(\w+)"', page) == offered


def test_what_is_queued_may_be_retried_where_some_of_it_waits_for_later(
    client: FlaskClient, connection: Connection
) -> None:
    due, _ = a_run(connection, "queued"), a_run(connection, "queued", run_at="1 hour")
    assert 'id="all-retry"' in client.get("/runs?status=queued").text
    assert "Retry 1 run?" in (shown := words(client, "/runs/bulk/retry?status=queued"))
    assert f"What is left as it is: 1 run Why Runs For example Action due already 1 {due}" in shown
    connection.execute("UPDATE wakeboard.job_runs SET run_at = now()")
    shown = words(client, "/runs/bulk/retry?status=queued")
    assert "Nothing to retry" in shown and "Retry makes due what waits for later" in shown
    assert "due already 2" in shown


# The preview


def test_the_preview_says_what_will_happen_to_how_many_and_what_is_left_and_why(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('paused', now())")
    a_run(connection, "dead")
    a_run(connection, "failed")
    a_run(connection, "dead", job_type="paused")
    done = a_run(connection, "succeeded")
    shown = words(client, "/runs/bulk/retry?since=24h")
    assert "Retry 2 runs?" in shown
    assert "dead 1 queued afresh" in shown and "failed 1 due now instead of after their backoff" in shown
    assert "What is left as it is: 2 runs" in shown
    assert "of a paused type 1" in shown
    assert f"succeeded in a state that does not allow it 1 {done}" in shown
    assert "Retry 3 runs?" in words(client, "/runs/bulk/retry?since=24h&also=paused")


def test_the_preview_has_a_twin_with_the_same_numbers(client: FlaskClient, connection: Connection) -> None:
    run, ended = a_run(connection, "dead"), a_run(connection, "succeeded")
    body = client.get("/runs/bulk/retry.json?type=mail").get_json()
    assert (body["counted"], body["states"], body["types"]) == (1, {"dead": 1}, {"mail": 1})
    assert (body["highest"], body["examples"], body["filter"]) == (run, [run], "type=mail")
    assert body["left"] == [
        {"why": "state", "status": "succeeded", "runs": 1, "more": False, "examples": [ended]}
    ]
    chosen = client.get(f"/runs/bulk/retry.json?run={run}&run={ended}&run=999").get_json()
    assert [(each["why"], each["runs"]) for each in chosen["left"]] == [("state", 1), ("missing", 1)]


def test_a_preview_of_nothing_offers_nothing(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "succeeded")
    page = client.get("/runs/bulk/retry?status=succeeded").text
    assert "<h1>Nothing to retry</h1>" in page and "None of them would be retried now." in page
    assert '<form class="card form"' not in page


@pytest.mark.parametrize(
    ("query", "code"),
    [("", 400), ("nonsense=1", 400), ("status=odd", 400), ("status=dead&also=all", 400)],
)
def test_a_preview_of_what_cannot_be_is_refused(client: FlaskClient, query: str, code: int) -> None:
    for path in ("/runs/bulk/retry", "/runs/bulk/retry.json"):
        assert client.get(f"{path}?{query}").status_code == code
    assert client.get("/runs/bulk/delete.json?status=dead").status_code == 404


def test_a_viewer_sees_no_preview_and_begins_nothing(as_role: AsRole, connection: Connection) -> None:
    a_run(connection, "dead")
    viewer = as_role("viewer")
    assert viewer.get("/runs/bulk/retry?status=dead").status_code == 403
    assert viewer.get("/runs/bulk/retry.json?payload.token=x").status_code == 403
    assert viewer.post("/runs/bulk/retry", data={"filter": "status=dead"}, headers=JSON).status_code == 403
    assert rows(connection, "operations") == []


# Beginning


def test_the_form_alone_begins_an_operation_bound_to_what_was_shown(
    client: FlaskClient, connection: Connection
) -> None:
    shown = [a_run(connection, "dead") for _ in range(3)]
    form = form_of(client, "/runs/bulk/retry?status=dead&type=mail")
    later = a_run(connection, "dead")
    answer = client.post("/runs/bulk/retry", data=form | {"reason": "CRM is back", "per_minute": "600"})
    (made,) = rows(connection, "operations")
    assert (answer.status_code, answer.location) == (303, f"/operations/{made['id']}")
    assert (made["total"], made["per_minute"], made["reason"]) == (3, 600, "CRM is back")
    assert made["filter"] == {"query": "status=dead&type=mail", "also": []}
    assert "Operation" in words(client, answer.location)
    connection.execute("UPDATE wakeboard.operations SET per_minute = NULL")
    assert finish(connection, made["id"])["done"] == 3
    assert [status(connection, run) for run in (*shown, later)] == ["queued"] * 3 + ["dead"]


def test_a_large_number_has_to_be_typed(client: FlaskClient, connection: Connection) -> None:
    many(connection, 101)
    path = "/runs/bulk/retry?status=dead"
    page = client.get(path).text
    assert "Type 101 to confirm" in page
    form = form_of(client, path)
    assert (form["canary"], form["stop_above_percent"], form["confirm"]) == ("1", "50", "")
    for typed in ("", "100", "yes"):
        answer = client.post("/runs/bulk/retry", data=form | {"confirm": typed}, headers=JSON)
        assert answer.status_code == 400 and "type 101 to confirm" in answer.get_json()["message"]
    assert rows(connection, "operations") == []
    answer = client.post("/runs/bulk/retry", data=form | {"confirm": " 101 "}, headers=JSON)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "running")


def test_a_program_says_the_filter_and_the_number(client: FlaskClient, connection: Connection) -> None:
    many(connection, 101)
    refused = client.post("/runs/bulk/retry", json={"filter": "status=dead"}, headers=JSON)
    assert refused.status_code == 400 and rows(connection, "operations") == []
    body: dict[str, Any] = {"filter": "status=dead", "confirm": 101, "canary": True, "per_minute": 60}
    answer = client.post("/runs/bulk/retry", json=body, headers=JSON)
    made = operation(connection, answer.get_json()["id"])
    assert (made["total"], made["canary"], made["per_minute"], made["actor"]) == (101, True, 60, "admin")
    assert client.post("/runs/bulk/retry?status=dead&type=none", headers=JSON).status_code == 409


@pytest.mark.parametrize("confirm", [3, 17, 19, 999, "abc", "", " ", "0x12", 18.5, True, [18], "-18", "²"])
def test_a_number_that_is_given_has_to_match_however_few_the_runs_are(
    client: FlaskClient, connection: Connection, confirm: Any
) -> None:
    many(connection, 18)
    chosen = [row["id"] for row in rows(connection, "job_runs")]
    asked: dict[str, Any]
    for asked in ({"filter": "status=dead"}, {"run": chosen}, {"run": chosen, "per_minute": 60}):
        answer = client.post("/runs/bulk/retry", json=asked | {"confirm": confirm}, headers=JSON)
        assert answer.status_code == 400 and "type 18 to confirm" in answer.get_json()["message"]
    assert rows(connection, "operations") == []
    assert {status(connection, run) for run in chosen} == {"dead"}


@pytest.mark.parametrize("confirm", [18, "18", " 18 ", None])
def test_few_runs_may_be_confirmed_by_their_number(
    client: FlaskClient, connection: Connection, confirm: Any
) -> None:
    many(connection, 18)
    answer = client.post("/runs/bulk/retry", json={"filter": "status=dead", "confirm": confirm}, headers=JSON)
    assert operation(connection, answer.get_json()["id"])["total"] == 18


@pytest.mark.parametrize(
    "odd",
    [
        {"filter": "status=dead&type=\ud800"},
        {"filter": "status=dead", "reason": "a\x00b\ud800"},
        {"filter": {"status": "dead"}, "run": []},
        {"filter": "status=dead", "as_of": "0001-01-01T00:00+23:59", "counted": 1},
        {"filter": "status=dead", "per_minute": [1]},
        {"filter": "status=dead", "also": ["paused"]},
    ],
    ids=lambda odd: str(odd)[:60].encode("ascii", "replace").decode(),
)
def test_odd_words_are_answered_with_a_sentence(
    client: FlaskClient, connection: Connection, odd: dict[str, Any]
) -> None:
    a_run(connection, "dead")
    answer = client.post(
        "/runs/bulk/retry", data=json.dumps(odd), content_type="application/json", headers=JSON
    )
    assert answer.status_code in (200, 400, 409) and answer.get_json()["message"]


def test_an_old_preview_is_not_acted_on(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "dead")
    form = form_of(client, "/runs/bulk/retry?status=dead")
    ((old,),) = connection.execute("SELECT now() - interval '2 hours'").fetchall()
    answer = client.post("/runs/bulk/retry", data=form | {"as_of": old.isoformat()}, headers=JSON)
    assert answer.status_code == 409 and "look again" in answer.get_json()["message"]
    future = old + timedelta(days=1)
    for wrong in ({"as_of": future.isoformat()}, {"as_of": "noon"}, {"counted": "x"}, {"per_minute": "0"}):
        assert client.post("/runs/bulk/retry", data=form | wrong, headers=JSON).status_code == 400
    assert rows(connection, "operations") == []


def test_what_somebody_else_did_meanwhile_is_a_conflict(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    form = form_of(client, "/runs/bulk/retry?status=dead")
    client.post(f"/runs/{run}/retry")
    answer = client.post("/runs/bulk/retry", data=form, headers=JSON)
    assert answer.status_code == 409 and "Nothing is left to do" in answer.get_json()["message"]


def test_chosen_runs_go_at_once_unless_a_pace_is_asked_for(
    client: FlaskClient, connection: Connection
) -> None:
    first, second, ended = (
        a_run(connection, "dead"),
        a_run(connection, "dead"),
        a_run(connection, "succeeded"),
    )
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('mail', now())")
    careful = words(client, f"/runs/bulk/retry?run={first}&run={second}")
    assert "2 of a paused type: nothing of it runs until someone resumes it." in careful
    assert "Left as they are: 1 succeeded" in words(client, f"/runs/bulk/retry?run={first}&run={ended}")
    client.post("/runs/bulk/retry", data={"run": [first], "per_minute": ""})
    assert (status(connection, first), rows(connection, "operations")) == ("queued", [])
    answer = client.post("/runs/bulk/retry", data={"run": [second, ended], "per_minute": "60"})
    (made,) = rows(connection, "operations")
    assert answer.location == f"/operations/{made['id']}" and status(connection, second) == "dead"
    assert [each["run_id"] for each in rows(connection, "operation_runs")] == [second]
    assert "chosen runs" in words(client, answer.location)


# The pages of operations


def test_the_page_says_how_far_it_is_and_that_no_worker_is_alive(
    client: FlaskClient, connection: Connection
) -> None:
    many(connection, 150)
    number = begin(connection, "retry")
    assert "No worker is alive to move them" in words(client, f"/operations/{number}")
    a_worker(connection)
    step(connection, number)
    shown = words(client, f"/operations/{number}")
    assert "Retrying: 100 runs retried so far." in shown
    assert "moved, not through yet 100 66.7 %" in shown and "still to be moved 50 33.3 %" in shown
    assert "status:dead" in shown and "CRM is back" in shown
    assert_fragments_match(client, f"/operations/{number}")
    assert_fragments_match(client, "/operations")
    assert "Retry 150 runs" in words(client, "/operations")


def test_the_twins_have_the_columns_and_the_same_numbers(client: FlaskClient, connection: Connection) -> None:
    many(connection, 2)
    a_run(connection, "succeeded")
    number = begin(connection, "retry")
    finish(connection, number)
    body = client.get(f"/operations/{number}.json").get_json()
    assert (body["status"], body["done"], body["total"], body["filter"]) == ("finished", 2, 2, "status:dead")
    assert [item["result"] for item in body["items"]] == ["moved", "moved"]
    (item,) = items_of(client, "/operations.json?status=finished&verb=retry")
    assert item["id"] == number and item["skips"] == {}
    assert client.get("/operations.csv").text.count("\n") == 2
    assert client.get(f"/operations/{number}.csv").text.startswith("run_id,result,why")
    assert items_of(client, f"/operations/{number}.json?result=skipped") == []


@pytest.mark.parametrize("path", ["/operations?status=odd", "/operations?x=1", "/operations/1?result=odd"])
def test_an_unknown_filter_is_refused(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 400


def test_an_operation_that_is_not_there_is_said_so(client: FlaskClient) -> None:
    for path in ("/operations/7", "/operations/7.json", "/_fragments/operations/7/state"):
        assert client.get(path).status_code == 404
    assert client.post("/operations/7/pause", headers=JSON).status_code == 404


def verb(client: FlaskClient, number: int, name: str, **headers: str) -> TestResponse:
    return client.post(f"/operations/{number}/{name}", data={"reason": "lunch"}, headers=headers or JSON)


def test_pause_resume_and_abort_have_three_answers_and_a_confirm_page(
    client: FlaskClient, connection: Connection
) -> None:
    many(connection, 2)
    number = begin(connection, "retry")
    for name, words_of_it in (("pause", "Pause operation"), ("abort", "Abort operation")):
        assert words_of_it in words(client, f"/operations/{number}/{name}")
    assert operation(connection, number)["status"] == "running"
    answer = verb(client, number, "pause")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "paused")
    assert verb(client, number, "pause").get_json()["changed"] is False
    assert verb(client, number, "resume", **{"HX-Request": "true"}).headers["HX-Trigger"] == "live:now"
    answer = client.post(f"/operations/{number}/abort")
    assert (answer.status_code, answer.location) == (303, f"/operations/{number}")
    assert "Aborted after 0 runs retried; 2 runs left as they are." in words(client, f"/operations/{number}")
    for name in ("pause", "resume"):
        assert verb(client, number, name).status_code == 409
    audited = rows(connection, "audit_log", "target_type = 'operation'")
    assert [(each["action"], each["result"]) for each in audited][:2] == [
        ("operation.start", "done"), ("operation.pause", "done"),
    ]  # fmt: skip
    assert f'href="/operations/{number}"' in client.get("/audit").text


def test_a_viewer_reads_and_does_not_act(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, "dead", payload={"token": "hunter2"})
    number = begin(connection, "retry", query={"status": "dead", "payload__token": "hunter2"})
    viewer = as_role("viewer")
    for path in (f"/operations/{number}", f"/operations/{number}.json", "/operations", "/operations.json"):
        shown = viewer.get(path)
        assert shown.status_code == 200 and "hunter2" not in shown.text, path
    assert "hidden from viewers" in words(viewer, f"/operations/{number}")
    for name in ("pause", "resume", "abort"):
        assert verb(viewer, number, name).status_code == 403
        assert viewer.get(f"/operations/{number}/{name}").status_code == 403
    assert (operation(connection, number)["status"], status(connection, run)) == ("running", "dead")


def test_hostile_names_are_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    name = HOSTILE.replace('"', "")
    a_run(connection, "dead", job_type=name)
    number = begin(connection, "retry", query={"type": name})
    connection.execute("UPDATE wakeboard.operations SET reason = %s, note = %s", (HOSTILE, HOSTILE))
    for path in (f"/operations/{number}", "/operations", f"/runs/bulk/again?type={name}&status=dead"):
        assert_shown_as_text(client, path)
