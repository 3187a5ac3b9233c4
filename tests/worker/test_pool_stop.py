"""The end of a pool: intake ends, what waits is drained or dropped, what runs is waited for."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.factories import Connection, row
from tests.support.processes import ROOT, surroundings, wait_until
from tests.support.workers.pool_handlers import PATIENCE_SECONDS, Gate, gate, heedful, registry, table
from wakeboard import Context, Pool, enqueue, job
from wakeboard.handlers.pool import NoResult, PoolFuture, PoolStopped

__all__ = ["gate", "registry", "table"]
pytestmark = pytest.mark.usefixtures("registry")


def submitting(pool: Pool, count: int, told: list[BaseException]) -> list[threading.Thread]:
    """So many threads, each of which submits one job and remembers what it was told."""

    def submit() -> None:
        try:
            pool.submit("gate", {"n": 0})
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=submit) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_stop_wakes_every_blocked_submitter_with_an_error(gate: Gate) -> None:
    pool = Pool(1, capacity=1)
    pool.submit(gate), pool.submit(gate)
    told: list[BaseException] = []
    threads = submitting(pool, 8, told)
    wait_until(lambda: pool.metrics().blocked_submitters == 8, PATIENCE_SECONDS)
    pool.stop()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in told] == [PoolStopped] * 8
    gate.is_open.set()
    assert pool.wait().is_clean


def test_a_stopped_pool_takes_nothing_and_says_so(gate: Gate) -> None:
    pool = Pool(1)
    pool.stop()
    for given in ({}, {"delay": 3600}, {"key": "one"}):
        with pytest.raises(PoolStopped, match="takes no jobs any more"):
            pool.submit(gate, **given)
    assert not pool.metrics().accepting
    pool.wait()
    assert threading.active_count() == len(threading.enumerate())


def test_stop_does_not_wait_and_wait_does_not_stop(gate: Gate) -> None:
    pool = Pool(1)
    with pytest.raises(RuntimeError, match="comes after stop"):
        pool.wait(0)
    pool.submit(gate)
    gate.until_inside(1)
    pool.stop()
    assert pool.metrics().in_flight == 1
    gate.is_open.set()
    assert pool.wait().finished == 1


def test_a_drained_pool_runs_what_waits_retries_among_it(gate: Gate) -> None:
    @job("flaky", backoff="fixed 0.05s")
    def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.attempt

    pool = Pool(1)
    futures = [pool.submit(gate, {"n": 0}), pool.submit(flaky), pool.submit(gate, {"n": 1})]
    gate.until_inside(1)
    pool.stop(drain=True)
    gate.is_open.set()
    report = pool.wait(PATIENCE_SECONDS)
    assert (report.finished, report.dropped, report.still_running, report.is_clean) == (3, (), (), True)
    assert [future.result(0) for future in futures] == [0, 2, 1]


def test_a_dropped_pool_finishes_what_runs_and_names_what_it_dropped(gate: Gate) -> None:
    pool = Pool(1)
    running = pool.submit(gate, {"n": 0})
    gate.until_inside(1)
    waiting = [pool.submit(gate, {"n": n}, key=f"k{n}") for n in (1, 2)] + [pool.submit(gate, delay=60)]
    pool.stop(drain=False)
    with pytest.raises(NoResult, match=r"was dropped \(pool_stopped"):
        waiting[0].result(0)
    gate.is_open.set()
    report = pool.wait(PATIENCE_SECONDS)
    assert running.result(0) == 0
    assert (report.finished, list(report.dropped)) == (1, waiting)
    assert [(lost.payload, lost.key) for lost in report.dropped][:2] == [({"n": 1}, "k1"), ({"n": 2}, "k2")]
    assert pool.metrics().dropped_total == 3
    assert gate.came == [0]


def test_what_was_drained_can_still_be_dropped(gate: Gate) -> None:
    pool = Pool(1)
    pool.submit(gate)
    gate.until_inside(1)
    waiting = pool.submit(gate)
    pool.stop(drain=True)
    pool.stop(drain=False)
    assert waiting.state == "dropped"
    gate.is_open.set()
    assert pool.wait().finished == 1


def test_a_retry_that_cannot_come_up_in_time_is_not_waited_for() -> None:
    @job("away", backoff="fixed 1h")
    def away(ctx: Context) -> None:
        raise OSError("down")

    pool = Pool(1)
    future = pool.submit(away)
    wait_until(lambda: future.state == "failed", PATIENCE_SECONDS)
    pool.stop(drain=True)
    report = pool.wait(1800)
    assert report.dropped == (future,)
    assert (future.state, future.error_code) == ("dropped", "OSError")


def test_at_the_deadline_handlers_are_asked_to_stop_and_their_jobs_are_not_failures() -> None:
    job("long")(heedful)
    pool = Pool(2)
    futures = [pool.submit("long", {"n": n}) for n in range(3)]
    wait_until(lambda: pool.metrics().in_flight == 2, PATIENCE_SECONDS)
    pool.stop(drain=True)
    report = pool.wait(0.05)
    assert sorted(future.id for future in report.dropped) == [1, 2, 3]
    assert (report.finished, report.still_running) == (0, ())
    assert [future.error_code for future in futures] == ["cut_short", "cut_short", "pool_stopped"]
    assert [future.failures for future in futures] == [0, 0, 0]


def test_who_heeds_nothing_is_named_with_how_long_it_runs(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = Pool(1, grace_seconds=0.05)
    future = pool.submit(gate)
    gate.until_inside(1)
    pool.stop()
    report = pool.wait(0.05)
    (left,) = report.still_running
    assert (left.id, left.job_type, left.attempt, left.given_up) == (future.id, "gate", 1, True)
    assert left.seconds >= 0.1
    assert not report.is_clean
    with pytest.raises(NoResult, match="still ran when the pool stopped"):
        future.result(0)
    gate.is_open.set()
    wait_until(lambda: pool.metrics().threads_alive == 0, PATIENCE_SECONDS)


def test_the_block_drains_and_a_block_that_failed_drops(gate: Gate) -> None:
    gate.is_open.set()
    with Pool(1) as pool:
        futures = [pool.submit(gate, {"n": n}) for n in range(5)]
    assert [future.result(0) for future in futures] == list(range(5))
    with pytest.raises(ZeroDivisionError), Pool(1) as pool:
        later = pool.submit(gate, delay=3600)
        raise ZeroDivisionError
    assert later.state == "dropped"


def test_what_did_not_finish_is_queued_again_for_the_next_version(
    table: None, connection: Connection
) -> None:
    job("long")(heedful)
    pool = Pool(1, handoff=partial(enqueue, None))
    futures = [pool.submit("long", {"n": n}, key=f"long:{n}") for n in range(3)]
    wait_until(lambda: pool.metrics().in_flight == 1, PATIENCE_SECONDS)
    pool.stop(drain=False)
    report = pool.wait(0)
    assert (report.handed_off, report.dropped, report.is_clean) == (3, (), True)
    for n, future in enumerate(futures):
        assert future.handed_to is not None
        run = row(connection, future.handed_to)
        assert (run["payload"], run["idempotency_key"]) == ({"n": n}, f"long:{n}")
        assert (run["status"], run["max_attempts"]) == ("queued", None)


def test_a_hundred_pools_stopped_in_the_middle_lose_no_job_and_no_thread(gate: Gate) -> None:
    gate.is_open.set()
    job("quick")(lambda ctx: ctx.payload["n"])
    before = threading.active_count()
    for number in range(100):
        pool = Pool(2, capacity=3, full="block")
        futures: list[PoolFuture] = []
        threads = [threading.Thread(target=submit_until_stopped, args=(pool, futures)) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda pool=pool: pool.metrics().submitted_total >= 5, PATIENCE_SECONDS)  # type: ignore[misc]
        pool.stop(drain=number % 2 == 0)
        report = pool.wait(PATIENCE_SECONDS)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        numbers = pool.metrics()
        assert all(future.has_ended for future in futures)
        assert numbers.submitted_total == len(futures) == numbers.succeeded_total + numbers.dropped_total
        assert len(report.dropped) == numbers.dropped_total
        assert numbers.dropped_total == 0 or number % 2
        assert (numbers.blocked_submitters, numbers.threads_alive, report.still_running) == (0, 0, ())
    wait_until(lambda: threading.active_count() == before, PATIENCE_SECONDS)


def submit_until_stopped(pool: Pool, futures: list[PoolFuture]) -> None:
    """Submit as fast as the pool lets in."""
    number = 0
    while True:
        try:
            futures.append(pool.submit("quick", {"n": number}))
        except PoolStopped:
            return
        number += 1


@pytest.mark.slow
def test_eighty_thousand_jobs_of_eight_submitters_each_run_once() -> None:
    seen: list[Any] = []
    job("count")(lambda ctx: seen.append(ctx.payload["n"]))
    pool = Pool(4, capacity=100)

    def submit(first: int) -> None:
        for n in range(first, first + 10_000):
            pool.submit("count", {"n": n})

    threads = [threading.Thread(target=submit, args=(10_000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    pool.stop()
    report = pool.wait(300)
    assert report.is_clean
    assert sorted(seen) == list(range(80_000))
    numbers = pool.metrics()
    assert (numbers.succeeded_total, numbers.failed_total, numbers.dropped_total) == (80_000, 0, 0)


PROGRAM = """
import threading, time
from wakeboard import Pool, job, run_until_signal
from wakeboard.config import log

