"""Two at once: locked rows, racing claims, limits, and operators who meet a worker on the same run.

Every race is made on purpose: one side holds its transaction open until PostgreSQL says the other waits,
or has skipped what it holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import wait_until, wait_until_blocked
from wakeboard import queue as transitions
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.database.db import PLANNING
from wakeboard.queue import Answer
from wakeboard.queue.engine.claims import FROM_FIRST, claim
from wakeboard.queue.engine.endings import SUCCEED
from wakeboard.queue.engine.fence import RUN_STATES

OPERATOR = Actor("alice", Role.OPERATOR, "web")


def hold(other: Connection, run: int) -> None:
    """Lock a run's row; to be called inside a transaction of ``other``."""
    other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (run,))


@pytest.mark.parametrize("move", ["renew", "succeed", "fail", "release", "reap"])
def test_one_locked_row_does_not_stop_a_batch(connection: Connection, other: Connection, move: str) -> None:
    runs = [factories.a_run(connection, "running", locked_until="-1 second") for _ in range(3)]
    held = [(run, 1) for run in runs]
    answer = getattr(factories, move)
    with other.transaction():
        hold(other, runs[1])
        assert set(answer(connection, *held)) == {runs[0], runs[2]}
        standing = {one[0]: one[1:] for one in factories.send(connection, RUN_STATES, runs)}
        assert standing[runs[1]] == (1, "w1", "running")
    assert set(answer(connection, held[1])) == {runs[1]}


def test_a_claim_skips_what_somebody_holds(connection: Connection, other: Connection) -> None:
    factories.a_type(connection)
    first, second = factories.a_run(connection, run_at="-1 minute"), factories.a_run(connection)
    with other.transaction():
        hold(other, first)
        assert [one.id for one in factories.claim(connection, limit=1)] == [second]


# Where a statement that has taken its snapshot waits until it may read its rows.
GATE = "pg_advisory_xact_lock_shared(7) IS NOT NULL AND "


def past_the_gate(
    connection: Connection, other: Connection, statement: str, values: Sequence[object], change: str
) -> list[int]:
    """Send ``statement``, which has a ``GATE``, and make ``change`` while it waits there; return its ids."""
    assert GATE in statement
    with ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_lock(7)")
        late = pool.submit(factories.send, connection, statement, *values)
        wait_until_blocked(other, connection.info.backend_pid)
        other.execute(change.encode())
        other.execute("SELECT pg_advisory_unlock(7)")
        return [found[0] for found in late.result(10)]


@pytest.mark.parametrize("planning", [{}, PLANNING])
def test_a_claim_leaves_what_was_changed_behind_its_snapshot_to_the_next(
    connection: Connection, other: Connection, planning: dict[str, str]
) -> None:
    factories.a_type(connection)
    runs = [factories.a_run(connection, run_at=f"-{3 - n} minutes") for n in range(3)]
    db.configure(connection, planning)
    statement = claim(10).replace("WHERE t.paused_at", f"WHERE {GATE}t.paused_at")
    change = f"UPDATE wakeboard.job_runs SET priority = 2, updated_at = now() WHERE id = {runs[1]}"
    values = (["mail"], "w1", 30.0, *FROM_FIRST)
    assert past_the_gate(connection, other, statement, values, change) == [runs[0], runs[2]]
    assert [factories.status(connection, run) for run in runs] == ["running", "queued", "running"]
    assert [one.id for one in factories.claim(connection)] == [runs[1]]


@pytest.mark.parametrize("planning", [{}, PLANNING])
def test_a_success_that_met_a_change_behind_its_snapshot_is_told_again(
    connection: Connection, other: Connection, planning: dict[str, str]
) -> None:
    runs = [factories.a_run(connection, "running") for _ in range(3)]
    db.configure(connection, planning)
    statement = SUCCEED.replace("WHERE r.id = a.id", f"WHERE {GATE}r.id = a.id")
    change = f"UPDATE wakeboard.job_runs SET cancel_requested_at = now() WHERE id = {runs[1]}"
    values = ("w1", runs, [1] * 3, [0.0] * 3, [1.0] * 3, [], [], [], [10] * 3, [300.0] * 3)
    assert past_the_gate(connection, other, statement, values, change) == [runs[0], runs[2]]
    assert [len(factories.attempts(connection, run)) for run in runs] == [1, 0, 1]
    assert factories.succeed(connection, *((run, 1) for run in runs)) == [runs[1]]
    assert [len(factories.attempts(connection, run)) for run in runs] == [1, 1, 1]


