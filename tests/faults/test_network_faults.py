"""Faults of the network between a worker and its database: cut, half open, deaf, slow. Group B of the table.

A middleman passes a worker's connections on. It knows each statement, so it can take away the answer to one
that has already happened, which is what an application can know least about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest

from tests.support.factories import rows
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.truth_file import now
from tests.support.postgres.wire_proxy import Middleman, Way, between
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer, cancel, enqueue, retry_now
from wakeboard.reporting.heartbeats import late_loops, loops

Measured = Callable[[str], None]
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
CUTS = (Way.BEFORE, Way.DURING, Way.AMID, Way.AFTER)
CLAIM_LINE, FINISH_LINE = "wakeboard claim", "wakeboard finish"
LOCK = "wakeboard.most_running"
CLAIM, INSERT_RUN, WRITE_ATTEMPT = (
    "SET status = 'running'",
    "INTO wakeboard.job_runs",
    "INTO wakeboard.job_attempts",
)
# The bounds of the table: a dead connection is noticed, a lease is taken back, a worker is back after a cure.
NOTICED_WITHIN = 30.0
LONG_LEASE_SECONDS = 4.0
# A reaper looks twice in a lease, and five seconds are for a busy machine.
TAKEN_OVER_WITHIN = LONG_LEASE_SECONDS / 2 + 5
BACK_WITHIN = 5.0
POLL_SECONDS = 1.0
# How much later than a poll a run may start while other tests keep the machine busy.
SLACK_SECONDS = 3.0
# A claim under a limit may take five seconds; the rest is for a busy machine to start a worker.
UNLOCKED_WITHIN = 25.0


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
    kinds["limited claim"] = (CLAIM_LINE, LOCK, scale.times(5, 30))
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
    injected="the network takes the second half of a limited claim, and keeps the connections open: its type "
    "is locked",
    expected="the server ends that session by itself; another worker claims the run",
)
def test_a_worker_that_falls_silent_while_it_claims_keeps_no_run_from_others(
    house: House, middleman: Middleman, measured: Measured
) -> None:
    if house.connection.info.server_version < 170_000:
        house.check()
        pytest.skip("no transaction_timeout before PostgreSQL 17: the lock goes with the connection")
    silent_at: list[float] = []

    def fall_silent(name: str, text: str) -> Way | None:
        if name != CLAIM_LINE or "room AS MATERIALIZED" not in text:
            return None
        silent_at.append(now())
        return Way.STUCK

    middleman.cuts = fall_silent
    house.worker(database=middleman.url)
    run_id = house.enqueue("one_at_a_time", {"seconds": 0})
    wait_until(lambda: silent_at, 30, "a claim is cut")
    house.worker()
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


def remaining_lease_ends(house: House, ids: Sequence[int]) -> dict[int, float]:
    """Return when the lease of each of the runs ends, in seconds since boot."""
    found = house.connection.execute(
        "SELECT id, extract(epoch FROM locked_until - clock_timestamp())::float8 FROM wakeboard.job_runs"
        " WHERE id = ANY(%s)",
        (list(ids),),
    ).fetchall()
    return {run_id: now() + seconds for run_id, seconds in found}


def is_late(house: House, worker_id: str) -> bool:
    """Whether the status page shows a loop of this worker as late."""
    return any(loop.process_id == worker_id for loop in late_loops(house.connection))


@fault(
    "F23",
    injected="one of 2 workers cut off: its connections stay open and say nothing; at last they are refused",
    expected="its handlers killed before their leases end, their runs taken over, back at work soon after",
)
def test_a_worker_that_is_cut_off_stops_before_others_take_over(
    house: House, middleman: Middleman, scale: Scale, chance: Random, measured: Measured
) -> None:
    cut_off = house.worker(database=middleman.url, LEASE_SECONDS=LONG_LEASE_SECONDS)
    name = house.id_of(cut_off)
    assert name is not None
    ids = house.enqueue_many("slow_at_first", 4)
    starts = house.wait_until_started(ids)
    other = house.worker(LEASE_SECONDS=LONG_LEASE_SECONDS)
    wait_until(lambda: house.is_attended(), 30, "the other worker takes back what is lost")
    moment = now() + chance.uniform(0, LONG_LEASE_SECONDS)
    wait_until(lambda: now() >= moment, 10)
    middleman.fall_silent()
    silent_at = now()
    ends = remaining_lease_ends(house, ids)
    killed: dict[int, float] = {}

    def all_are_killed() -> bool:
        killed.update(
            {line.run_id: now() for line in starts if line.run_id not in killed and not is_alive(line.pid)}
        )
        return len(killed) == len(ids)

    wait_until(all_are_killed, 30, "the handlers of the cut off worker are killed")
    house.settle(60)
    second = {line.run_id: line.at for line in house.truth("start") if line.attempt == 2}
    spare = min(ends[run_id] - killed[run_id] for run_id in ids)
    waited = max(second[run_id] - ends[run_id] for run_id in ids)
    wait_until(lambda: is_late(house, name), NOTICED_WITHIN, "the silence is seen")
    seen_after = now() - silent_at
    until = silent_at + scale.times(6, 42)
    wait_until(lambda: now() >= until, 60)
    middleman.refuse()
    refused_until = now() + scale.times(2, 12)
    wait_until(lambda: now() >= refused_until, 60)
    assert other.terminate() == 0
    more = house.enqueue_many("note", 4)
    healed_at = now()
    middleman.heal()
    back_after = max(line.at for line in house.wait_until_started(more)) - healed_at
    wait_until(lambda: not is_late(house, name), 30, "all its loops are on time again")
    house.settle(30)
    measured(
        f"killed {spare:.2f} s before the lease ended at the latest, taken over {waited:.1f} s after its end "
        f"at most (lease {LONG_LEASE_SECONDS:g} s); seen as late after {seen_after:.0f} s; at work "
        f"{back_after:.1f} s after a cut of {healed_at - silent_at:.0f} s; attempts {house.outcomes()}"
    )
    assert spare > 0
    assert waited <= TAKEN_OVER_WITHIN
    assert seen_after <= NOTICED_WITHIN
    assert back_after <= BACK_WITHIN
    assert cut_off.process.poll() is None
    assert house.outcomes() == {"lost": 4, "succeeded": 8}
    house.check()


def wait_until_heard(house: House, worker_id: str) -> None:
    """Wait until the worker says that its own notifications arrive."""

    def hears() -> bool:
        found = [
            each for each in loops(house.connection) if (each.process_id, each.name) == (worker_id, "listen")
        ]
        return any(each.numbers and each.numbers["hears"] == "notifications" for each in found)

    wait_until(hears, 30, "the listening is proven")


def pickups(house: House, is_over: Callable[[], bool], seconds: float) -> list[float]:
    """Enqueue one run after the other until ``is_over``; return how long each waited for its start."""
    waited: list[float] = []

    def one_more() -> bool:
        enqueued_at = now()
        (line,) = house.wait_until_started([house.enqueue("note")])
        waited.append(line.at - enqueued_at)
        return is_over()

    wait_until(one_more, seconds, "runs are picked up until it is over")
    return waited


def listen_is_late(house: House) -> bool:
    """Whether the status page shows the listening as late, and nothing else."""
    return {loop.name for loop in late_loops(house.connection)} == {"listen"}


@fault(
    "F24",
    injected="the notifications to a worker lost: on its open connection, or on every one of its connections",
    expected="polling finds the work in time; another connection is opened; deaf for long is late",
)
def test_a_worker_that_hears_nothing_finds_its_work_by_polling(
    house: House, middleman: Middleman, scale: Scale, measured: Measured
) -> None:
    worker = house.worker(database=middleman.url, POLL_SECONDS=POLL_SECONDS)
    wait_until_heard(house, str(house.id_of(worker)))
    old = sessions(house, CLAIM_LINE)
    deaf_at = now()
    if scale.full:
        middleman.swallows_notifications = True
        waited = pickups(house, lambda: listen_is_late(house), 60)
        seen = f"late on the status page after {now() - deaf_at:.0f} s, "
    else:
        middleman.forget_subscriptions()
        waited, seen = [], ""
    waited += pickups(house, lambda: sessions(house, CLAIM_LINE) not in ([], old), NOTICED_WITHIN)
    rebuilt_after = now() - deaf_at
    middleman.swallows_notifications = False
    cured_at = now()
    wait_until(lambda: not late_loops(house.connection), 30, "the listening is on time again")
    measured(
        f"{len(waited)} runs picked up after {max(waited):.2f} s at most (poll {POLL_SECONDS:g} s); {seen}"
        f"another connection within {rebuilt_after:.0f} s, heard {now() - cured_at:.0f} s after the cure"
    )
    assert max(waited) <= POLL_SECONDS + scale.times(SLACK_SECONDS, 0.5)
    assert "No notification arrives" in worker.output
    house.check()


@fault(
    "F24",
    injected="the connection on which a worker claims and listens goes half open, all others work",
    expected="another worker goes on picking up in time; the connection is replaced",
)
def test_a_claim_that_is_never_answered_is_not_waited_for(
    house: House, middleman: Middleman, scale: Scale, measured: Measured
) -> None:
    half_open = house.worker(database=middleman.url, wait=False, POLL_SECONDS=POLL_SECONDS)
    other = house.worker(POLL_SECONDS=POLL_SECONDS)
    wait_until_heard(house, house.wait_until_registered(half_open))
    middleman.strand(CLAIM_LINE)
    stranded_at = now()
    waited = pickups(house, lambda: "No notification arrives" in half_open.output, NOTICED_WITHIN + 10)
    replaced_after = now() - stranded_at
    house.settle(30)
    assert other.terminate() == 0
    alone = pickups(house, lambda: True, 10)
    measured(
        f"{len(waited)} runs picked up by another after {max(waited):.2f} s at most (poll "
        f"{POLL_SECONDS:g} s); replaced after {replaced_after:.0f} s; alone picked up after {alone[0]:.2f} s"
    )
    assert replaced_after <= NOTICED_WITHIN
    assert max(waited + alone) <= POLL_SECONDS + scale.times(SLACK_SECONDS, 0.5)
    middleman.heal()
    house.check()


@fault(
    "F26",
    injected="a link that takes up to 230 ms in each direction, under a lease of 3 s (a tenth of the usual)",
    expected="no lease lost, work goes on",
)
def test_a_slow_and_jittery_link_loses_no_lease(
    house: House, middleman: Middleman, scale: Scale, chance: Random, measured: Measured
) -> None:
    seconds = scale.times(4, 10)
    worker = house.worker(database=middleman.url, LEASE_SECONDS=3)
    middleman.delay_seconds = lambda: max(0.0, chance.uniform(-0.05, 0.23))
    long = house.enqueue_many("slow", 2, {"seconds": seconds})
    house.wait_until_started(long)
    short = [*house.enqueue_many("effect", 2), *house.enqueue_many("note", scale.times(10, 40))]
    began = now()
    house.settle(120)
    took = now() - began
    measured(
        f"{len(short)} runs beside {len(long)} of {seconds} s took {took:.0f} s; attempts "
        f"{house.outcomes()}; {worker.output.count('WARNING')} warnings"
    )
    others = rows(house.connection, "job_attempts", "outcome <> 'succeeded'")
    assert [(one["job_type"], one["outcome"], one["error_code"], one["error"]) for one in others] == []
    assert house.counts() == {"succeeded": len(short) + len(long)}
    house.check()