log.configure("text")

@job("beat")
def beat(ctx):
    print("beating", flush=True)
    while True:
        ctx.check()
        time.sleep(0.001)

@job("deaf")
def deaf(ctx):
    print("hanging", flush=True)
    threading.Event().wait()

"""


def program(rest: str) -> subprocess.Popen[str]:
    """Start a Python program of its own that has the handlers of PROGRAM."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + rest],
        cwd=ROOT, env=surroundings(None), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def test_a_program_that_is_a_pool_ends_by_sigterm_before_its_deadline() -> None:
    with program(
        "pool = Pool(1)\npool.submit(beat)\npool.submit(beat)\n"
        "report = run_until_signal(pool, deadline_seconds=0.2)\n"
        "print(report.finished, len(report.dropped), len(report.still_running))\n"
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "beating\n"
        wait_until(lambda: catches(started.pid, signal.SIGTERM), PATIENCE_SECONDS, "it waits for signals")
        started.terminate()
        out, err = started.communicate(timeout=PATIENCE_SECONDS)
    assert (out, started.returncode) == ("0 2 0\n", 0)
    assert "Stopping: no more jobs. why=SIGTERM" in err
    assert len(re.findall(r"drop run=\d type=beat", err)) == 2


def test_a_hanging_handler_keeps_no_process_from_ending_and_what_is_lost_is_said() -> None:
    with program(
        "pool = Pool(1)\npool.submit(deaf)\npool.submit(beat)\nimport sys; sys.stdin.readline()\n"
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "hanging\n"
        _, err = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 0
    assert "The process ends with unfinished jobs in a pool that nobody waited for. count=2" in err