def test_two_workers_claim_disjoint_runs_and_neither_starves(
    connection: Connection, other: Connection
) -> None:
    factories.a_type(connection)
    runs = [factories.a_run(connection, run_at=f"-{n + 1} seconds") for n in range(20)]
    with other.transaction():
        theirs = {one.id for one in factories.claim(other, worker_id="w2", limit=10)}
        mine = {one.id for one in factories.claim(connection, worker_id="w1", limit=10)}
        assert len(theirs) == len(mine) == 10
    assert theirs | mine == set(runs)


def test_two_workers_share_types_and_priorities_without_meeting(
    connection: Connection, other: Connection
) -> None:
    types = [factories.a_type(connection, f"type{n}") for n in range(3)]
    runs = {
        factories.a_run(connection, job_type=types[n % 3], priority=n % 2, run_at=f"-{n + 1} seconds")
        for n in range(48)
    }
    with other.transaction():
        theirs = {one.id for one in factories.claim(other, types, "w2", 4)}
        mine = {one.id for one in factories.claim(connection, types, "w1", 4)}
        assert (len(theirs), len(mine)) == (4, 4)
    rest = {one.id for one in factories.claim(connection, types, "w1", 48)}
    assert len(theirs) + len(mine) + len(rest) == 48
    assert theirs | mine | rest == runs


def answer_all(connection: Connection, held: list[factories.Held], worker_id: str) -> None:
    """Say that runs succeeded, again for those that another worker's claim touches at this moment."""

    def answered() -> bool:
        moved = factories.succeed(connection, *held, worker_id=worker_id)
        held[:] = [one for one in held if one[0] not in moved]
        return not held

    wait_until(answered, 10, f"every answer of {worker_id} finds its run")


def test_many_workers_empty_a_queue_and_run_nothing_twice(database: str, connection: Connection) -> None:
    factories.a_type(connection)
    runs = {factories.a_run(connection) for _ in range(120)}
    together = threading.Barrier(4)

    def work(number: int) -> list[int]:
        mine: list[int] = []
        with db.connect(database, name="wakeboard test") as own:
            together.wait()
            while claimed := factories.claim(own, worker_id=f"w{number}", limit=7):
                held = [one.held for one in claimed]
                answer_all(own, held, f"w{number}")
                mine += [one.id for one in claimed]
        return mine

    with ThreadPoolExecutor(4) as pool:
        done = [run for mine in pool.map(work, range(4)) for run in mine]
    assert sorted(done) == sorted(runs)
    assert connection.execute("SELECT count(*), max(attempt) FROM wakeboard.job_attempts").fetchone() == (
        120,
        1,
    )


def test_a_limit_holds_while_another_worker_claims(connection: Connection, other: Connection) -> None:
    factories.a_type(connection, max_running=3)
    for _ in range(10):
        factories.a_run(connection)
    with other.transaction():
        assert len(factories.claim_limited(other, worker_id="w2", limit=2)) == 2
        assert factories.claim_limited(connection, worker_id="w1") == []
    assert len(factories.claim_limited(connection, worker_id="w1")) == 1
    assert factories.claim_limited(other, worker_id="w2") == []


def test_four_workers_never_pass_a_limit_of_three(database: str, connection: Connection) -> None:
    factories.a_type(connection, max_running=3)
    for _ in range(60):
        factories.a_run(connection)
    together, most = threading.Barrier(4), []

    def work(number: int) -> int:
        done = 0
        with db.connect(database, name="wakeboard test") as own:
            together.wait()
            while waiting(own):
                for one in factories.claim_limited(own, worker_id=f"w{number}"):
                    most.append(running(own))
                    answer_all(own, [one.held], f"w{number}")
                    done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 60
    assert 1 <= max(most) <= 3


