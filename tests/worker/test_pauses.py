"""Pauses of types: they end when a person says so, or by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.factories import Connection, a_run, a_type, claim, row, rows
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import a_worker, insert, wait_until_status
from wakeboard import cli
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import types
from wakeboard.reporting.diagnosis.wait_reasons import explain_wait

ANNA = Actor("anna", Role.OPERATOR, "web")


def soon(connection: Connection, **span: float) -> datetime:
    (now,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert isinstance(now, datetime)
    return now + timedelta(**span)


def stored(connection: Connection) -> dict[str, Any]:
    return rows(connection, "job_types", "name = 'mail'")[0]


def let_it_end(connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.job_types SET paused_until = now() - interval '1 second'")


def test_a_pause_ends_by_the_clock_and_the_audit_says_so(connection: Connection) -> None:
    a_type(connection, "mail")
    run = a_run(connection, job_type="mail")
    end = soon(connection, hours=2)
    told = types.pause(connection, "mail", ANNA, "the provider moves", until=end)
    assert told.message == f"Type mail is paused until {end:%Y-%m-%d %H:%M:%S} UTC."
    assert types.end_due_pauses(connection) == {"ended": 0} and claim(connection, ["mail"]) == []
    let_it_end(connection)
    assert types.end_due_pauses(connection) == {"ended": 1}
    assert [one.id for one in claim(connection, ["mail"])] == [run]
    paused = [stored(connection)[f"paused_{name}"] for name in ("at", "by", "reason", "until")]
    assert paused == [None] * 4
    (asked, ended) = rows(connection, "audit_log", "target_id = 'mail'")
    assert (asked["actor"], asked["after"]["paused"]) == ("anna", True)
    assert (ended["actor"], ended["source"], ended["action"]) == ("engine", "engine", "type.resume")
    assert ended["after"] == {"paused": False} and "end of the pause" in ended["reason"]


def test_a_pause_without_an_end_is_never_ended_by_the_clock(connection: Connection) -> None:
    a_type(connection, "mail")
    types.pause(connection, "mail", ANNA)
    assert types.end_due_pauses(connection) == {"ended": 0}
    assert stored(connection)["paused_at"] is not None


def test_pausing_what_is_paused_moves_its_end(connection: Connection) -> None:
    a_type(connection, "mail")
    first, second = soon(connection, hours=1), soon(connection, hours=5)
    types.pause(connection, "mail", ANNA, "why", until=first)
    assert types.pause(connection, "mail", ANNA).result == "already"
    assert types.pause(connection, "mail", ANNA, until=first).result == "already"
    assert stored(connection)["paused_until"] == first
    assert types.pause(connection, "mail", ANNA, until=second).result == "done"
    assert (stored(connection)["paused_until"], stored(connection)["paused_reason"]) == (second, "why")
    moved = types.pause(connection, "mail", ANNA, until=None)
    assert "until somebody resumes it" in moved.message
    assert stored(connection)["paused_until"] is None and stored(connection)["paused_at"] is not None


def test_a_pause_after_one_that_is_over_is_a_new_one_though_no_worker_ended_it(
    connection: Connection,
) -> None:
    a_type(connection, "mail")
    types.pause(connection, "mail", ANNA, "the first", until=soon(connection, hours=1))
    let_it_end(connection)
    assert types.pause(connection, "mail", ANNA, "the second").result == "done"
    assert types.end_due_pauses(connection) == {"ended": 0}
    assert stored(connection)["paused_reason"] == "the second"


@pytest.mark.parametrize("span", [{"seconds": 0}, {"days": -1}, {"days": 400}])
def test_an_end_that_cannot_be_is_refused_in_a_sentence(
    connection: Connection, span: dict[str, float]
) -> None:
    a_type(connection, "mail")
    told = types.pause(connection, "mail", ANNA, until=soon(connection, **span))
    assert told.result == "invalid" and "later than now, at most a year away" in told.message
    assert stored(connection)["paused_at"] is None


def test_a_type_that_is_resumed_by_hand_is_not_ended_again(connection: Connection) -> None:
    a_type(connection, "mail")
    types.pause(connection, "mail", ANNA, until=soon(connection, hours=1))
    types.resume(connection, "mail", ANNA)
    assert stored(connection)["paused_until"] is None
    assert types.end_due_pauses(connection) == {"ended": 0}


def test_an_end_that_an_older_version_left_behind_ends_no_later_pause(connection: Connection) -> None:
    a_type(connection, "mail")
    connection.execute("UPDATE wakeboard.job_types SET paused_until = now() + interval '1 hour'")
    assert types.end_due_pauses(connection) == {"ended": 0}
    assert stored(connection)["paused_until"] is None
    assert rows(connection, "audit_log", "target_id = 'mail'") == []


def test_two_workers_end_a_pause_once(connection: Connection, other: Connection) -> None:
    a_type(connection, "mail")
    types.pause(connection, "mail", ANNA, until=soon(connection, hours=1))
    let_it_end(connection)
    with connection.transaction():
        assert types.end_due_pauses(connection) == {"ended": 1}
        assert types.end_due_pauses(other) == {"ended": 0}
    assert len(rows(connection, "audit_log", "action = 'type.resume'")) == 1


def test_a_waiting_run_says_by_when_its_type_starts_again(connection: Connection) -> None:
    a_type(connection, "mail")
    run = a_run(connection, job_type="mail")
    types.pause(connection, "mail", ANNA, until=soon(connection, hours=1))
    (why,) = [one.say() for one in explain_wait(connection, run)[1] if one.name == "paused"]
    assert "nothing of it starts until it is resumed, at the latest at 20" in why


def test_a_live_worker_goes_on_when_the_pause_has_ended(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection):
        wait_until(lambda: rows(connection, "job_types", "name = 'quick'"), sentence="the type is published")
        assert types.pause(connection, "quick", ANNA, until=soon(connection, seconds=2)).result == "done"
        run = insert(connection, "quick")
        wait_until_status(connection, run, "succeeded")
        (resumed,) = rows(connection, "audit_log", "action = 'type.resume'")
        assert row(connection, run)["started_at"] >= resumed["at"]


def test_the_command_line_takes_a_time_a_duration_or_never(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    a_type(connection, "mail")
    pause = ["types", "pause", "mail", "--until"]
    assert cli.run([*pause, "2h", "--reason", "a move"]) == 0
    left = stored(connection)["paused_until"] - soon(connection)
    assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2)
    end = soon(connection, days=1).replace(microsecond=0)
    assert cli.run([*pause, end.isoformat()]) == 0
    assert stored(connection)["paused_until"] == end
    capsys.readouterr()
    assert cli.run(["types", "list"]) == 0 and "PAUSED_UNTIL" in capsys.readouterr().out
    assert cli.run([*pause, "never"]) == 0
    assert stored(connection)["paused_until"] is None
    for wrong, words in (("tomorrow", "neither a time with a zone"), ("2026-13-01", "neither")):
        assert cli.run([*pause, wrong]) == 2 and words in capsys.readouterr().err
    assert cli.run([*pause, "2020-01-01T00:00Z"]) != 0
    assert "later than now" in "".join(capsys.readouterr())
