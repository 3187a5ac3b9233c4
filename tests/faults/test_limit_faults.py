"""Limits and order when many want the same: races for few places, work behind what may not run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random
from typing import Any

from psycopg import RawCursor

from tests.support.factories import rows
from tests.support.faults.dead_handlers import bury
from tests.support.faults.deployment import Connection, House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.invariants import most_at_once
from tests.support.processes import wait_until
from wakeboard import queue as transitions
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.database.db import PLANNING
from wakeboard.queue.engine.claims import FROM_FIRST, claim

Measured = Callable[[str], None]
APP = "tests.support.faults.apps.limited"
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
LIMIT, WORKERS = 4, 8
# One claim of ten reads its ten runs, the types and little else, however many stand ahead.
PAGES_OF_A_CLAIM = 1_000


@fault(
    "L1",
    injected="8 workers race for a type of which 4 may run at once, one of them killed now and then",
    expected="never a fifth, and the four places are used",
)
def test_eight_workers_never_start_a_fifth(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    seconds = scale.times(6, 60)
    workers = house.workers(WORKERS, APP=APP, CONCURRENCY=2)
    work = 0.05
    began = time.monotonic()
    ids: list[int] = []
    killed = 0

    def is_over() -> bool:
        nonlocal killed
        if house.counts(ids[-400:]).get("queued", 0) < 100:
            ids.extend(house.enqueue_many("four_at_a_time", 200, {"seconds": work}))
        if time.monotonic() - began > 10 * (killed + 1):
            killed += 1
            victim = workers.pop(chance.randrange(len(workers)))
            victim.kill()
            wait_until(lambda: bury(house), 5, "the handlers of a killed worker are gone")
            workers.append(house.worker(APP=APP, CONCURRENCY=2))
        return time.monotonic() - began > seconds

    wait_until(is_over, seconds + 30)
    house.settle(60)
    lines = house.truth()
    most = most_at_once(lines)
    took = time.monotonic() - began
    used = len(ids) * work / took
    measured(
        f"{most} at once at most; {len(ids)} runs in {took:.0f} s, {used:.1f} of {LIMIT} places busy on "
        f"average, {killed} workers killed"
    )
    assert most == LIMIT
    house.check(limits={"four_at_a_time": LIMIT})


@fault(
    "L2",
    injected="150,000 due runs of a paused type, of the best priority, stand ahead",
    expected="a claim reads no more than without them, and what may run starts at once",
)
def test_paused_runs_ahead_cost_a_claim_nothing(house: House, scale: Scale, measured: Measured) -> None:
    ahead = scale.times(20_000, 150_000)
    house.worker(APP=APP)
    wait_until(lambda: rows(house.connection, "job_types", "name = 'paused'"), 20, "its types are known")
    assert transitions.types.pause(house.connection, "paused", OPERATOR, "for the row").result == "done"
    house.connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, priority, run_at)"
        " SELECT 'paused', 0, now() - interval '1 day' FROM generate_series(1, %s)",
        (ahead,),
    )
    delayed = house.connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at)"
        " SELECT 'open', now() + interval '1 day' FROM generate_series(1, 10) RETURNING id"
    ).fetchall()
    ids = house.enqueue_many("open", scale.times(50, 500))
    wait_until(lambda: house.counts(ids) == {"succeeded": len(ids)}, 30, "what may run has run")
    assert house.counts()["queued"] == ahead + len(delayed), "nothing of the paused type has started"
    pages, took = cost_of_a_claim(house.database)
    measured(
        f"{len(ids)} of {len(ids)} ran with {ahead:,} ahead; a claim of 10 reads {pages} pages and takes "
        f"{took:.2f} ms (median of 50)"
    )
    assert pages < PAGES_OF_A_CLAIM
    house.connection.execute("DELETE FROM wakeboard.job_runs WHERE status = 'queued'")
    house.check()


def cost_of_a_claim(database: str) -> tuple[int, float]:
    """Return how many pages a claim of ten reads and the median of its milliseconds in the server."""
    with db.connect(database, name="wakeboard test") as connection:
        db.configure(connection, PLANNING)
        connection.execute(
            "INSERT INTO wakeboard.job_runs (job_type) SELECT 'probed' FROM generate_series(1, 10)"
        )
        connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('probed')")
        plans = [explained(connection) for _ in range(50)]
        connection.execute("DELETE FROM wakeboard.job_runs WHERE job_type = 'probed'")
    pages = max(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] for plan in plans)
    return pages, statistics.median(plan["Execution Time"] for plan in plans)


def explained(connection: Connection) -> dict[str, Any]:
    """Run a claim that is rolled back; return its plan with what it cost."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {claim(10)}"
    with connection.transaction(force_rollback=True):
        row = (
            RawCursor(connection)
            .execute(explain.encode(), (["open", "paused", "probed"], "w1", 30.0, *FROM_FIRST))
            .fetchone()
        )
    assert row is not None
    plan: dict[str, Any] = row[0][0]
    return plan
