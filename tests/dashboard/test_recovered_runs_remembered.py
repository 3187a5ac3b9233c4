"""What succeeded only after failures is the same from memory, which reads no run that ended a while ago."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Connection as Session
from sqlalchemy import event, text

from tests.conftest import Connection
from tests.dashboard.remembering import DAY, HOUR, MINUTE, Moments, asking, last_day, note_removal, now_of
from tests.factories import a_run
from wakeboard.reporting.activity_report import faults
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.failures import lately, recovered
from wakeboard_dashboard.queries.failures.recovered import Recovered
from wakeboard_dashboard.queries.failures.remembered import Memory
from wakeboard_dashboard.queries.nights.report import Night


def a_recovery(connection: Connection, at: datetime, attempts: int) -> int:
    """Let a run have succeeded at the last of so many attempts."""
    run = a_run(connection, "succeeded", attempts=attempts, finished_at=at)
    connection.execute(
        "UPDATE wakeboard.job_runs SET failed_at = %s, error_code = 'smtp_down' WHERE id = %s",
        (at - MINUTE, run),
    )
    return run


def assert_same(memory: Recovered, session: Session, window: Window, now: datetime) -> int:
    """Assert that memory and database tell the same of ``window``; return how many recovered."""

    memory.ended.note(window, lately.WORTH)
    found = recovered.recovered(memory, session, window, now)
    assert found == faults.recovered(asking(session), window)
    return found[1]


@pytest.mark.parametrize("cap", [10_000, 40, 7])
def test_what_is_remembered_is_what_the_database_tells_while_runs_go_on(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(faults, "CAP", cap)
    monkeypatch.setattr(faults, "MOST_SHOWN", 5)
    chance, memory, now = Random(cap), Recovered(), now_of(session)
    moments = Moments(chance)
    for _ in range(60):
        a_recovery(connection, moments.ago(now, 2.2 * DAY), chance.randrange(2, 9))
    told = set()
    for _ in range(25):
        for _ in range(3):
            lately_at = moments.ago(now, chance.choice((MINUTE, 10 * MINUTE)))
            a_recovery(connection, lately_at, chance.randrange(2, 9))
        for _ in range(2):
            told.add(assert_same(memory, session, last_day(now), now))
        assert_same(memory, session, Window(now - HOUR, now + MINUTE), now)
        now += chance.choice((MINUTE, 7 * MINUTE))
    assert max(told) == cap if cap < 100 else max(told) > 5


def test_runs_that_ended_a_while_ago_are_read_once(connection: Connection, session: Session) -> None:
    memory, now = Recovered(), lately.turn(now_of(session))
    began: list[datetime] = []
    event.listen(
        session,
        "before_cursor_execute",
        lambda _session, _cursor, sql, values, *_: (
            began.append(values["since"]) if "int8send" in sql else None
        ),
    )
    for hours in range(1, 20):
        a_recovery(connection, now - hours * HOUR, 2)
    for later in (timedelta(0), MINUTE, MINUTE):
        window = Window(now + later - DAY, now + later)
        assert assert_same(memory, session, window, now + later) == 19
    assert began == [now - DAY, lately.settled(now), lately.settled(now)]


def test_one_with_too_many_attempts_to_be_remembered_is_told_by_the_database(
    connection: Connection, session: Session
) -> None:
    memory, now = Recovered(), now_of(session)
    window = Window(now - DAY, now)
    run = a_recovery(connection, now - HOUR, 2)
    connection.execute("UPDATE wakeboard.job_runs SET attempts = 40000 WHERE id = %s", (run,))
    memory.ended.note(window, lately.WORTH)
    assert recovered.recovered(memory, session, window, now) is None
    assert recovered.recovered(memory, session, window, now) is None


def test_what_retention_removes_is_told_no_more(connection: Connection, session: Session) -> None:
    memory, now = Recovered(), now_of(session)
    window = Window(now - 2 * DAY, now + MINUTE)
    for hours in (26, 5):
        a_recovery(connection, now - hours * HOUR, 2)
    for _ in range(2):
        assert assert_same(memory, session, window, now) == 2
    connection.execute("DELETE FROM wakeboard.job_runs WHERE finished_at < now() - interval '24 hours'")
    note_removal(connection)
    assert assert_same(memory, session, window, now) == 1


def test_a_night_in_which_many_recovered_is_remembered_from_its_second_look_on(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lately, "WORTH", 3)
    now, statements = now_of(session), list[str]()
    event.listen(session, "before_cursor_execute", lambda _s, _c, sql, *_: statements.append(sql))
    for hours in range(3, 7):
        a_recovery(connection, now - hours * HOUR, hours)
    memory = Memory()

    def walks(window: Window) -> int:
        statements.clear()
        runs, count = Night(session, window, now, memory=memory).recovered
        failures = [run["failures"] for run in runs]
        assert (failures, count) == (([5, 4, 3, 2], 4) if window.since < now - 6 * HOUR else ([], 0))
        return sum("WITH well AS MATERIALIZED" in sql for sql in statements)

    assert [walks(Window(now - HOUR, now + MINUTE)) for _ in range(2)] == [1, 1], "too few to remember"
    assert [walks(last_day(now)) for _ in range(2)] == [1, 0]


def test_what_is_remembered_is_read_from_an_index_alone(connection: Connection, session: Session) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs
            (job_type, status, attempts, failures, started_at, finished_at, failed_at)
        SELECT 'mail', 'succeeded', 2, 1, now(), now() - make_interval(secs => n), now() - interval '1 day'
        FROM generate_series(1, 20000) AS n"""
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs")
    now = now_of(session)
    values = {"since": now - HOUR, "until": now, "cap": faults.CAP}
    rows = session.execute(text(f"EXPLAIN {recovered.READ}"), values).scalars()
    plan = "\n".join(rows)
    assert "Index Only Scan Backward using job_attempts_later_successes" in plan and "Sort" not in plan, plan
