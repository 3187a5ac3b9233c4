"""Which loop is late, asked of rows as workers leave them behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.factories import Connection
from wakeboard.reporting.heartbeats import is_abandoned, late_loops, loops


def worker(
    connection: Connection,
    name: str,
    seen_seconds_ago: float = 0,
    stopped_seconds_ago: float | None = None,
    started_seconds_ago: float = 3600,
    host: str = "host",
    types: Sequence[str] = ("mail",),
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.workers
        (id, hostname, pid, concurrency, seen_at, stopped_at, started_at, job_types)
        VALUES (%s, %s, 7, 2, now() - make_interval(secs => %s), now() - make_interval(secs => %s),
            now() - make_interval(secs => %s), %s)""",
        (name, host, seen_seconds_ago, stopped_seconds_ago, started_seconds_ago, list(types)),
    )


def loop(connection: Connection, process: str, name: str, ago_seconds: float, interval: float = 2) -> None:
    connection.execute(
        """INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at, numbers)
        VALUES (%s, %s, %s, now() - make_interval(secs => %s), '{"moved": 3}')""",
        (process, name, interval, ago_seconds),
    )


def late(connection: Connection) -> list[tuple[str, str]]:
    return [(found.process_id, found.name) for found in late_loops(connection)]


def test_a_loop_is_late_after_three_rounds_and_five_seconds(connection: Connection) -> None:
    worker(connection, "w1")
    loop(connection, "w1", "claim", 10.5)
    loop(connection, "w1", "reap", 12)
    loop(connection, "w1", "statistics", 180, interval=60)
    assert late(connection) == [("w1", "reap")]
    assert [found.name for found in loops(connection)] == ["claim", "reap", "statistics"]
    (found,) = late_loops(connection)
    assert (found.hostname, found.pid, found.numbers) == ("host", 7, {"moved": 3})
    assert 12 <= found.ago_seconds < 60


def test_a_killed_process_is_late_until_it_is_known_to_be_gone(connection: Connection) -> None:
    worker(connection, "killed", seen_seconds_ago=599)
    worker(connection, "alive")
    loop(connection, "killed", "claim", 599)
    assert late(connection) == [("killed", "claim")]
    connection.execute("UPDATE wakeboard.workers SET seen_at = now() - interval '601 s' WHERE id = 'killed'")
    assert late(connection) == []


def test_a_killed_worker_that_was_started_again_is_no_alarm_any_more(connection: Connection) -> None:
    worker(connection, "killed", seen_seconds_ago=30)
    loop(connection, "killed", "claim", 30)
    worker(connection, "beside it")
    assert late(connection) == [("killed", "claim")], "the other one was there before"
    worker(connection, "successor", started_seconds_ago=25)
    assert late(connection) == []


@pytest.mark.parametrize(
    "differently",
    [{"host": "another"}, {"types": ["reports"]}, {"started_seconds_ago": 40}],
)
def test_what_is_no_successor_leaves_a_killed_worker_late(
    connection: Connection, differently: dict[str, Any]
) -> None:
    worker(connection, "killed", seen_seconds_ago=30)
    loop(connection, "killed", "claim", 30)
    worker(connection, "started", **({"started_seconds_ago": 25} | differently))
    assert late(connection) == [("killed", "claim")]


@pytest.mark.parametrize("seconds", [30, 700])
def test_a_successor_that_said_goodbye_leaves_no_alarm_behind(connection: Connection, seconds: float) -> None:
    worker(connection, "killed", seen_seconds_ago=seconds)
    loop(connection, "killed", "claim", seconds)
    assert late(connection) == [("killed", "claim")]
    stay: dict[str, float] = {"started_seconds_ago": seconds - 5, "seen_seconds_ago": seconds - 10}
    worker(connection, "successor", **stay, stopped_seconds_ago=seconds - 10)
    assert late(connection) == []


def test_a_successor_and_the_next_in_its_place_are_one(connection: Connection) -> None:
    for name, seconds in (("first", 31), ("second", 30)):
        worker(connection, name, seen_seconds_ago=seconds)
        loop(connection, name, "claim", seconds)
    worker(connection, "successor", started_seconds_ago=25, seen_seconds_ago=20, stopped_seconds_ago=20)
    worker(connection, "next", started_seconds_ago=19)
    assert late(connection) == [("first", "claim")]
    worker(connection, "another", started_seconds_ago=18, seen_seconds_ago=5, stopped_seconds_ago=5)
    assert late(connection) == [], "both were there at a time, and who said goodbye is not missing"


def test_who_said_goodbye_is_not_counted_among_those_that_fell_silent(connection: Connection) -> None:
    worker(connection, "killed", seen_seconds_ago=30)
    loop(connection, "killed", "claim", 30)
    worker(connection, "beside it", seen_seconds_ago=15, stopped_seconds_ago=15)
    worker(connection, "successor", started_seconds_ago=25)
    assert late(connection) == []


def test_of_two_killed_workers_one_successor_replaces_one(connection: Connection) -> None:
    for name, seconds in (("first", 31), ("second", 30)):
        worker(connection, name, seen_seconds_ago=seconds)
        loop(connection, name, "claim", seconds)
    worker(connection, "successor", started_seconds_ago=25)
    assert late(connection) == [("first", "claim")]
    worker(connection, "another", started_seconds_ago=24)
    assert late(connection) == []


def test_a_successor_that_was_killed_too_is_late_with_the_one_it_replaced(connection: Connection) -> None:
    worker(connection, "killed", seen_seconds_ago=60)
    loop(connection, "killed", "claim", 60)
    worker(connection, "successor", started_seconds_ago=50, seen_seconds_ago=30)
    loop(connection, "successor", "claim", 30)
    assert late(connection) == [("killed", "claim"), ("successor", "claim")]
    worker(connection, "third", started_seconds_ago=25)
    assert late(connection) == []


def test_the_last_process_of_all_stays_late_however_long_it_is_silent(connection: Connection) -> None:
    worker(connection, "killed", seen_seconds_ago=86_400, started_seconds_ago=90_000)
    loop(connection, "killed", "claim", 86_400)
    assert late(connection) == [("killed", "claim")]


def test_a_process_that_said_goodbye_is_never_late(connection: Connection) -> None:
    worker(connection, "stopped", stopped_seconds_ago=0)
    loop(connection, "stopped", "claim", 60)
    assert loops(connection) == []


def test_a_loop_without_a_workers_row_is_watched_for_ten_minutes(connection: Connection) -> None:
    loop(connection, "alone", "alerts", 60)
    assert late(connection) == [("alone", "alerts")]
    connection.execute("UPDATE wakeboard.loops SET last_success_at = now() - interval '11 min'")
    assert loops(connection) == []


@pytest.mark.parametrize(
    ("enabled", "seen_seconds_ago", "abandoned"),
    [(True, 170, False), (True, 190, True), (False, 190, False)],
)
def test_schedules_that_nobody_keeps_for_three_minutes_are_abandoned(
    connection: Connection, enabled: bool, seen_seconds_ago: float, abandoned: bool
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_definitions (name, job_type, schedule, enabled, updated_at)
        VALUES ('nightly', 'x', '0 2 * * *', %s, now() - interval '1 h')""",
        (enabled,),
    )
    worker(connection, "w1", seen_seconds_ago)
    assert is_abandoned(connection) is abandoned
