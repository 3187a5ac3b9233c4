"""Faults of the database: crashed, stopped, its sessions cut, its rows and tables locked. Group B.

Every row has the same server of this file's own, and a database on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import psutil
import pytest

from tests.support import factories
from tests.support.factories import rows
from tests.support.faults.deployment import LEASE_SECONDS, RECLAIM_SECONDS, Connection, House
from tests.support.faults.enqueue_load import Feeder, Producer, failed_without_sessions, resumed_after
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.invariants import NAMES_OF_TESTS
from tests.support.faults.page_users import ADMIN
from tests.support.faults.timed_steps import every
from tests.support.faults.truth_file import Line, now
from tests.support.postgres.cluster import Cluster, cluster, database
from tests.support.processes import wait_until
from wakeboard.accounts.tokens import create_token
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.db import PLANNING
from wakeboard_dashboard import create_app

__all__ = ["cluster", "database"]
Measured = Callable[[str], None]
# After a recovery a worker tries to connect again at least so often.
RESUMED_WITHIN = 10
# A child is killed at 0.9 of its lease; what is beyond the lease is the time until we see it gone.
SEEN_SECONDS = 0.5
AT_ONCE = 4
PROBES = """
INSERT INTO wakeboard.job_runs (job_type, payload) SELECT 'mail', '{}' FROM generate_series(1, %s)
"""


def left_to_a_person(house: House) -> int:
    """Return how many effects were begun and never confirmed."""
    return len(rows(house.connection, "effects", "status = 'started'"))


def late_words(truth: Sequence[Line]) -> list[Line]:
    """Return what handlers told after a later attempt of the same run had begun."""
    begun: dict[int, Line] = {}
    late = []
    for line in sorted(truth, key=lambda line: line.at):
        latest = begun.get(line.run_id)
        if latest is not None and line.attempt < latest.attempt:
            late.append(line)
        elif line.word == "start":
            begun[line.run_id] = line
    return late


def is_gone(pid: int) -> bool:
    """Whether the process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@fault(
    "F19",
    injected="PostgreSQL crashed (immediate stop) under 100 runs/s, down for up to 2 leases, started again",
    expected="workers stay; work goes on within 10 s; nothing acknowledged is lost, nothing twice",
)
def test_a_crashed_database_costs_only_time(
    house: House, cluster: Cluster, scale: Scale, chance: Random, measured: Measured
) -> None:
    workers, feeder = house.workers(2), Feeder(house, chance)
    resumed = []
    for _ in range(scale.times(1, 3)):
        feeder.feed(chance.uniform(0.5, 1.5))
        cluster.crash()
        feeder.feed(chance.uniform(0.3, scale.times(1, 2) * LEASE_SECONDS))
        cluster.start()
        house.reconnect()
        resumed.append(resumed_after(house))
    house.settle(60)
    measured(
        f"{len(resumed)} crashes, work went on after {max(resumed):.1f} s at most; {feeder.accepted} runs "
        f"accepted, {feeder.refused} INSERTs refused; attempts {house.outcomes()}; "
        f"{left_to_a_person(house)} effects left to a person"
    )
    assert feeder.refused
    assert max(resumed) <= RESUMED_WITHIN
    assert house.counts().keys() == {"succeeded"}
    assert all(worker.process.poll() is None for worker in workers), "the workers stay"
    house.check()


@fault(
    "F20",
    injected="PostgreSQL stopped (fast) for 2 leases (1.2 at small scale) under handlers that end or do not",
    expected="what ends is kept and written; what goes on is killed within its lease and says no more",
)
def test_what_runs_while_the_database_is_stopped_ends_or_is_killed_in_time(
    house: House, cluster: Cluster, scale: Scale, measured: Measured
) -> None:
    house.workers(2)
    short = house.enqueue_many("slow", AT_ONCE, {"seconds": 1.2})
    long = house.enqueue_many("slow_at_first", AT_ONCE)
    house.wait_until_started([*short, *long])
    pids = [line.pid for line in house.truth("start") if line.run_id in long]
    stopped_at = now()
    cluster.stop()
    wait_until(lambda: all(map(is_gone, pids)), 3 * LEASE_SECONDS, "handlers without a lease are killed")
    killed_after = now() - stopped_at
    wait_until(lambda: now() - stopped_at >= scale.times(1.2, 2) * LEASE_SECONDS, 10)
    cluster.start()
    house.reconnect()
    resumed = resumed_after(house)
    house.settle(30)
    measured(
        f"handlers killed {killed_after:.2f} s after the stop (lease {LEASE_SECONDS:g} s); work went on "
        f"{resumed:.1f} s after the start; attempts {house.outcomes()}; "
        f"{len(late_words(house.truth()))} late words"
    )
    assert killed_after <= LEASE_SECONDS + SEEN_SECONDS
    assert {one["attempts"] for one in rows(house.connection, "job_runs", "id = ANY(%s)", short)} == {1}
    assert house.counts() == {"succeeded": 2 * AT_ONCE + 1}
    assert resumed <= RESUMED_WITHIN
    assert not late_words(house.truth())
    house.check()


