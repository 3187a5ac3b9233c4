"""Every way to die between an effect's *started* and its *done*, and a commit that comes too late.

Each run makes one effect. Its first attempt meets its end right before or right after the effect; the truth
file knows which. The next attempt gets the third answer, *started, never confirmed*, and does with it what
its author chose: leave it to a person, do it again, or look.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil

from tests.factories import rows
from tests.faults.house import House
from tests.faults.rows import Scale, fault
from tests.faults.truth import Line
from tests.processes import wait_until
from tests.worker.motion import is_alive
from worker import db
from worker.audit import Actor
from worker.states import Role
from worker.transitions import cancel, retry_now
from worker.transitions.effects import settle

Measured = Callable[[str], None]
APP = "tests.faults.apps.effects"
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
DECISIONS = ("skip", "redo", "look")
UNCONFIRMED = """
SELECT e.id, e.run_id FROM wakeboard.effects AS e JOIN wakeboard.job_runs AS r ON r.id = e.run_id
WHERE e.status = 'started' AND NOT (r.status = 'running' AND r.lease_epoch = e.lease_epoch)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: whether its effect happened before the end came, and what its author decided."""

    way: str
    happens: bool
    decision: str

    @property
    def is_made_again(self) -> bool:
        """Whether the next attempt makes the effect."""
        return self.decision == "redo" or (self.decision == "look" and not self.happens)

    @property
    def effects(self) -> int:
        """How often the effect happens in all."""
        return self.happens + self.is_made_again

    @property
    def kept(self) -> object:
        """What ``once`` gives the next attempt."""
        if self.is_made_again:
            return {"attempt": 2}
        return "found" if self.decision == "look" else None

    @property
    def status(self) -> str:
        """What the ledger says at the end."""
        return "started" if self.decision == "skip" else "done"


def cases(way: str, chance: Random, scale: Scale) -> list[Case]:
    """Return a run for each decision, with the effect made before the end or not; both at full scale."""
    both = [Case(way, happens, decision) for happens in (True, False) for decision in DECISIONS]
    chosen = [chance.choice((one, other)) for one, other in zip(both[:3], both[3:], strict=True)]
    return scale.times(chosen, both)


def enqueue(house: House, case: Case, behaviour: str, job_type: str = "delicate", **columns: Any) -> int:
    """Enqueue the run of a case; its handler ends as ``behaviour`` says."""
    payload = {"way": behaviour, "happens": case.happens, "decision": case.decision}
    gate = {"gate": columns.pop("gate")} if "gate" in columns else {}
    return house.enqueue(job_type, payload | gate, **columns)


def wait_until_between(house: House, ids: Iterable[int], seconds: float = 30) -> list[Line]:
    """Wait until all of the runs are in the midst of their effect; return their lines."""
    wanted = set(ids)

    def those() -> list[Line]:
        return [line for line in house.truth("between") if line.run_id in wanted]

    wait_until(lambda: {line.run_id for line in those()} == wanted, seconds, "effects are being made")
    return those()


def assert_third_answers(house: House, told: Mapping[int, Case]) -> None:
    """Each run's effect happened exactly as often as its case says, and ledger and handler know it."""
    made = Counter(line.run_id for line in house.truth("made"))
    ledger = {one["run_id"]: one for one in rows(house.connection, "effects")}
    results = {
        one["run_id"]: one["result"]
        for one in rows(house.connection, "job_attempts", "outcome = 'succeeded'")
    }
    for run_id, case in told.items():
        about = f"run {run_id}, {case}"
        assert made[run_id] == case.effects, about
        assert results[run_id] == {"kept": case.kept}, about
        assert (ledger[run_id]["status"], ledger[run_id]["run_id"]) == (case.status, run_id), about
        assert ledger[run_id]["attempt"] == (1 if case.status == "started" else 2), about


def settle_what_is_unconfirmed(house: House, told: Mapping[int, Case]) -> int:
    """Let a person look and settle each effect that is left; return how many. Then nothing is left."""
    listed = house.connection.execute(UNCONFIRMED).fetchall()
    assert {run_id for _, run_id in listed} == {
        run_id for run_id, case in told.items() if case.status == "started"
    }
    for effect_id, run_id in listed:
        answer = settle(house.connection, effect_id, OPERATOR, happened=told[run_id].happens, reason="looked")
        assert answer.result == "done"
    assert house.connection.execute(UNCONFIRMED).fetchall() == []
    audited = rows(house.connection, "audit_log", "action = 'effect.settle' AND reason = 'looked'")
    assert len(audited) == len(listed)
    return len(listed)


def tell_measures(
    measured: Measured, house: House, told: Mapping[int, Case], left: int, more: str = ""
) -> None:
    """State what came of all the cases."""
    made = Counter(line.run_id for line in house.truth("made"))
    twice = sum(made[run_id] > 1 for run_id in told)
    ways = len({case.way for case in told.values()})
    measured(
        f"{len(told)} runs in {ways} ways: effects as often as their authors chose ({twice} twice, by redo), "
        f"{left} left to a person and settled; attempts {house.outcomes()}{more}"
    )


@dataclass(frozen=True, slots=True)
class Death:
    """A way in which a handler dies: what it does, what is done to it, the code that its attempt gets."""

    way: str
    behaviour: str
    code: str
    does: str = "nothing"
    job_type: str = "delicate"
    columns: Mapping[str, Any] = field(default_factory=dict)


SHORT = {"timeout_seconds": 1}
DEATHS = (
    Death("killed", "sleeps", "killed", "kill"),
    Death("os._exit", "os._exit", "exited"),
    Death("sys.exit", "sys.exit", "SystemExit"),
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
    house.worker(APP=APP, CONCURRENCY=8)
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


def wake_and_go_on(house: House, sleepwalker: Doomed, family: list[psutil.Process]) -> int:
    """Let handlers that were taken over long ago finish their effect before their supervisor wakes.

    No fence reaches the world outside: one that had not happened happens now. The ledger keeps what is known.
    Return how many were made twice.
    """
    sleepwalker.gate.touch()
    house.thaw(family[1:])

    def both_are_over() -> bool:
        over = Counter(line.run_id for line in house.truth("over"))
        return all(over[run_id] == 2 for run_id in sleepwalker.cases)

    wait_until(both_are_over, 20, "both attempts of each run are over")
    house.thaw(family[:1])
    made = Counter(line.run_id for line in house.truth("made"))
    ledger = {one["run_id"]: one for one in rows(house.connection, "effects")}
    for run_id, case in sleepwalker.cases.items():
        assert made[run_id] == 1 + case.is_made_again, case
        assert ledger[run_id]["status"] == "done", case
        assert ledger[run_id]["attempt"] == (1 if case.decision == "skip" else 2), case
    return sum(count > 1 for run_id, count in made.items() if run_id in sleepwalker.cases)