def waiting(connection: Connection) -> bool:
    (count,) = connection.execute(
        "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'queued'"
    ).fetchone() or (0,)
    return bool(count)


def running(connection: Connection) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'running'"
    ).fetchone() or (0,)
    return int(count)


def behind(
    connection: Connection, other: Connection, first: Callable[[], object], second: Callable[[], Answer]
) -> Answer:
    """Make the move ``first`` on ``other`` and let ``second``, on ``connection``, wait behind it.

    ``first`` commits once PostgreSQL says that ``second`` waits; returns the answer of ``second``.
    """
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            assert first()
            late: Future[Answer] = pool.submit(second)
            wait_until_blocked(other, connection.info.backend_pid)
        return late.result(10)


def test_a_cancel_behind_a_claim_asks_the_worker_instead(connection: Connection, other: Connection) -> None:
    factories.a_type(connection)
    run = factories.a_run(connection)
    answer = behind(
        connection,
        other,
        lambda: factories.claim(other),
        lambda: transitions.cancel(connection, run, OPERATOR),
    )
    assert (answer.result, answer.status) == ("asked", "running")
    assert factories.renew(connection, (run, 1)) == {run: True}


def test_a_cancel_behind_a_success_says_when_it_succeeded(connection: Connection, other: Connection) -> None:
    run = factories.a_run(connection, "running")
    answer = behind(
        connection,
        other,
        lambda: factories.succeed(other, (run, 1)),
        lambda: transitions.cancel(connection, run, OPERATOR),
    )
    assert (answer.result, answer.status) == ("forbidden", "succeeded")
    assert factories.row(connection, run)["cancel_requested_at"] is None


def test_a_retry_behind_a_claim_leaves_the_running_run_alone(
    connection: Connection, other: Connection
) -> None:
    factories.a_type(connection)
    run = factories.a_run(connection, "failed", run_at="-1 second")
    answer = behind(
        connection,
        other,
        lambda: factories.claim(other),
        lambda: transitions.retry_now(connection, run, OPERATOR),
    )
    assert (answer.result, answer.status) == ("forbidden", "running")


def test_a_retry_behind_the_last_failure_revives_the_dead_run(
    connection: Connection, other: Connection
) -> None:
    run = factories.a_run(connection, "running")
    answer = behind(
        connection,
        other,
        lambda: factories.fail(other, (run, 1), permanent=True),
        lambda: transitions.retry_now(connection, run, OPERATOR),
    )
    assert (answer.result, answer.status) == ("done", "queued")
    assert factories.row(connection, run)["failures"] == 0


def test_two_operators_who_press_retry_together_retry_once(connection: Connection, other: Connection) -> None:
    run = factories.a_run(connection, "dead")
    answer = behind(
        connection,
        other,
        lambda: transitions.retry_now(other, run, OPERATOR).changed,
        lambda: transitions.retry_now(connection, run, OPERATOR),
    )
    assert answer.result == "already"


def test_a_lease_released_behind_a_success_is_left_alone(connection: Connection, other: Connection) -> None:
    run = factories.a_run(connection, "running", locked_until="-1 second")
    answer = behind(
        connection,
        other,
        lambda: factories.succeed(other, (run, 1)),
        lambda: transitions.release_lease(connection, run, OPERATOR),
    )
    assert (answer.result, answer.status) == ("forbidden", "succeeded")
    assert len(factories.attempts(connection, run)) == 1


def test_run_again_behind_a_retry_does_not_make_a_second_run(
    connection: Connection, other: Connection
) -> None:
    run = factories.a_run(connection, "dead")
    answer = behind(
        connection,
        other,
        lambda: transitions.retry_now(other, run, OPERATOR).changed,
        lambda: transitions.run_again(connection, run, OPERATOR),
    )
    assert answer.result == "forbidden"
    assert connection.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() == (1,)