SESSIONS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
    AND application_name LIKE 'wakeboard%%' AND application_name <> ALL(%s) ORDER BY pid
"""


@fault(
    "F21",
    injected="pg_terminate_backend of a random session of workers, handlers and producers, every 0.2 s",
    expected="no run fails for it; producers are told clearly; what they were given exists",
)
def test_cut_sessions_cost_no_run(house: House, scale: Scale, chance: Random, measured: Measured) -> None:
    house.workers(2)
    producer = Producer(house)
    cut = 0

    def cut_one() -> None:
        nonlocal cut
        found = house.connection.execute(SESSIONS, (list(NAMES_OF_TESTS),)).fetchall()
        if found:
            house.connection.execute("SELECT pg_terminate_backend(%s)", chance.choice(found))
            cut += 1

    def step() -> None:
        house.enqueue_many("note", 4)
        house.enqueue_many("slow", 1, {"seconds": chance.uniform(0, 2.5)})
        producer.enqueue()
        if chance.random() < 0.5:
            cut_one()

    every(0.1, now() + scale.times(3, 15), step)
    producer.close()
    house.settle(60)
    without_sessions = failed_without_sessions(house)
    measured(
        f"{cut} sessions cut; {house.counts()}; attempts {house.outcomes()}, {len(without_sessions)} of them "
        f"failures of handlers that had no session; {producer.accepted} enqueued by the function, "
        f"{len(producer.told)} refusals; {left_to_a_person(house)} effects left to a person"
    )
    assert house.counts().keys() == {"succeeded"}
    assert not without_sessions
    assert all(producer.told), "each refusal says why"
    house.check()


def ends_between(house: House, ids: Sequence[int], begin: float, end: float) -> int:
    """Return how many of the runs' handlers ended in a stretch of time."""
    wanted = set(ids)
    return sum(line.run_id in wanted and begin <= line.at < end for line in house.truth("end"))


@fault(
    "F34",
    injected="the row of one running run held by SELECT … FOR UPDATE for 2 leases (1.5 at small scale)",
    expected="no other run is taken back; throughput at least 80 %",
)
def test_a_locked_run_stops_no_other(house: House, scale: Scale, measured: Measured) -> None:
    house.workers(2)
    gate = house.folder / "gate"
    standing = house.enqueue_many("gated", AT_ONCE, {"gate": str(gate)})
    house.wait_until_started(standing)
    passing = house.enqueue_many("slow", 60, {"seconds": 0.05})

    def feed() -> None:
        """Keep the free slots busy: what they do is sleep, so a busy machine does not blur the measure."""
        passing.extend(house.enqueue_many("slow", 18, {"seconds": 0.05}))

    house.wait_until_started(passing[:20])
    before = now()
    every(0.25, before + scale.times(2, 4), feed)
    before_ended = now()
    with db.connect(house.database, name="wakeboard other", autocommit=False) as other:
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (standing[0],))
        during = now()
        every(0.25, during + scale.times(1.5, 2) * LEASE_SECONDS, feed)
        other.rollback()
    after = now()
    gate.touch()
    house.settle(60)
    usual = ends_between(house, passing, before, before_ended) / (before_ended - before)
    held = ends_between(house, passing, during, after) / (after - during)
    others = rows(house.connection, "job_attempts", "run_id <> %s AND outcome <> 'succeeded'", standing[0])
    of_it = [one["outcome"] for one in rows(house.connection, "job_attempts", "run_id = %s", standing[0])]
    measured(
        f"{usual:.0f} runs/s before, {held:.0f} while the row was held ({held / usual:.0%}); the held run's "
        f"attempts {sorted(of_it)}, {len(others)} attempts of others failed or lost"
    )
    assert not others
    assert held >= 0.8 * usual
    assert house.counts() == {"succeeded": len(standing) + len(passing)}
    house.check()


