"""What types did in the last day is put together once while nothing ends, and anew when something does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.factories import a_type
from wakeboard_dashboard.pages import baselines
from wakeboard_dashboard.queries import hours, throughput
from wakeboard_dashboard.queries.throughput import Times

TYPES = ("mail", "report")


def ends(connection: Connection, job_type: str, ago: str, table: str = "statistics_rollups") -> None:
    """Write an attempt of one second that ended so long ago."""
    connection.execute(
        f"""INSERT INTO wakeboard.{table} VALUES
        (date_trunc('minute', now()) - %s::interval, %s, 'succeeded', 20, 5, 1, 1000, 1000, 1, 1)""".encode(),
        (ago, job_type),
    )


@pytest.fixture
def put_together(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is put together, as it is: hours of several steps, and the days of types."""
    told: list[str] = []
    one_bar, pace_of = throughput.one_bar, baselines.pace_of

    def an_hour(*arguments: object) -> throughput.Bar:
        told.append("hour")
        return one_bar(*arguments)  # type: ignore[arg-type]

    def a_day(bars: Sequence[throughput.Bar]) -> baselines.Pace:
        told.append("day")
        return pace_of(bars)

    monkeypatch.setattr(hours, "one_bar", an_hour)
    monkeypatch.setattr(baselines, "pace_of", a_day)
    return told


def succeeded(client: FlaskClient) -> dict[str, int]:
    return {item["name"]: item["succeeded_24h"] for item in client.get("/types.json").get_json()["items"]}


def test_a_day_in_which_nothing_more_ended_is_put_together_once(
    client: FlaskClient, connection: Connection, put_together: list[str]
) -> None:
    for name in TYPES:
        a_type(connection, name)
        ends(connection, name, "0 minutes")
        ends(connection, name, "10 hours")
    assert succeeded(client) == {"mail": 2, "report": 2}
    assert put_together.count("hour") == put_together.count("day") == 2
    # An hour begins, or is settled, between two of three requests at most.
    goes = []
    for _ in range(2):
        put_together.clear()
        assert succeeded(client) == {"mail": 2, "report": 2}
        goes.append(len(put_together))
    assert 0 in goes
    ends(connection, "mail", "1 minute")
    assert succeeded(client) == {"mail": 3, "report": 2} and "day" in put_together
    ends(connection, "mail", "1 minute", "statistics_deltas")
    for _ in range(2):
        put_together.clear()
        assert succeeded(client) == {"mail": 4, "report": 2}
        assert "day" in put_together, "what is still to be merged is read each time"


def test_a_type_tells_the_same_of_its_day_as_the_list(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    for ago in ("0 minutes", "3 hours", "20 hours"):
        ends(connection, "mail", ago)
        assert client.get("/types/mail.json").get_json()["succeeded_24h"] == succeeded(client)["mail"]


def test_a_day_is_another_one_when_an_hour_of_it_is() -> None:
    bar = throughput.Bar(datetime(2026, 3, 2, 12, tzinfo=UTC), 1, 0, Times({20: 1}, 1.0))
    hour: hours.Hour = {"mail": bar}
    day = baselines.Day({bar.start_at: hour})
    assert day.is_of({bar.start_at: hour}) and not day.is_of({bar.start_at: dict(hour)})
    assert not day.is_of({}) and baselines.Day({bar.start_at: {}}).is_of({bar.start_at: {}})
