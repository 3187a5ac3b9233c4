"""The overview's window: what ended in it, how long it took and waited, and whether failures rise."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, assert_shown_as_text
from tests.support.dashboard_apps import overhear
from wakeboard.alerts import checks
from wakeboard.core.rule_types import KINDS
from wakeboard.reporting.statistics import DurationHistogram
from wakeboard_dashboard.charts.spreads import spread
from wakeboard_dashboard.queries.throughput import WindowBar, Work, rank_types

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"
TABLES = ("statistics_deltas", "statistics_rollups")
COUNTS = {"1h": 12, "24h": 24, "7d": 168}


def ended(
    connection: Connection,
    runs: int = 1,
    *,
    ago: str = "0 s",
    outcome: str = "succeeded",
    job_type: str = "mail",
    ms: float = 1.0,
    wait_ms: float = 1.0,
    table: str = "statistics_rollups",
) -> None:
    """Write what a batch of ``runs`` attempts of ``ms`` each leaves in the statistics."""
    bucket = "least(63, greatest(0, ceil(2 * log(2, greatest(0.001, %s)::numeric) + 20)))"
    connection.execute(
        f"""INSERT INTO wakeboard.{table} (minute, job_type, outcome, duration_bucket, wait_bucket, runs,
            duration_ms, duration_max_ms, wait_ms, wait_max_ms)
        VALUES (date_trunc('minute', now() - %s::interval), %s, %s, {bucket}, {bucket}, %s, %s, %s, %s, %s)
        """.encode(),
        (ago, job_type, outcome, ms, wait_ms, runs, runs * ms, ms, runs * wait_ms, wait_ms),
    )


def overview(client: FlaskClient, window: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = client.get("/overview.json" + (f"?window={window}" if window else "")).get_json()
    return body


def cells(html: str, row_id: str) -> list[str]:
    """Return the texts of the cells of the row with that id."""
    found = re.search(rf'<tr id="{row_id}">(.*?)</tr>', html, re.DOTALL)
    assert found, row_id
    return [
        unescape(re.sub(r"<[^>]*>", "", cell)).strip()
        for cell in re.findall(r"<td[^>]*>(.*?)</td>", found[1], re.DOTALL)
    ]


def test_every_step_of_a_window_has_its_bar_and_its_numbers(
    client: FlaskClient, connection: Connection
) -> None:
    for ago, outcome, count in (("0 h", "succeeded", 7), ("2 h", "succeeded", 5), ("2 h", "lost", 1),
                                ("30 h", "failed", 9), ("2 h", "released", 4)):  # fmt: skip
        for table in TABLES:
            ended(connection, count, ago=ago, outcome=outcome, table=table)
    for _ in range(2):  # The second time from memory.
        body = overview(client)
        assert (body["window"], body["step_seconds"], len(body["bars"])) == ("24h", 3600, 24)
        assert [(bar["succeeded"], bar["failed"]) for bar in body["bars"][-3:]] == [(10, 2), (0, 0), (14, 0)]
        assert (body["succeeded_attempts"], body["failed_attempts"]) == (24, 2)
        week = overview(client, "7d")
        assert (week["succeeded_attempts"], week["failed_attempts"], len(week["bars"])) == (24, 20, 168)
    hour = overview(client, "1h")
    assert (hour["succeeded_attempts"], hour["step_seconds"], len(hour["bars"])) == (14, 300, 12)


def test_a_week_that_is_in_memory_follows_the_clock_and_what_comes_in(
    client: FlaskClient, connection: Connection
) -> None:
    ended(connection, 3, ago="100 h")
    assert overview(client, "7d")["succeeded_attempts"] == 3
    ended(connection, 4, table="statistics_deltas")
    assert overview(client, "7d")["succeeded_attempts"] == 7
    assert overview(client)["succeeded_attempts"] == 4


@pytest.mark.parametrize("window", ["1h", "24h", "7d"])
def test_the_page_and_its_twin_have_the_same_numbers(
    client: FlaskClient, connection: Connection, window: str
) -> None:
    ended(connection, 90, job_type="mail", ms=100, wait_ms=10)
    ended(connection, 9, job_type="report", ms=20_000, wait_ms=500)
    ended(connection, 1, job_type="report", ms=70_000, wait_ms=500, outcome="timed_out")
    page = client.get(f"/?window={window}").text
    body = overview(client, window)
    assert cells(page, "spread-run") == ["Run time", "128 ms", "20 s", "20 s", "20 s", "99"]
    assert cells(page, "spread-wait") == ["Wait time", "11 ms", "500 ms", "500 ms", "500 ms", "100"]
    run, wait = body["run_time"], body["wait_time"]
    assert (run["attempts"], run["p95_seconds"], run["p99_seconds"], run["longest_seconds"]) == (
        99,
        20,
        20,
        20,
    )
    assert run["p50_seconds"] == pytest.approx(0.128)
    assert (wait["attempts"], wait["p95_seconds"], wait["longest_seconds"]) == (100, 0.5, 0.5)
    for part in ("busiest", "slowest"):
        names = [one["job_type"] for one in body[part]]
        assert names == re.findall(rf'id="{part}-[^"]*"><td class="type"><a href="/runs\?type=(\w+)"', page)
        assert names == ["report", "mail"]
    report = body["busiest"][0]
    assert (report["attempts"], report["failed"], report["seconds"]) == (10, 1, 250)
    assert (report["average_seconds"], report["longest_seconds"]) == (25, 70)
    assert len(body["bars"]) == page.count('<tr id="bar-') == COUNTS[window]
    good = [cells(page, found)[1:] for found in re.findall(r'<tr id="(bar-\d+)">', page)]
    assert good == [[str(bar["succeeded"]), str(bar["failed"])] for bar in reversed(body["bars"])]
    assert sum(bar["run_time"]["attempts"] for bar in body["bars"]) == 99
    for chart in ("run", "wait"):
        assert page.count(f'<tr id="spread-{chart}-') == COUNTS[window]


def test_an_unknown_window_is_refused_with_what_is_allowed(client: FlaskClient) -> None:
    for path in ("/?window=2h", "/overview.json?window=2h", "/_fragments/overview/done?window=2h"):
        answer = client.get(path)
        assert answer.status_code == 400 and "1h, 24h, 7d" in answer.text, path


def test_the_chosen_window_is_marked_and_stays_in_the_links(client: FlaskClient) -> None:
    page = client.get("/?window=7d").text
    assert re.search(r'href="/\?window=7d"\s+aria-current="true"', page)
    assert (
        'href="/overview.json?window=7d"' in page and 'hx-get="/_fragments/overview/done?window=7d"' in page
    )
    assert re.search(r'href="/"\s+aria-current="true"', client.get("/").text)


@pytest.mark.parametrize("window", ["1h", "24h", "7d"])
def test_what_a_window_shows_live_is_what_it_shows_at_first(
    client: FlaskClient, connection: Connection, window: str
) -> None:
    ended(connection, 9, ms=3)
    ended(connection, 1, ms=3000, outcome="failed")
    assert_fragments_match(client, f"/?window={window}")


def test_a_limit_never_passes_the_longest_nor_stops_at_the_largest_bucket() -> None:
    assert DurationHistogram().at_most(0.5) is None
    assert DurationHistogram({20: 99, 63: 1}, longest_seconds=90_000).at_most(0.99) == 0.001
    assert DurationHistogram({20: 9, 63: 1}, longest_seconds=90_000).at_most(0.99) == 90_000
    assert DurationHistogram({34: 1}, longest_seconds=0.1).at_most(0.5) == 0.1


def test_a_limit_is_above_what_it_stands_for_by_less_than_a_step() -> None:
    exact = [0.0013 * 1.01**number for number in range(1000)]
    buckets: dict[int, int] = {}
    for seconds in exact:
        bucket = next(each for each in range(64) if seconds <= 2 ** ((each - 20) / 2) / 1000)
        buckets[bucket] = buckets.get(bucket, 0) + 1
    for share in (0.5, 0.95, 0.99):
        limit, true = DurationHistogram(buckets, exact[-1]).at_most(share), exact[int(share * 1000) - 1]
        assert limit is not None and 0.707 * limit <= true <= limit


def test_the_axis_of_times_encloses_all_percentiles(connection: Connection) -> None:
    start = connection.execute("SELECT now()").fetchone()
    assert start
    times = [DurationHistogram({20: 5, 40: 5}, 1.024), DurationHistogram(), DurationHistogram({0: 1}, 0.0)]
    found = spread([WindowBar(start[0])] * 3, times)
    assert found.ticks == [(100.0, "1 ms"), (75.0, "10 ms"), (50.0, "100 ms"), (25.0, "1 s"), (0.0, "10 s")]
    assert (found.columns[0].y50, found.columns[1].y99) == (100, 100)
    assert all(0 <= column.y99 <= column.y95 <= column.y50 <= 100 for column in found.columns)


def test_busy_is_not_slow() -> None:
    types = {"often": Work(200, 3, 1000, 9), "slow": Work(1, 0, 60, 60)}
    busiest, slowest = rank_types(types)
    assert [name for name, _ in busiest] == ["often", "slow"]
    assert [name for name, _ in slowest] == ["slow", "often"]
    assert busiest[0][1] == Work(200, 3, 1000, 9)


def test_failures_that_rise_are_told_by_the_alerts_own_rule(
    client: FlaskClient, connection: Connection
) -> None:
    connection.execute(
        "INSERT INTO wakeboard.workers (id, hostname, pid, concurrency) VALUES ('w', 'h', 1, 4)"
    )
    ended(connection, 30, outcome="failed", ago="10 min")
    for day in range(1, 8):
        ended(connection, 4, outcome="failed", ago=f"{day} days 10 min")
    body = overview(client)
    found = checks.check_rule(connection, "failures_rise", KINDS["failures_rise"].values({}))
    assert body["rising"] == {
        "firing": True,
        "failed_attempts_1h": 30,
        "limit": 12,
        "sentence": found.sentence,
    }
    assert body["sentence"].startswith("Failures rise (30 in the last hour); everything else is normal.")
    page = client.get("/").text
    assert "rising: 30 attempts in 1\u00a0h" in page and 'data-attention="1"' in page
    assert cells(page, "rising")[2] == "30" and found.sentence in unescape(page)


def test_who_changes_the_rule_changes_the_tile(client: FlaskClient, connection: Connection) -> None:
    connection.execute(
        """UPDATE wakeboard.alert_rules SET settings = settings || '{"count": 31}'
        WHERE kind = 'failures_rise'"""
    )
    ended(connection, 30, outcome="failed", ago="10 min")
    rising = overview(client)["rising"]
    assert (rising["firing"], rising["limit"]) == (False, 31)
    assert "not rising" not in client.get("/").text, "nothing waits for a retry"


def test_hostile_types_stay_text(client: FlaskClient, connection: Connection) -> None:
    ended(connection, 30, job_type=HOSTILE, outcome="failed")
    assert_shown_as_text(client, "/")


@pytest.mark.parametrize("window", ["1h", "24h", "7d"])
def test_no_window_walks_all_statistics(
    app: Flask, client: FlaskClient, connection: Connection, window: str
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.statistics_rollups
        SELECT date_trunc('minute', now()) - i * interval '1 minute', 'mail', 'succeeded', 20 + i % 3, 20,
            1, 1, 1, 1, 1
        FROM generate_series(0, 60 * 24 * 35) AS i"""
    )
    connection.execute("ANALYZE wakeboard.statistics_rollups")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert overview(client, window)["succeeded_attempts"] > 50
    looked = [one for one in asked if "statistics_rollups" in one[0]]
    assert looked
    for sql, values in looked:
        plan = "\n".join(line[0] for line in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        assert "Seq Scan on statistics_rollups" not in plan, plan
