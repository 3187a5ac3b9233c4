"""Every way for handlers and workers to die between an effect's *started* and its *done*, and a commit that
comes too late.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil

from tests.support.factories import rows
from tests.support.faults.cut_off_effects import (
    APP,
    OPERATOR,
    Case,
    Measured,
    assert_third_answers,
    cases,
    enqueue,
    settle_what_is_unconfirmed,
    take_back,
    tell_measures,
    wait_until_between,
)  # fmt: skip
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.truth_file import Line
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive
from wakeboard.database import db
from wakeboard.queue import cancel, retry_now


@dataclass(frozen=True, slots=True)
class Death:
    """A way in which a handler dies: what it does, what is done to it, the code that its attempt gets."""

    way: str
    behaviour: str
    code: str
    does: str = "nothing"
    job_type: str = "delicate"
    columns: Mapping[str, Any] = field(default_factory=dict)


AT_ONCE = 16
SHORT = {"timeout_seconds": 1}
DEATHS = (
    Death("killed", "sleeps", "killed", "kill"),
    Death("os._exit", "os._exit", "exited"),
    Death("sys.exit", "sys.exit", "exit_1"),
    Death("segfault", "segfault", "signal_SIGSEGV"),
    Death("memory_mb, weighed", "grows", "memory_limit", job_type="delicate_heavy"),
    Death("memory_mb, refused", "asks for too much", "memory_limit", job_type="delicate_heavy"),
    Death("timeout, seen by check()", "listens", "timed_out", columns=SHORT),
    Death("timeout, TERM", "sleeps", "timed_out", columns=SHORT),
    Death("timeout, KILL", "is deaf", "timed_out", columns=SHORT),
    Death("cancel, seen by check()", "listens", "cancelled", "cancel"),
    Death("cancel, TERM", "sleeps", "cancelled", "cancel"),
    Death("cancel, KILL", "is deaf", "cancelled", "cancel"),
)


@fault(
    "E1",
    injected="handlers die in the midst of once(): killed, exit, segfault, memory, timeout, cancel",
    expected="ledger started; the retry gets the third answer; exactly the effects its author chose",
)
def test_an_effect_that_its_handlers_death_cut_off_is_never_guessed(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    house.worker(APP=APP, CONCURRENCY=AT_ONCE)
    told: dict[int, Case] = {}
    deaths: dict[int, Death] = {}
    for death in DEATHS:
        for case in cases(death.way, chance, scale):
            run_id = enqueue(house, case, death.behaviour, death.job_type, **death.columns)
            told[run_id], deaths[run_id] = case, death
    struck: set[int] = set()

    def all_have_ended() -> bool:
        for line in house.truth("between"):
            if line.run_id not in struck:
                strike(house, deaths[line.run_id], line)
                struck.add(line.run_id)
        reopen_cancelled(house)
        return house.counts().keys() == {"succeeded"}

    wait_until(all_have_ended, 90, "every run has ended well")
    first = {one["run_id"]: one for one in rows(house.connection, "job_attempts", "attempt = 1")}
    assert {run_id: one["error_code"] for run_id, one in first.items()} == {
        run_id: death.code for run_id, death in deaths.items()
    }
    assert_third_answers(house, told)
    tell_measures(measured, house, told, settle_what_is_unconfirmed(house, told))
    house.check(but_for=("I2",))


def strike(house: House, death: Death, line: Line) -> None:
    """Do to the handler of ``line`` what its way to die needs."""
    if death.does == "kill":
        os.kill(line.pid, signal.SIGKILL)
    elif death.does == "cancel":
        assert cancel(house.connection, line.run_id, OPERATOR).ok


def reopen_cancelled(house: House) -> None:
    """Retry what was cancelled, as a person would who wanted the worker's hands off it for a moment."""
    for one in rows(house.connection, "job_runs", "status = 'cancelled'"):
        assert retry_now(house.connection, one["id"], OPERATOR).ok


class Doomed:
    """A worker and the runs that fill it, each in the midst of its effect."""

    def __init__(self, house: House, way: str, chance: Random, scale: Scale) -> None:
        self.gate = house.folder / f"gate of {way}"
        chosen = cases(way, chance, scale)
        self.worker = house.worker(APP=APP, CONCURRENCY=len(chosen))
        self.cases = {enqueue(house, case, "waits at the gate", gate=str(self.gate)): case for case in chosen}
        self.pids = [line.pid for line in wait_until_between(house, self.cases)]


