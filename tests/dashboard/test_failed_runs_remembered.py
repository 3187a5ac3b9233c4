"""What became of the runs that failed is the same from memory, which asks for no run that has succeeded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection as Session
from sqlalchemy import event

from tests.conftest import Connection
from tests.dashboard.remembering import DAY, HOUR, MINUTE, Moments, asking, last_day, note_removal, now_of
from tests.factories import a_run, an_attempt
from wakeboard.reporting.activity_report import faults
from wakeboard.reporting.activity_report.faults import NOTHING, Failed, Fates
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.failures import lately, runs
from wakeboard_dashboard.queries.failures.remembered import Memory
from wakeboard_dashboard.queries.failures.runs import Runs
from wakeboard_dashboard.queries.nights.report import Night


@pytest.fixture
def asked(session: Session) -> list[set[int]]:
    """The runs that each statement asked about whose answer may be remembered."""
    found: list[set[int]] = []
    event.listen(
        session,
        "before_cursor_execute",
        lambda _session, _cursor, sql, values, *_: (
            found.append(set(map(int, values["runs"].strip("{}").split(","))))
            if "AS succeeded_runs" in sql
            else None
        ),
    )
    return found


def told(session: Session, found: Failed) -> tuple[Any, ...]:
    """Return all that a night shows of the runs that failed."""

    lost, of_lost = faults.lost(asking(session), found)
    return found.fates, [dict(row) for row in lost], of_lost


def from_database(session: Session, window: Window) -> Failed:
    return faults.failed(asking(session), window)


def assert_same(memory: Runs, session: Session, window: Window, now: datetime) -> Fates:
    """Assert that memory and database tell the same of ``window``; return what became of its runs."""
    memory.attempts.note(window, lately.WORTH)
    found = runs.failed(memory, session, window, now)
    assert found is not None
    whole = from_database(session, window)
    assert told(session, found) == told(session, whole)
    kept = {"lost_runs": found.lost_runs, "lost_epochs": found.lost_epochs}
    assert found == replace(whole, not_succeeded=NOTHING, **kept)
    return found.fates


def failed(connection: Connection, run: int, at: datetime, outcome: str = "failed") -> None:
    """Let an attempt of ``run`` have failed."""
    row = connection.execute("SELECT count(*) FROM wakeboard.job_attempts WHERE run_id = %s", (run,))
    epoch = 1 + (row.fetchone() or (0,))[0]
    an_attempt(
        connection, run, attempt=epoch, lease_epoch=epoch, outcome=outcome, error_code="smtp_down",
        due_at=at, started_at=at, finished_at=at,
    )  # fmt: skip


def move(connection: Connection, run: int, status: str, at: datetime | None = None) -> None:
    """Let ``run`` be ``status``, since ``at``."""
    connection.execute(
        """UPDATE wakeboard.job_runs SET status = %s, finished_at = %s, started_at = coalesce(started_at, %s),
            error_code = 'smtp_down', failed_at = now(), failures = 1, last_error = 'no'
        WHERE id = %s""",
        (status, at, at, run),
    )


@pytest.mark.parametrize("cap", [10_000, 60, 7])
def test_what_is_remembered_is_what_the_database_tells_while_runs_go_on(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(faults, "CAP", cap)
    monkeypatch.setattr(runs, "MOST_SHOWN", 5)
    monkeypatch.setattr(faults, "MOST_SHOWN", 5)
    chance, memory, now = Random(cap), Runs(), now_of(session)
    moments = Moments(chance)
    there: list[int] = []

    def a_failure(most: timedelta) -> None:
        if not there or chance.random() < 0.4:
            there.append(a_run(connection, chance.choice(("queued", "dead", "cancelled")), attempts=0))
        outcome = chance.choice(("failed", "timed_out", "lost"))
        failed(connection, chance.choice(there), moments.ago(now, most), outcome)

    for _ in range(60):
        a_failure(2.2 * DAY)
    for _ in range(25):
        for _ in range(3):
            a_failure(chance.choice((MINUTE, 10 * MINUTE)))
        for run in chance.sample(there, 3):
            # What has succeeded stays so.
            row = connection.execute("SELECT status FROM wakeboard.job_runs WHERE id = %s", (run,)).fetchone()
            if row and row[0] != "succeeded":
                status = chance.choice(("succeeded", "succeeded", "queued", "dead", "cancelled"))
                ended = chance.choice((now - HOUR, moments.ago(now, HOUR), moments.ago(now, DAY)))
                move(connection, run, status, None if status == "queued" else ended)
        for _ in range(2):
            assert_same(memory, session, last_day(now), now)
        assert_same(memory, session, Window(now - HOUR, now + MINUTE), now)
        now += chance.choice((MINUTE, 7 * MINUTE))


def test_a_run_that_succeeded_a_while_ago_is_not_asked_about_again(
    connection: Connection, session: Session, asked: list[set[int]]
) -> None:
    memory, now = Runs(), now_of(session).replace(minute=2)
    well, lately_well, dead = (a_run(connection, "dead", attempts=0) for _ in range(3))
    for run in (well, lately_well, dead):
        failed(connection, run, now - 5 * HOUR)
    move(connection, well, "succeeded", now - 4 * HOUR)
    move(connection, lately_well, "succeeded", now - 3 * MINUTE)
    for _ in range(3):
        assert assert_same(memory, session, last_day(now), now).succeeded == 2
    assert asked == [{well, lately_well, dead}, {lately_well, dead}, {lately_well, dead}]
    later = now + lately.HOLDS
    assert_same(memory, session, last_day(later), later)
    assert asked[3] == {well, lately_well, dead}, "what somebody changed by hand is told ten minutes later"


def test_what_an_operator_did_is_told_at_once(connection: Connection, session: Session) -> None:
    memory, now = Runs(), now_of(session)
    retried, cancelled, gone = (a_run(connection, "dead", attempts=0) for _ in range(3))
    for place, run in enumerate((retried, cancelled, gone)):
        failed(connection, run, now - (5 + place) * HOUR)
    assert assert_same(memory, session, last_day(now), now) == Fates(3, 0, 0, 3, 0, 0)
    move(connection, retried, "queued")
    assert assert_same(memory, session, last_day(now), now) == Fates(3, 0, 1, 2, 0, 0)
    move(connection, retried, "succeeded", now)
    move(connection, cancelled, "cancelled", now)
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (gone,))
    assert assert_same(memory, session, last_day(now), now) == Fates(3, 1, 0, 0, 1, 1)


def test_what_retention_removes_is_told_no_more(connection: Connection, session: Session) -> None:
    memory, now = Runs(), now_of(session)
    window = Window(now - 2 * DAY, now + MINUTE)
    for hours in (26, 5):
        run = a_run(connection, "dead", attempts=0)
        failed(connection, run, now - hours * HOUR)
        move(connection, run, "succeeded", now - (hours - 1) * HOUR)
    for _ in range(2):
        assert assert_same(memory, session, window, now).succeeded == 2
    connection.execute("DELETE FROM wakeboard.job_runs WHERE finished_at < now() - interval '24 hours'")
    for _ in range(2):
        assert assert_same(memory, session, window, now) == Fates(2, 1, 0, 0, 0, gone=1), (
            "its attempt is here"
        )
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE finished_at < now() - interval '24 hours'")
    note_removal(connection)
    assert assert_same(memory, session, window, now) == Fates(1, 1, 0, 0, 0, 0)


def test_a_window_in_which_much_failed_is_remembered_from_its_second_look_on(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lately, "WORTH", 3)
    now, statements = now_of(session), list[str]()
    event.listen(session, "before_cursor_execute", lambda _s, _c, sql, *_: statements.append(sql))
    for hours in range(3, 7):
        failed(connection, a_run(connection, "dead", attempts=0), now - hours * HOUR)
    memory = Memory()

    def walks(window: Window) -> int:
        statements.clear()
        assert Night(session, window, now, memory=memory).failed.fates.runs == memory_holds(window)
        return sum("WITH tried AS MATERIALIZED" in sql for sql in statements)

    def memory_holds(window: Window) -> int:
        return 4 if window.since < now - 6 * HOUR else 0

    assert [walks(Window(now - HOUR, now + MINUTE)) for _ in range(2)] == [1, 1], "too little to remember"
    assert [walks(last_day(now)) for _ in range(2)] == [1, 0]
