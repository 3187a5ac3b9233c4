"""One verb on several runs while somebody holds one of them: the others are done, and that one is named."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, a_worker, from_now, rows, status
from tests.support.processes import wait_until, wait_until_blocked
from wakeboard import cli
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import retry_now, selection

OPERATOR, VIEWER = Actor("alice", Role.OPERATOR, "web"), Actor("bob", Role.VIEWER, "web")
HOLD = "SELECT FROM wakeboard.job_runs WHERE id = ANY(%s) FOR UPDATE"


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [("run.retry", "dead", "queued"), ("run.cancel", "queued", "cancelled"), ("run.again", "dead", "dead")],
)
def test_a_locked_run_is_told_by_number_and_the_others_are_done(
    connection: Connection, other: Connection, action: str, before: str, after: str
) -> None:
    runs = [a_run(connection, before) for _ in range(5)]
    with other.transaction():
        other.execute(HOLD, ([runs[2]],))
        started = monotonic()
        answers = selection.act_on_each(connection, action, runs, OPERATOR, "CRM is back")
        assert monotonic() - started < selection.PATIENCE_SECONDS + 1
    assert [answer.result for answer in answers] == ["done", "done", "locked", "done", "done"]
    assert answers[2].message == f"Run {runs[2]} was locked by another transaction: try again."
    assert [status(connection, run) for run in runs] == [after, after, before, after, after]
    audited = rows(connection, "audit_log", order="target_id::bigint")
    assert [(row["target_id"], row["result"], row["reason"]) for row in audited] == [
        (str(run), "locked" if run == runs[2] else "done", "CRM is back") for run in runs
    ]


def test_leases_are_taken_from_silent_workers_around_a_locked_run(
    connection: Connection, other: Connection
) -> None:
    a_worker(connection, "w1", seen_at=from_now("-1 hour"))
    runs = [a_run(connection, "running", locked_until="-1 minute") for _ in range(3)]
    with other.transaction():
        other.execute(HOLD, ([runs[0]],))
        answers = selection.act_on_each(connection, "lease.release", runs, OPERATOR)
    assert [answer.result for answer in answers] == ["locked", "done", "done"]


def test_many_locked_runs_are_waited_for_once_and_what_comes_free_meanwhile_is_done(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PATIENCE_SECONDS", 60.0)
    runs = [a_run(connection, "dead") for _ in range(40)]
    answers: list[str] = []

    def act() -> None:
        answers.extend(each.result for each in selection.act_on_each(connection, "run.retry", runs, OPERATOR))

    acting = threading.Thread(target=act)
    with other.transaction():
        other.execute(HOLD, (runs[1:],))
        acting.start()
        wait_until(lambda: status(other, runs[0]) == "queued", 10, "the free one is done before the others")
    acting.join(10)
    assert answers == ["done"] * 40


def test_a_run_that_is_locked_in_the_last_moment_is_answered_after_the_sessions_patience(
    connection: Connection, other: Connection
) -> None:
    run, found = a_run(connection, "dead"), list[str]()
    connection.execute("SET lock_timeout = '2s'")
    acting = threading.Thread(target=lambda: found.append(retry_now(connection, run, OPERATOR).result))
    with other.transaction():
        other.execute(HOLD, ([run],))
        acting.start()
        wait_until_blocked(other, connection.info.backend_pid)
        acting.join(10)
    assert (found, status(connection, run)) == (["locked"], "dead")


def test_who_may_not_is_told_so_of_a_locked_run_too_and_one_that_is_gone_is_missing(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PATIENCE_SECONDS", 0.0)
    run = a_run(connection, "dead")
    with other.transaction():
        other.execute(HOLD, ([run],))
        assert [each.result for each in selection.act_on_each(connection, "run.retry", [run], VIEWER)] == [
            "denied"
        ]
        missing = selection.act_on_each(connection, "run.retry", [999_999, run], OPERATOR)
    assert [each.result for each in missing] == ["missing", "locked"]


def test_so_many_locked_runs_are_named_as_a_sentence_can_hold() -> None:
    answers = [
        selection.Answer(number, None, "locked", f"Run {number} was locked …") for number in range(1, 14)
    ]
    assert selection.describe_locked(answers[:1]) == "Run 1 was locked …"
    assert (
        selection.describe_locked(answers[:2]) == "Runs 1, 2 were locked by another transaction: try again."
    )
    assert "9, 10 and 3 more were locked" in str(selection.describe_locked(answers))


def test_a_terminal_names_the_locked_run_counts_both_and_ends_with_one(
    connection: Connection,
    other: Connection,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    runs = [a_run(connection, "dead") for _ in range(4)]
    with other.transaction():
        other.execute(HOLD, ([runs[1]],))
        assert cli.run(["retry", *map(str, runs)]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"Run {run} is due now." for run in runs if run != runs[1]]
    assert said.err.splitlines() == [
        f"Run {runs[1]} was locked by another transaction: try again.",
        "3 of 4 done, 1 left as they are.",
    ]
