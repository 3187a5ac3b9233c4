"""Where a run came from, what came of it, what it did once, and what of it others take along."""

from __future__ import annotations

import json
import re
from html import unescape
from time import process_time

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, words_of
from tests.support.factories import a_definition, a_run, a_worker, an_attempt, from_now, insert, row
from wakeboard.core import parent_run
from wakeboard.queue import enqueue, enqueue_many

SLOT = "2026-11-{:02}T02:00:00Z"


def test_what_a_handler_enqueues_is_linked_to_its_run_both_ways(
    client: FlaskClient, connection: Connection
) -> None:
    parent = a_run(connection, "succeeded", job_type="import")
    with parent_run.ParentRun(parent):
        child = enqueue(connection, "mail", {"n": 1})
        first, second = enqueue_many(
            connection, [{"job_type": "mail"}, {"job_type": "bill", "enqueued_by": "shop"}]
        )
    outside = enqueue(connection, "mail")
    assert [row(connection, each)["origin_run_id"] for each in (child, first, second, outside)] == [
        parent, parent, None, None,
    ]  # fmt: skip
    assert row(connection, child)["enqueued_by"] == f"run:{parent}"
    assert f"It enqueued {child} queued mail {first} queued mail" in words_of(client, f"/runs/{parent}")
    assert f"Enqueued by run {parent} succeeded import" in words_of(client, f"/runs/{child}")
    twin = client.get(f"/runs/{parent}.json").get_json()
    assert (twin["enqueued"], twin["descendants"]) == ([child, first], [])


def test_what_a_person_ran_again_is_told_from_what_a_handler_enqueued(
    client: FlaskClient, connection: Connection
) -> None:
    parent = a_run(connection, "succeeded", idempotency_key="invoice:812")
    with parent_run.ParentRun(parent):
        child = enqueue(connection, "mail")
    again = client.post(f"/runs/{parent}/again", headers={"Accept": "application/json"}).get_json()["id"]
    shown = words_of(client, f"/runs/{parent}")
    assert f"Run again as {again} queued It enqueued {child} queued" in shown
    made = words_of(client, f"/runs/{again}")
    assert f"Made from run {parent} succeeded which keeps the key invoice:812" in made


def test_a_run_that_many_were_enqueued_by_lists_the_first(
    client: FlaskClient, connection: Connection
) -> None:
    parent = a_run(connection, "succeeded")
    with parent_run.ParentRun(parent):
        enqueue_many(connection, [{"job_type": "mail"}] * 60)
    assert "The first 50 are listed." in words_of(client, f"/runs/{parent}")


def test_a_scheduled_run_leads_to_the_slots_around_it(client: FlaskClient, connection: Connection) -> None:
    nightly, other = a_definition(connection, "nightly"), a_definition(connection, "other")
    first, here, last = (
        a_run(connection, "succeeded", definition_id=nightly, scheduled_for=SLOT.format(day))
        for day in (19, 20, 21)
    )
    a_run(connection, "succeeded", definition_id=other, scheduled_for=SLOT.format(20))
    a_run(connection, "succeeded", definition_id=nightly)
    shown = words_of(client, f"/runs/{here}")
    assert f"Slot before {first} succeeded 2026-11-19 02:00:00 UTC" in shown
    assert f"Slot after {last} succeeded 2026-11-21 02:00:00 UTC" in shown
    assert "Slot before none is kept" in words_of(client, f"/runs/{first}")
    assert "Slot after not yet" in words_of(client, f"/runs/{last}")
    assert client.get(f"/runs/{here}.json").get_json()["slots"] == {"before": first, "after": last}


def test_an_effect_says_how_it_stands_and_only_an_unconfirmed_one_can_be_settled(
    as_role: AsRole, connection: Connection
) -> None:
    a_worker(connection, "w1")
    run = a_run(connection, "running", attempts=2, lease_epoch=2)
    common = {"run_id": run, "attempt": 1, "lease_epoch": 1, "scope": f"run:{run}"}
    insert(connection, "effects", common | {"key": "letter", "status": "started"})
    insert(
        connection, "effects",
        common | {"key": "charge", "status": "done", "finished_at": from_now("0 s"), "settled_by": "anna",
                  "result": {"id": "ch_1", "token": "hunter2"}},
    )  # fmt: skip
    now = {"attempt": 2, "lease_epoch": 2, "key": "parcel", "status": "started", "scope": "global"}
    insert(connection, "effects", common | now)
    operator = as_role("operator")
    shown = words_of(operator, f"/runs/{run}")
    assert "parcel under way attempt 2" in shown and "counts for every run" in shown
    assert "charge done" in shown and "settled by anna" in shown and '"id": "ch_1"' in shown
    assert "letter begun, not confirmed" in shown and "hunter2" not in shown
    html = operator.get(f"/runs/{run}").text
    assert re.findall(r'href="(/effects/\d+/settle)"', html) == ["/effects/1/settle"]
    assert "/settle" not in as_role("viewer").get(f"/runs/{run}").text
    twin = operator.get(f"/runs/{run}.json").get_json()["effects"]
    assert [(each["key"], each["state"]) for each in twin] == [
        ("parcel", "running"), ("charge", "done"), ("letter", "unconfirmed"),
    ]  # fmt: skip


