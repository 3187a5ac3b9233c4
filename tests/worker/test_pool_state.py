"""The state of a pool without its threads: who is woken, who moves up, who is not taken back."""

from __future__ import annotations

import threading
from functools import partial

from tests.support.processes import wait_until
from wakeboard.core.outcome import AttemptResult
from wakeboard.handlers.pool.future import PoolFuture
from wakeboard.handlers.pool.state import PoolState
from wakeboard.handlers.registry import JobType

RETURNED, FAILED = (
    AttemptResult(kind="returned"),
    AttemptResult(kind="raised", error_code="refused", message="not now"),
)
MAIL, REPORT = JobType("mail", print), JobType("report", print, max_running=1)
PATIENCE_SECONDS = 20


def a_state(capacity: int) -> PoolState:
    return PoolState("pool", concurrency=1, capacity=capacity, grace_seconds=1, kept_failures=10)


def a_job(id_: int, job_type: JobType = MAIL, key: str | None = None) -> PoolFuture:
    return PoolFuture(id_, job_type, "{}", key, lambda _future: False)


def admit(state: PoolState, future: PoolFuture) -> object:
    return state.admit(future, may_wait=True, timeout=PATIENCE_SECONDS)


def is_blocked(state: PoolState, number: int) -> bool:
    return state.blocked == number


def end_one(state: PoolState, answer: AttemptResult = RETURNED) -> PoolFuture:
    """Run the next job to its end; return it."""
    attempt = state.start_next(may_wait=False)
    assert attempt is not None
    state.finish(attempt, answer)
    return attempt.future


def test_a_submitter_who_was_woken_for_nothing_wakes_the_next() -> None:
    state, let_in = a_state(capacity=1), list[object]()
    for number in (1, 2):
        admit(state, a_job(number))
    jobs = [a_job(3, key="k"), a_job(4, key="k"), a_job(5)]
    threads = [threading.Thread(target=lambda each=each: let_in.append(admit(state, each))) for each in jobs]
    for thread in threads:
        before = state.blocked
        thread.start()
        wait_until(partial(is_blocked, state, before + 1), PATIENCE_SECONDS, "it waits for room")
    end_one(state)
    wait_until(lambda: let_in == jobs[:1], PATIENCE_SECONDS, "the first has its room")
    end_one(state)
    wait_until(lambda: len(let_in) == 3, PATIENCE_SECONDS / 2, "the second room is for the third")
    for thread in threads:
        thread.join()
    assert {id(job) for job in let_in} == {id(jobs[0]), id(jobs[2])}, "the second got the first's job"


def test_a_job_that_its_types_limit_held_back_goes_before_those_that_came_later() -> None:
    state = a_state(capacity=10)
    for number in (1, 2, 3):
        admit(state, a_job(number, REPORT))
    admit(state, a_job(4))
    first = state.start_next(may_wait=False)
    assert first is not None
    assert end_one(state).id == 4, "the limit holds the reports back, and nobody else"
    for number in (5, 6):
        admit(state, a_job(number))
    state.finish(first, RETURNED)
    assert [end_one(state).id for _ in range(4)] == [2, 3, 5, 6]


def test_a_job_that_failed_while_the_pool_drops_is_not_put_back_in_line() -> None:
    state = a_state(capacity=10)
    admit(state, a_job(1))
    attempt = state.start_next(may_wait=False)
    assert attempt is not None
    state.close(dropping=True)
    state.finish(attempt, FAILED)
    assert state.retry(attempt.future, 0) is False
    state.end(attempt.future, "dropped")
    assert (state.unfinished, state.dropped, attempt.future.state) == (0, [attempt.future], "dropped")
