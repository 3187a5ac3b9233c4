"""How long runs usually take, beside those that run now; and which have run far longer than that."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_worker, from_now, insert
from wakeboard_dashboard.queries.types import TypePace

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
# Up to so many seconds: 2.9 and 185.
BRIEF, SLOW = 43, 55


def took(connection: Connection, job_type: str, bucket: int, runs: int = 40) -> None:
    """Let ``runs`` of a type have succeeded half an hour ago, each as long as ``bucket`` says."""
    longest = 2 ** ((bucket - 20) / 2)
    values = {
        "minute": from_now("-30 minutes"), "job_type": job_type, "outcome": "succeeded",
        "duration_bucket": bucket, "wait_bucket": 20, "runs": runs, "duration_ms": runs * longest,
        "duration_max_ms": longest, "wait_ms": 1, "wait_max_ms": 1,
    }  # fmt: skip
    insert(connection, "statistics_rollups", values, "runs")


def running(connection: Connection, job_type: str, since: str) -> int:
    return a_run(connection, "running", job_type=job_type, started_at=since, locked_by="alive")


@pytest.mark.parametrize(
    ("runs", "p95", "limit"),
    [(20, 3.0, 600), (20, 119.0, 600), (20, 240.0, 1200), (19, 3.0, None), (0, None, None)],
)
def test_five_times_what_is_usual_and_ten_minutes_are_far_longer_where_enough_is_known(
    runs: int, p95: float | None, limit: float | None
) -> None:
    pace = TypePace(runs, p95, p95)
    assert pace.overlong_seconds == limit
    for seconds, beyond in ((0, False), (limit or 10**6, False), ((limit or 0) + 1, limit is not None)):
        assert pace.is_overlong(NOW - timedelta(seconds=seconds), NOW) == beyond


def test_a_lease_says_how_long_runs_of_its_type_usually_take(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "alive")
    took(connection, "import", SLOW)
    late, fine = running(connection, "import", "-2 hours"), running(connection, "import", "-12 minutes")
    unknown = running(connection, "new", "-5 hours")
    page = client.get("/leases").text
    assert page.count(">usually 3 min 5 s<") == 2 and page.count("</svg>overlong</span>") == 1
    assert (
        "Of the 40 that succeeded in the last 24 h half took at most 3 min 5 s, 95 % at most 3 min 5 s"
        in page
    )
    items = {each["id"]: each for each in items_of(client, "/leases.json")}
    assert {run: each["overlong"] for run, each in items.items()} == {late: True, fine: False, unknown: False}
    assert items[late]["median_seconds"] == pytest.approx(185.4, 0.01)
    assert items[unknown]["p95_seconds"] is None
    assert_fragments_match(client, "/leases")


def test_the_page_of_a_run_says_it_while_it_runs(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    took(connection, "import", SLOW)
    late, unknown = running(connection, "import", "-2 hours"), running(connection, "new", "-2 hours")
    page = client.get(f"/runs/{late}").text
    assert "far longer than usual" in page and "Of the 40 that succeeded in the last 24 h" in page
    told = client.get(f"/runs/{late}.json").get_json()["usual"]
    assert (told["runs"], told["overlong"]) == (40, True)
    assert client.get(f"/runs/{unknown}.json").get_json()["usual"] is None
    ended = a_run(connection, "succeeded", job_type="import")
    assert client.get(f"/runs/{ended}.json").get_json()["usual"] is None
    assert_fragments_match(client, f"/runs/{late}")


def test_the_overview_tells_runs_that_take_far_longer_than_usual_and_leads_to_their_leases(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "alive")
    took(connection, "import", SLOW)
    took(connection, "mail", BRIEF, runs=19)
    for since in ("-2 hours", "-1 hour", "-12 minutes"):
        running(connection, "import", since)
    # Of nineteen runs nobody can say what is usual.
    running(connection, "mail", "-3 hours")
    page = client.get("/").text
    (line,) = re.findall(r'<tr id="overlong-.*?</tr>', page, re.DOTALL)
    assert '<a href="/leases?type=import">import</a>' in line and '<td class="number">2</td>' in line
    assert "far longer than usual: half take at most 3 min 5 s, 95 % 3 min 5 s" in line
    twin = client.get("/overview.json").get_json()
    assert [(each["job_type"], each["runs"]) for each in twin["overlong"]] == [("import", 2)]
    assert twin["sentence"].startswith("Two runs take far longer than usual;") and not twin["well"]
    assert 'data-attention="2"' in page
    assert_fragments_match(client, "/")


def test_where_nothing_runs_for_long_nobody_asks_what_is_usual(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "alive")
    took(connection, "import", BRIEF)
    running(connection, "import", "-9 minutes")
    asked: list[str] = []
    overhear(app, lambda sql, _values: asked.append(sql))
    client.get("/_fragments/overview/tiles")
    assert asked and not [sql for sql in asked if "unnest" in sql or "statistics_hours_of_types" in sql]


def test_a_stuck_run_is_told_of_once(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    took(connection, "import", SLOW)
    ended = a_run(
        connection, "running", job_type="import", started_at="-2 hours", locked_by="alive",
        locked_until="-1 minute",
    )  # fmt: skip
    twin = client.get("/overview.json").get_json()
    assert (twin["stuck"], twin["overlong"]) == (1, [])
    assert 'data-attention="1"' in client.get("/").text
    (item,) = items_of(client, "/leases.json")
    assert (item["state"], item["overlong"]) == ("ended", False)
    assert client.get(f"/runs/{ended}.json").get_json()["usual"]["overlong"] is False
