"""Verbs on a selection: each run by its own guard, its own audit row, and one honest sentence for all."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from tests.support.factories import a_run, a_type, from_now, rows, status

JSON = {"Accept": "application/json"}
HTMX = {"HX-Request": "true"}


def test_a_selection_is_retried_and_each_run_is_audited_with_the_reason(
    client: FlaskClient, connection: Connection
) -> None:
    chosen = [a_run(connection, "dead") for _ in range(3)]
    other = a_run(connection, "dead")
    answer = client.post("/runs/bulk/retry", data={"run": chosen, "reason": "CRM is back"}, headers=JSON)
    body = answer.get_json()
    assert (answer.status_code, body["done"], body["skipped"], body["changed"]) == (200, 3, 0, True)
    assert body["message"] == "3 runs due now."
    assert [status(connection, run) for run in (*chosen, other)] == ["queued"] * 3 + ["dead"]
    audited = rows(connection, "audit_log", "action = 'run.retry'")
    assert [(row["target_id"], row["reason"], row["actor"]) for row in audited] == [
        (str(run), "CRM is back", "admin") for run in chosen
    ]


def test_a_mixed_selection_says_how_many_were_left_and_why(
    client: FlaskClient, connection: Connection
) -> None:
    queued, running = a_run(connection), a_run(connection, "running")
    ended, gone = a_run(connection, "succeeded"), 999_999
    answer = client.post("/runs/bulk/cancel", json={"run": [queued, running, ended, gone]}, headers=JSON)
    body = answer.get_json()
    assert (body["done"], body["asked"], body["skipped"]) == (1, 1, 2)
    assert body["message"].startswith(
        "1 run cancelled, 1 run asked to stop. "
        "Left as they are: 1 in a state that does not allow it, 1 not there any more. "
    )
    assert [item["run"] for item in body["items"]] == [queued, running, ended, gone]
    assert [item["changed"] for item in body["items"]] == [True, True, False, False]


def test_a_locked_run_is_named_counted_and_stops_no_other(
    client: FlaskClient, connection: Connection, other: Connection
) -> None:
    chosen = [a_run(connection, "dead") for _ in range(3)]
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (chosen[0],))
        answer = client.post("/runs/bulk/retry", json={"run": chosen}, headers=JSON)
        body = answer.get_json()
        assert (answer.status_code, body["done"], body["skipped"], body["locked"]) == (200, 2, 1, 1)
        assert body["message"] == (
            "2 runs due now. Left as they are: 1 locked by another transaction. "
            f"Run {chosen[0]} was locked by another transaction: try again."
        )
        alone = client.post("/runs/bulk/retry", data={"run": chosen[0]}, headers=HTMX)
        assert (alone.status_code, "try again" in alone.text) == (409, True)
    assert [status(connection, run) for run in chosen] == ["dead", "queued", "queued"]


def test_a_page_says_of_one_locked_run_what_it_says_of_many(
    client: FlaskClient, connection: Connection, other: Connection
) -> None:
    run = a_run(connection, "dead")
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (run,))
        answer = client.post(f"/runs/{run}/retry", headers=JSON)
        assert (answer.status_code, answer.get_json()["changed"]) == (409, False)
        assert answer.get_json()["message"] == f"Run {run} was locked by another transaction: try again."
    assert status(connection, run) == "dead"


def test_a_selection_says_how_many_wait_all_the_same(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail", paused_at=from_now("-1 hour"))
    chosen = [
        a_run(connection, "dead"),
        a_run(connection, "dead"),
        a_run(connection, "dead", job_type="other"),
    ]
    answer = client.post("/runs/bulk/retry", json={"run": chosen}, headers=JSON)
    said = "3 runs due now, 2 of a paused type: it waits until somebody resumes that."
    assert answer.get_json()["message"] == said


def test_a_selection_that_forbids_it_all_is_a_conflict(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "succeeded")
    answer = client.post("/runs/bulk/retry", data={"run": run}, headers=JSON)
    assert (answer.status_code, answer.get_json()["changed"]) == (409, False)
    assert "run it again" in answer.get_json()["message"]


def test_htmx_gets_a_toast_and_the_boxes_are_cleared(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    answer = client.post("/runs/bulk/retry", data={"run": run}, headers=HTMX)
    assert answer.status_code == 200 and b"1 run due now." in answer.data
    assert answer.headers["HX-Trigger"] == "selection:clear, live:now"


def test_a_form_goes_back_to_the_list_it_came_from(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    headers = {"Referer": "http://localhost/runs?status=dead"}
    answer = client.post("/runs/bulk/retry", data={"run": run}, headers=headers)
    assert (answer.status_code, answer.location) == (303, "/runs?status=dead")
    assert "1 run due now." in client.get(answer.location).text


def test_more_than_a_hundred_chosen_runs_have_to_be_typed(
    client: FlaskClient, connection: Connection
) -> None:
    chosen = [a_run(connection, "dead") for _ in range(101)]
    asked = {"run": chosen, "reason": "CRM is back"}
    refused = client.post("/runs/bulk/retry", data=asked, headers=JSON)
    assert (refused.status_code, "type 101 to confirm" in refused.get_json()["message"]) == (400, True)
    assert client.post("/runs/bulk/retry", data=asked | {"per_minute": "6"}).status_code == 400
    # The button of the list leads to the page that asks; what was typed before comes along.
    leads = client.post("/runs/bulk/retry", data=asked, headers=HTMX).headers["HX-Redirect"]
    page = client.get(leads).text
    assert "Type 101 to confirm" in page and 'value="CRM is back"' in page
    assert {status(connection, run) for run in chosen} == {"dead"}
    answer = client.post("/runs/bulk/retry", data=asked | {"confirm": "101"}, headers=JSON)
    assert answer.get_json()["done"] == 101


def test_a_hundred_chosen_runs_are_not_asked_about(client: FlaskClient, connection: Connection) -> None:
    chosen = [a_run(connection, "dead") for _ in range(100)]
    assert client.post("/runs/bulk/retry", data={"run": chosen}, headers=JSON).get_json()["done"] == 100
    assert "to confirm" not in client.get("/runs/bulk/retry", query_string={"run": chosen}).text


def test_the_preview_of_a_selection_says_what_becomes_of_which(
    client: FlaskClient, connection: Connection
) -> None:
    chosen = [a_run(connection, each) for each in ("dead", "dead", "failed", "succeeded")]
    page = client.get("/runs/bulk/retry", query_string={"run": chosen}).text
    assert "1 failed, due now instead of after their backoff" in page and "2 dead, queued afresh" in page
    assert "Left as they are: 1 succeeded." in page
    assert "None of them can be moved" in client.get(f"/runs/bulk/retry?run={chosen[-1]}").text


def test_without_a_script_a_selection_is_confirmed_on_a_page(
    client: FlaskClient, connection: Connection
) -> None:
    runs = [a_run(connection), a_run(connection)]
    page = client.get("/runs/bulk/cancel", query_string={"run": runs}).text
    assert "Cancel 2 runs?" in page
    for run in runs:
        assert f'name="run" value="{run}"' in page
        assert status(connection, run) == "queued"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "No run is selected"),
        ({"run": ["x"]}, "A run id is a whole number"),
        ({"run": ["99999999999999999999999"]}, "A run id is a whole number"),
        ({"run": [str(n) for n in range(1, 202)]}, "at most 200"),
    ],
)
def test_a_selection_that_cannot_be_is_refused_whole(
    client: FlaskClient, connection: Connection, data: dict[str, list[str]], words: str
) -> None:
    run = a_run(connection)
    for answer in (
        client.post("/runs/bulk/cancel", data=data, headers=JSON),
        client.get("/runs/bulk/cancel", query_string=data, headers=JSON),
    ):
        assert answer.status_code == 400 and words in answer.get_json()["message"]
    assert status(connection, run) == "queued"


def test_a_body_that_is_no_selection_is_refused(client: FlaskClient) -> None:
    bodies: tuple[object, ...] = ([], {"run": 7}, {"runs": [7]})
    for body in bodies:
        assert client.post("/runs/bulk/retry", json=body, headers=JSON).status_code == 400


def test_an_unknown_verb_is_not_there(client: FlaskClient) -> None:
    assert client.get("/runs/bulk/delete").status_code == 404
    assert client.post("/runs/bulk/delete").status_code == 404


def test_a_viewer_may_not_and_it_is_kept_in_the_audit_log(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection)
    viewer = as_role("viewer")
    assert viewer.post("/runs/bulk/cancel", data={"run": run}, headers=JSON).status_code == 403
    assert viewer.get(f"/runs/bulk/cancel?run={run}").status_code == 403
    assert status(connection, run) == "queued"
    assert {row["result"] for row in rows(connection, "audit_log", "action = 'run.cancel'")} == {"denied"}


def test_a_run_named_twice_is_acted_on_once(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    body = client.post("/runs/bulk/again", data={"run": [run, run]}, headers=JSON).get_json()
    assert body["done"] == 1
    (made,) = rows(connection, "job_runs", "origin_run_id = %s", run)
    assert body["items"][0]["id"] == made["id"]


def test_who_is_told_to_try_again_keeps_the_boxes(
    client: FlaskClient, connection: Connection, other: Connection
) -> None:
    chosen = [a_run(connection, "dead") for _ in range(2)]
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (chosen[0],))
        for some in (chosen, chosen[:1]):
            answer = client.post("/runs/bulk/retry", data={"run": some}, headers=HTMX)
            assert "try again" in answer.text
            assert answer.headers["HX-Trigger"] == "live:now"
    answer = client.post("/runs/bulk/retry", data={"run": chosen}, headers=HTMX)
    assert answer.headers["HX-Trigger"] == "selection:clear, live:now"


def test_what_is_not_allowed_keeps_the_boxes_for_another_verb(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, "succeeded")
    answer = client.post("/runs/bulk/retry", data={"run": run}, headers=HTMX)
    assert (answer.status_code, answer.headers["HX-Trigger"]) == (409, "live:now")
