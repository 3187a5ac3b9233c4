"""Faults of handlers: killed, hanging, hogging, greedy, with offspring, orphaned. Group A of the table."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from random import Random
from statistics import median

import psutil

from tests.support.factories import rows
from tests.support.faults.deployment import KILL_SECONDS, House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.memory_cgroup import memory_group
from tests.support.faults.truth_file import now
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive

Measured = Callable[[str], None]
HANG_TIMEOUT = 2.0
HANGS_AT_ONCE = 12
PARENT_TIMEOUT = 1.0


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
    worker = house.worker()
    killed: dict[int, float] = {}
    while len(killed) < kills:
        waiting = house.wait_until_started(house.enqueue_many("slow_at_first", 4))
        for victim in chance.sample(waiting, len(waiting)):
            os.kill(victim.pid, signal.SIGKILL)
            killed[victim.run_id] = now()
        house.settle(30)
    crashed = rows(house.connection, "job_attempts", "outcome = 'failed' AND error LIKE %s", "%signal 9%")
    assert {one["run_id"] for one in crashed} == killed.keys()
    again = {line.run_id: line.at for line in house.truth("start") if line.attempt == 2}
    delays = [again[run_id] - at for run_id, at in killed.items()]
    measured(
        f"{len(crashed)} of {kills} crashed; next start after {median(delays):.2f} s (median), "
        f"{max(delays):.2f} s at most, 0.2 s of it backoff"
    )
    assert max(delays) < 0.2 + 2
    assert worker.process.poll() is None
    house.check()


@fault(
    "F04",
    injected="handlers hang: stopped by SIGSTOP, in an endless loop, in a C call, deaf to SIGTERM",
    expected="leases kept; each killed at its timeout + KILL_SECONDS ± 1 s",
)
def test_a_hanging_handler_ends_at_its_timeout(house: House, scale: Scale, measured: Measured) -> None:
    ways = list(islice(cycle(("stopped", "loop", "in C", "deaf")), scale.times(8, 60)))
    house.worker(CONCURRENCY=HANGS_AT_ONCE)
    for number in range(0, len(ways), HANGS_AT_ONCE):
        batch = {house.enqueue("hang", {"way": way}): way for way in ways[number : number + HANGS_AT_ONCE]}
        for line in house.wait_until_started(list(batch)):
            if batch[line.run_id] == "stopped":
                os.kill(line.pid, signal.SIGSTOP)
        house.settle(30)
    ended = rows(house.connection, "job_attempts")
    took = [(one["finished_at"] - one["started_at"]).total_seconds() for one in ended]
    assert {one["outcome"] for one in ended} == {"timed_out"}
    measured(
        f"{len(ended)} of {len(ways)} timed out after {min(took):.2f} to {max(took):.2f} s, "
        f"timeout {HANG_TIMEOUT:g} s, kill {KILL_SECONDS:g} s"
    )
    assert len(ended) == len(ways)
    assert min(took) >= HANG_TIMEOUT
    assert max(took) <= HANG_TIMEOUT + KILL_SECONDS + 1
    house.check()


@fault(
    "F06",
    injected="handlers hold the interpreter for two leases: a regular expression, a power of integers",
    expected="renewals at most 1.5 heartbeats apart, nothing reclaimed",
)
def test_a_handler_that_hogs_the_interpreter_keeps_its_lease(house: House, measured: Measured) -> None:
    lease, heartbeat = 4.0, 4.0 / 3
    house.worker(LEASE_SECONDS=lease, CONCURRENCY=3)
    ids = [house.enqueue("hog", {"way": way}) for way in ("regex", "power")]
    house.wait_until_started(ids)
    renewed: dict[int, list[tuple[float, object]]] = {run_id: [] for run_id in ids}
    others = 0

    def is_over() -> bool:
        nonlocal others
        leases = house.connection.execute(
            "SELECT id, locked_until FROM wakeboard.job_runs WHERE status = 'running' AND id = ANY(%s)",
            (ids,),
        ).fetchall()
        for run_id, until in leases:
            if not renewed[run_id] or renewed[run_id][-1][1] != until:
                renewed[run_id].append((now(), until))
        if house.counts().keys() <= {"running", "succeeded"}:
            house.enqueue("note")
            others += 1
        return not leases

    wait_until(is_over, 30, "both hogs end")
    times = [[at for at, _ in looks] for looks in renewed.values()]
    gaps = [later - earlier for looks in times for earlier, later in pairwise(looks)]
    spans = [looks[-1] - looks[0] for looks in times]
    outcomes = house.outcomes()
    measured(
        f"{len(gaps)} renewals, {max(gaps):.2f} s apart at most (heartbeat {heartbeat:.2f} s), over "
        f"{min(spans):.1f} s; {others} quick runs beside them"
    )
    assert min(spans) >= 1.5 * lease, "the handlers held the interpreter long enough to prove it"
    assert max(gaps) <= 1.5 * heartbeat
    assert outcomes["timed_out"] == 2
    assert outcomes.keys() == {"timed_out", "succeeded"}
    house.settle()
    house.check()


@fault(
    "F08",
    injected="the kernel kills a handler that takes more than its 64 MB, at each attempt",
    expected="max_attempts starts, then dead; the worker lives, other runs are unaffected",
)
def test_a_handler_that_eats_all_memory_dies_of_it_alone(
    house: House, scale: Scale, measured: Measured
) -> None:
    with memory_group(64) as group:
        worker = house.worker()
        greedy = [house.enqueue("greedy", {"group": str(group or "")}) for _ in range(scale.times(2, 10))]
        others = house.enqueue_many("effect", scale.times(20, 200), {"seconds": 0.02})
        house.settle(60)
    starts = [sum(line.run_id == run_id for line in house.truth("start")) for run_id in greedy]
    codes = {one["error_code"] for one in rows(house.connection, "job_runs", "id = ANY(%s)", greedy)}
    how = "by the kernel" if group else "by itself: no group of processes can be limited here"
    measured(
        f"{len(greedy)} runs killed {how} ({', '.join(sorted(codes))}), {min(starts)} to "
        f"{max(starts)} starts each, then {house.counts(greedy)}; {house.counts(others)} beside them"
    )
    assert set(starts) == {3}
    assert house.counts(greedy) == {"dead": len(greedy)}
    assert house.counts(others) == {"succeeded": len(others)}
    assert {one["attempts"] for one in rows(house.connection, "job_runs", "id = ANY(%s)", others)} == {1}
    assert worker.process.poll() is None
    house.check()


@fault(
    "F10",
    injected="handlers that time out leave a process in another session and one that nobody's child is",
    expected="every process of the run is gone KILL_SECONDS + 1 s after its timeout",
)
def test_a_run_takes_its_offspring_with_it(house: House, scale: Scale, measured: Measured) -> None:
    batches = scale.times(1, 6)
    house.worker()
    gone: list[float] = []
    processes = 0
    for number in range(batches):
        file = house.folder / f"pids{number}"
        ids = house.enqueue_many("parent", 4, {"pids": str(file)})
        began = max(line.at for line in house.wait_until_started(ids))
        pids = wait_until(partial(_twelve, file), 10, "four families of three stand")
        assert not none_is_alive(pids)
        processes += len(pids)
        wait_until(partial(none_is_alive, pids), 15, "the families are gone")
        gone.append(now() - began - PARENT_TIMEOUT)
        house.settle(30)
    measured(f"{processes} processes, all gone {max(gone):.2f} s after the timeout at most")
    assert max(gone) <= KILL_SECONDS + 1
    house.check()


def _twelve(file: Path) -> list[int]:
    found = [int(word) for word in file.read_text().split()] if file.exists() else []
    return found if len(found) == 12 else []


@fault(
    "F18",
    injected="kill -9 of the supervisor alone, its handlers deaf to every signal they can refuse",
    expected="every child and grandchild is gone within 2 s",
)
def test_no_child_outlives_its_supervisor(house: House, scale: Scale, measured: Measured) -> None:
    rounds = scale.times(2, 12)
    gone: list[float] = []
    children = 0
    for _ in range(rounds):
        workers = house.workers(2, CONCURRENCY=2)
        house.wait_until_started(house.enqueue_many("deaf", 4))
        pids = [member.pid for worker in workers for member in worker.family()]
        children += len(pids)
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        at = now()
        wait_until(partial(none_is_alive, pids), 5, "nothing of the workers is left")
        gone.append(now() - at)
        for worker in workers:
            with suppress(psutil.Error):
                worker.process.wait()
    measured(f"{children} processes of {2 * rounds} killed workers, all gone after {max(gone):.2f} s at most")
    assert max(gone) <= 2
    house.worker()
    house.settle(60)
    house.check()
