"""Faults at the end of processes for handlers: what they have still to send, and ends that never end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from random import Random

from tests.support.factories import rows
from tests.support.faults.apps.ending import EVENTS
from tests.support.faults.deployment import KILL_SECONDS, SHUTDOWN_SECONDS, House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.truth_file import now
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive

Measured = Callable[[str], None]
APP = "tests.support.faults.apps.ending"
WAYS = ("thread", "atexit", "in C", "hook")


@fault(
    "F80",
    injected="SIGTERM to a worker whose handlers report by a library's thread, or at their process's end",
    expected="no report is lost, the worker is gone in its shutdown time",
)
def test_what_libraries_send_at_the_end_of_a_process_arrives(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    runs, slots = scale.times(8, 120), 4
    file = house.folder / "shipped"
    start = partial(house.worker, APP=APP, CONCURRENCY=slots, environment={"SHIPPED": str(file)})
    worker = start()
    ids = [house.enqueue("report", {"how": chance.choice(("capture", "keep"))}) for _ in range(runs)]
    house.wait_until_status(ids, "succeeded", 120)
    waiting = [house.enqueue("report", {"how": how, "wait": True}) for how in ("capture", "keep")]
    house.wait_until_started(waiting)
    asked = now()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait(SHUTDOWN_SECONDS + 5) == 0, worker.output
    took = now() - asked
    started = [(line.run_id, line.attempt) for line in house.truth("start")]
    wanted = {f"{run_id} {attempt} {number}" for run_id, attempt in started for number in range(EVENTS)}
    sent = file.read_text().splitlines()
    lost = len(wanted - set(sent))
    measured(f"{lost} of {len(wanted)} reports of {len(started)} starts lost; gone after {took:.1f} s")
    assert lost == 0
    assert len(sent) == len(set(sent))
    assert took <= SHUTDOWN_SECONDS
    start()
    house.settle(60)
    house.check()


@fault(
    "F81",
    injected="runs leave to their process's end a thread, atexit, a call in C or a hook that never ends",
    expected="their slots work again within the time for it, and so the worker ends",
)
def test_an_end_that_never_ends_holds_nobody_up(house: House, scale: Scale, measured: Measured) -> None:
    rounds, seconds = scale.times(1, 4), 0.5
    worker = house.worker(APP=APP, CONCURRENCY=2, CHILD_EXIT_SECONDS=seconds)
    ids = [house.enqueue("endless", {"way": way}) for _ in range(rounds) for way in WAYS]
    house.wait_until_status(ids, "succeeded", 60)
    family = [member.pid for member in worker.family()]
    asked = now()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait(SHUTDOWN_SECONDS + 5) == 0, worker.output
    took = now() - asked
    wait_until(lambda: not any(map(is_alive, family)), 5, "nothing of the worker is left")
    attempts = rows(house.connection, "job_attempts", "run_id = ANY(%s)", ids)
    told = worker.output.count("WAKEBOARD_CHILD_EXIT_SECONDS")
    measured(
        f"{len(ids)} runs, one attempt each; gone after {took:.1f} s; told {told} times that an end was cut"
    )
    assert [one["outcome"] for one in attempts] == ["succeeded"] * len(ids)
    assert took <= seconds + KILL_SECONDS + 1
    assert told
    house.check()
