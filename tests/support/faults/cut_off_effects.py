"""Runs whose first attempt is cut off in the midst of its effect, and what has to come of each of them.

The first attempt meets its end right before or right after the effect; the truth file knows which. The next
attempt gets the third answer, *started, never confirmed*, and does with it what its author chose: leave it to
a person, do it again, or look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.factories import rows
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale
from tests.support.faults.truth_file import Line
from tests.support.processes import wait_until
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.effects import settle

Measured = Callable[[str], None]
APP = "tests.support.faults.apps.effects"
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
        """What ``once`` gives the next attempt, where that does not make the effect itself."""
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


def take_back(house: House, ids: Iterable[int]) -> None:
    """Once the leases of the runs have ended, take them back and run them to their end, without a worker."""
    held = "SELECT 1 FROM wakeboard.job_runs WHERE id = ANY(%s) AND locked_until >= now()"
    wait_until(lambda: not house.connection.execute(held, (list(ids),)).fetchall(), 20, "the leases end")
    tick = house.start("tick", APP=APP)
    assert tick.wait(120) == 0, tick.output


def assert_third_answers(house: House, told: Mapping[int, Case]) -> None:
    """Each run's effect happened exactly as often as its case says, and ledger and handler know it."""
    made = Counter(line.run_id for line in house.truth("made"))
    ledger = {one["run_id"]: one for one in rows(house.connection, "effects")}
    ends = {one["run_id"]: one for one in rows(house.connection, "job_attempts", "outcome = 'succeeded'")}
    for run_id, case in told.items():
        about, last = f"run {run_id}, {case}", ends[run_id]["attempt"]
        assert last > 1, about
        assert made[run_id] == case.effects, about
        assert ends[run_id]["result"] == {"kept": {"attempt": last} if case.is_made_again else case.kept}, (
            about
        )
        assert ledger[run_id]["status"] == case.status, about
        assert ledger[run_id]["attempt"] == (1 if case.status == "started" else last), about


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
