"""One run: why it stands as it does, what was tried, what people did, and the verbs' three answers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, words_of
from tests.support.factories import (
    a_definition,
    a_run,
    a_type,
    a_worker,
    age,
    an_attempt,
    insert,
    row,
    rows,
    status,
)
from wakeboard.core.states import VERBS, Status, is_allowed
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.sweep import Retention
from wakeboard_dashboard.charts.lanes import MOST, WIDTH, lanes

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"
JSON = {"Accept": "application/json"}
HTMX = {"HX-Request": "true"}


@pytest.mark.parametrize("number", ["7", "12345678901234567890123", "0"])
def test_a_run_that_is_not_there_is_said_so(client: FlaskClient, number: str) -> None:
    for path in (f"/runs/{number}", f"/runs/{number}.json", f"/_fragments/runs/{number}/attempts"):
        assert client.get(path).status_code == 404
    assert "retention" in words_of_error(client, f"/runs/{number}")


def words_of_error(client: FlaskClient, path: str) -> str:
    return client.get(path).text


def test_a_page_of_one_run_takes_no_filters(client: FlaskClient, connection: Connection) -> None:
    assert client.get(f"/runs/{a_run(connection)}?status=dead").status_code == 400


def test_a_delayed_run_says_when_it_is_due(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection)
    run = a_run(connection, run_at="1 hour")
    assert "Waits for its time: due" in words_of(client, f"/runs/{run}")


def test_a_run_that_backs_off_says_after_which_failure_and_by_which_rule(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection)
    a_type(connection, "mail", backoff="1m,5m", max_attempts=4)
    run = a_run(connection, "failed", attempts=2, failures=2)
    shown = words_of(client, f"/runs/{run}")
    assert "Backing off after attempt 2 of 4 ( smtp_down ), next at 20" in shown
    assert "1 m, 5 m, then always the last" in shown or "1 min, 5 min, then always the last" in shown


def test_a_run_of_a_paused_type_says_who_paused_it_and_why(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail", paused_by="anna", paused_reason="CRM is down")
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now()")
    shown = words_of(client, f"/runs/{a_run(connection)}")
    assert "was paused by anna at 20" in shown and "“CRM is down”" in shown


def test_a_run_that_no_worker_can_take_says_so(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection)
    assert "No worker is alive at all" in words_of(client, f"/runs/{run}")
    a_worker(connection, job_types=["report"])
    a_worker(connection, seen="-10 minutes")
    assert "No live worker runs this type. 1 worker is alive" in words_of(client, f"/runs/{run}")
    a_worker(connection)
    assert "No live worker" not in words_of(client, f"/runs/{run}")


def test_a_run_behind_its_types_limit_names_the_limit(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1")
    a_type(connection, "mail", max_running=5, max_running_operator=2)
    run = a_run(connection)
    a_run(connection, "running")
    assert "The limit is reached" not in words_of(client, f"/runs/{run}")
    a_run(connection, "running")
    assert "The limit is reached: 2 of 2 allowed runs of this type are running" in words_of(
        client, f"/runs/{run}"
    )


def test_a_due_run_counts_only_what_is_claimed_before_it(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection)
    run = a_run(connection, run_at="-1 minute")
    assert "Nothing is in its way" in words_of(client, f"/runs/{run}")
    a_run(connection, run_at="-2 minutes")
    a_run(connection, priority=0)
    a_run(connection, priority=4, run_at="-1 hour")
    a_run(connection, run_at="1 minute", priority=0)
    a_run(connection, job_type="report", run_at="-1 hour")
    assert "2 due runs of this type come before it;" in words_of(client, f"/runs/{run}")


def test_full_workers_are_said_to_be_full(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, concurrency=2, running=2)
    assert "All 2 slots of 1 worker for this type are busy" in words_of(client, f"/runs/{a_run(connection)}")


def test_a_running_run_names_its_worker_its_progress_and_what_it_prints(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w1", name="w-7")
    run = a_run(connection, "running", progress_done=70, progress_total=100)
    insert(
        connection,
        "run_output",
        {"run_id": run, "lease_epoch": 1, "tail": "page 3 of 12"},
        returning="run_id",
    )
    shown = words_of(client, f"/runs/{run}")
    for part in ("on worker w-7", "70 of 100", "Output so far page 3 of 12"):
        assert part in shown
    connection.execute("UPDATE wakeboard.run_output SET lease_epoch = 0")
    assert "page 3 of 12" not in words_of(client, f"/runs/{run}")


def test_progress_told_before_a_good_end_is_not_taken_for_it(
    client: FlaskClient, connection: Connection
) -> None:
    told = {"progress_done": 215, "progress_total": 240}
    words = "as told last; it ended well after that"
    assert words in client.get(f"/runs/{a_run(connection, 'succeeded', **told)}").text
    assert words not in client.get(f"/runs/{a_run(connection, 'running', **told)}").text


def test_a_lease_that_ended_is_loud_and_offers_release(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1")
    run = a_run(connection, "running", locked_until="-1 minute")
    assert "Stuck: its lease ended" in words_of(client, f"/runs/{run}")
    assert f"/leases/{run}/release" in client.get(f"/runs/{run}").text
    assert client.get(f"/runs/{run}.json").get_json()["stuck"] is True


def test_a_run_that_was_asked_to_stop_says_since_when(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1")
    run = a_run(connection, "running", cancel_requested_at="-5 seconds")
    page = client.get(f"/runs/{run}").text
    assert "Asked to stop" in page and "It was already asked to stop" in page


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"attempts": 10, "failures": 10}, "10 of 10 attempts failed"),
        ({"attempts": 1, "failures": 1}, "its handler said that trying again cannot help"),
        ({"failures": 10, "error_code": "finish_refused"}, "refuses how its last attempt ended"),
    ],
)
def test_a_dead_run_says_why_it_gave_up(
    client: FlaskClient, connection: Connection, columns: dict[str, Any], sentence: str
) -> None:
    run = a_run(connection, "dead", **columns)
    assert sentence in words_of(client, f"/runs/{run}")


def test_each_attempt_tells_its_story(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "db1-77", name="w-7")
    run = a_run(connection, "succeeded", attempts=0)
    an_attempt(
        connection, run, outcome="failed", error_code="40P01", error="deadlock", traceback="File crm.py",
        output_tail="page 1", finished_at="-10 minutes", started_at="-11 minutes", next_run_at="-6 minutes",
    )  # fmt: skip
    an_attempt(
        connection, run, attempt=2, lease_epoch=2, worker_id="db1-77", outcome="lost",
        error_code="lease_lost", finished_at="-5 minutes", next_run_at="-5 minutes", refused_at="-4 minutes",
        refused_outcome="succeeded",
    )  # fmt: skip
    an_attempt(connection, run, attempt=3, lease_epoch=3, result={"rows": 1204}, note="slow provider")
    shown = words_of(client, f"/runs/{run}")
    for part in (
        "Attempt 1 failed", "40P01 deadlock", "next try after 4 min: not by the rule", "Trace File crm.py",
        "Output page 1",
        "worker w-7", "a lost lease is taken over without a wait", "with “succeeded”, too late",
        '"rows": 1204', "slow provider",
    ):  # fmt: skip
        assert part in shown
    assert shown.index("Attempt 3 succ") < shown.index("Attempt 2 lost") < shown.index("Attempt 1 failed")
    history = client.get(f"/runs/{run}.json").get_json()["history"]
    assert [attempt["outcome"] for attempt in history] == ["succeeded", "lost", "failed"]


def test_the_facts_stay_those_of_the_head(client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection, "failed", attempts=2)
    page = client.get(f"/runs/{run_id}").text
    assert f'hx-get="/_fragments/runs/{run_id}/facts"' in page
    connection.execute("UPDATE wakeboard.job_runs SET failures = 2, priority = 0 WHERE id = %s", (run_id,))
    facts = client.get(f"/_fragments/runs/{run_id}/facts").text
    assert "2 of 10 failures" in facts and "<dd>0 <span" in facts


def test_the_facts_name_where_the_run_came_from(client: FlaskClient, connection: Connection) -> None:
    definition = a_definition(connection, "nightly")
    run = a_run(
        connection, definition_id=definition, idempotency_key="invoice:812", enqueued_by="shop",
        timeout_seconds=90, origin_run_id=4711, payload={"invoice_id": 812},
    )  # fmt: skip
    shown = words_of(client, f"/runs/{run}")
    for part in (
        "Schedule nightly",
        "Key invoice:812",
        "by shop",
        "1 min 30 s",
        "run 4711",
        "invoice_id 812",
        '"invoice_id": 812',
    ):
        assert part in shown
    connection.execute("DELETE FROM wakeboard.job_definitions")
    assert "removed" in words_of(client, f"/runs/{run}")


def test_a_large_payload_is_begun_on_the_page_and_whole_on_its_own(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, "succeeded", payload={"list": ["needle", *range(10_000), "the last"]})
    html = client.get(f"/runs/{run}").text
    assert (html.count(">needle<"), html.count("the last")) == (1, 0)
    assert "and 9\u202f952 more" in html and f'href="/runs/{run}/payload"' in html
    whole = client.get(f"/runs/{run}/payload").text
    assert (whole.count("needle"), whole.count("the last")) == (1, 1)
    assert 'data-copy-from="payload"' in whole
    assert client.get(f"/runs/{run}/payload.json").get_json()["payload"]["list"][-1] == "the last"
    asked = client.get(f"/runs/{run}/again").text
    assert (asked.count("needle"), asked.count("the last")) == (1, 0)
    assert len(asked) < 20_000


def test_what_was_done_once_is_listed(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    insert(
        connection, "effects",
        {"scope": f"run:{run}", "key": "charge", "run_id": run, "attempt": 1, "lease_epoch": 1,
         "status": "started"},
    )  # fmt: skip
    shown = words_of(client, f"/runs/{run}")
    assert "charge begun, not confirmed" in shown and "Settle" in shown


def test_the_audit_trail_tells_who_did_what_and_why(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, "dead")
    operator = as_role("operator")
    operator.post(f"/runs/{run}/retry", data={"reason": "CRM is back"})
    shown = words_of(operator, f"/runs/{run}")
    trail = shown[shown.index("Audit trail") :]
    assert "operator web Retry dead → queued CRM is back" in trail


def test_run_again_links_both_ways(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "succeeded", payload={"n": 1})
    made = client.post(f"/runs/{run}/again", headers=JSON).get_json()["id"]
    assert f"Run again as {made}" in words_of(client, f"/runs/{run}")
    assert f"Made from run {run}" in words_of(client, f"/runs/{made}")
    assert client.get(f"/runs/{run}.json").get_json()["descendants"] == [made]


@pytest.mark.parametrize("state", [status.value for status in Status])
def test_what_the_page_shows_live_is_what_it_shows_at_first(
    client: FlaskClient, connection: Connection, state: str
) -> None:
    a_worker(connection, "w1")
    run = a_run(connection, state)
    if state == "running":
        # A running attempt's bar grows; everything else on the page stands still.
        age(connection, run, "1 hour")
        connection.execute("UPDATE wakeboard.job_runs SET locked_until = now() + interval '1 hour'")
    assert_fragments_match(client, f"/runs/{run}")


def test_the_verbs_on_the_page_are_those_its_state_allows(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w1")
    for state in Status:
        run = a_run(connection, state.value)
        page = client.get(f"/runs/{run}").text
        offered = set(re.findall(r'<button id="do-(\w+)"', page))
        names = ("run.retry", "run.cancel", "run.again")
        assert offered == {VERBS[name].name for name in names if is_allowed(VERBS[name], state)}


def test_a_viewer_sees_everything_but_may_do_nothing(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, "dead")
    viewer = as_role("viewer")
    page = viewer.get(f"/runs/{run}").text
    assert "Gave up" in page and "Needs the role operator" in page and "hx-post" not in page
    for verb in ("retry", "cancel", "again"):
        assert viewer.post(f"/runs/{run}/{verb}", headers=JSON).status_code == 403
        assert viewer.get(f"/runs/{run}/{verb}").status_code == 403
    assert status(connection, run) == "dead"


@pytest.mark.parametrize(
    ("state", "verb", "code", "after"),
    [
        ("dead", "retry", 200, "queued"),
        ("failed", "retry", 200, "failed"),
        ("queued", "retry", 200, "queued"),
        ("running", "retry", 409, "running"),
        ("succeeded", "retry", 409, "succeeded"),
        ("queued", "cancel", 200, "cancelled"),
        ("running", "cancel", 202, "running"),
        ("cancelled", "cancel", 200, "cancelled"),
        ("dead", "cancel", 200, "cancelled"),
        ("succeeded", "cancel", 409, "succeeded"),
        ("succeeded", "again", 200, "succeeded"),
        ("queued", "again", 409, "queued"),
    ],
)
def test_a_verb_answers_a_program_with_its_code_and_a_sentence(
    client: FlaskClient, connection: Connection, state: str, verb: str, code: int, after: str
) -> None:
    run = a_run(connection, state)
    answer = client.post(f"/runs/{run}/{verb}", headers=JSON)
    assert (answer.status_code, status(connection, run)) == (code, after)
    assert set(answer.get_json()) == {"id", "status", "changed", "message"}
    assert answer.get_json()["message"].endswith(".")


def test_a_dead_run_is_put_away_and_its_page_still_says_why_it_died(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, "dead")
    page = client.get(f"/runs/{run}").text
    assert f"Dismiss run {run}? It is cancelled and no longer counts as dead" in page
    assert client.post(f"/runs/{run}/cancel", data={"reason": "nobody wants it"}).status_code == 303
    page = client.get(f"/runs/{run}").text
    assert "<strong>Cancelled</strong>" in page and "gave up; cancelled later" in page
    assert "The mail server did not answer." in page and "nobody wants it" in page
    assert client.get("/overview.json").get_json()["dead"] == 0


def test_a_verb_answers_a_page_and_a_form(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    toast = client.post(f"/runs/{run}/retry", headers=HTMX)
    assert (toast.status_code, toast.headers["HX-Trigger"]) == (200, "live:now")
    assert f"Run {run} is due now." in toast.text
    late = client.post(f"/runs/{run}/again", headers=HTMX)
    assert late.status_code == 409 and late.mimetype == "text/plain"
    form = client.post(f"/runs/{run}/cancel", data={"next": "/runs?status=dead"})
    assert (form.status_code, form.location) == (303, "/runs?status=dead")


def test_the_page_of_a_removed_run_says_that_retention_may_have_removed_it(
    client: FlaskClient, connection: Connection
) -> None:
    run_id = a_run(connection, "dead", finished_at="-100 days")
    assert client.get(f"/runs/{run_id}").status_code == 200
    Retention(RetentionPolicy(14, 90, 365), "w1").step(connection)
    gone = client.get(f"/runs/{run_id}")
    assert gone.status_code == 404
    assert f"There is no run {run_id}: it never was, or retention has removed it." in gone.text


def test_a_verb_on_a_run_that_is_gone_is_a_404(client: FlaskClient) -> None:
    for verb in ("retry", "cancel", "again"):
        assert client.post(f"/runs/77/{verb}", headers=JSON).status_code == 404


def test_the_confirm_page_changes_nothing(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection)
    assert f"Cancel run {run}?" in client.get(f"/runs/{run}/cancel").text
    assert status(connection, run) == "queued"


def test_an_admin_may_run_again_with_another_payload(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, "succeeded", payload={"n": 1, "token": "hunter2"})
    admin = as_role("admin")
    confirm = admin.get(f"/runs/{run}/again").text
    assert '<textarea name="payload"' in confirm and "hunter2" not in confirm
    by_form = admin.post(f"/runs/{run}/again", data={"payload": '{"n": 2}'}, headers=JSON).get_json()["id"]
    by_json = admin.post(f"/runs/{run}/again", json={"payload": {"n": 3}}, headers=JSON).get_json()["id"]
    same = admin.post(f"/runs/{run}/again", data={"payload": " "}, headers=JSON).get_json()["id"]
    assert [row(connection, made)["payload"] for made in (by_form, by_json, same)] == [
        {"n": 2}, {"n": 3}, {"n": 1, "token": "hunter2"},
    ]  # fmt: skip
    for wrong in ("{", "[1]", "7"):
        answer = admin.post(f"/runs/{run}/again", data={"payload": wrong}, headers=JSON)
        assert answer.status_code == 400
    assert as_role("operator").post(f"/runs/{run}/again", data={"payload": "{}"}).status_code == 403
    assert "textarea" not in as_role("operator").get(f"/runs/{run}/again").text
    assert len(rows(connection, "job_runs", "origin_run_id = %s", run)) == 3


def test_hostile_text_stays_text_in_every_place(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, HOSTILE, paused_by=HOSTILE, paused_reason=HOSTILE)
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now()")
    texts = {"error_code": HOSTILE, "error": HOSTILE, "traceback": HOSTILE, "output_tail": HOSTILE}
    for state in ("queued", "running", "dead", "failed"):
        run = a_run(
            connection, state, job_type=HOSTILE, error_code=HOSTILE, last_error=HOSTILE, attempts=1,
            enqueued_by=HOSTILE, traceparent=HOSTILE, payload={HOSTILE: HOSTILE},
            **({"locked_by": HOSTILE} if state == "running" else {}),
        )  # fmt: skip
        an_attempt(
            connection,
            run,
            attempt=9,
            lease_epoch=9,
            worker_id=HOSTILE,
            outcome="failed",
            note=HOSTILE,
            **texts,
        )
        client.post(f"/runs/{run}/cancel", data={"reason": HOSTILE})
        page = client.get(f"/runs/{run}").text
        assert "<img src=x" not in page and "\u202e" not in page
        assert "&lt;img src=x" in page


def test_secrets_are_in_no_shape_of_the_page(client: FlaskClient, connection: Connection) -> None:
    url = "postgres://app:hunter2@db/shop"
    run = a_run(connection, "dead", payload={"db_password": "hunter2", "list": [url]}, last_error=url)
    an_attempt(
        connection, run, attempt=11, lease_epoch=11, outcome="failed", error=url, traceback=url,
        output_tail="Authorization: Bearer hunter2hunter2", result={"token": "hunter2"},
    )  # fmt: skip
    for path in (f"/runs/{run}", f"/runs/{run}.json", f"/_fragments/runs/{run}/attempts"):
        assert b"hunter2" not in client.get(path).data, path


def test_attempts_are_laid_out_in_time() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def at(seconds: float) -> datetime:
        return noon + timedelta(seconds=seconds)

    def attempt(number: int, due: int, start: int, end: int) -> dict[str, object]:
        times = {"due_at": at(due), "started_at": at(start), "finished_at": at(end)}
        return {"attempt": number, "outcome": "failed", **times}

    running = {"attempts": 3, "run_at": at(60), "started_at": at(90)}
    found = lanes([attempt(2, 50, 50, 60), attempt(1, 0, 5, 25)], running, at(100))
    assert found is not None
    bars = found.lanes
    assert (found.first_at, found.last_at) == (at(0), at(100))
    assert [bar.attempt for bar in bars] == [1, 2, 3]
    assert [bar.outcome for bar in bars] == ["failed", "failed", "running"]
    assert [bar.waited for bar in bars] == [5, 0, 30]
    assert [bar.seconds for bar in bars] == [20, 10, 10]
    assert bars[0].wait_x == 0 and bars[0].width == pytest.approx(WIDTH / 5, abs=5)
    assert bars[1].x == pytest.approx(WIDTH / 2, abs=5)
    assert bars[2].x + bars[2].width <= WIDTH
    instant = lanes([attempt(1, 0, 0, 0)], None, at(100))
    assert instant is not None and 0 < instant.lanes[0].width <= WIDTH
    backwards = lanes([attempt(1, 30, 20, 10)], None, at(100))
    assert backwards is not None and backwards.lanes[0].waited == backwards.lanes[0].seconds == 0
    assert lanes([], None, at(100)) is None
    many = lanes([attempt(number, number, number, number + 1) for number in range(50)], None, at(100))
    assert many is not None and len(many.lanes) == MOST and many.lanes[-1].attempt == 49


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/runs/999/retry", "There is no run 999: it never was, or retention has removed it."),
        ("/runs/999/cancel", "There is no run 999"),
        ("/runs/999/again", "There is no run 999"),
        ("/leases/999/release", "There is no run 999"),
        ("/operations/999/abort", "There is no operation 999; ended ones are kept for 90 days."),
        ("/effects/999/settle", "There is no effect 999"),
        ("/schedules/gone/pause", "There is no schedule “gone”"),
        ("/schedules/gone/remove", "There is no schedule “gone”"),
        ("/types/gone/pause", "There is no job type “gone”: no worker has ever registered it."),
        ("/types/gone/limit", "There is no job type “gone”"),
        ("/workers/gone/stop", "There is no worker “gone”"),
        ("/alerts/999/silence", "There is no alert rule 999"),
    ],
)
def test_nobody_is_asked_about_what_is_not_there(
    client: FlaskClient, as_role: AsRole, address: str, sentence: str
) -> None:
    answer = client.get(address)
    assert answer.status_code == 404 and sentence in answer.text
    assert as_role("viewer").get(address).status_code == 403
