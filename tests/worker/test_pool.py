"""The in-process pool: what goes in, what runs at once, what is tried again, what is kept."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.support.factories import Connection, row
from tests.support.processes import wait_until
from tests.support.workers.pool_handlers import PATIENCE_SECONDS, Gate, gate, heedful, registry, table
from wakeboard import Context, Permanent, Pool, Retryable, enqueue, job
from wakeboard.config import log
from wakeboard.core.outcome import AttemptResult, result_of_exception
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.retry import Backoff
from wakeboard.core.run_spec import EnqueueError
from wakeboard.handlers.pool import NoResult, PoolFull, PoolFuture, PoolStopped
from wakeboard.handlers.pool.state import decide as decide_for_the_pool
from wakeboard.handlers.registry import JobType
from wakeboard.runtime.loop.ended_attempt import decide_end as decide_for_the_table
from wakeboard.runtime.loop.in_flight import RunInFlight

__all__ = ["gate", "registry", "table"]
pytestmark = pytest.mark.usefixtures("registry")


def outcome(future: PoolFuture) -> tuple[str, str | None]:
    """How a job ended: its state and error code."""
    with pytest.raises(NoResult) as ended:
        future.result(PATIENCE_SECONDS)
    assert (ended.value.state, ended.value.error_code) == (future.state, future.error_code)
    return future.state, future.error_code


def answer(future: PoolFuture) -> Any:
    return future.result(PATIENCE_SECONDS)


# -- submit --------------------------------------------------------------------------------------------


def test_a_job_is_submitted_by_its_function_or_by_its_name() -> None:
    @job("greet")
    def greet(ctx: Context) -> dict[str, Any]:
        return {"said": f"Hello {ctx.payload['name']}", "run": ctx.run_id, "key": ctx.key}

    with Pool(2) as pool:
        first = pool.submit(greet, {"name": "Ada"}, key="greet:ada")
        second = pool.submit("greet", {"name": "Bob"})
        assert answer(first) == {"said": "Hello Ada", "run": first.id, "key": "greet:ada"}
        assert answer(second)["said"] == "Hello Bob"
    assert first.state == "succeeded"


def test_an_async_handler_runs_in_a_loop_of_its_own() -> None:
    @job("async")
    async def handler(ctx: Context) -> int:
        await asyncio.sleep(0)
        return int(ctx.payload["n"]) + 1

    with Pool(2) as pool:
        futures = [pool.submit(handler, {"n": n}) for n in range(20)]
        assert [answer(future) for future in futures] == list(range(1, 21))


def test_what_the_submitter_does_to_the_payload_later_changes_nothing(gate: Gate) -> None:
    payload = {"n": [1]}
    with Pool(1) as pool:
        future = pool.submit(gate, payload)
        payload["n"].append(2)
        gate.is_open.set()
        assert answer(future) == [1]
        assert future.payload == {"n": [1]}


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"when": object()}, "not JSON"),
        ({"blob": "x" * 70_000}, "Store the data elsewhere"),
        ([1], "not a JSON object"),
    ],
)
def test_a_payload_that_the_table_would_refuse_is_refused(gate: Gate, payload: Any, sentence: str) -> None:
    with Pool(1) as pool, pytest.raises(EnqueueError, match=sentence):
        pool.submit(gate, payload)


def test_an_unknown_handler_is_refused_with_what_is_known(gate: Gate) -> None:
    with Pool(1) as pool:
        with pytest.raises(LookupError, match=r"known: .*gate"):
            pool.submit("no_such_type")
        with pytest.raises(LookupError, match="decorate it"):
            pool.submit(lambda ctx: None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"concurrency": 0}, "Pool: concurrency=0 is not a whole number of 1 or more"),
        ({"concurrency": True}, "Pool: concurrency=True is not"),
        ({"capacity": 0}, "Pool: capacity=0 is not"),
        ({"full": "wait"}, "a full pool can"),
        ({"handoff": 5}, "Pool: handoff=5 cannot be called"),
        ({"shutdown_seconds": -1}, "Pool: shutdown_seconds=-1 is not a number of seconds, 0 or more"),
        ({"shutdown_seconds": float("inf")}, "Pool: shutdown_seconds=inf is not"),
        ({"grace_seconds": float("nan")}, "Pool: grace_seconds=nan is not"),
        ({"grace_seconds": "5s"}, "Pool: grace_seconds='5s' is not"),
        ({"longest_delay_seconds": None}, "Pool: longest_delay_seconds=None is not"),
        ({"kept_failures": -1}, "Pool: kept_failures=-1 is not a whole number of 0 or more"),
        ({"most_abandoned": 1.5}, "Pool: most_abandoned=1.5 is not"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Pool(**given)


def test_a_pool_may_keep_every_delay_to_itself_and_remember_nothing() -> None:
    nothing: dict[str, Any] = {"shutdown_seconds": 0, "grace_seconds": 0, "kept_failures": 0}
    Pool(1, longest_delay_seconds=float("inf"), most_abandoned=0, **nothing).stop()


def test_an_unfinished_key_gives_the_ticket_it_has_and_is_free_afterwards(gate: Gate) -> None:
    job("other")(heedful)
    with Pool(1) as pool:
        first = pool.submit(gate, {"n": 1}, key="invoice:1")
        assert pool.submit(gate, {"n": 2}, key="invoice:1") is first
        with pytest.raises(EnqueueError, match="belongs to job 1 of type 'gate', not 'other'"):
            pool.submit("other", key="invoice:1")
        gate.is_open.set()
        assert answer(first) == 1
        assert answer(pool.submit(gate, {"n": 2}, key="invoice:1")) == 2


def test_a_job_type_that_nobody_registered_runs_too_and_can_be_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure("text")
    private = JobType("private", lambda ctx: ctx.payload["n"], max_attempts=1)
    broken = JobType("broken", raising(OSError("down")), max_attempts=1)
    with Pool(1, log_every_move=False) as pool:
        assert answer(pool.submit(private, {"n": 7})) == 7
        assert outcome(pool.submit(broken)) == ("dead", "OSError")
    (line,) = capsys.readouterr().err.splitlines()
    assert "dead run=2 type=broken" in line


# -- one knob ------------------------------------------------------------------------------------------


def test_as_many_run_at_once_as_the_pool_has_room_for(gate: Gate) -> None:
    with Pool(3) as pool:
        futures = [pool.submit(gate, {"n": n}) for n in range(12)]
        gate.until_inside(3)
        assert pool.metrics().saturation == 1.0
        gate.is_open.set()
        assert [answer(future) for future in futures] == list(range(12))
    assert gate.most_inside == 3


def test_a_type_with_a_limit_leaves_the_other_threads_to_others(gate: Gate) -> None:
    job("limited", max_running=1)(gate)
    job("free")(lambda ctx: "ran")
    with Pool(3) as pool:
        limited = [pool.submit("limited", {"n": n}) for n in range(5)]
        gate.until_inside(1)
        assert answer(pool.submit("free")) == "ran"
        assert gate.inside == 1
        gate.is_open.set()
        assert [answer(future) for future in limited] == list(range(5))
    assert gate.most_inside == 1
    assert gate.came == list(range(5))


# -- full: a choice made once --------------------------------------------------------------------------


def test_a_full_pool_can_answer_with_an_error(gate: Gate) -> None:
    with Pool(1, capacity=2, full="error") as pool:
        futures = [pool.submit(gate, {"n": n}) for n in range(3)]
        with pytest.raises(PoolFull, match="2 jobs wait and 1 run"):
            pool.submit(gate)
        gate.is_open.set()
        assert [answer(future) for future in futures] == [0, 1, 2]
        assert answer(pool.submit(gate, {"n": 4})) == 4
    assert pool.metrics().refused_total == 1


def test_a_full_pool_can_drop_the_new_job_and_counts_it(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure("text")
    with Pool(1, capacity=1, full="drop") as pool:
        kept = [pool.submit(gate, {"n": n}) for n in range(2)]
        assert outcome(pool.submit(gate, {"n": 9})) == ("dropped", "pool_full")
        assert pool.metrics().dropped_total == 1
        gate.is_open.set()
        assert [answer(future) for future in kept] == [0, 1]
    assert "drop run=3 type=gate" in capsys.readouterr().err


def test_a_full_pool_can_make_its_submitters_wait(gate: Gate) -> None:
    with Pool(1, capacity=1) as pool:
        for n in range(2):
            pool.submit(gate, {"n": n})
        late: list[PoolFuture] = []
        submitter = threading.Thread(target=lambda: late.append(pool.submit(gate, {"n": 2})))
        submitter.start()
        wait_until(lambda: pool.metrics().blocked_submitters == 1, PATIENCE_SECONDS)
        assert late == []
        gate.is_open.set()
        submitter.join(PATIENCE_SECONDS)
        assert answer(late[0]) == 2
    assert (pool.metrics().blocked_submitters, pool.metrics().blocked_total) == (0, 1)


def test_a_submitter_waits_no_longer_than_it_says(gate: Gate) -> None:
    with Pool(1, capacity=1) as pool:
        pool.submit(gate), pool.submit(gate)
        for timeout in (0, 0.05):
            with pytest.raises(PoolFull):
                pool.submit(gate, timeout=timeout)
        assert pool.metrics().blocked_submitters == 0
        gate.is_open.set()


def test_a_handler_never_waits_for_its_own_pool(gate: Gate) -> None:
    pool = Pool(1, capacity=1)

    @job("breeder")
    def breeder(ctx: Context) -> str:
        pool.submit(gate)
        try:
            pool.submit(gate)
        except PoolFull:
            return "was told"
        return "was let in"

    with pool:
        assert answer(pool.submit(breeder)) == "was told"
        gate.is_open.set()


def test_a_retry_counts_against_the_bound_and_holds_no_thread() -> None:
    job("away", backoff="fixed 1h")(raising(RuntimeError("down")))
    job("quick")(lambda ctx: "ran")
    pool = Pool(1, capacity=1, full="error")
    pool.submit("away")
    wait_until(lambda: pool.metrics().retrying == 1, PATIENCE_SECONDS)
    assert pool.metrics().in_flight == 0
    assert answer(pool.submit("quick")) == "ran"
    pool.submit("away")
    wait_until(lambda: pool.metrics().retrying == 2, PATIENCE_SECONDS)
    with pytest.raises(PoolFull):
        pool.submit("quick")
    pool.stop(drain=False)
    assert len(pool.wait(0).dropped) == 2


# -- three failures, three answers ---------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    """A handler that always raises `error`."""

    def handler(ctx: Context) -> None:
        raise error

    return handler


def test_a_temporary_failure_is_tried_again_after_its_backoff() -> None:
    @job("flaky", backoff="fixed 0.05s")
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("refused")
        return ctx.attempt

    with Pool(1) as pool:
        future = pool.submit(flaky)
        assert answer(future) == 3
    assert (future.attempts, future.failures, future.error_code) == (3, 2, "ConnectionError")
    numbers = pool.metrics()
    assert (numbers.retried_total, numbers.failed_total, numbers.dead_total) == (2, 2, 0)
    assert numbers.latency_maximum_seconds >= 0.1


def test_a_permanent_failure_is_not_tried_again() -> None:
    job("declined")(raising(Permanent("card_declined", "no funds")))
    job("wrong", permanent=(ValueError,))(raising(ValueError("no such invoice")))
    with Pool(1) as pool:
        declined, wrong = pool.submit("declined", {"order": 7}, key="charge:7"), pool.submit("wrong")
        assert outcome(declined) == ("dead", "card_declined")
        assert outcome(wrong) == ("dead", "ValueError")
        assert declined.attempts == 1
        assert pool.failures() == [declined, wrong]
    assert (declined.payload, declined.key, declined.last_error) == ({"order": 7}, "charge:7", "no funds")


def test_a_job_gives_up_after_its_attempts_and_can_be_replayed_from_what_is_kept() -> None:
    mended = threading.Event()

    @job("broken", max_attempts=2, backoff="fixed 0.01s")
    def broken(ctx: Context) -> str:
        if not mended.is_set():
            raise OSError("still broken")
        return f"done {ctx.payload['n']}"

    with Pool(1, kept_failures=2) as pool:
        futures = [pool.submit(broken, {"n": n}) for n in range(3)]
        assert [outcome(future) for future in futures] == [("dead", "OSError")] * 3
        assert [future.attempts for future in futures] == [2, 2, 2]
        assert pool.failures() == futures[1:]
        mended.set()
        lost = pool.failures()[-1]
        assert answer(pool.submit(lost.job_type, lost.payload, key=lost.key)) == "done 2"
    assert pool.metrics().dead_total == 3


def test_a_handler_that_leaves_the_program_fails_and_its_thread_lives_on() -> None:
    job("leaver", max_attempts=1)(raising(SystemExit(3)))
    job("ends_well")(raising(SystemExit(0)))
    job("after")(lambda ctx: "ran")
    with Pool(1) as pool:
        assert outcome(pool.submit("leaver")) == ("dead", "exit_3")
        assert answer(pool.submit("ends_well")) is None
        assert answer(pool.submit("after")) == "ran"
        assert pool.metrics().threads_alive == 1


@pytest.mark.parametrize(
    "is_async",
    [False, True],
)
def test_a_handler_that_listens_is_cut_off_at_its_deadline(is_async: bool) -> None:
    handler = sleeping if is_async else heedful
    job("slow", timeout=0.05, max_attempts=2, backoff="fixed 0.01s")(handler)
    with Pool(1) as pool:
        future = pool.submit("slow")
        assert outcome(future) == ("dead", "timed_out")
        assert future.attempts == 2
        assert pool.metrics().abandoned_total == 0


async def sleeping(ctx: Context) -> None:
    """Hang in an await."""
    await asyncio.sleep(3600)


def test_a_handler_knows_how_much_time_is_left_for_its_slow_calls() -> None:
    job("planner", timeout=60)(lambda ctx: ctx.seconds_left)
    with Pool(1) as pool:
        assert 50 < answer(pool.submit("planner")) <= 60


def test_a_handler_that_hangs_is_given_up_replaced_and_its_late_answer_refused(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure("text")
    job("hanging", timeout=0.05)(gate)
    job("other")(lambda ctx: "ran")
    with Pool(1, grace_seconds=0.05) as pool:
        hung = pool.submit("hanging", {"n": 1})
        assert outcome(hung) == ("dead", "timed_out")
        assert answer(pool.submit("other")) == "ran"
        assert (pool.metrics().abandoned, pool.metrics().threads_alive) == (1, 2)
        (left,) = pool.running()
        assert (left.id, left.job_type, left.given_up) == (hung.id, "hanging", True)
        gate.is_open.set()
        wait_until(lambda: pool.metrics().late_total == 1, PATIENCE_SECONDS)
        wait_until(lambda: pool.metrics().threads_alive == 1, PATIENCE_SECONDS)
    assert hung.state == "dead"
    assert gate.came == [1]
    printed = capsys.readouterr().err
    assert "A handler was given up" in printed
    assert "A late answer was refused" in printed


def test_no_more_hanging_handlers_are_replaced_than_the_pool_may(gate: Gate) -> None:
    job("hanging", timeout=0.05)(gate)
    job("other")(lambda ctx: "ran")
    with Pool(1, grace_seconds=0, most_abandoned=1) as pool:
        for n in range(2):
            assert outcome(pool.submit("hanging", {"n": n})) == ("dead", "timed_out")
        waits = pool.submit("other")
        assert (pool.metrics().threads_alive, pool.metrics().abandoned) == (2, 2)
        assert waits.state == "queued"
        gate.is_open.set()
        assert answer(waits) == "ran"


# -- cancel is a decision ------------------------------------------------------------------------------


def test_a_job_that_waits_is_cancelled_at_once(gate: Gate) -> None:
    with Pool(1) as pool:
        running, waiting = pool.submit(gate, {"n": 1}), pool.submit(gate, {"n": 2})
        later = pool.submit(gate, {"n": 3}, delay=3600)
        gate.until_inside(1)
        assert waiting.cancel()
        assert later.cancel()
        assert not waiting.cancel()
        assert outcome(waiting) == outcome(later) == ("cancelled", "cancelled")
        gate.is_open.set()
        assert answer(running) == 1
    assert gate.came == [1]


@pytest.mark.parametrize("handler", [heedful, sleeping])
def test_a_job_that_runs_stops_where_stopping_is_safe(handler: Any) -> None:
    job("long")(handler)
    with Pool(1) as pool:
        future = pool.submit("long")
        wait_until(lambda: future.state == "running", PATIENCE_SECONDS)
        assert future.cancel()
        assert outcome(future) == ("cancelled", "cancelled")
    assert future.failures == 0


def test_a_job_that_succeeds_all_the_same_has_succeeded(gate: Gate) -> None:
    with Pool(1) as pool:
        future = pool.submit(gate, {"n": 1})
        gate.until_inside(1)
        assert future.cancel()
        gate.is_open.set()
        assert answer(future) == 1
        assert not future.cancel()


def test_a_cancelled_job_that_heeds_nothing_is_given_up(gate: Gate) -> None:
    with Pool(1, grace_seconds=0.05) as pool:
        future = pool.submit(gate)
        gate.until_inside(1)
        assert future.cancel()
        assert outcome(future) == ("cancelled", "cancelled")
        gate.is_open.set()


# -- effects -------------------------------------------------------------------------------------------


def test_an_effect_is_made_once_however_often_the_job_is_tried() -> None:
    sent: list[int] = []

    @job("receipt", backoff="fixed 0.01s")
    def receipt(ctx: Context) -> Any:
        mail = ctx.once("mail", lambda: sent.append(ctx.run_id) or "sent")
        if ctx.attempt < 3:
            raise OSError("after the mail")
        return mail

    with Pool(2) as pool:
        first, second = pool.submit(receipt), pool.submit(receipt)
        assert (answer(first), answer(second)) == ("sent", "sent")
    assert sorted(sent) == [first.id, second.id]


def test_an_effect_that_was_cut_short_is_not_made_again_unasked() -> None:
    tried: list[int] = []

    @job("cut", timeout=0.05, backoff="fixed 0.01s")
    def cut(ctx: Context) -> Any:
        def charge() -> None:
            tried.append(ctx.attempt)
            heedful(ctx)

        return ctx.once("charge", charge) or ctx.once(
            "look", lambda: None, if_unconfirmed=lambda found: "found"
        )

    with Pool(1) as pool:
        assert answer(pool.submit(cut)) is None
    assert tried == [1]


def test_two_jobs_with_one_global_effect_do_not_make_it_twice(gate: Gate) -> None:
    @job("weekly", backoff="1s")
    def weekly(ctx: Context) -> Any:
        return ctx.once(f"report:{id(gate)}", lambda: gate(ctx), scope="global")

    with Pool(2) as pool:
        first = pool.submit(weekly, {"n": 1})
        gate.until_inside(1)
        second = pool.submit(weekly, {"n": 2})
        wait_until(lambda: second.error_code == "effect_in_progress", PATIENCE_SECONDS)
        gate.is_open.set()
        assert (answer(first), answer(second)) == (1, 1)
    assert gate.came == [1]


# -- long delays go back to the table ------------------------------------------------------------------


def test_a_delayed_job_waits_without_a_thread(gate: Gate) -> None:
    gate.is_open.set()
    with Pool(1) as pool:
        later = pool.submit(gate, {"n": 1}, delay=timedelta(seconds=0.05))
        sooner = pool.submit(gate, {"n": 2})
        assert (answer(later), answer(sooner)) == (1, 2)
    assert gate.came == [2, 1]


def test_what_is_to_wait_long_becomes_a_run_in_the_table(table: None, connection: Connection) -> None:
    job("invoice", max_attempts=5, backoff="fixed 1h")(raising(ConnectionError("the provider is away")))
    with Pool(1, handoff=partial(enqueue, None)) as pool:
        failed = pool.submit("invoice", {"invoice_id": 812}, key="invoice:812")
        delayed = pool.submit("invoice", {"invoice_id": 813}, delay=7200)
        assert outcome(failed) == ("handed_off", "ConnectionError")
        assert outcome(delayed) == ("handed_off", None)
    assert failed.handed_to is not None
    assert delayed.handed_to is not None
    run = row(connection, failed.handed_to)
    assert (run["job_type"], run["payload"], run["status"]) == ("invoice", {"invoice_id": 812}, "queued")
    assert (run["idempotency_key"], run["max_attempts"]) == ("invoice:812", 4)
    assert timedelta(minutes=59) < run["run_at"] - run["created_at"] <= timedelta(hours=1)
    assert row(connection, delayed.handed_to)["max_attempts"] is None


def test_a_hand_off_that_fails_is_a_failure_that_is_kept() -> None:
    def refuse(*_given: Any, **_more: Any) -> int:
        raise ConnectionError("the database is away")

    job("away", backoff="fixed 1h")(raising(OSError("down")))
    with Pool(1, handoff=refuse) as pool:
        future = pool.submit("away", {"n": 1})
        assert outcome(future) == ("dead", "handoff_failed")
        assert pool.failures() == [future]
    assert "the database is away" in str(future.last_error)


# -- one rule for every engine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [OSError("x"), Permanent("no"), Retryable("later", after=90), Retryable("now", after=0), ValueError("v")],
)
@pytest.mark.parametrize("failures", [0, 1, 3])
def test_pool_and_table_wait_equally_long(error: Exception, failures: int) -> None:
    kind = JobType("one", heedful, max_attempts=5, backoff="fixed 7s", permanent=(ValueError,))
    future = PoolFuture(1, kind, "{}", None, lambda _: False)
    future.failures = failures
    raised = result_of_exception(error, kind.permanent)
    here = decide_for_the_pool(future, raised, is_cancelled=False, is_stopped=False)
    there = decide_for_the_table(held(failures, kind.backoff), raised, took_seconds=1.0, ended_ns=0)
    assert there is not None
    assert here.delay_seconds == (None if raised.permanent else there.delay_seconds)
    assert here.failures == failures + 1


def test_a_handler_that_asks_to_be_tried_at_once_waits_by_the_backoff() -> None:
    came: list[float] = []

    @job("refused", backoff="fixed 0.2s", max_attempts=3)
    def refused(_ctx: Context) -> None:
        came.append(time.monotonic())
        raise Retryable("http_429", "Too many requests.", after=0)

    with Pool(1) as pool:
        assert outcome(pool.submit(refused)) == ("dead", "http_429")
    assert [later - sooner >= 0.2 for sooner, later in pairwise(came)] == [True, True]
    assert came[-1] - came[0] < 1.5, "no floor of a second is put under the author's own rule"


def held(failures: int, backoff: str) -> RunInFlight:
    """A claimed run of the database worker."""
    assignment = Assignment(1, 1, 1, "one", "{}", None, None, None, None, 60.0, None, "w")
    return RunInFlight(assignment, failures, 5, backoff, lease_seconds=30.0, leased_ns=0, claimed_ns=0)


def test_the_default_backoff_is_every_engines() -> None:
    kind = JobType("one", heedful)
    future = PoolFuture(1, kind, "{}", None, lambda _: False)
    ending = decide_for_the_pool(future, AttemptResult("raised", "x"), is_cancelled=False, is_stopped=False)
    rule = Backoff.parse(kind.backoff)
    assert ending.delay_seconds is not None
    assert rule.delay_seconds(1, 0.0) <= ending.delay_seconds <= rule.delay_seconds(1, 1.0)


# -- where is this job now? ----------------------------------------------------------------------------


def test_each_move_is_a_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")

    @job("flaky", backoff="fixed 0.01s", max_attempts=2)
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("refused")
        raise Permanent("gone", "no such order")

    with Pool(1, name="mail") as pool:
        outcome(pool.submit(flaky))
    lines = [line[9:] for line in capsys.readouterr().err.splitlines()]
    assert [line.split()[0] for line in lines] == ["claim", "fail", "claim", "dead"]
    assert lines[0] == "claim run=1 type=flaky attempt=1 worker=mail"
    assert "error=ConnectionError reason=refused next=0.01s" in lines[1]
    assert 'error=gone reason="no such order"' in lines[3]


def test_a_handlers_own_log_lines_say_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    job("chatty")(lambda ctx: ctx.log.info("half of %s", "it"))
    with Pool(1) as pool:
        answer(pool.submit("chatty"))
    assert "INFO run=1 type=chatty half of it" in capsys.readouterr().err


def test_the_numbers_say_whether_work_is_stuck(gate: Gate) -> None:
    with Pool(2, capacity=10) as pool:
        futures = [pool.submit(gate, {"n": n}) for n in range(5)]
        gate.until_inside(2)
        numbers = pool.metrics()
        assert (numbers.accepting, numbers.in_flight, numbers.queue_length) == (True, 2, 3)
        assert (numbers.threads_alive, numbers.submitted_total, numbers.started_total) == (2, 5, 2)
        first, second = pool.running()
        assert first.seconds >= second.seconds > 0
        assert numbers.longest_running_seconds > 0
        gate.is_open.set()
        for future in futures:
            answer(future)
    numbers = pool.metrics()
    assert (numbers.accepting, numbers.in_flight, numbers.queue_length) == (False, 0, 0)
    assert (numbers.succeeded_total, numbers.threads_alive) == (5, 0)
    assert 0 < numbers.latency_average_seconds <= numbers.latency_maximum_seconds
    assert 0 < numbers.run_average_seconds <= numbers.run_maximum_seconds


def test_a_pool_costs_no_thread_before_its_first_job(gate: Gate) -> None:
    before = threading.active_count()
    pool = Pool(8)
    assert threading.active_count() == before
    pool.stop()
    assert pool.wait(0).is_clean


def test_a_forked_process_is_told_that_the_pool_is_not_its_own(gate: Gate) -> None:
    gate.is_open.set()
    with Pool(1) as pool:
        answer(pool.submit(gate))
        child = os.fork()
        if not child:
            status = 1
            try:
                pool.submit(gate)
            except PoolStopped as told:
                status = 0 if "after the fork" in str(told) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert answer(pool.submit(gate, {"n": 5})) == 5
