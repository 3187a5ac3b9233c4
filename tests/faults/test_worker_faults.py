"""Faults of workers and their children: killed, frozen, hanging, greedy, replaced. Group A of the table."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

import psutil

from tests.faults.house import House
from tests.faults.rows import Scale, fault
from tests.faults.truth import now
from tests.processes import wait_until
from tests.worker.motion import is_alive

Measured = Callable[[str], None]


def percent_of(values: list[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def none_is_alive(pids: Sequence[int]) -> bool:
    """Whether all of the processes have ended."""
    return not any(map(is_alive, pids))


@fault(
    "F02",
    injected="kill -9 of handler processes",
    expected="attempt failed as crashed, slot free at once, the supervisor stays",
)
def test_a_killed_child_costs_its_attempt_and_nothing_else(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    kills = scale.times(12, 200)
    worker = house.worker(CONCURRENCY=4)
    killed: dict[int, float] = {}
    while len(killed) < kills:
        waiting = house.wait_until_started(house.enqueue_many("slow_then_quick", 4))
        for victim in chance.sample(waiting, len(waiting)):
            os.kill(victim.pid, signal.SIGKILL)
            killed[victim.run_id] = now()
        house.settle(30)
    crashed = house.connection.execute(
        "SELECT run_id, error FROM wakeboard.job_attempts WHERE outcome = 'failed'"
    ).fetchall()
    assert {run_id for run_id, _ in crashed} == killed.keys()
    assert all("signal 9" in error for _, error in crashed), crashed[:3]
    again = {line.run_id: line.at for line in house.truth("start") if line.attempt == 2}
    delays = [again[run_id] - at for run_id, at in killed.items()]
    assert worker.process.poll() is None
    measured(
        f"{len(crashed)} of {kills} crashed; next start after {percent_of(delays, 0.5):.2f} s (median), "
        f"{max(delays):.2f} s at most, 0.2 s of it backoff"
    )
    assert max(delays) < 0.2 + 2
    house.check()


@fault(
    "F18",
    injected="kill -9 of the supervisor alone, its handlers deaf to every signal they can refuse",
    expected="every child and grandchild is gone within 2 s",
)
def test_no_child_outlives_its_supervisor(house: House, scale: Scale, measured: Measured) -> None:
    rounds = scale.times(2, 25)
    gone: list[float] = []
    children = 0
    for _ in range(rounds):
        workers = house.workers(2, CONCURRENCY=2)
        ids = house.enqueue_many("deaf", 4, {})
        house.wait_until_started(ids)
        families = [one.family() for one in workers]
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        at = now()
        pids = [member.pid for family in families for member in family]
        children += len(pids)
        wait_until(partial(none_is_alive, pids), 5, "nothing of the workers is left")
        gone.append(now() - at)
        for worker in workers:
            with suppress(psutil.Error):
                worker.process.wait()
    measured(
        f"{children} processes below {2 * rounds} killed workers, all gone after {max(gone):.2f} s at most"
    )
    assert max(gone) <= 2
    house.worker()
    house.settle(60)
    house.check()
