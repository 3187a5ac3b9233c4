"""Cancelling: against the end of the run, through the dashboard; a handler that is deaf; no notification."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from typing import Any

from tests.endtoend.visitor import JSON, Reply, Visitor
from tests.factories import attempts, row, rows
from tests.faults.house import KILL_SECONDS, SETTINGS, House
from tests.faults.rows import Scale, fault
from tests.faults.truth import now
from tests.processes import wait_until
from worker.audit import Actor
from worker.people.tokens import create_token
from worker.states import Role

Measured = Callable[[str], None]
APP = "tests.faults.apps.cancels"
AT_ONCE = 4
RUN_SECONDS = 0.3
NEAR_SECONDS = 0.005
POLL_SECONDS = float(SETTINGS["POLL_SECONDS"])
ADMIN = Actor("anna", Role.ADMIN, "test")
WORDS = {"succeeded": "Succeeded", "cancelled": "Cancelled"}


def an_operator(house: House) -> Visitor:
    """Start the dashboard and return an operator at its door."""
    return Visitor(house.web(), create_token(house.connection, ADMIN, "operator", Role.OPERATOR))


def percent_of(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@dataclass
class Race:
    """Cancels that meet the ends of runs.

    ``lead`` is how many seconds before its moment a request is sent, learned from those before.
    """

    house: House
    visitor: Visitor
    chance: Random
    clock_offset: float
    lead: float = 0.02
    misses: list[float] = field(default_factory=list)
    said: dict[int, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def run_one(self, number: int) -> None:
        """Enqueue a run whose end is known, cancel it around that moment, and hold the answer to the end."""
        with self.lock:
            offset = self.chance.uniform(-NEAR_SECONDS, NEAR_SECONDS)
            as_form = self.chance.random() < 0.2
        at = now() + RUN_SECONDS
        run_id = self.house.enqueue("punctual", {"at": at})
        wait_until(lambda: row(self.house.connection, run_id)["status"] != "queued", 30)
        while now() < at + offset - self.lead:
            time.sleep(0.0002)
        reply = self.visitor.post(f"/runs/{run_id}/cancel", headers={} if as_form else JSON)
        self._learn(run_id, at + offset)
        self.said[run_id] = reply.code
        self._hold(run_id, reply, as_form=as_form)

    def _learn(self, run_id: int, wanted: float) -> None:
        (entry,) = rows(self.house.connection, "audit_log", "target_id = %s", str(run_id))
        miss = entry["at"].timestamp() - (wanted + self.clock_offset)
        with self.lock:
            self.misses.append(miss)
            self.lead += 0.2 * max(-0.02, min(0.02, miss))
            self.lead = max(0.0, self.lead)

    def _hold(self, run_id: int, reply: Reply, *, as_form: bool) -> None:
        """Assert that the answer, the row, the twin and the page agree."""
        connection = self.house.connection
        at_once = row(connection, run_id)["status"]
        final = wait_until(lambda: self._ended(run_id), 20, f"run {run_id} ends")
        if as_form:
            assert reply.code == 303, reply.text
        else:
            said = reply.json["status"]
            expected = {200: ("cancelled",), 202: ("cancelled", "succeeded"), 409: ("succeeded",)}
            assert reply.code in expected, reply.text
            assert final in expected[reply.code], f"told {reply.code} {reply.text}, became {final}"
            assert said == ("running" if reply.code == 202 else final), reply.text
            if reply.code != 202:
                assert at_once == final, "an answer of a final state was not yet true"
        outcomes = [one["outcome"] for one in attempts(connection, run_id)]
        assert outcomes == [final], f"run {run_id} {final} by {outcomes}"
        twin = self.visitor.get(f"/runs/{run_id}.json").json
        assert (twin["status"], [one["outcome"] for one in twin["history"]]) == (final, [final])
        assert WORDS[final] in self.visitor.get(f"/runs/{run_id}").text
        assert row(connection, run_id)["status"] == final, "an end was not final"

    def _ended(self, run_id: int) -> Any:
        status = row(self.house.connection, run_id)["status"]
        return status if status in WORDS else None


@fault(
    "F58",
    injected="a cancel through the dashboard within ± 5 ms of the end of each run",
    expected="one terminal state each; answer, row, twin and page agree; no end is taken back",
)
def test_a_cancel_that_meets_the_end_of_its_run_gets_one_true_answer(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    count = scale.times(60, 1000)
    visitor = an_operator(house)
    house.worker(APP=APP, CONCURRENCY=AT_ONCE)
    at = house.connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    race = Race(house, visitor, chance, float(at[0]) - now() if at else 0.0)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(race.run_one, range(count)))
    finals = house.counts(list(race.said))
    codes = {code: list(race.said.values()).count(code) for code in sorted(set(race.said.values()))}
    near = sum(abs(miss) <= NEAR_SECONDS for miss in race.misses)
    measured(
        f"{count} of {count} consistent: {finals}, answers {codes}; {near} landed within 5 ms of where they "
        f"were aimed, half within {1000 * percent_of([abs(miss) for miss in race.misses], 0.5):.1f} ms"
    )
    assert sum(finals.values()) == count
    assert finals.keys() == {"succeeded", "cancelled"}, "the cancels fell on both sides of the ends"
    house.check()


@fault(
    "F59",
    injected="a cancel of handlers that ignore check() and every signal, with a grandchild each",
    expected=f"cancelled within 2 × KILL_SECONDS + 1 s ({2 * KILL_SECONDS + 1:g} s), nothing left",
)
def test_a_deaf_handler_is_cancelled_by_force(house: House, scale: Scale, measured: Measured) -> None:
    visitor = an_operator(house)
    house.worker(APP=APP, CONCURRENCY=AT_ONCE)
    took: list[float] = []
    for _ in range(scale.times(1, 10)):
        ids = house.enqueue_many("deaf", AT_ONCE)
        house.wait_until_started(ids)
        for run_id in ids:
            assert visitor.post(f"/runs/{run_id}/cancel", headers=JSON).code == 202
        house.settle(30)
        for run_id in ids:
            found = row(house.connection, run_id)
            assert (found["status"], found["error_code"]) == ("cancelled", "cancelled")
            (asked,) = rows(house.connection, "audit_log", "target_id = %s", str(run_id))
            took.append((found["finished_at"] - asked["at"]).total_seconds())
    measured(f"{len(took)} of {len(took)} cancelled after {min(took):.2f} to {max(took):.2f} s")
    assert max(took) <= 2 * KILL_SECONDS + 1
    house.check()


@fault(
    "F59",
    injected="cancels of handlers that listen, by notification and, written by hand, without one",
    expected=f"check() raises within 1 s; without notification within the poll ({POLL_SECONDS:g} s) and 1 s",
)
def test_a_cancel_reaches_the_handler_with_a_notification_and_without(
    house: House, scale: Scale, measured: Measured
) -> None:
    count = scale.times(8, 100)
    visitor = an_operator(house)
    house.worker(APP=APP, CONCURRENCY=AT_ONCE)
    told = {True: Latencies(), False: Latencies()}
    for number in range(2 * count):
        notifies = number % 2 == 0
        run_id = house.enqueue("listener")
        house.wait_until_started([run_id])
        asked = now()
        if notifies:
            assert visitor.post(f"/runs/{run_id}/cancel", headers=JSON).code == 202
        else:
            house.connection.execute(
                "UPDATE wakeboard.job_runs SET cancel_requested_at = now() WHERE id = %s", (run_id,)
            )
        wait_until(lambda run_id=run_id: row(house.connection, run_id)["status"] == "cancelled", 20)  # type: ignore[misc]
        told[notifies].ended.append(now() - asked)
        (line,) = [line for line in house.truth("told") if line.run_id == run_id]
        told[notifies].raised.append(line.at - asked)
    measured(f"notified: {told[True]}; polled: {told[False]}")
    assert max(told[True].raised) <= 1
    assert max(told[False].raised) <= POLL_SECONDS + 1
    house.check()


@dataclass
class Latencies:
    """Seconds from the cancel until ``check()`` raised and until the row was final."""

    raised: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        raised = ", ".join(f"{1000 * percent_of(self.raised, share):.0f}" for share in (0.5, 0.95, 1))
        return (
            f"check() raised after {raised} ms (p50, p95, max), final after {max(self.ended):.2f} s at most"
        )
