"""Faults of the network between a worker and its database: cut, half open, deaf, slow. Group B of the table.

A middleman passes a worker's connections on. It knows each statement, so it can take away the answer to one
that has already happened, which is what an application can know least about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest

from tests.faults.house import LEASE_SECONDS, House
from tests.faults.rows import Scale, fault
from tests.faults.truth import now
from tests.middleman import Middleman, Way, between
from tests.processes import wait_until
from worker import db
from worker.audit import Actor
from worker.states import Role
from worker.transitions import Answer, cancel, enqueue, retry_now

Measured = Callable[[str], None]
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
CUTS = (Way.BEFORE, Way.DURING, Way.AMID, Way.AFTER)
CLAIM_LINE, FINISH_LINE = "wakeboard claim", "wakeboard finish"
CLAIM, INSERT_RUN, WRITE_ATTEMPT = (
    "SET status = 'running'",
    "INTO wakeboard.job_runs",
    "INTO wakeboard.job_attempts",
)
# The bounds of the table: a dead connection is noticed, a lease is taken back, a worker is back after a cure.
NOTICED_WITHIN = 30.0
REQUEUED_WITHIN = LEASE_SECONDS + 1 + 5
BACK_WITHIN = 5.0
# A claim's transaction may stand still for five seconds; ten more for a busy machine.
UNLOCKED_WITHIN = 15.0


@pytest.fixture
def middleman(house: House) -> Iterator[Middleman]:
    """What stands between the database and whoever is given its ``url``."""
    with between(house.database) as opened:
        yield opened


class Scissors:
    """Cuts every second statement of some kinds, at random places, as often as said; counts what it did.

    ``kinds``: the client's name, a part of the statement's text, and how many to cut, by kind.
    """

    def __init__(self, chance: Random, kinds: dict[str, tuple[str, str, int]]) -> None:
        self._chance = chance
        self._kinds = kinds
        self.made: Counter[tuple[str, Way]] = Counter()

    def __call__(self, name: str, text: str) -> Way | None:
        """Say whether and how to cut this statement of this client."""
        for kind, (client, part, most) in self._kinds.items():
            wanted = name == client and part in text and self.count(kind) < most
            if wanted and self._chance.random() < 0.5:
                way = self._chance.choice(CUTS)
                self.made[kind, way] += 1
                return way
        return None

    def count(self, kind: str) -> int:
        """Return how many statements of a kind were cut."""
        return sum(self.made[kind, way] for way in CUTS)

    @property
    def are_done(self) -> bool:
        """Whether as many statements of every kind were cut as should be."""
        return all(self.count(kind) == most for kind, (_, _, most) in self._kinds.items())

    def __str__(self) -> str:
        return ", ".join(
            f"{self.count(kind)} × {kind} ({', '.join(str(self.made[kind, way]) for way in CUTS)})"
            for kind in self._kinds
        )


@fault(
    "F22",
    injected="the connections of 2 workers cut around claims and answers: before the statement, once sent, "
    "amid its answer, after it happened",
    expected="nothing lost, nothing twice, no attempt failed that did not fail",
)
def test_a_worker_that_cannot_know_whether_it_happened_finds_out(
    house: House, middleman: Middleman, scale: Scale, chance: Random, measured: Measured
) -> None:
    most = scale.times(10, 100)
    kinds = {"claim": (CLAIM_LINE, CLAIM, most), "answer": (FINISH_LINE, WRITE_ATTEMPT, most)}
    kinds["limited claim"] = (CLAIM_LINE, "COMMIT", scale.times(5, 30))
    workers = [house.worker(database=middleman.url) for _ in range(2)]
    middleman.cuts = scissors = Scissors(chance, kinds)
    failures = 0

    def feed_until_done() -> bool:
        nonlocal failures
        if sum(house.counts().get(status, 0) for status in ("queued", "failed")) < 20:
            house.enqueue_many("effect", 20, {"seconds": 0.03})
            house.enqueue_many("two_at_a_time", 6, {"seconds": 0.03})
            fails = chance.randrange(1, 3)
            house.enqueue_many("unsteady", 4, {"failures": fails})
            failures += 4 * fails
        return scissors.are_done

    wait_until(feed_until_done, 120, "every cut is made")
    began = now()
    house.settle(60)
    outcomes = house.outcomes()
    runs = sum(house.counts().values())
    given_back = sum(worker.output.count("answer was lost") for worker in workers)
    measured(
        f"cut: {scissors} (before, once sent, amid the answer, after); {runs} runs, attempts {outcomes}, of "
        f"which {failures} had to fail; claims without an answer given back {given_back} times, "
        f"{house.sampler.longest_overdue_seconds:.1f} s past a lease at most; done {now() - began:.0f} s on"
    )
    assert house.counts() == {"succeeded": runs}
    assert outcomes.get("failed") == failures
    assert outcomes.keys() <= {"succeeded", "failed", "lost", "released"}
    assert given_back
    house.check(limits={"two_at_a_time": 2})


def insistently(middleman: Middleman, do: Callable[[psycopg.Connection[Any]], Any]) -> tuple[Any, int]:
    """Do it on a connection of its own until an answer comes; return that, and how often none came."""
    for failures in range(100):
        try:
            with db.connect(middleman.url, name="producer") as connection:
                return do(connection), failures
        except psycopg.OperationalError:
            continue
    raise AssertionError("no answer came in a hundred tries")


@fault(
    "F22",
    injected="the connection cut around enqueues with a key, cancels and retries; the caller tries again",
    expected="each run once, each act done and audited once",
)
def test_a_caller_who_got_no_answer_may_ask_again(
    house: House, middleman: Middleman, scale: Scale, chance: Random, measured: Measured
) -> None:
    most = scale.times(15, 100)
    kinds = {"enqueue": ("producer", INSERT_RUN, most), "commit": ("producer", "COMMIT", most)}
    middleman.cuts = scissors = Scissors(chance, kinds)
    keys: dict[str, int] = {}
    answers: Counter[str] = Counter()
    unanswered = 0

    def ask(do: Callable[[psycopg.Connection[Any]], Any]) -> Any:
        nonlocal unanswered
        answer, failures = insistently(middleman, do)
        unanswered += failures
        return answer

    def enqueue_by_itself(connection: psycopg.Connection[Any], key: str) -> int:
        return enqueue(connection, "note", {"key": key}, key=key)

    def enqueue_in_a_transaction(connection: psycopg.Connection[Any], key: str) -> int:
        with connection.transaction():
            return enqueue_by_itself(connection, key)

    def act(move: Callable[..., Answer], run_id: int) -> None:
        answers[f"{move.__name__} {ask(lambda it: move(it, run_id, OPERATOR)).result}"] += 1

    while not scissors.are_done:
        for way in (enqueue_by_itself, enqueue_in_a_transaction):
            key = f"order:{len(keys)}"
            keys[key] = ask(partial(way, key=key))
            house.acknowledge(keys[key], {"key": key})
        act(cancel, keys[key])
        act(retry_now, keys[key])
    house.worker()
    house.settle(60)
    kept = house.connection.execute(
        "SELECT idempotency_key, array_agg(id) FROM wakeboard.job_runs GROUP BY 1"
    ).fetchall()
    acts = house.connection.execute(
        "SELECT action, count(*)::int, count(DISTINCT target_id)::int FROM wakeboard.audit_log"
        " WHERE result = 'done' GROUP BY 1"
    ).fetchall()
    measured(
        f"cut: {scissors} (before, once sent, amid the answer, after), {unanswered} calls failed and were "
        f"made again; {len(kept)} runs for {len(keys)} keys; answers {dict(answers)}; audited {acts}"
    )
    assert dict(kept) == {key: [run_id] for key, run_id in keys.items()}
    asked = len(keys) // 2
    assert {(action, count, runs) for action, count, runs in acts} == {
        ("run.cancel", asked, asked),
        ("run.retry", asked, asked),
    }
    house.check()


@fault(
    "F25",
    injected="a worker falls silent inside the transaction of a limited claim, its rows and its type locked",
    expected="the server ends that session by itself; another worker claims the run",
)
def test_a_worker_that_falls_silent_while_it_claims_keeps_no_run_from_others(
    house: House, middleman: Middleman, measured: Measured
) -> None:
    silent_at: list[float] = []

    def fall_silent(name: str, text: str) -> Way | None:
        if name != CLAIM_LINE or "room AS MATERIALIZED" not in text:
            return None
        silent_at.append(now())
        return Way.SILENT

    middleman.cuts = fall_silent
    house.worker(database=middleman.url)
    run_id = house.enqueue("one_at_a_time", {"seconds": 0})
    wait_until(lambda: silent_at, 30, "a claim is cut")
    house.worker()
    wait_until(lambda: sessions(house, CLAIM_LINE, "idle in transaction"), 10, "the locks are held")
    (line,) = house.wait_until_started([run_id], 60)
    took = line.at - silent_at[0]
    middleman.heal()
    more = house.enqueue_many("one_at_a_time", 3, {"seconds": 0})
    house.settle(60)
    measured(f"claimed by another {took:.1f} s later; {len(more)} more of the type run after the cure")
    assert took <= UNLOCKED_WITHIN
    house.check(limits={"one_at_a_time": 1})


def sessions(house: House, name: str, state: str = "%") -> list[int]:
    """Return the server processes of the sessions of this name, in this state."""
    found = house.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
        " AND state LIKE %s",
        (name, state),
    ).fetchall()
    return [pid for (pid,) in found]
