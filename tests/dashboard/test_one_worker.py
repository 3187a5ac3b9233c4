"""The page of one worker, and the list's parts: who is silent, who is gone, who asked what."""

from __future__ import annotations

import re
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_worker, an_attempt, from_now, insert
from wakeboard_dashboard.queries.workers import MOST_ATTEMPTS

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/"


def twin(client: FlaskClient, name: str = "w-7") -> dict[str, Any]:
    return dict(client.get(f"/workers/{name}.json").get_json())


def test_a_worker_has_a_page_of_what_it_runs_and_how_that_ends(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w-7", running=1, memory_bytes=212_000_000, version="0.1.0")
    mine = a_run(connection, "running", locked_by="w-7", progress_done=3, progress_total=9)
    a_run(connection, "running", locked_by="w-8")
    ended = a_run(connection, "failed", error_code="http_503")
    connection.execute("UPDATE wakeboard.job_attempts SET worker_id = 'w-7'")
    other = a_run(connection, "succeeded")
    found = twin(client)
    assert (found["state"], [run["id"] for run in found["runs"]]) == ("busy", [mine])
    assert [(end["run_id"], end["outcome"]) for end in found["ends"]] == [(ended, "failed")]
    page = client.get("/workers/w-7").text
    assert f'href="/runs/{mine}"' in page and "3 of 9" in page and "212 MB" in page
    assert "http_503" in page and f'href="/runs/{other}#' not in page
    assert f'formaction="/runs/{mine}/cancel"' in page


def test_an_old_failure_of_a_retried_run_is_among_its_last_ends(
    client: FlaskClient, connection: Connection, monkeypatch: Any
) -> None:
    from wakeboard_dashboard.queries import workers

    monkeypatch.setattr(workers, "NEWEST", 3)
    a_worker(connection, "w-7")
    run = a_run(connection)
    for _ in range(5):
        a_run(connection, "succeeded")
    an_attempt(connection, run, worker_id="w-7", outcome="lost", error_code="lease_lost")
    assert [end["run_id"] for end in twin(client)["ends"]] == [run]


def test_its_last_ends_come_in_one_order_however_they_ended(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w-7")
    # A few that succeeded, and more failures of one moment than the page shows.
    for number in range(2 * MOST_ATTEMPTS):
        run = a_run(connection)
        how = {"outcome": "succeeded"} if number % 8 == 0 else {"outcome": "failed", "error_code": "http_503"}
        an_attempt(connection, run, worker_id="w-7", **how)
        an_attempt(connection, run, lease_epoch=2, worker_id="w-8", **how)
    connection.execute(
        """UPDATE wakeboard.job_attempts SET finished_at = date_trunc('minute', now())
            - CASE outcome WHEN 'failed' THEN interval '1 hour' ELSE run_id % 3 * interval '1 hour' END"""
    )
    newest = connection.execute(
        """SELECT run_id FROM wakeboard.job_attempts WHERE worker_id = 'w-7'
        ORDER BY finished_at DESC, run_id DESC LIMIT %s""",
        (MOST_ATTEMPTS,),
    ).fetchall()
    assert [end["run_id"] for end in twin(client)["ends"]] == [row[0] for row in newest]


def test_no_failure_is_read_behind_the_last_ones_that_its_page_shows(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w-7")
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error)
        SELECT n, 1, 1, 'mail', 'w-7', now(), now(), now() - n * interval '1 second', 'failed', 'no', 'no'
        FROM generate_series(1, 4000) AS n"""
    )
    connection.execute("ANALYZE wakeboard.job_attempts")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert len(twin(client)["ends"]) == MOST_ATTEMPTS
    ((sql, values),) = ((sql, values) for sql, values in asked if "WITH TIES" in sql)
    plan = connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}".encode(), values).fetchall()
    (read,) = (line[0] for line in plan if "job_attempts_failed_runs" in line[0])
    assert float(re.findall(r"actual rows=([0-9.]+)", read)[0]) <= MOST_ATTEMPTS + 1, plan


def test_who_asked_for_a_drain_is_told_with_when_and_why(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w-7")
    client.post("/workers/w-7/drain", data={"reason": "new kernel"}, headers=JSON)
    for path in ("/workers", "/workers/w-7"):
        page = client.get(path).text
        assert "drain asked by admin" in page and "new kernel" in page, path
    assert [entry["action"] for entry in twin(client)["audit"]] == ["worker.drain"]
    a_worker(connection, "w-8", stop_requested_at="-1 minute")
    assert "stop asked <time" in client.get("/workers/w-8").text


def test_a_silent_worker_uses_no_slot_for_what_was_taken_over(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "silent", seen="-1 hour", running=1)
    listed = client.get("/workers").text
    assert 'value="0"></meter> 0 of 4' in listed
    page = client.get("/workers/silent").text
    assert "1 of 4 in use when it was last heard" in page and "It holds no run any more" in page


def test_silent_and_gone_workers_stand_apart(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "here", idle=True)
    a_worker(connection, "silent", seen="-1 hour")
    a_worker(connection, "gone", seen="-2 days")
    a_worker(connection, "stopped", stopped_at="-1 minute")
    page = client.get("/workers").text
    places = [page.index(f'id="part-{part}"') for part in ("silent", "here", "stopped", "gone")]
    assert places == sorted(places) and 'data-attention="1"' in page
    assert page.index('id="worker-gone"') > places[3]
    assert "It is gone: nothing was heard of it for over a day" in page
    assert [each["id"] for each in items_of(client, "/workers.json?state=gone")] == ["gone"]
    assert "it ended without a word" in client.get("/workers/gone").text
    assert "Nothing was heard of it for" in client.get("/workers/silent").text


def test_the_list_links_to_what_each_runs(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w-7", running=5, concurrency=8)
    made = [a_run(connection, "running", locked_by="w-7", started_at=f"-{9 - n} minutes") for n in range(5)]
    page = client.get("/workers").text
    for run in made[:3]:
        assert f'href="/runs/{run}"' in page
    assert "and 2 more" in page and 'href="/workers/w-7"' in page
    assert items_of(client, "/workers.json")[0]["run_ids"] == made


def test_its_duties_are_told(client: FlaskClient, as_role: AsRole, connection: Connection) -> None:
    a_worker(connection, "w-7")
    said = "no answer of db.internal, password=hunter2"
    beat = {"process_id": "w-7", "name": "reap", "interval_seconds": 5, "last_error": said}
    insert(connection, "loops", beat | {"last_error_at": from_now("1 minute")}, "name")
    page = client.get("/workers/w-7").text
    assert "reap" in page and "no answer" in page
    assert twin(client)["loops"][0]["name"] == "reap"
    for path in ("/workers/w-7", "/workers/w-7.json", "/system", "/system.json"):
        assert "hunter2" not in client.get(path).text, path
        assert "db.internal" not in as_role("viewer").get(path).text, path


def test_any_id_has_a_page_and_is_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, HOSTILE, name=HOSTILE, hostname=HOSTILE, version=HOSTILE, job_types=[HOSTILE])
    a_run(connection, "running", locked_by=HOSTILE, job_type=HOSTILE)
    path = client.get("/workers").text.split('href="/workers/')[1].split('"')[0]
    assert_shown_as_text(client, f"/workers/{path}")


def test_live_regions_are_the_page(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w/7")
    a_run(connection, "running", locked_by="w/7")
    assert_fragments_match(client, "/workers/w%2F7")
    assert_fragments_match(client, "/workers")


def test_an_unknown_worker_is_a_sentence(client: FlaskClient) -> None:
    for path in ("/workers/none", "/workers/none.json", "/_fragments/workers/none/ends"):
        answer = client.get(path)
        assert answer.status_code == 404 and "forgotten after a week" in answer.text
