"""Schedules when clocks change, machines are off, texts are hostile and schedulers die in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise, repeat, takewhile
from multiprocessing import get_context
from random import Random
from statistics import median
from typing import Any

import pytest

from tests.support.factories import Connection, a_definition, rows
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.invariants import LATE, i10_fires_are_kept_once
from tests.support.processes import ROOT, surroundings, wait_until
from tests.support.workers import cron_oracle
from wakeboard.core.time.cron import Cron, CronError
from wakeboard.reporting.heartbeats import MARGIN_SECONDS
from wakeboard.runtime.duties.background import SOON_SECONDS
from wakeboard.schedules import scheduler
from wakeboard.schedules.planner import CATCH_UP_CAP

Measured = Callable[[str], None]
FIRST_YEAR, AFTER_LAST_YEAR = 2008, 2028
MINUTE = timedelta(minutes=1)
FIRED = "SELECT count(*)::int FROM wakeboard.job_runs"
SEEN_AGO = "SELECT max(extract(epoch FROM now() - seen_at))::float8 FROM wakeboard.workers"
# What one look fires has one created_at.
LOOKS = "SELECT DISTINCT extract(epoch FROM created_at)::float8 FROM wakeboard.job_runs ORDER BY 1"
HOSTILE = {
    "a list that never ends": "1," * 5_000 + "1 * * * *",
    "a range of a hundred million": "0 0 1--100000000 * *",
    "a range without the sign": "0 0 1-100000000 * *",
    "ten thousand digits": "0" * 10_000,
    "ten thousand fields": "* " * 5_000,
    "500 names": "0 0 * * " + ",".join(["sun"] * 500),
    "Arabic digits": "٣٠ ٢ * * *",
    "a step of a trillion": "*/999999999999 * * * *",
    "a step of nothing": "*/0 * * * *",
    "lists in lists": "1,,2,(3,(4)) * * * *",
    "ranges in ranges": "1-5-9 * * * *",
    "a null byte": "\0 * * * *",
}
NEVER = {
    "31 February": "0 0 31 2 *",
    "30 February": "*/5 * 30 2 *",
    "31st of short months": "0 0 31 4,6,9,11 *",
}
STORABLE = [text for text in (*HOSTILE.values(), *NEVER.values()) if "\0" not in text]
# Starts a scheduler for each line it reads, which steps until it is killed: it says its process when it
# begins, so that no kill comes too early.
STEPPER = """
import os, sys
from wakeboard.database import db
from wakeboard.schedules import scheduler
for _ in sys.stdin:
    if pid := os.fork():
        os.waitpid(pid, 0)
        print("killed", pid, flush=True)
        continue
    with db.connect(sys.argv[1], name="wakeboard scheduler") as connection:
        print(os.getpid(), flush=True)
        while True:
            scheduler.settle(connection)
