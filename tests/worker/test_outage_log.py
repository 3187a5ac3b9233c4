"""What the log says of an outage: its beginning, that it lasts, its end."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.processes import wait_until
from wakeboard.config import log
from wakeboard.database import outage_log
from wakeboard.database.db import DatabaseError
from wakeboard.database.outage_log import MissingTables, OutageLog
from wakeboard.runtime.duties import duty_thread, lease
from wakeboard.runtime.duties.duty_thread import DutyThread
from wakeboard.runtime.duties.lease import LeaseKeeper
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.worker import Worker

NOBODY = "postgresql://nobody@/nothing?host=/nonexistent"


class Clock:
    """The clock that absences read."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Clock:
    log.configure("text")
    printed_by(capsys)
    made = Clock()
    monkeypatch.setattr(outage_log, "monotonic", made)
    return made


def printed_by(capsys: pytest.CaptureFixture[str]) -> list[str]:
    log.flush()
    return [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_ends(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    away = OutageLog("claim")
    away.report_recovery()
    away.report_failure("It was lost.", error="gone")
    for _ in range(150):
        clock.now += 1
        away.report_failure("It does not answer.")
    away.report_recovery()
    away.report_recovery()
    again = "WARNING It does not answer. connection=claim"
    assert printed_by(capsys) == [
        "WARNING It was lost. connection=claim error=gone",
        again,
        again,
        "The database answers again. connection=claim away_seconds=150s",
    ]


def test_the_next_outage_is_told_at_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    away = OutageLog("claim")
    for _ in range(2):
        away.report_failure("It was lost.")
        away.report_recovery()
    assert len(printed_by(capsys)) == 4


def test_missing_tables_are_told_by_one_voice_once_a_minute_and_until_all_of_it_is_over(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lack, missing = (
        MissingTables(),
        psycopg.errors.UndefinedTable('relation "runs" does not exist\nLINE 1: …'),
    )
    lack.warn()
    lack.remove("claim")
    for _ in range(100):
        clock.now += 1
        lack.add("claim", missing)
        lack.add("presence", missing)
        lack.warn()
    assert lack.names == {"claim", "presence"}
    for name in ("presence", "claim", "claim"):
        lack.remove(name)
    sentence = (
        "WARNING The database lacks Wakeboard's tables or has older ones "
        r'(relation "runs" does not exist). Run: wakeboard db upgrade'
    )
    assert printed_by(capsys) == [sentence, sentence, "The database has the tables now. after_seconds=99s"]


def test_a_connection_of_the_loop_that_cannot_be_made_is_told_once(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = LoopConnection(NOBODY, "finish", lambda _: None)
    for _ in range(5):
        connection.fail("The database does not answer.")
    assert printed_by(capsys) == ["WARNING The database does not answer. connection=finish"]


def test_the_lease_and_the_duties_tell_an_outage_once_and_to_the_end_of_the_sentence(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    sentence = f"The database does not answer: {'why ' * 50}. Check WAKEBOARD_DATABASE_URL."

    def refuse(url: str, *, name: str, **_: object) -> None:
        tries.append(name)
        raise DatabaseError(sentence)

    for module in (lease, duty_thread):
        monkeypatch.setattr(module, "connect", refuse)
    monkeypatch.setattr(duty_thread, "RECONNECT_SECONDS", 0.01)
    keeper = LeaseKeeper(
        NOBODY, Worker("w1", heartbeat_seconds=0.01, poll_seconds=0.01), RunsInFlight(),
        loop_silent_seconds=lambda: 0.0, progress=lambda _: None, post=lambda _: None,
    )  # fmt: skip
    duties = DutyThread(NOBODY, [])
    for started in (keeper, duties):
        started.start()
    try:
        wait_until(lambda: min(map(tries.count, ("wakeboard lease", "wakeboard duties"))) > 3)
    finally:
        for started in (keeper, duties):
            started.stop()
    said = printed_by(capsys)
    assert len(said) == 2
    assert all("Check WAKEBOARD_DATABASE_URL." in line for line in said)


def test_an_outage_that_an_error_of_the_leases_thread_began_is_no_error_of_that_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str] = []

    def refuse(url: str, *, name: str, **_: object) -> None:
        tries.append(name)
        raise OSError("no descriptor is free") if len(tries) == 1 else DatabaseError("It does not answer.")

    monkeypatch.setattr(lease, "connect", refuse)
    keeper = LeaseKeeper(
        NOBODY, Worker("w1", heartbeat_seconds=0.01, poll_seconds=0.01, lease_seconds=0.3), RunsInFlight(),
        loop_silent_seconds=lambda: 0.0, progress=lambda _: None, post=lambda _: None,
    )  # fmt: skip
    keeper.start()
    try:
        wait_until(lambda: len(tries) > 100)
        assert not keeper.has_ended
    finally:
        keeper.stop()