def test_progress_has_a_rate_and_an_end_in_page_and_twin(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1", lease_seconds=30)
    run = a_run(
        connection, "running", started_at="-100 seconds", run_at="-2 minutes", progress_done=500,
        progress_total=2000, locked_until="30 seconds",
    )  # fmt: skip
    shown = words_of(client, f"/runs/{run}")
    assert "500 of 2 000, 25 % 5 a second, through about 20" in shown
    found = client.get(f"/runs/{run}.json").get_json()["progress"]
    assert found["per_second"] == pytest.approx(5, abs=0.2) and found["ends_at"]
    # It stands still between two heartbeats, and nothing is promised of what is stuck.
    alone = client.get(f"/_fragments/runs/{run}/state").text
    assert alone in client.get(f"/runs/{run}").text
    connection.execute("UPDATE wakeboard.job_runs SET locked_until = now() - interval '1 second'")
    stuck = words_of(client, f"/runs/{run}")
    assert "500 of 2" in stuck and "through about" not in stuck


def test_an_attempt_has_a_page_with_all_it_said(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead", attempts=0)
    for number in range(1, 9):
        an_attempt(
            connection, run, attempt=number, lease_epoch=number, outcome="failed", error_code="E", error="no",
            traceback=f"trace {number} password=hunter2", output_tail="page 1", result={"n": number},
        )  # fmt: skip
    html = client.get(f"/runs/{run}").text
    # The newest five on the page, and the newest of them in the ticket; the others one click away.
    assert [number for number in range(1, 9) if f"trace {number} " in html] == [4, 5, 6, 7, 8]
    assert f'href="/runs/{run}/attempts/2"' in html
    alone = words_of(client, f"/runs/{run}/attempts/2")
    assert "trace 2" in alone and "Output page 1" in alone and "hunter2" not in alone
    twin = client.get(f"/runs/{run}/attempts/2.json").get_json()
    assert (twin["attempt"], twin["result"]) == (2, {"n": 2}) and "hunter2" not in twin["traceback"]
    for path in (f"/runs/{run}/attempts/99", "/runs/777/attempts/1", "/runs/777/payload"):
        assert client.get(path).status_code == 404


def test_a_payload_of_a_megabyte_costs_no_seconds(client: FlaskClient, connection: Connection) -> None:
    rows = [{"id": number, "say": "x" * 30, "url": "https://crm/x"} for number in range(11_500)]
    run = a_run(connection, "dead", payload={"rows": rows})
    client.get(f"/runs/{run}")
    for path, most in (
        (f"/runs/{run}", 1.0), (f"/_fragments/runs/{run}/state", 0.5),
        (f"/_fragments/runs/{run}/relatives", 0.5), (f"/runs/{run}/payload", 4.0), (f"/runs/{run}.json", 4.0),
    ):  # fmt: skip
        began = process_time()
        answer = client.get(path)
        assert process_time() - began < most, path
        assert answer.status_code == 200 and (
            len(answer.data) < 150_000 or "payload" in path or "json" in path
        )


def test_values_of_a_payload_lead_to_the_runs_that_have_them_too(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, payload={"customer": {"id": 812, "name": "Anna & Co"}, "token": "hunter2"})
    a_run(connection, payload={"customer": {"id": 813}})
    html = client.get(f"/runs/{run}").text
    links = [unescape(link) for link in re.findall(r'href="(/runs\?payload[^"]*)"', html)]
    assert links == ["/runs?payload.customer.id=812", "/runs?payload.customer.name=Anna+%26+Co"]
    for link in links:
        found = client.get(link.replace("/runs?", "/runs.json?")).get_json()["items"]
        assert [each["id"] for each in found] == [run]


def test_a_short_payload_is_there_as_json_too(client: FlaskClient, connection: Connection) -> None:
    payload = {"n": [1, 2], "text": "<b>quoted</b>"}
    html = client.get(f"/runs/{a_run(connection, payload=payload)}").text
    shown = re.search(r'<pre id="payload">(.*?)</pre>', html, re.DOTALL)
    assert shown and json.loads(unescape(shown[1])) == payload
    assert "Empty" in words_of(client, f"/runs/{a_run(connection)}")


def test_a_ticket_and_commands_stand_on_the_page(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead", payload={"id": 812})
    html = unescape(client.get(f"/runs/{run}").text)
    assert f"### Run {run}: `mail` is dead" in html and f"page: http://localhost/runs/{run}" in html
    assert f"wakeboard retry {run}" in html and "wakeboard enqueue --payload '{\"id\": 812}' mail" in html
    assert f"http://localhost/runs/{run}/again" in html
