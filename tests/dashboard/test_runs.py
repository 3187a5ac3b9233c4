"""The list of runs: what each filter finds, what stays in place, what is new, and what is never shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, fragments_of, items_of, page_of, rows_in
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_run, a_type, a_worker, age, an_attempt
from wakeboard.core.states import Status, is_allowed
from wakeboard.reporting.filters import search
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.views.runs import row_verb

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def listed(client: FlaskClient, query: str = "") -> list[int]:
    return [item["id"] for item in items_of(client, f"/runs.json?{query}")]


def live_list(page: str) -> str:
    (address,) = fragments_of(page)
    return address


def test_an_empty_list_says_how_a_run_comes_to_be(client: FlaskClient) -> None:
    assert "There are no runs yet" in page_of(client, "/runs")
    assert "No run matches" in page_of(client, "/runs?status=dead")


def test_a_row_says_what_failed_how_often_and_when_it_goes_on(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail", max_attempts=4)
    run = a_run(connection, "failed", attempts=2, failures=2, last_error="connection refused")
    page = page_of(client, "/runs")
    row = page[page.index(f'id="run-{run}"') :].split("</tr>")[0]
    for words in ("failed", "smtp_down", "connection refused", ">2/4<", "next try", f"/runs/{run}/retry"):
        assert words in row


def test_a_run_whose_lease_ended_or_whose_worker_is_silent_is_stuck(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "alive")
    a_worker(connection, "silent", seen="-5 minutes")
    held = a_run(connection, "running", locked_by="alive")
    late = a_run(connection, "running", locked_by="alive", locked_until="-1 second")
    orphan = a_run(connection, "running", locked_by="silent")
    stuck = {item["id"]: item["stuck"] for item in items_of(client, "/runs.json")}
    assert stuck == {held: False, late: True, orphan: True}
    assert page_of(client, "/runs").count('class="badge stuck"') == 2


def test_the_twin_carries_every_column_of_a_run(client: FlaskClient, connection: Connection) -> None:
    definition = a_definition(connection, "nightly")
    run = a_run(connection, "succeeded", definition_id=definition, payload={"invoice_id": 812})
    body = client.get("/runs.json").get_json()
    (item,) = body["items"]
    columns = connection.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'wakeboard' AND table_name = 'job_runs'"
    ).fetchall()
    assert {name for (name,) in columns} <= set(item)
    assert (item["id"], item["definition"], item["payload"]) == (run, "nightly", {"invoice_id": 812})
    assert body["next"] is None and body["as_of"]


def test_the_list_comes_as_csv_with_its_filters(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "dead", last_error="=1+1")
    a_run(connection, "queued")
    lines = client.get("/runs.csv?status=dead").text.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("id,status,job_type") and ",'=1+1," in lines[1]


def test_each_filter_finds_its_runs_and_no_others(client: FlaskClient, connection: Connection) -> None:
    w = a_worker(connection, "db1-77", name="w-7")
    queued = a_run(connection, "queued", job_type="report", payload={"customer": {"id": 7}, "note": "100%"})
    running = a_run(connection, "running", locked_by=w, idempotency_key="invoice:812")
    failed = a_run(connection, "failed", error_code="40P01", attempts=3, failures=3)
    dead = a_run(connection, "dead", error_code="40P01", last_error="deadlock detected", attempts=10)
    old = a_run(connection, "succeeded", job_type="report")
    age(connection, old, "3 days")
    expected: dict[str, Iterable[int]] = {
        "": [old, dead, failed, running, queued],
        "status=failed": [failed],
        "status=failed,dead": [dead, failed],
        "status=dead&status=queued": [dead, queued],
        "type=report": [old, queued],
        "type=report&status=queued": [queued],
        "error=40P01": [dead, failed],
        "error=40P01&status=dead": [dead],
        "key=invoice:812": [running],
        "worker=db1-77": [running],
        "worker=w-7": [running],
        "worker=w1": [old, dead, failed],
        "attempts=3": [failed],
        "attempts=3%2B": [dead, failed],
        "attempts=2-9": [failed],
        "since=1h": [dead, failed, running, queued],
        "until=1d": [old],
        "since=7d&until=1d": [old],
        "payload.customer.id=7": [queued],
        "q=DEADLOCK": [dead],
        "q=100%25": [queued],
        "q=0%25": [queued],
        "q=1%250": [],
        "type=no_such_type": [],
        "worker=nobody": [],
        "key=nothing": [],
        "status=dead&q=deadlock&type=mail": [dead],
    }
    found = {query: listed(client, query) for query in expected}
    assert found == {query: sorted(ids, reverse=True) for query, ids in expected.items()}


def test_a_worker_is_found_by_what_it_did_and_not_only_by_what_it_holds(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, "queued", lease_epoch=1)
    an_attempt(connection, run, worker_id="db2-99", outcome="lost", error_code="lease_lost")
    held = a_run(connection, "running", locked_by="db2-99")
    assert listed(client, "worker=db2-99") == [held, run]


def test_a_long_queue_that_nobody_claimed_yet_is_no_reason_to_look_for_attempts(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, 2000)"
    )
    done = a_run(connection, "succeeded")
    an_attempt(connection, done, lease_epoch=7, worker_id="db2-99")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert listed(client, "worker=db2-99") == [done]
    (search,) = ((sql, values) for sql, values in asked if "job_attempts" in sql)
    sql, values = search
    plan = connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}".encode(), values).fetchall()
    (probe,) = (line[0] for line in plan if "on job_attempts" in line[0])
    assert int(re.findall(r"loops=(\d+)", probe)[0]) <= 2, plan


@pytest.mark.parametrize(
    "query",
    ["colour=red", "status=broken", "since=yesterday", "attempts=many", "attempts=-1", "cursor=x", "limit=0"],
)
def test_a_wrong_filter_is_a_sentence_and_not_an_empty_list(client: FlaskClient, query: str) -> None:
    for path in ("/runs", "/runs.json", "/runs.csv", "/_fragments/runs/list"):
        assert client.get(f"{path}?{query}").status_code == 400
    message = client.get(f"/runs.json?{query}").get_json()["message"]
    assert query.split("=")[0] in message and message.endswith(".")


@pytest.mark.parametrize("shown", ["x", "1-x", "1--2", "99999999999999999999999", "-".join(["1"] * 201)])
def test_a_fragment_for_rows_that_cannot_be_is_refused(client: FlaskClient, shown: str) -> None:
    assert client.get(f"/_fragments/runs/list?shown={shown}").status_code == 400


def test_pages_walk_down_the_list_and_back(client: FlaskClient, connection: Connection) -> None:
    made = [a_run(connection, "queued" if n % 3 else "dead") for n in range(23)][::-1]
    seen: list[int] = []
    cursor = ""
    while True:
        body = client.get(f"/runs.json?status=queued,dead&limit=5{cursor}").get_json()
        seen += [item["id"] for item in body["items"]]
        if body["next"] is None:
            break
        cursor = f"&cursor={body['next']}"
    assert seen == made


def test_newer_and_older_lead_along_the_same_rows(client: FlaskClient, connection: Connection) -> None:
    made = [a_run(connection) for _ in range(60)][::-1]
    first = page_of(client, "/runs")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older and rows_in(first) == made[:50]
    second = page_of(client, unescape(older[1]))
    newer = re.search(r'rel="prev" href="([^"]+)"', second)
    assert newer and rows_in(second) == made[50:]
    assert rows_in(page_of(client, unescape(newer[1]))) == made[:50]


def test_a_search_goes_on_where_its_window_ended(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", 5)
    oldest = a_run(connection, "dead", last_error="the needle")
    others = [a_run(connection, "dead") for _ in range(11)]
    newest = a_run(connection, "dead", last_error="a needle")
    assert listed(client, "q=needle") == [newest]
    pages, cursor = [], ""
    for _ in range(5):
        body = client.get(f"/runs.json?q=needle{cursor}").get_json()
        pages.append([item["id"] for item in body["items"]])
        if body["next"] is None:
            break
        cursor = f"&cursor={body['next']}"
    assert pages == [[newest], [], [oldest]]
    assert "5 runs were searched" in page_of(client, "/runs?q=needle")
    assert others[0] not in listed(client, "q=needle")


def test_counting_stops_at_its_cap(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CAP", 8)
    for _ in range(8):
        a_run(connection)
    assert "8 match" in page_of(client, "/runs?limit=5")
    a_run(connection)
    assert "8+ match" in page_of(client, "/runs?limit=5")


def test_a_search_by_time_or_attempts_is_counted_as_far_as_it_looks(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        a_run(connection, "dead", last_error="a needle")
    assert "7 match" in page_of(client, "/runs?status=dead&since=1h&limit=5")
    assert "all 7…" in page_of(client, "/runs?status=dead&since=1h&limit=5")
    monkeypatch.setattr(search, "WINDOW", 6)
    shown = page_of(client, "/runs?status=dead&since=1h&limit=5")
    assert "6 match among the newest 6" in shown and "all 6" not in shown
    connection.execute(
        "UPDATE wakeboard.job_runs SET attempts = 3 WHERE id IN (SELECT max(id) FROM wakeboard.job_runs)"
    )
    assert "1 match among the newest 6" in page_of(client, "/runs?attempts=3&limit=5")
    for costly in ("q=needle", "worker=w1", "payload.id=7"):
        assert not re.search(r"rows · [^<]* match", page_of(client, f"/runs?{costly}&limit=5"))


def test_the_live_list_shows_the_same_as_its_page(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1")
    for status in Status:
        a_run(connection, status.value)
    for query in ("", "?status=failed,dead", "?q=mail", "?limit=2", "?status=queued&type=nothing"):
        assert_fragments_match(client, f"/runs{query}")


def test_a_new_run_is_a_pill_and_never_a_row_under_the_reader(
    client: FlaskClient, connection: Connection
) -> None:
    first = a_run(connection)
    address = live_list(page_of(client, "/runs?status=queued"))
    a_run(connection, "dead")
    second = a_run(connection)
    fragment = page_of(client, address)
    assert rows_in(fragment) == [first]
    assert "1 new – show" in fragment and 'href="/runs?status=queued"' in fragment
    assert rows_in(page_of(client, "/runs?status=queued")) == [second, first]


def test_an_old_run_that_fails_now_is_announced_in_the_list_of_failures(
    client: FlaskClient, connection: Connection
) -> None:
    old = a_run(connection)
    a_run(connection, "dead")
    address = live_list(page_of(client, "/runs?status=dead"))
    assert "new – show" not in page_of(client, address)
    connection.execute(
        "UPDATE wakeboard.job_runs SET status = 'dead', finished_at = now(), error_code = 'x' WHERE id = %s",
        (old,),
    )
    assert "1 new – show" in page_of(client, address)


def test_what_is_older_than_a_full_page_is_not_new(client: FlaskClient, connection: Connection) -> None:
    for _ in range(5):
        a_run(connection)
    assert "new – show" not in page_of(client, live_list(page_of(client, "/runs?limit=3")))


def test_a_row_stays_where_it_is_when_its_run_moves_on(client: FlaskClient, connection: Connection) -> None:
    one, two, three = (a_run(connection, "dead") for _ in range(3))
    address = live_list(page_of(client, "/runs?status=dead"))
    assert client.post(f"/runs/{two}/retry").status_code == 303
    fragment = page_of(client, address)
    assert rows_in(fragment) == [three, two, one]
    row = fragment[fragment.index(f'id="run-{two}"') :].split("</tr>")[0]
    assert "badge queued" in row


def test_every_row_offers_a_verb_that_its_state_allows() -> None:
    for status in Status:
        assert is_allowed(row_verb(status.value), status)


def test_a_viewer_reads_and_finds_the_verbs_switched_off(as_role: AsRole, connection: Connection) -> None:
    a_run(connection, "dead")
    page = page_of(as_role("viewer"), "/runs")
    assert 'disabled title="Needs the role operator"' in page
    assert "formaction" not in page


def test_what_one_reader_may_do_is_offered_to_no_other(as_role: AsRole, connection: Connection) -> None:
    runs = [a_run(connection, "dead"), a_run(connection, "queued"), a_run(connection, "dead")]
    for role in ("operator", "viewer", "operator"):
        page = as_role(role).get("/runs").text
        for run in runs:
            buttons = re.findall(rf'<button id="(?:retry|cancel)-{run}"[^>]*>', page)
            # One is seen; what is dead is cancelled by a key.
            assert [" hidden " in button for button in buttons] == (
                [False] if run == runs[1] else [False, True]
            )
            for button in buttons:
                offers = re.findall(rf'(?:formaction|hx-post)="/runs/{run}/(?:retry|cancel)"', button)
                assert len(offers) == (0 if role == "viewer" else 2), button
                assert (" disabled " in button) is (role == "viewer"), button
    assert f'hx-confirm="Cancel run {runs[1]}? ' in page


def test_a_typed_line_becomes_an_address_and_the_address_a_line(
    client: FlaskClient, connection: Connection
) -> None:
    answer = client.get("/runs/find", query_string={"text": 'status:dead type:"send mail" no answer'})
    assert (answer.status_code, answer.location) == (
        303,
        "/runs?status=dead&type=send%20mail&q=no%20answer",
    )
    assert 'value="status:dead type:&#34;send mail&#34; no answer"' in page_of(client, answer.location)
    # A control that says otherwise than it did was changed; one that does not leaves the line as it is.
    typed = {"text": "status:failed declined", "status": "dead", "was.status": "dead", "type": "mail"}
    assert client.get("/runs/find", query_string=typed).location == "/runs?status=failed&type=mail&q=declined"
    typed |= {"was.status": "failed,dead", "type": "", "was.type": "mail", "text": "type:mail declined"}
    assert client.get("/runs/find", query_string=typed).location == "/runs?status=dead&q=declined"
    quoted = {"text": "say 'hi'", "was.q": 'say "hi"', "status": "dead"}
    assert client.get("/runs/find", query_string=quoted).location == "/runs?status=dead&q=say%20%22hi%22"
    assert client.get("/runs/find?text=%2348210").location == "/runs/48210"
    assert client.get("/runs/find?text=colour:red").status_code == 400
    assert client.get("/runs/find").location == "/runs"


def test_a_line_that_cannot_be_read_is_there_to_be_mended(client: FlaskClient) -> None:
    for line, kept in (("status:dead foo:1", "status:dead foo:1"), ('foo:"<b>"', "foo:&#34;&lt;b&gt;&#34;")):
        answer = client.get("/runs/find", query_string={"text": line})
        assert answer.status_code == 400 and "There is no filter “foo” here." in answer.text
        assert f'name="text" value="{kept}"' in answer.text and 'href="/runs"' in answer.text


def test_every_filter_has_a_control_that_keeps_the_others(
    client: FlaskClient, connection: Connection
) -> None:
    shown = page_of(client, "/runs?status=dead&attempts=3%2B&payload.id=7")
    form = re.search(r'<form class="stack" method="get" action="/runs/find">.*?</form>', shown, re.DOTALL)
    assert form is not None
    for name in FIELDS:
        # Words are typed in the box, payload.<path> has no name of its own.
        if name not in ("q", "payload."):
            assert re.search(rf'<(input|select)[^>]* name="{name}"', form[0]), name
    assert '<details class="stack" id="more-filters" open>' in form[0]
    assert 'name="attempts" value="3+"' in form[0]
    sent = {
        "text": "status:dead attempts:3+ payload.id:7",
        "status": "dead",
        "attempts": "3+",
        "key": "invoice:7",
    }
    was = dict(re.findall(r'<input type="hidden"\s+name="(was\.\w+)" value="([^"]*)">', shown))
    assert was == {"was.status": "dead", "was.attempts": "3+"}
    location = client.get("/runs/find", query_string=sent | was).location
    assert location == "/runs?status=dead&key=invoice:7&attempts=3%2B&payload.id=7"
    assert '<details class="stack" id="more-filters">' in page_of(client, "/runs?status=dead")


def test_hostile_text_stays_text(client: FlaskClient, connection: Connection) -> None:
    a_run(
        connection,
        "dead",
        job_type=HOSTILE,
        error_code=HOSTILE,
        last_error=HOSTILE,
        idempotency_key=HOSTILE,
        payload={HOSTILE: HOSTILE},
    )
    page = page_of(client, "/runs") + page_of(client, "/runs?q=%3Cimg")
    assert "<img src=x" not in page and "\u202e" not in page
    assert "&lt;img src=x" in page


def test_secrets_are_in_no_shape_of_the_list(client: FlaskClient, connection: Connection) -> None:
    a_run(
        connection,
        "dead",
        payload={"password": "hunter2", "nested": [{"api_key": "hunter2"}]},
        last_error="GET https://user:hunter2@crm.example.com failed",
    )
    for path in ("/runs", "/runs.json", "/runs.csv", "/runs.json?q=hunter2"):
        assert b"hunter2" not in client.get(path).data, path


def test_a_viewer_cannot_find_a_run_by_its_secret(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, payload={"password": "hunter2"})
    plain = a_run(connection, payload={"name": "hunter2"})
    assert listed(as_role("operator"), "q=hunter2") == [plain, run]
    assert listed(as_role("viewer"), "q=hunter2") == [plain]
    assert as_role("viewer").get("/runs.json?payload.password=hunter2").status_code == 400


@pytest.fixture
def many_runs(connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, finished_at, failed_at, error_code, run_at,
            created_at, started_at, payload, idempotency_key)
        SELECT 'type' || n % 20, status, CASE WHEN status <> 'failed' THEN now() END, now(),
            CASE WHEN status <> 'succeeded' THEN 'code' || n % 7 END, now(),
            now() - (50000 - n) * interval '10 s', now(), jsonb_build_object('n', n), 'k' || n
        FROM (SELECT n, CASE WHEN n % 97 = 0 THEN 'dead' WHEN n % 61 = 0 THEN 'failed' ELSE 'succeeded' END
            AS status FROM generate_series(1, 50000) AS n) AS made"""
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome)
        SELECT id, 1, 1, job_type, 'w1', now(), now(), now(), 'succeeded' FROM wakeboard.job_runs"""
    )
    connection.execute("ANALYZE wakeboard.job_runs, wakeboard.job_attempts")


@pytest.mark.usefixtures("many_runs")
def test_no_list_reads_the_whole_table(app: Flask, client: FlaskClient, connection: Connection) -> None:
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    queries = (
        "", "status=dead", "status=failed,dead", "type=type3", "type=type3&status=dead", "error=code3",
        "error=code3&type=type3", "error=code3&status=dead", "key=k812", "since=1h", "since=2d&until=1d",
        "status=dead&since=1h", "worker=w1", "worker=nobody", "attempts=3", "payload.n=812", "q=812",
        "q=nothing&status=dead,failed", "type=nothing", "error=nothing", "status=running,queued",
    )  # fmt: skip
    for query in queries:
        page = page_of(client, f"/runs?{query}")
        page_of(client, live_list(page))
    looked_at = {(sql, str(values)): values for sql, values in asked if "job_runs" in sql}
    assert len(looked_at) > 2 * len(queries)
    for (sql, shown), values in looked_at.items():
        plan = connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall()
        lines = [line for (line,) in plan]
        wrong = [line for line in lines if re.search(r"Seq Scan on job_(runs|attempts)", line)]
        assert not wrong, "\n".join([sql, shown, *lines])


def test_filters_that_nothing_can_match_are_refused_in_a_sentence(client: FlaskClient) -> None:
    for page in ("/runs", "/runs.json", "/runs/bulk/retry"):
        answer = client.get(f"{page}?since=1h&until=1d")
        assert answer.status_code == 400 and "is not before “until” (1d)" in answer.text, page
        assert "names nothing" in client.get(f"{page}?payload.=1").text
    body = {"filter": "since=1h&until=1d", "confirm": 1}
    assert client.post("/runs/bulk/retry", json=body).status_code == 400
    audit = client.get("/audit?since=1h&until=1h")
    assert audit.status_code == 400 and "no act can lie in between" in audit.text


def test_a_failed_run_whose_time_has_come_is_due_and_not_to_be_tried_in_the_past(
    client: FlaskClient, connection: Connection
) -> None:
    later, due = a_run(connection, "failed"), a_run(connection, "failed", run_at="-3 seconds")
    page = page_of(client, "/runs?status=failed")
    cells = {
        run: re.sub(r"<[^>]+>", "", re.findall(rf'<tr id="run-{run}">.*?</tr>', page, re.DOTALL)[0])
        for run in (later, due)
    }
    assert "next try" in cells[later] and "waits for a free worker" not in cells[later]
    assert "due" in cells[due].split() and "next try" not in cells[due]
