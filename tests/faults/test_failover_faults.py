"""Faults of a pair of servers: the primary dies, they change places, the new one has not seen all. Group B.

Every row has a primary and a standby of its own; both stand in each address, the standby first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tests.support.faults.deployment import House
from tests.support.faults.enqueue_load import Feeder, Producer, failed_without_sessions, resumed_after
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import an_operator
from tests.support.faults.truth_file import Line, now
from tests.support.http_client import JSON, Visitor
from tests.support.postgres.cluster import SETTINGS
from tests.support.postgres.servers import own_server
from tests.support.postgres.standbys import Node, as_one, pair_of
from tests.support.processes import wait_until

Measured = Callable[[str], None]
AT_ONCE = 4
BACK_WITHIN, ACTS_WITHIN = 15.0, 5.0
# What PostgreSQL says to whoever writes on a standby.
REFUSED = re.compile("cannot execute .* in a read-only transaction|cannot execute .* during recovery")


@dataclass
class Pair:
    """Who is the primary now and who follows it; ``database`` is the name of the house's database."""

    primary: Node
    standby: Node
    database: str

    def be_patient(self) -> None:
        """Acknowledge no commit before the standby has it."""
        self.primary.tell("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.tell("SELECT pg_reload_conf()")
        wait_until(lambda: self.primary.tell("SELECT sync_state FROM pg_stat_replication") == "sync")

    def leave_behind(self) -> None:
        """Let the standby get nothing more."""
        self.standby.tell("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.tell("SELECT pg_reload_conf()")
        wait_until(lambda: not self.standby.follows(), 30, "nothing is streamed")

    def fail_over(self) -> None:
        """Promote the standby; the old primary is not there any more."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def change_places(self) -> None:
        """Let both go on in the other's place, as a planned switch does."""
        self.primary.stop()
        self.fail_over()
        self.standby.follow(self.primary)
        self.standby.start()
        wait_until(self.standby.follows, 30, "the old primary follows the new one")

    def refused(self) -> int:
        """Return how many statements that write a standby has refused."""
        return sum(len(REFUSED.findall(node.log)) for node in (self.primary, self.standby))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and its standby, each of which the row may end."""
    with own_server(SETTINGS) as server:
        name = server.create()
        with pair_of(server, SETTINGS) as (primary, standby):
            yield Pair(primary, standby, name)


@pytest.fixture
def database(pair: Pair) -> str:
    """What leads to the one that takes writes; ``house`` stands on it."""
    return as_one([pair.standby, pair.primary], pair.database)


@fault(
    "F27",
    injected="the primary of a synchronous pair crashes under 100 runs/s, the standby is promoted",
    expected="no acknowledged run is missing; work goes on within 15 s of it; no run fails for it",
)
def test_a_synchronous_failover_loses_nothing(
    house: House, pair: Pair, chance: Random, scale: Scale, measured: Measured
) -> None:
    pair.be_patient()
    house.workers(2)
    feeder, producer = Feeder(house, chance), Producer(house)
    producer.enqueue()
    feeder.feed(scale.times(2, 10))
    producer.enqueue()
    pair.primary.crash()
    feeder.feed(chance.uniform(0.4, scale.times(1, 5)))
    producer.enqueue()
    pair.fail_over()
    promoted_at = now()
    house.reconnect()
    resumed_after(house)
    back = now() - promoted_at
    producer.enqueue()
    feeder.feed(1)
    producer.close()
    house.settle(60)
    without_sessions = failed_without_sessions(house, but_for=("lost", "released"))
    measured(
        f"{len(house.acknowledged)} runs acknowledged, {feeder.refused + len(producer.told)} calls refused; "
        f"a run started {back:.1f} s after the promotion; attempts {house.outcomes()}, "
        f"{len(without_sessions)} of them failures of handlers that had no session"
    )
    assert feeder.refused and producer.told
    assert back <= BACK_WITHIN
    assert house.counts().keys() == {"succeeded"}
    assert not without_sessions
    house.check()


@fault(
    "F28",
    injected="the primary of an asynchronous pair crashes while the standby is behind, which is promoted",
    expected="what it had not got is lost and nothing else; what runs under a claim it never got stops",
)
def test_a_failover_to_one_that_is_behind_forgets_only_what_it_never_got(
    house: House, pair: Pair, measured: Measured
) -> None:
    (worker,) = house.workers(1, CONCURRENCY=3 * AT_ONCE)
    first, second = house.folder / "first", house.folder / "second"
    answered = house.enqueue_many("gated", AT_ONCE, {"gate": str(first)})
    later = datetime.now(UTC) + timedelta(hours=1)
    given = {"gate": str(second)}
    claimed = [house.enqueue("gated", given, run_at=later) for _ in range(AT_ONCE)]
    house.wait_until_started(answered)
    wait_until(lambda: _has_all(pair), 30, "the standby has got it")
    pair.leave_behind()
    # Of these answers, claims and runs the new primary will know nothing.
    first.touch()
    house.wait_until_status(answered, "succeeded")
    _let_start(house, claimed)
    house.wait_until_started(claimed)
    known = dict(house.acknowledged)
    forgotten = house.enqueue_many("note", 20)
    house.wait_until_status(forgotten, "succeeded")
    pair.primary.crash()
    pair.fail_over()
    house.acknowledged = known
    house.reconnect()
    worker.wait_for("The database has forgotten claims of this worker", 30)
    _let_start(house, claimed)
    wait_until(lambda: len(_told(house, claimed, "start")) == 2 * AT_ONCE, 30, "they start once more")
    second.touch()
    house.settle(60)
    ends = len(_told(house, claimed, "end"))
    measured(
        f"{len(forgotten)} runs forgotten; {len(answered)} answers forgotten, whose runs ran again; "
        f"{len(claimed)} claims forgotten, whose handlers were stopped: {ends} ends after the second claim"
    )
    assert ends == len(claimed)
    assert house.counts() == {"succeeded": len(answered) + len(claimed)}
    # An attempt whose claim was forgotten has started and left nothing in the tables.
    house.check(but_for=("I4",))


def _let_start(house: House, ids: Sequence[int]) -> None:
    """Let runs that are to start later start now."""
    due = "UPDATE wakeboard.job_runs SET run_at = now() WHERE id = ANY(%s)"
    house.connection.execute(due, (list(ids),))


def _told(house: House, ids: Sequence[int], word: str) -> list[Line]:
    """Return what handlers of these runs said."""
    return [line for line in house.truth(word) if line.run_id in ids]


def _has_all(pair: Pair) -> bool:
    written = str(pair.primary.tell("SELECT pg_current_wal_lsn()"))
    return pair.standby.tell(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") is True


@fault(
    "F29",
    injected="the standby first in every address; primary and standby change places under load, and again",
    expected="only the one that takes writes is written to; an act of a person works within 5 s of it",
)
def test_servers_that_change_places_are_followed(
    house: House, pair: Pair, chance: Random, scale: Scale, measured: Measured
) -> None:
    house.workers(2)
    feeder, producer, operator = Feeder(house, chance), Producer(house), an_operator(house)
    backs, acts = [], []
    for _ in range(scale.times(2, 4)):
        feeder.feed(chance.uniform(0.5, 1.5))
        producer.enqueue()
        pair.change_places()
        switched_at = now()
        wait_until(lambda: _acts(operator), 30, "a person can act")
        acts.append(now() - switched_at)
        house.reconnect()
        resumed_after(house)
        backs.append(now() - switched_at)
        producer.enqueue()
    producer.close()
    house.settle(60)
    outcomes = house.outcomes()
    measured(
        f"{len(backs)} changes, a person acted {max(acts):.1f} s and a run started {max(backs):.1f} s after "
        f"one at most; {pair.refused()} statements refused by a standby; {len(house.acknowledged)} runs, "
        f"attempts {outcomes}"
    )
    assert pair.refused() == 0
    assert max(acts) <= ACTS_WITHIN
    assert max(backs) <= BACK_WITHIN
    assert house.counts().keys() == {"succeeded"}
    house.check()


def _acts(operator: Visitor) -> bool:
    """Whether a type can be paused through the dashboard; it is let go at once."""
    done = operator.post("/types/slow/pause", headers=JSON)
    return done.code == 200 and operator.post("/types/slow/resume", headers=JSON).code == 200
