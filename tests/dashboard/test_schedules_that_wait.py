"""A schedule fires and its runs wait: its page, the list, the question and the answer of Run now say why."""

from __future__ import annotations

import re
from html import unescape

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_type, a_worker

JSON = {"Accept": "application/json"}
SAID = {
    "paused": ("type paused", "its type mail is paused", "it waits until somebody resumes that."),
    "limit": ("type limit 0", "the limit of its type mail is 0", "it waits until somebody raises that."),
    "worker": ("no worker", "no worker takes its type mail", "it waits for one."),
    None: ("", "", ""),
}


def told(client: FlaskClient) -> set[str | None]:
    """Return the reasons that page, list, their twins, the question and the answer give for “mine”."""
    found: set[str | None] = set()
    page = unescape(client.get("/schedules/mine").text)
    listed = unescape(client.get("/schedules?q=mine").text)
    question = unescape(client.get("/schedules/mine/run?next=/schedules").text)
    answer = client.post("/schedules/mine/run", headers=JSON).get_json()["message"]
    for reason, (short, clause, until) in SAID.items():
        if reason is None:
            continue
        row = re.search(r'<tr id="schedule-mine".*?</tr>', listed, re.DOTALL)
        assert row is not None
        places = [
            f"Its runs wait:</strong> {clause}." in page,
            f"{short}</span>" in row[0] and f'title="{clause}: its runs wait"' in row[0],
            f"But {clause}: the run waits." in question,
            f", but {clause}: {until}" in answer,
            client.get("/schedules/mine.json").get_json()["standstill"] == reason,
            items_of(client, "/schedules.json?q=mine")[0]["standstill"] == reason,
        ]
        assert len(set(places)) == 1, (reason, places, answer)
        found |= {reason} if places[0] else set()
    return found or {None}


@pytest.mark.parametrize(
    ("of_type", "of_worker", "reason"),
    [
        ({}, {}, None),
        ({"paused_at": "2026-11-01T00:00Z", "paused_by": "anna"}, {}, "paused"),
        ({"max_running": 5, "max_running_operator": 0}, {}, "limit"),
        ({}, {"job_types": ["report"]}, "worker"),
        ({}, {"drain_requested_at": "-1 minute"}, "worker"),
        ({}, {"stopping_at": "-1 minute"}, "worker"),
        ({}, {"seen": "-2 minutes"}, "worker"),
        ({}, {"seen": "-1 minute", "stopped_at": "-1 minute"}, "worker"),
        ({}, {"seen": "-1 minute", "stopped_at": "-1 minute", "is_tick": True}, None),
        ({}, {"seen": "-9 minutes", "stopped_at": "-9 minutes", "is_tick": True}, "worker"),
    ],
    ids=str,
)
def test_a_schedule_says_why_its_runs_wait(
    client: FlaskClient,
    connection: Connection,
    of_type: dict[str, str],
    of_worker: dict[str, str],
    reason: str | None,
) -> None:
    a_type(connection, "mail", **of_type)
    a_type(connection, "report", paused_at="2026-11-01T00:00Z")
    a_worker(connection, **of_worker)  # type: ignore[arg-type]
    a_definition(connection, "mine")
    a_definition(connection, "other", job_type="report")
    assert told(client) == {reason}


def test_what_is_overdue_for_want_of_a_worker_says_so_once(
    client: FlaskClient, connection: Connection
) -> None:
    a_definition(connection, "mine", next_fire_at="-1 hour")
    page = client.get("/schedules/mine").text
    assert "No worker is alive to fire it" in page and "Its runs wait" not in page


def test_a_list_looks_at_the_workers_once_however_many_schedules_it_has(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    for number in range(100):
        a_definition(connection, f"n{number}", job_type=f"type{number}")
        a_worker(connection, job_types=[f"type{number}", "mail"])
    asked = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert client.get("/schedules?limit=200").status_code == 200
    ((sql, values),) = [one for one in asked if "AS standstill" in one[0]]
    explained = connection.execute(f"EXPLAIN (ANALYZE) {sql}".encode(), values).fetchall()
    scans = [line for (line,) in explained if re.search(r"on (workers|job_types)", line)]
    assert scans and all("loops=1)" in line or "never executed" in line for line in scans), explained
