"""What Prometheus is told: counters that only grow, numbers by type, and a page that names them all."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Connection
from tests.support.factories import a_run, a_type, insert
from tests.support.processes import ROOT
from wakeboard.reporting.hourly_rollups import sum_next_hour
from wakeboard_dashboard.queries import metrics, types
from wakeboard_dashboard.text.verdict import CAP

Samples = dict[tuple[str, ...], float]


def told(client: FlaskClient, name: str) -> Samples:
    """Return the samples of one metric by the values of their labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def ended(
    connection: Connection,
    at: datetime,
    outcome: str = "succeeded",
    runs: int = 1,
    job_type: str = "mail",
    table: str = "statistics_rollups",
) -> None:
    values = {
        "minute": at.replace(second=0, microsecond=0), "job_type": job_type, "outcome": outcome,
        "duration_bucket": 30, "wait_bucket": 20, "runs": runs, "duration_ms": 1, "duration_max_ms": 1,
        "wait_ms": 1, "wait_max_ms": 1,
    }  # fmt: skip
    insert(connection, table, values, "runs")


def midnight(connection: Connection) -> tuple[datetime, datetime]:
    """Return the database's midnight of today in UTC, and its now."""
    row = connection.execute("SELECT date_trunc('day', now(), 'UTC'), now()").fetchone()
    assert row is not None
    return row[0].astimezone(UTC), row[1].astimezone(UTC)


def test_successes_and_failures_of_each_type_are_counters_since_midnight(
    client: FlaskClient, connection: Connection
) -> None:
    begun, now = midnight(connection)
    a_type(connection, "idle")
    ended(connection, begun - timedelta(minutes=1), runs=100)
    ended(connection, begun, runs=5)
    ended(connection, now, runs=2, table="statistics_deltas")
    for number, outcome in enumerate(("failed", "timed_out", "lost", "cancelled", "released"), 1):
        ended(connection, now, outcome, number)
    page = client.get("/metrics").text
    assert "# TYPE wakeboard_attempts_total counter" in page
    assert told(client, "wakeboard_attempts_total") == {
        ("idle", "succeeded"): 0, ("idle", "failed"): 0, ("mail", "succeeded"): 7, ("mail", "failed"): 6,
    }  # fmt: skip


def test_a_counter_says_the_same_whether_its_hours_are_summed_or_not(
    client: FlaskClient, connection: Connection
) -> None:
    begun, now = midnight(connection)
    if now - begun < timedelta(hours=2):
        pytest.skip("No hour of this day is over for long enough to be summed.")
    ended(connection, begun + timedelta(minutes=5), runs=5)
    ended(connection, begun + timedelta(minutes=7), "failed", runs=3)
    ended(connection, now, runs=2)
    before = told(client, "wakeboard_attempts_total")
    assert before == {("mail", "succeeded"): 7, ("mail", "failed"): 3}
    while sum_next_hour(connection):
        pass
    assert told(client, "wakeboard_attempts_total") == before
    # What comes late to a summed hour is counted once it is merged, and nothing is counted less.
    ended(connection, begun + timedelta(minutes=9), runs=1, table="statistics_deltas")
    connection.execute("UPDATE wakeboard.statistics_hours SET summed_at = NULL")
    assert told(client, "wakeboard_attempts_total") == before | {("mail", "succeeded"): 8}


def test_queued_runs_are_told_by_type_up_to_where_their_count_stops(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(types, "CAP", 4)
    for name in ("mail", "report"):
        a_type(connection, name)
    for _ in range(6):
        a_run(connection, job_type="mail")
    a_run(connection, "failed", job_type="report")
    a_run(connection, job_type="nobody.knows")
    assert told(client, "wakeboard_queued_runs") == {("mail",): 5, ("report",): 0, ("nobody.knows",): 1}


def test_a_producer_with_a_name_for_each_run_makes_no_series_for_each(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(types, "MOST_UNKNOWN", 2)
    monkeypatch.setattr(metrics, "MOST_TYPES", 3)
    for number in range(5):
        a_type(connection, f"known{number}")
        a_run(connection, job_type=f"unknown{number}")
    assert len(told(client, "wakeboard_queued_runs")) == 5
    assert len(told(client, "wakeboard_attempts_total")) == 6


def test_the_longest_running_run_is_told_in_seconds(client: FlaskClient, connection: Connection) -> None:
    assert told(client, "wakeboard_longest_running_seconds") == {(): 0}
    a_run(connection, "running", started_at="-2 hours")
    a_run(connection, "running", started_at="-1 minute")
    assert 7200 <= told(client, "wakeboard_longest_running_seconds")[()] < 7300


def test_a_count_of_runs_says_where_it_stops(client: FlaskClient) -> None:
    (said,) = re.findall(r"# HELP wakeboard_runs (.*)", client.get("/metrics").text)
    assert said == f"Runs by state; {CAP + 1} is where the count stops: so many or more."


def test_the_page_of_reference_names_every_metric(client: FlaskClient) -> None:
    listed = (ROOT / "docs" / "reference.md").read_text().partition("## Metrics")[2]
    named = re.findall(r"`(wakeboard_\w+)`", listed)
    found = re.findall(r"^# TYPE (\w+) ", client.get("/metrics").text, re.M)
    assert sorted(named) == sorted(found)