@fault(
    "F35",
    injected="LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE for 3 leases (1.5 at small scale)",
    expected="what runs is killed within its lease and says no more; work goes on within 10 s",
)
def test_a_locked_table_fences_what_runs(house: House, scale: Scale, measured: Measured) -> None:
    house.workers(2)
    long = house.enqueue_many("slow_at_first", AT_ONCE)
    short = house.enqueue_many("slow", AT_ONCE, {"seconds": 1.2})
    house.wait_until_started([*long, *short])
    pids = [line.pid for line in house.truth("start") if line.run_id in long]
    with db.connect(
        house.database, name="wakeboard other", autocommit=False, lock_timeout_seconds=30
    ) as other:
        other.execute("LOCK TABLE wakeboard.job_runs IN ACCESS EXCLUSIVE MODE")
        locked_at = now()
        wait_until(lambda: all(map(is_gone, pids)), 3 * LEASE_SECONDS, "handlers without a lease are killed")
        killed_after = now() - locked_at
        # The longer one is longer than any statement waits for a lock.
        wait_until(lambda: now() - locked_at >= scale.times(1.5, 3) * LEASE_SECONDS, 10)
        other.rollback()
    released_at = now()
    resumed = resumed_after(house)
    house.wait_until_status(long, "succeeded", 30)
    recovered = now() - released_at
    house.settle(30)
    measured(
        f"handlers killed {killed_after:.2f} s after the lock (lease {LEASE_SECONDS:g} s); a new run started "
        f"{resumed:.1f} s, the killed ones had succeeded {recovered:.1f} s after the release; attempts "
        f"{house.outcomes()}; {len(late_words(house.truth()))} late words"
    )
    assert killed_after <= LEASE_SECONDS + SEEN_SECONDS
    assert recovered <= RECLAIM_SECONDS
    assert not late_words(house.truth())
    assert house.counts().keys() == {"succeeded"}
    house.check()


def p95(values: Sequence[float]) -> float:
    """Return the value below which 95 % of the values lie."""
    return sorted(values)[int(0.95 * (len(values) - 1))]


def come_and_go(connection: Connection, count: int) -> None:
    """Let so many runs of the type ``mail`` be enqueued, claimed and finished, by the worker's statements."""
    for _ in range(count // 500):
        connection.execute(PROBES, (500,))
        held = [one.held for one in factories.claim(connection, limit=500)]
        factories.succeed(connection, *held)


def claim_seconds(connection: Connection) -> float:
    """Return how long a claim of eight due runs takes (p95 of 30); each is taken back at once."""

    def claim_once() -> float:
        with connection.transaction(force_rollback=True):
            began = now()
            assert len(factories.claim(connection, limit=8)) == 8
            return now() - began

    return p95([claim_once() for _ in range(30)])


@fault(
    "F36",
    injected="a REPEATABLE READ snapshot held while 60,000 runs come and go, as in 5 minutes of 200 a second",
    expected="a claim takes at most (p95) 5 times as long, or 50 ms; /system names the transaction",
)
def test_an_old_snapshot_slows_claims_within_bounds(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    house.workers(2)
    factories.a_type(house.connection)
    gone = scale.times(5_000, 60_000)
    with (
        db.connect(house.database, name="wakeboard other") as other,
        db.connect(house.database, name="report", autocommit=False) as report,
    ):
        db.configure(other, PLANNING)
        db.configure(report, {"idle_in_transaction_session_timeout": "0"})
        come_and_go(other, 1_000)
        other.execute(PROBES, (8,))
        before = claim_seconds(other)
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT count(*) FROM wakeboard.job_runs")
        began_at = now()
        come_and_go(other, gone)
        Feeder(house, chance).feed(1)
        # Dead rows stay for as long as the snapshot does; a neighbour's burst on the machine passes.
        under = min(claim_seconds(other) for _ in range(3))
        told, held = oldest_transaction(house), now() - began_at
        report.rollback()
        other.execute("DELETE FROM wakeboard.job_runs WHERE job_type = 'mail'")
    house.settle(60)
    measured(
        f"a claim took {before * 1000:.1f} ms (p95) before, {under * 1000:.1f} ms after {gone} runs had "
        f"gone by in {held:.0f} s; /system names '{told['name']}', {told['seconds']:.0f} s old"
    )
    assert under <= max(5 * before, 0.05)
    assert told["name"] == "report"
    assert told["seconds"] == pytest.approx(held, abs=5)
    house.check()


def oldest_transaction(house: House) -> dict[str, Any]:
    """Return what the system page says of the oldest transaction."""
    token = create_token(house.connection, ADMIN, "reader", Role.VIEWER)
    app = create_app(Settings.load({"database_url": house.database}, environ={}))
    try:
        answer = app.test_client().get("/system.json", headers={"Authorization": f"Bearer {token}"})
        return dict(answer.get_json()["oldest_transaction"])
    finally:
        app.extensions["wakeboard_database"].dispose()