"""


def now(connection: Connection) -> datetime:
    (value,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


def due_since(connection: Connection, since: datetime, **columns: Any) -> int:
    """Insert a schedule of which nothing is settled since a time; return its id."""
    return a_definition(connection, settled_at=since, **columns, next_fire_at=None)


@fault(
    "F47",
    injected="20 years of clock changes in 12 zones, against an oracle that looks at UTC minutes; interval "
    "schedules within 5 days of each change and in the last year",
    expected="the same list of fires, 0 differences",
)
def test_twenty_years_in_twelve_zones_are_as_the_oracle_says(scale: Scale, measured: Measured) -> None:
    years = range(scale.times(AFTER_LAST_YEAR - 1, FIRST_YEAR), AFTER_LAST_YEAR)
    zones = cron_oracle.ZONES if scale.full else cron_oracle.ZONES[:2]
    texts = cron_oracle.WALL_TIMES + cron_oracle.INTERVALS
    # One process for each processor at full scale: nothing else wants any then.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as processes:
        in_turn = processes.map if scale.full else map
        found = list(in_turn(compared_with_the_oracle, zones, repeat(years)))
    compared = sum(count for count, _ in found)
    differing = [told for _, each in found for told in each]
    measured(
        f"{compared:,} fires of {len(texts)} schedules × {len(zones)} zones × {len(years)} years: "
        f"{len(differing)} differences"
    )
    assert not differing


def compared_with_the_oracle(zone: str, years: range) -> tuple[int, list[str]]:
    """Return how many fires of all schedules were compared in a zone, and a sentence for each difference."""
    compared, differing = 0, list[str]()
    for text in cron_oracle.WALL_TIMES + cron_oracle.INTERVALS:
        for start, end in stretches(text, zone, years):
            wanted = list(cron_oracle.fires(text, zone, start, end))
            later = (fire.at for fire in Cron.parse(text).fires(zone, start - MINUTE))
            found = list(takewhile(lambda at, end=end: at < end, later))  # type: ignore[misc]
            compared += len(wanted)
            if found != wanted:
                differing.append(f"{text} in {zone}, first at {min(set(found) ^ set(wanted))}")
    return compared, differing


def stretches(text: str, zone: str, years: range) -> list[tuple[datetime, datetime]]:
    """Return what to compare: all of the years; of intervals, which fire often, the last of them and ten days
    around each change."""
    start, last, end = (datetime(year, 1, 1, tzinfo=UTC) for year in (years[0], years[-1], years.stop))
    if text in cron_oracle.WALL_TIMES:
        return [(start, end)]
    changes = cron_oracle.changes(zone, start, last)
    return [(at - timedelta(days=5), at + timedelta(days=5)) for at in changes] + [(last, end)]


@fault(
    "F47",
    injected="schedules with fires in gaps, folds and on a skipped day, settled by the scheduler",
    expected="each slot of the oracle once, as a run or a missed fire",
)
def test_the_scheduler_settles_the_slots_of_odd_days_once(connection: Connection, measured: Measured) -> None:
    cases = [
        ("30 2 * 3 *", "America/New_York", 2026), ("30 1 * 11 *", "America/New_York", 2025),
        ("30 2 * 3,10 *", "Europe/Paris", 2025), ("15 2 * 4,10 *", "Australia/Lord_Howe", 2025),
        ("30 9 29-31 12 *", "Pacific/Apia", 2011), ("30 2 * 2,3 *", "Africa/Casablanca", 2026),
        ("30 6 * * *", "Asia/Kathmandu", 2026), ("*/15 * 8 3 *", "America/New_York", 2026),
        ("*/15 * 1 11 *", "America/New_York", 2026),
    ]  # fmt: skip
    wanted: dict[int, list[datetime]] = {}
    for text, zone, year in cases:
        start = datetime(year, 1, 1, tzinfo=UTC)
        made = due_since(connection, start, schedule=text, timezone=zone, misfire="all", overlap="allow")
        scheduler.settle(connection)
        until = rows(connection, "job_definitions", "id = %s", made)[0]["settled_at"]
        wanted[made] = [
            at for at in cron_oracle.fires(text, zone, start, until + MINUTE) if start < at <= until
        ]
    measured(f"{sum(map(len, wanted.values())):,} slots of {len(cases)} schedules")
    assert i10_fires_are_kept_once(connection, wanted) == []


@fault(
    "F48",
    injected="an outage of 36 h for every misfire policy",
    expected="runs as the policy says, all capped at 100 and told",
)
@pytest.mark.parametrize(
    ("misfire", "text", "runs"),
    [
        ("one", "*/5 * * * *", 1), ("none", "*/5 * * * *", 0), ("all", "*/5 * * * *", CATCH_UP_CAP),
        ("all", "0 * * * *", 36),
    ],
)  # fmt: skip
def test_an_outage_of_a_day_and_a_half_follows_the_policy(
    connection: Connection, measured: Measured, misfire: str, text: str, runs: int
) -> None:
    since = now(connection).replace(second=0, microsecond=0) - timedelta(hours=36)
    made = due_since(connection, since, schedule=text, misfire=misfire, overlap="allow", grace_seconds=90)
    began = time.monotonic()
    scheduler.settle(connection)
    took = time.monotonic() - began
    settled = rows(connection, "job_definitions", "id = %s", made)[0]["settled_at"]
    slots = [at for at in cron_oracle.fires(text, "UTC", since, settled + MINUTE) if since < at <= settled]
    punctual = [at for at in slots if at >= settled - timedelta(seconds=90)]
    late = slots[: len(slots) - len(punctual)]
    fired = rows(connection, "job_runs", "definition_id = %s", made, order="scheduled_for")
    missed = rows(connection, "missed_fires", "definition_id = %s", made)
    kept = late[len(late) - min(runs, len(late)) :]
    assert [run["scheduled_for"] for run in fired] == kept + punctual
    assert {one["reason"] for one in missed} <= {"capped" if misfire == "all" else "misfire"}
    assert i10_fires_are_kept_once(connection, {made: slots}) == []
    measured(
        f"{misfire}: {len(fired)} runs and {len(missed)} missed fires of {len(slots)} slots in {took:.2f} s"
    )


@fault(
    "F49",
    injected="hostile and impossible schedules, alone and among 1,000 that are due",
    expected="refused or never within 50 ms and 10 MB; a tick at most 1 s",
)
def test_hostile_schedules_cost_next_to_nothing(
    connection: Connection, scale: Scale, measured: Measured
) -> None:
    slowest, largest = 0.0, 0
    for name, text in (HOSTILE | NEVER).items():
        # The processor's time: what the neighbours of this process do is not the text's cost.
        began = time.thread_time()
        assert is_refused_or_never(text), name
        slowest = max(slowest, time.thread_time() - began)
        tracemalloc.start()
        is_refused_or_never(text)
        largest = max(largest, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    good = scale.times(200, 1000) - len(STORABLE)
    connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, timezone, next_fire_at)"
        " SELECT 'hostile-' || n, 'mail', text, 'UTC', NULL"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS given (text, n)"
        " UNION ALL SELECT 'good-' || n, 'mail', '* * * * *', 'Europe/Paris', date_trunc('minute', now())"
        " FROM generate_series(1, %s) AS n",
        (STORABLE, good),
    )
    longest, began_all = 0.0, time.monotonic()
    while True:
        began = time.monotonic()
        if not scheduler.settle(connection).due:
            break
        longest = max(longest, time.monotonic() - began)
    took = time.monotonic() - began_all
    measured(
        f"{len(HOSTILE) + len(NEVER)} texts: slowest {slowest * 1000:.1f} ms, {largest / 2**20:.2f} MB; "
        f"{good + len(STORABLE):,} due: longest tick {longest:.2f} s, all in {took:.1f} s"
    )
    assert len(rows(connection, "job_runs")) >= good
    assert len(rows(connection, "job_definitions", "error IS NOT NULL")) == len(STORABLE)
    assert slowest < 0.05
    assert largest < 10 * 2**20
    assert longest < scale.times(5, 1)


def is_refused_or_never(text: str) -> bool:
    try:
        return Cron.parse(text).next_fire("Europe/Paris", datetime(2026, 1, 1, tzinfo=UTC)) is None
    except CronError:
        return True


@fault(
    "F50",
    injected="a zone that nobody knows, written by SQL",
    expected="that schedule shows an error, the others fire in the same tick",
)
def test_an_unknown_zone_stops_its_own_schedule_alone(connection: Connection, measured: Measured) -> None:
    # Oldest first: the broken ones are looked at before the good one.
    for number, zone in enumerate(("Mars/Base", "../../etc/passwd", "", "x" * 10_000, "posix/UTC", "Europe")):
        a_definition(connection, f"broken-{number}", timezone=zone, next_fire_at="-1 hour")
    well = a_definition(connection, "well", next_fire_at="0 seconds")
    scheduler.settle(connection)
    broken = rows(connection, "job_definitions", "name LIKE 'broken-%%'")
    assert all("not a known time zone" in one["error"] for one in broken)
    (run,) = rows(connection, "job_runs")
    assert run["definition_id"] == well
    late = (run["created_at"] - run["scheduled_for"]).total_seconds()
    measured(
        f"{len(broken)} unknown zones told; the good schedule's run was written {late:.2f} s after its time"
    )
    assert scheduler.settle(connection).due == 0


@fault(
    "F51",
    injected="kill -9 of a scheduler at random instants while it fires",
    expected="no slot lost, none fired twice",
)
def test_a_scheduler_killed_at_any_instant_loses_no_slot(
    connection: Connection, database: str, scale: Scale, chance: Random, measured: Measured
) -> None:
    kills, interrupted, slots = scale.times(8, 200), 0, 0
    with schedulers(database) as kill_while_it_fires:
        for _ in range(kills):
            since = now(connection).replace(second=0, microsecond=0) - timedelta(hours=1)
            made = [
                due_since(connection, since, schedule="* * * * *", misfire="all", overlap="allow")
                for _ in range(10)
            ]
            kill_while_it_fires(chance.uniform(0, 0.1))
            interrupted += scheduler.settle(connection).due > 0
            known = rows(connection, "job_definitions", "id = ANY(%s)", made)
            settled = {row["id"]: row["settled_at"] for row in known}
            wanted = {one: minutes_between(since, settled[one]) for one in made}
            slots += sum(map(len, wanted.values()))
            assert i10_fires_are_kept_once(connection, wanted) == []
            connection.execute("UPDATE wakeboard.job_definitions SET enabled = false WHERE enabled")
    measured(f"{kills} kills, {interrupted} of them before the fires stood; {slots:,} slots, 0 lost, 0 twice")


@contextmanager
def schedulers(database: str) -> Iterator[Callable[[float], None]]:
    """Give what starts a scheduler and kills it so many seconds after its first step began."""
    stepper = subprocess.Popen(
        [sys.executable, "-c", STEPPER, database], cwd=ROOT, env=surroundings(None), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert stepper.stdin is not None and stepper.stdout is not None
    asked, told = stepper.stdin, stepper.stdout

    def kill_while_it_fires(seconds: float) -> None:
        asked.write("\n")
        asked.flush()
        pid = int(told.readline())
        # Not a wait for anything: the instant of the kill is the fault.
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        assert told.readline() == f"killed {pid}\n"

    with asked, told:
        yield kill_while_it_fires
    stepper.wait(30)


def minutes_between(since: datetime, until: datetime) -> list[datetime]:
    """Return the full minutes after ``since``, itself one, up to ``until``."""
    return [since + n * MINUTE for n in range(1, (until - since) // MINUTE + 1)]


@fault(
    "F75",
    injected="2,000 schedules are due at once, 5,000 at full scale",
    expected="they are caught up with in one go, each slot once; meanwhile no duty and no heartbeat is late",
)
def test_what_one_look_leaves_is_fired_at_once(house: House, scale: Scale, measured: Measured) -> None:
    count = scale.times(2_000, 5_000)
    # Its looks come every two seconds, or a second after something was due.
    house.worker(LEASE_SECONDS="30")
    house.connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, next_fire_at)"
        " SELECT 'many-' || n, 'nobody_runs_it', '0 0 1 1 *', now()"
        " FROM generate_series(1, %s) AS n",
        (count,),
    )
    oldest, late = 0.0, list[tuple[Any, ...]]()

    def is_caught_up() -> bool:
        nonlocal oldest
        late.extend(house.connection.execute(LATE).fetchall())
        oldest = max(oldest, house.connection.execute(SEEN_AGO).fetchall()[0][0])
        return house.connection.execute(FIRED).fetchall()[0][0] >= count

    wait_until(is_caught_up, 60, "all that was due is fired")
    looks = [at for (at,) in house.connection.execute(LOOKS).fetchall()]
    fired = "SELECT count(*), count(DISTINCT definition_id) FROM wakeboard.job_runs"
    assert house.connection.execute(fired.encode()).fetchone() == (count, count), "each slot once"
    house.connection.execute("DELETE FROM wakeboard.job_runs")
    seconds, apart = looks[-1] - looks[0], median(after - before for before, after in pairwise(looks))
    measured(
        f"{count:,} schedules by {len(looks)} looks, one each {apart:.2f} s, in {seconds:.1f} s: "
        f"{count / seconds:.0f} a second; last heartbeat at most {oldest:.1f} s old"
    )
    # A look takes half of this at most; with a rest after each it was this and more.
    assert apart < SOON_SECONDS
    assert oldest < MARGIN_SECONDS
    assert not late
    house.check()
