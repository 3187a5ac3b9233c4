"""Faults of whole workers: killed, drained, replaced, frozen and thawed. Group A of the table."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import Any

from tests.support.factories import rows
from tests.support.faults.dead_handlers import bury
from tests.support.faults.deployment import (
    KILL_SECONDS,
    LEASE_SECONDS,
    RECLAIM_SECONDS,
    SHUTDOWN_SECONDS,
    House,
)
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.invariants import i14_silence_is_visible
from tests.support.faults.timed_steps import Clockwork, every
from tests.support.faults.truth_file import now
from tests.support.processes import Wakeboard, wait_until
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel, retry_now

Measured = Callable[[str], None]
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
# A lease ends, a reaper that looks each second takes it back, and five seconds for a busy machine.
REQUEUED_WITHIN = LEASE_SECONDS + 1 + 5
# The bound within which any loss of contact has to be noticed.
SEEN_WITHIN = 30


def clock(house: House) -> datetime:
    """Return the database's time."""
    (value,) = house.connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


@fault(
    "F01",
    injected="kill -9 of a random one of 4 workers every 3 s, each started again",
    expected="its runs requeued by the lease, all done, nothing twice",
)
def test_killed_workers_cost_only_time(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    runs, seconds = scale.times(150, 2000), scale.times(9, 40)
    workers = house.workers(4)
    house.enqueue_many("effect", runs, {"seconds": seconds * 14 / runs})
    killed: dict[str, datetime] = {}

    def kill_one() -> None:
        victim = workers.pop(chance.randrange(len(workers)))
        name = house.id_of(victim)
        victim.kill()
        if name:
            killed[name] = clock(house)
        workers.append(house.worker(wait=False))

    every(3, now() + seconds, kill_one)
    began = now()
    for each in workers:
        house.wait_until_registered(each)
    house.settle(120)
    lost = rows(house.connection, "job_attempts", "outcome = 'lost'")
    waited = [(one["finished_at"] - killed[one["worker_id"]]).total_seconds() for one in lost]
    measured(
        f"{len(killed)} kills, {len(lost)} runs taken back after {max(waited, default=0):.1f} s at most "
        f"(lease {LEASE_SECONDS:g} s); {house.counts().get('succeeded')} of {runs} succeeded "
        f"{now() - began:.0f} s after the last kill, {len(house.truth('effect'))} effects"
    )
    assert lost, "the kills met runs"
    assert max(waited) <= REQUEUED_WITHIN
    assert house.counts() == {"succeeded": runs}
    house.check()


@fault(
    "F13",
    injected="SIGTERM with 20 runs under way: 10 end in time, 10 would run for two minutes",
    expected="claims nothing more, lets ten finish, gives ten back at no cost, exits 0 in time",
)
def test_a_drained_worker_leaves_nothing_undone(house: House, measured: Measured) -> None:
    leaving = house.worker(CONCURRENCY=20)
    short = house.enqueue_many("slow", 10, {"seconds": 2.5})
    long = house.enqueue_many("slow_at_first", 10)
    house.wait_until_started([*short, *long])
    of_leaving = {member.pid for member in leaving.family()}
    staying = house.worker(CONCURRENCY=20)
    os.kill(leaving.pid, signal.SIGTERM)
    told_at = now()
    more = house.enqueue_many("slow", 30, {"seconds": 0.3})
    code = leaving.wait(SHUTDOWN_SECONDS + KILL_SECONDS + 5)
    took = now() - told_at
    house.settle(30)
    late = [line for line in house.truth("start") if line.run_id in more and line.pid in of_leaving]
    released = {one["run_id"]: one for one in rows(house.connection, "job_attempts", "outcome = 'released'")}
    resumed = rows(house.connection, "job_attempts", "attempt = 2")
    waited = [(one["started_at"] - released[one["run_id"]]["finished_at"]).total_seconds() for one in resumed]
    measured(
        f"exit code {code} after {took:.1f} s (SHUTDOWN_SECONDS {SHUTDOWN_SECONDS:g}); {len(released)} given "
        f"back, started again after {max(waited):.2f} s at most; {len(late)} claimed after SIGTERM"
    )
    assert code == 0, leaving.output
    assert took <= SHUTDOWN_SECONDS + KILL_SECONDS + 2
    assert released.keys() == set(long)
    assert {one["failures"] for one in rows(house.connection, "job_runs")} == {0}
    assert house.outcomes() == {"released": 10, "succeeded": 50}
    assert len(waited) == 10
    assert max(waited) <= 2
    assert not late
    assert staying.process.poll() is None
    house.check()


class Operator:
    """Cancels and retries at random, as a busy person would, and knows what they were told."""

    def __init__(self, house: House, chance: Random) -> None:
        self._house = house
        self._chance = chance
        self.acts = 0

    def act(self) -> None:
        """Cancel one that is open or dead, and retry one that was cancelled."""
        for move, where in (
            (cancel, "status IN ('queued', 'running', 'failed', 'dead')"),
            (retry_now, "status = 'cancelled'"),
        ):
            found = self._house.connection.execute(
                f"SELECT id FROM wakeboard.job_runs WHERE {where} ORDER BY id LIMIT 200".encode()
            ).fetchall()
            if found:
                move(self._house.connection, self._chance.choice(found)[0], OPERATOR)
                self.acts += 1

    def audited(self) -> int:
        """Return how many of their acts the audit log has."""
        return len(rows(self._house.connection, "audit_log", "actor = %s", OPERATOR.name))


@fault(
    "F16",
    injected="a random one of 3 workers replaced every 3 s, by SIGTERM or kill -9; retries, cancels, cron",
    expected="every invariant; no start over a limit; every act audited",
)
def test_a_rolling_deploy_breaks_nothing(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    seconds = scale.times(10, 30)
    workers = house.workers(3)
    clockwork, operator = Clockwork(house), Operator(house, chance)
    ways: list[str] = []

    def replace_one() -> None:
        victim = workers.pop(chance.randrange(len(workers)))
        way = chance.choice(("TERM", "KILL"))
        victim.process.send_signal(getattr(signal, f"SIG{way}"))
        ways.append(way)
        workers.append(house.worker(wait=False))

    def feed() -> None:
        house.enqueue_many("effect", 25, {"seconds": chance.uniform(0, 0.1)})
        house.enqueue_many("unsteady", 10, {"failures": chance.randrange(3)})
        house.enqueue_many("two_at_a_time", 3, {"seconds": chance.uniform(0, 0.2)})
        clockwork.add(2, chance.randrange(1, 5))
        operator.act()

    until, replaced = now() + seconds, now()

    def step() -> None:
        nonlocal replaced
        bury(house)
        feed()
        if now() - replaced > 3:
            replaced = now()
            replace_one()

    every(0.5, until, step)
    fires, began = clockwork.stop(), now()
    # Only who has begun can be asked to stop in order.
    for each in workers:
        house.wait_until_registered(each)
    house.settle(120)
    took = now() - began
    measured(
        f"{ways.count('TERM')} by TERM, {ways.count('KILL')} by KILL; {house.counts()}; "
        f"{sum(map(len, fires.values()))} fires of {len(fires)} schedules; {operator.acts} acts of an "
        f"operator; attempts {house.outcomes()}; done {took:.0f} s after the last"
    )
    assert operator.audited() == operator.acts
    house.check(limits={"two_at_a_time": 2}, fires=fires)


@fault(
    "F46",
    injected="3 workers, each a scheduler, frozen and thawed at random for up to 2 leases",
    expected="every fire once, no effect twice, no run past its lease + 10 s",
)
def test_frozen_and_thawed_schedulers_keep_every_fire_once(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    seconds = scale.times(15, 180)
    workers = house.workers(3)
    clockwork = Clockwork(house)
    asleep: dict[int, tuple[Wakeboard, Any, float]] = {}
    freezes = 0

    def step() -> None:
        nonlocal freezes
        for pid, (_, family, wakes_at) in list(asleep.items()):
            if now() >= wakes_at:
                house.thaw(family)
                del asleep[pid]
        awake = [worker for worker in workers if worker.pid not in asleep]
        # One stays awake: with all asleep nobody could be on time.
        if len(awake) > 1 and chance.random() < 0.15:
            worker = chance.choice(awake)
            asleep[worker.pid] = (
                worker,
                house.freeze(worker),
                now() + chance.uniform(0.1, 2 * LEASE_SECONDS),
            )
            freezes += 1
        if chance.random() < 0.3:
            clockwork.add(3, chance.randrange(1, 6))
            house.enqueue_many("effect", 5, {"seconds": chance.uniform(0, 0.5)})

    every(0.1, now() + seconds, step)
    for _, family, _ in asleep.values():
        house.thaw(family)
    fires = clockwork.stop()
    house.settle(120)
    overdue = house.sampler.longest_overdue_seconds
    measured(
        f"{freezes} freezes in {seconds} s; {sum(map(len, fires.values()))} fires of {len(fires)} schedules, "
        f"each once; {len(house.truth('effect'))} effects of {sum(house.counts().values())} runs; attempts "
        f"{house.outcomes()}; {overdue:.1f} s past a lease at most"
    )
    assert overdue <= RECLAIM_SECONDS
    house.check(fires=fires)


@fault(
    "I14",
    injected="the only worker frozen, its dashboard left running",
    expected="the status page says 503 in time, and 200 again soon after the thaw",
)
def test_a_frozen_worker_is_seen_on_the_status_page(house: House, measured: Measured) -> None:
    worker = house.worker()
    address = house.web()
    hidden: list[str] = []

    def says(code: int) -> bool:
        found = status_of(f"{address}/statusz")
        hidden.extend(i14_silence_is_visible(house.connection, found))
        return found == code

    wait_until(lambda: says(200), 30, "all duties are on time")
    family, frozen_at = house.freeze(worker), now()
    wait_until(lambda: says(503), 60, "the silence is seen")
    seen_after, thawed_at = now() - frozen_at, now()
    house.thaw(family)
    wait_until(lambda: says(200), 60, "all duties are on time again")
    measured(f"503 after {seen_after:.1f} s, 200 again {now() - thawed_at:.1f} s after the thaw")
    assert seen_after <= SEEN_WITHIN
    assert hidden == []
    house.check()


def status_of(url: str) -> int:
    """Return the status code that the address answers with."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
