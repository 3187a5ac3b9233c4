"""Pages say the same of an hour whether it is summed or not; where it is, nobody reads its minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app, overhear
from tests.support.factories import a_type
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.reporting import hourly_rollups, statistics
from wakeboard.reporting.activity_report.baselines import Baseline, find_baselines
from wakeboard_dashboard.web.connection import Database

# Nine days of four types, with pauses; times are eighths of a second, so that sums are exact.
PAST = """
INSERT INTO wakeboard.statistics_rollups
SELECT date_trunc('minute', now()) - n * interval '7 minutes',
    (ARRAY['mail', 'report', 'sync', 'tidy'])[1 + n % 4],
    (ARRAY['succeeded', 'succeeded', 'failed', 'lost', 'released', 'timed_out', 'cancelled'])[1 + n % 7],
    30 + n % 11, 5 + n % 13, 1 + n % 5, 125 * (1 + n % 5) * (1 + n % 11), 125 * (1 + n % 11),
    125 * (1 + n % 5) * (n % 13), 125 * (n % 13)
FROM generate_series(0, 9 * 24 * 60 / 7) AS n WHERE n % 500 > 60
"""
HOURS = ("/overview.json?window=24h", "/overview.json?window=7d", "/types.json", "/types/mail.json")
Told = dict[str, Any]


@contextmanager
def a_new_dashboard(database: str, connection: Connection) -> Iterator[FlaskClient]:
    """Somebody signed in to a dashboard that remembers nothing yet."""
    app = an_app(database_url=database)
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(connection, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    yield client
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


def told(database: str, connection: Connection, places: Sequence[str] = HOURS) -> Told:
    """Return what a new dashboard says, the second time too."""
    with a_new_dashboard(database, connection) as client:
        first, again = ({place: answer(client, place) for place in places} for _ in range(2))
    assert first == again
    return first


def answer(client: FlaskClient, place: str) -> dict[str, Any]:
    """Return what is at ``place``, but for the moment of asking."""
    body: dict[str, Any] = client.get(place).get_json()
    return {name: value for name, value in body.items() if name != "as_of"}


def sum_hours(connection: Connection, most: int = 10_000) -> None:
    for _ in range(most):
        if hourly_rollups.sum_next_hour(connection) is None:
            return


@pytest.fixture
def past(connection: Connection) -> Connection:
    """A database with a past of which no hour is summed."""
    for name in ("mail", "report", "sync", "tidy"):
        a_type(connection, name)
    connection.execute(PAST)
    return connection


def test_a_page_says_the_same_of_summed_hours_and_of_their_minutes(database: str, past: Connection) -> None:
    now = datetime.now(UTC)
    spans = [(now - timedelta(hours=26), now - timedelta(hours=2)), (now - timedelta(days=3), now)]
    nights = [
        f"/night.json?since={since:%Y-%m-%dT%H:%MZ}&until={until:%Y-%m-%dT%H:%MZ}" for since, until in spans
    ]
    places = [*HOURS, *nights]
    by_minutes = told(database, past, places)
    sum_hours(past, 30)
    assert told(database, past, places) == by_minutes, "some hours are summed"
    sum_hours(past)
    assert told(database, past, places) == by_minutes, "all are"
    past.execute(
        "UPDATE wakeboard.statistics_hours SET summed_at = NULL WHERE extract(hour FROM hour)::int % 3 = 0"
    )
    assert told(database, past, places) == by_minutes, "some have to be summed anew"


def test_the_minutes_of_summed_hours_are_not_read(database: str, past: Connection) -> None:
    sum_hours(past)
    before = told(database, past)
    past.execute("DELETE FROM wakeboard.statistics_rollups WHERE minute < now() - interval '150 minutes'")
    after = told(database, past)
    for body in (*before.values(), *after.values()):
        # That is asked of the minutes, as alerts ask it.
        body.pop("rising", None)
    assert after == before
    assert before["/overview.json?window=7d"]["succeeded_attempts"] > 1000


def test_an_hour_to_which_something_came_late_is_told_with_it(database: str, past: Connection) -> None:
    def attempts() -> int:
        body = told(database, past, ["/overview.json?window=7d"])["/overview.json?window=7d"]
        return int(body["succeeded_attempts"]) + int(body["busiest"][0]["attempts"]) * 10_000_000

    sum_hours(past)
    before = attempts()
    late = "now() - interval '50 hours'"
    past.execute(
        f"""INSERT INTO wakeboard.statistics_deltas
        VALUES ({late}, 'mail', 'succeeded', 20, 20, 7, 700000000, 100000000, 1, 1)""".encode()
    )
    statistics.merge_deltas(past)
    unsummed = attempts()
    sum_hours(past)
    assert attempts() == unsummed != before


def usual(connection: Connection, since: datetime) -> dict[str, Baseline]:
    """Return the baselines before ``since``, asked as workers ask."""
    return find_baselines(connection, since)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Asia/Kathmandu"])
def test_what_is_usual_is_the_same_by_hours_and_by_minutes(past: Connection, zone: str) -> None:
    """Where hours begin at half past, those at the ends of the seven days are told by their minutes."""
    since = datetime.now(ZoneInfo(zone)) - timedelta(hours=12)
    by_minutes = usual(past, since)
    assert len(by_minutes) == 4
    sum_hours(past, 80)
    assert usual(past, since) == by_minutes
    sum_hours(past)
    assert usual(past, since) == by_minutes


def test_a_busy_week_is_usual_as_a_whole_once_it_is_summed(
    past: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakeboard.reporting.activity_report.baselines.MAX_MINUTE_ROWS", 20)
    since = datetime.now(UTC) - timedelta(hours=3)
    newest = usual(past, since)
    sum_hours(past)
    whole = usual(past, since)
    assert all(whole[name].runs > 5 * newest[name].runs for name in newest)
    monkeypatch.setattr("wakeboard.reporting.activity_report.baselines.MAX_HOUR_ROWS", 40)
    fewer = usual(past, since)
    assert all(fewer[name].runs < whole[name].runs for name in fewer), "and that is bounded too"


def test_no_page_walks_all_summed_hours(database: str, past: Connection) -> None:
    for table, columns, source in (
        ("statistics_hours", "hour, summed_at", "hour, hour"),
        ("statistics_hours_of_types", "hour, job_type", "hour, 'type' || n"),
    ):
        past.execute(
            f"""INSERT INTO wakeboard.{table} ({columns}) SELECT {source}
            FROM generate_series(date_trunc('hour', now()) - interval '35 days', now() - interval '3 hours',
                '1 hour') AS hour, generate_series(1, {60 if "types" in table else 1}) AS n""".encode()
        )
        past.execute(f"ANALYZE wakeboard.{table}".encode())
    asked: list[tuple[str, Any]] = []
    with a_new_dashboard(database, past) as client:
        overhear(client.application, lambda sql, values: asked.append((sql, values)))
        for place in (*HOURS, "/night.json?since=24h"):
            client.get(place)
    looked = [one for one in asked if "statistics_hours" in one[0]]
    assert len(looked) == 9
    for statement, values in looked:
        plan = past.execute(f"EXPLAIN {statement}".encode(), values).fetchall()
        assert not any("Seq Scan on statistics_hours_of_types" in line for (line,) in plan), plan
