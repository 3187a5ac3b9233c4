"""What needs attention is counted once in a page, from indexes, and is the same wherever it is told."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.test_failing_plans import vacuumed
from tests.dashboard.test_overview import runs, tiles
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_type, a_worker
from tests.support.processes import wait_until
from wakeboard_dashboard.queries import overview
from wakeboard_dashboard.queries.overview import read_attention_lines
from wakeboard_dashboard.text.verdict import CAP
from wakeboard_dashboard.web.connection import reading

DEAD_ONES = ("'dead'", "{dead}")


def statements(app: Flask, client: FlaskClient, path: str) -> list[str]:
    """Return what a request asks the database."""
    asked: list[str] = []
    overhear(app, lambda sql, _values: asked.append(sql))
    assert client.get(path).status_code == 200
    return asked


def told(client: FlaskClient) -> dict[str, Any]:
    body: dict[str, Any] = client.get("/overview.json").get_json()
    return body


@pytest.mark.parametrize("path", ["/", "/overview.json", "/_fragments/overview/attention"])
def test_who_shows_dead_runs_by_type_counts_them_once(app: Flask, client: FlaskClient, path: str) -> None:
    about_dead = [sql for sql in statements(app, client, path) if any(each in sql for each in DEAD_ONES)]
    assert len(about_dead) == 1, about_dead


def test_the_tiles_alone_are_not_counted_by_type(app: Flask, client: FlaskClient) -> None:
    asked = statements(app, client, "/_fragments/overview/tiles")
    counting = [sql for sql in asked if "'dead'" in sql]
    assert counting and not any("GROUP BY" in sql for sql in counting)


def test_sums_of_types_are_the_numbers_counted_without_them(app: Flask, connection: Connection) -> None:
    gone = a_worker(connection, seen="-5 minutes")
    for number, job_type in enumerate(("mail", "report", "sync"), 1):
        runs(connection, "dead", 2 * number, job_type)
        runs(connection, "failed", 3 * number, job_type)
        a_run(connection, "running", job_type=job_type, locked_by=gone)
    draining = a_worker(connection, drain_requested_at="-1 minute")
    a_run(connection, "running", locked_by=draining)
    # Ended as it is, nobody is finishing it.
    a_run(connection, "running", locked_by=draining, locked_until="-1 second")
    with app.test_request_context("/"):
        found = read_attention_lines(reading())
        held = {"running": 5, "stuck": 4, "silent": 3, "finishing": 1, "long": 0}
        assert found.counted == {"dead": 12, "failed": 18, **held}
        assert overview.read_counts(reading(), found.counted) == overview.read_counts(reading())


@pytest.mark.parametrize(("seen", "walks"), [("0 seconds", 1), ("-5 minutes", 2)])
def test_what_runs_is_walked_over_again_only_where_something_is_stuck(
    app: Flask, client: FlaskClient, connection: Connection, seen: str, walks: int
) -> None:
    runs_it = a_worker(connection, seen=seen)
    for job_type in ("mail", "report", "sync"):
        a_run(connection, "running", job_type=job_type, locked_by=runs_it)
    (asked,) = (sql for sql in statements(app, client, "/_fragments/overview/attention") if "{dead}" in sql)
    explained = connection.execute(
        f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {asked}".encode(), {}
    ).fetchall()
    walked = [line for (line,) in explained if "job_runs_leased" in line and "never executed" not in line]
    assert len(walked) == walks, explained


def test_numbers_are_of_all_types_where_lines_are_of_some(
    client: FlaskClient, connection: Connection
) -> None:
    for number in range(overview.MOST_LINES + 5):
        runs(connection, "dead", 1 + number, f"type_{number}")
    runs(connection, "failed", 7)
    body = told(client)
    assert len(body["attention"]) == overview.MOST_LINES
    assert {line["state"] for line in body["attention"]} == {"dead"}
    assert (body["dead"], body["failed"]) == (sum(range(1, overview.MOST_LINES + 6)), 7)
    assert dict(tiles(client.get("/").text))["failed"] == "7"


def test_more_dead_runs_than_are_counted_are_told_as_so_many_and_more(
    client: FlaskClient, connection: Connection
) -> None:
    runs(connection, "dead", CAP, "old")
    runs(connection, "dead", 6, "new")
    body = told(client)
    assert body["dead"] == CAP + 1
    # By type the newest of them.
    assert [(line["job_type"], line["runs"]) for line in body["attention"]] == [
        ("old", CAP - 5),
        ("new", 6),
    ]
    assert dict(tiles(client.get("/").text))["dead"] == "10000+"


def test_what_fails_is_told_without_a_look_at_a_run(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    runs(connection, "succeeded", 20_000)
    runs(connection, "dead", 20_000)
    # So few that the planner may take an index that lacks the time, and read each run.
    runs(connection, "failed", 30)
    runs(connection, "queued", 20_000)
    wait_until(lambda: vacuumed(connection), sentence="vacuum finds all rows visible for everybody")
    (asked,) = (sql for sql in statements(app, client, "/") if "{failed}" in sql)
    lines = [row[0] for row in connection.execute(f"EXPLAIN {asked}".encode(), {}).fetchall()]
    about_failures = [line for line in lines if " on job_runs" in line and "job_runs_leased" not in line]
    assert len(about_failures) == 2
    assert all("Index Only Scan" in line and "job_runs_by_status" in line for line in about_failures), lines


@pytest.mark.parametrize("first_to_wait", [0, 2, 4])
def test_the_oldest_due_run_is_found_in_any_priority_of_any_type(
    client: FlaskClient, connection: Connection, first_to_wait: int
) -> None:
    for job_type in ("mail", "report", "sync"):
        for priority in range(5):
            a_run(connection, job_type=job_type, priority=priority, run_at="1 hour")
            a_run(connection, job_type=job_type, priority=priority, run_at="-1 minute")
    oldest = a_run(connection, job_type="report", priority=first_to_wait, run_at="-2 minutes")
    a_type(connection, "paused", paused_at="now")
    a_run(connection, job_type="paused", run_at="-1 day")
    at = connection.execute("SELECT run_at FROM wakeboard.job_runs WHERE id = %s", (oldest,)).fetchone()
    assert at and told(client)["oldest_due_at"] == at[0].isoformat()


def test_no_run_that_is_due_later_is_the_oldest_due_one(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, run_at="1 hour")
    assert told(client)["oldest_due_at"] is None