@fault(
    "E1",
    injected="workers die in the midst of once(): supervisor or all killed, self-fence, frozen",
    expected="the next owner gets the third answer; who wakes and goes on is refused, what it did is known",
)
def test_an_effect_that_its_workers_death_cut_off_is_never_guessed(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    alone, together, asleep, sleepwalker, fenced = (
        Doomed(house, way, chance, scale)
        for way in ("supervisor killed", "all killed", "frozen", "frozen, goes on", "self-fence")
    )
    told = {run_id: case for one in (alone, together, asleep, fenced) for run_id, case in one.cases.items()}
    os.kill(alone.worker.pid, signal.SIGKILL)
    for pid in [together.worker.pid, *(member.pid for member in together.worker.family())]:
        with suppress(ProcessLookupError):  # Some outlive their supervisor by no more than a moment.
            os.kill(pid, signal.SIGKILL)
    frozen = {one: house.freeze(one.worker) for one in (asleep, sleepwalker)}
    with db.connect(house.database, name="wakeboard other") as locker, locker.transaction():
        locker.execute("SELECT FROM wakeboard.job_runs WHERE id = ANY(%s) FOR UPDATE", (list(fenced.cases),))
        wait_until(lambda: not any(map(is_alive, fenced.pids)), 20, "the worker stops what it cannot renew")
    # The worker that fenced itself is alive and well: it takes back what the others held.
    wait_until(lambda: house.counts().keys() == {"succeeded"}, 60, "every run has ended well")
    codes = {
        one["run_id"]: one["error_code"] for one in rows(house.connection, "job_attempts", "attempt = 1")
    }
    assert {codes[run_id] for run_id in fenced.cases} == {"lease_unconfirmed"}
    assert {code for run_id, code in codes.items() if run_id not in fenced.cases} == {"lease_lost"}
    assert_third_answers(house, told)
    # Awake, a worker stops its handlers: those that have not moved yet never will.
    house.thaw([member for member in frozen[asleep] if member.pid not in asleep.pids])
    wait_until(lambda: not any(map(is_alive, asleep.pids)), 20, "the woken worker stops its handlers")
    assert_third_answers(house, told)
    twice = wake_and_go_on(house, sleepwalker, frozen[sleepwalker])
    more = (
        f"; of {len(sleepwalker.cases)} that woke and went on after their successors, {twice} made it twice"
    )
    tell_measures(measured, house, told, settle_what_is_unconfirmed(house, told), more)
    house.check(but_for=("I2",))


def both_attempts_are_over(house: House, ids: Iterable[int]) -> bool:
    """Whether two attempts of each of the runs have left their handlers."""
    over = Counter(line.run_id for line in house.truth("over"))
    return all(over[run_id] == 2 for run_id in ids)


def wake_and_go_on(house: House, sleepwalker: Doomed, family: list[psutil.Process]) -> int:
    """Let handlers that were taken over long ago finish their effect before their supervisor wakes.

    No fence reaches the world outside: one that had not happened happens now. The ledger keeps what is known.
    Return how many were made twice.
    """
    sleepwalker.gate.touch()
    house.thaw(family[1:])
    wait_until(lambda: both_attempts_are_over(house, sleepwalker.cases), 20, "both attempts of each are over")
    house.thaw(family[:1])
    made = Counter(line.run_id for line in house.truth("made"))
    ledger = {one["run_id"]: one for one in rows(house.connection, "effects")}
    for run_id, case in sleepwalker.cases.items():
        assert made[run_id] == 1 + case.is_made_again, case
        assert ledger[run_id]["status"] == "done", case
        assert ledger[run_id]["attempt"] == (1 if case.decision == "skip" else 2), case
    return sum(count > 1 for run_id, count in made.items() if run_id in sleepwalker.cases)


BOOKINGS = "CREATE TABLE public.bookings (run_id bigint, attempt int)"
# A booking and the end of its run, of one transaction: the row versions carry its number.
TOGETHER = """
SELECT b.run_id, b.attempt, b.xmin = a.xmin FROM public.bookings AS b
JOIN wakeboard.job_attempts AS a ON a.run_id = b.run_id AND a.outcome = 'succeeded'
    AND a.attempt = b.attempt
"""


@fault(
    "E2",
    injected="transaction() held open by frozen handlers past the lease, thawed; killed before the commit",
    expected="the stale commit is refused, its writes absent; the later ones there, one commit with the end",
)
def test_a_stale_transaction_writes_nothing_and_a_later_one_ends_with_its_run(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    house.connection.execute(BOOKINGS)
    count = scale.times(4, 10)
    gate = house.folder / "gate"
    sleeper = house.worker(APP=APP, CONCURRENCY=2 * count)
    stale = house.enqueue_many("booking", count, {"gate": str(gate)})
    lines = wait_until_between(house, stale)
    family = house.freeze(sleeper)
    house.worker(APP=APP, CONCURRENCY=count)
    killed = house.enqueue_many("booking", count, {"gate": str(house.folder / "never opened")})
    for line in wait_until_between(house, killed):
        os.kill(line.pid, signal.SIGKILL)
    take_back(house, stale)
    house.settle(60)
    gate.touch()
    before = house.connection.execute(TOGETHER).fetchall()
    house.thaw([member for member in family if member.pid in {line.pid for line in lines}])
    wait_until(lambda: both_attempts_are_over(house, stale), 20, "the stale attempts are over")
    house.thaw(family)
    late = "refused_at IS NOT NULL AND run_id = ANY(%s)"
    wait_until(
        lambda: len(rows(house.connection, "job_attempts", late, stale)) == count,
        20,
        "late answers are noted",
    )
    together = house.connection.execute(TOGETHER).fetchall()
    booked = house.connection.execute("SELECT 1 FROM public.bookings").fetchall()
    measured(
        f"{count} stale commits refused, {count} cut by a kill; {len(booked)} bookings for {2 * count} runs, "
        f"all of the second attempts, {sum(same for *_, same in together)} in one commit with the run's end"
    )
    assert before == together
    assert sorted((run_id, attempt) for run_id, attempt, _ in together) == [
        (run_id, 2) for run_id in sorted([*stale, *killed])
    ]
    assert all(same for *_, same in together)
    assert len(booked) == 2 * count
    assert {line.attempt for line in house.truth("committed")} == {2}
    house.check()
