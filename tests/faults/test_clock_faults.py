"""Faults of the database's own clock: ahead or behind for a while, and right again. Group C of the table.

The server is one of the row's own, with a wall clock that lies; its workers have the machine's.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.faults.deployment import House, a_house
from tests.support.faults.fake_clock import WallClock, build, compiler
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import an_operator
from tests.support.faults.truth_file import now
from tests.support.http_client import JSON
from tests.support.postgres.servers import own_server
from tests.support.processes import Wakeboard, wait_until
from wakeboard.database.embedded.cluster_owner import ClusterOwner

Measured = Callable[[str], None]
HOUR = 3_600
DEFINITIONS = "FROM wakeboard.job_definitions"
TIMES = {
    "workers": ("seen_at",),
    "loops": ("last_success_at",),
    "job_definitions": ("next_fire_at", "settled_at", "updated_at"),
}
# A reaper's patience after a jump (a heartbeat and 5 s), a look at what lies ahead (10 s), a lease, and room.
RIGHT_WITHIN = 30.0
# How long before a full minute the clock is set to be, so that schedules are about to fire.
BEFORE_MINUTE = 3


@pytest.fixture(scope="module")
def clock() -> Iterator[WallClock]:
    """The clock of the row's own server, six hours ahead when that is started."""
    if compiler() is None:
        pytest.skip("There is no C compiler here to build the clock that lies (apt-get install gcc).")
    # The server may run as another user, who has to read both files.
    folder = Path(tempfile.mkdtemp(prefix="wakeboard-clock-"))
    folder.chmod(0o755)
    try:
        clock = WallClock(build(folder), folder / "ahead", 6 * HOUR)
        for file in folder.iterdir():
            file.chmod(0o755)
        yield clock
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def database_with_clock(clock: WallClock) -> Iterator[str]:
    """A database on a server whose wall clock is ``clock``."""
    options = ClusterOwner.subprocess_options

    def with_clock(self: ClusterOwner) -> dict[str, Any]:
        given = options(self)
        return given | {"env": given["env"] | dict(clock.environment)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterOwner, "subprocess_options", with_clock)
        with own_server() as server:
            yield server.url(server.create())


@pytest.fixture
def wrong_house(database_with_clock: str, tmp_path: Path) -> Iterator[House]:
    """A house on that database."""
    with a_house(database_with_clock, tmp_path) as opened:
        yield opened


def moment(house: House) -> datetime:
    """Return the database's now."""
    ((found,),) = house.connection.execute("SELECT clock_timestamp()").fetchall()
    assert isinstance(found, datetime)
    return found


def is_true(house: House, condition: str) -> bool:
    return house.connection.execute(f"SELECT {condition}".encode()).fetchone() == (True,)


def be(clock: WallClock, house: House, ahead: int) -> datetime:
    """Set the clock ``ahead`` of the truth, and on to shortly before a full minute; return that minute."""
    clock.jump(ahead)
    clock.jump(ahead + (60 - BEFORE_MINUTE - moment(house).second) % 60)
    return moment(house).replace(second=0, microsecond=0) + timedelta(minutes=1)


def slots(house: House) -> list[datetime]:
    """Return the slots of all fires."""
    found = house.connection.execute(
        "SELECT scheduled_for FROM wakeboard.job_runs WHERE scheduled_for IS NOT NULL"
    )
    return [at for (at,) in found.fetchall()]


def work_wrong(house: House, clock: WallClock, ahead: int) -> None:
    """Set the clock wrong, and wait until everything has been written by it."""
    slot = be(clock, house, ahead)
    is_there = "(SELECT min({}) > now() - interval '1 minute' FROM wakeboard.{} WHERE {})"
    if ahead > 0:
        is_settled = is_there.format("settled_at", "job_definitions", "schedule IS NOT NULL")
        wait_until(lambda: is_true(house, is_settled), 30, "the schedule is settled ahead")
    else:
        wait_until(lambda: slot in slots(house), 30, "the schedule fires behind")
    is_leased = is_there.format("locked_until", "job_runs", "status = 'running'")
    wait_until(lambda: is_true(house, is_leased), 30, "the lease is renewed")
    is_near = "(SELECT max(locked_until) < now() + interval '1 minute' FROM wakeboard.job_runs)"
    wait_until(lambda: is_true(house, is_near), 30, "the lease is renewed behind")


def has_fired(house: House, slot: datetime) -> bool:
    return slot in slots(house)


def seconds_until(condition: Callable[[], object], sentence: str) -> float:
    since = now()
    wait_until(condition, 60, sentence)
    return now() - since


@fault(
    "F73",
    injected="the database's clock is 6 h ahead from its start on, then right; at full scale also by -1 h, "
    "+1 h and -6 h; each time a worker is killed as it is set right",
    expected="its run is taken over within 30 s, the schedule fires at its next slot, each once; all is well",
)
def test_a_database_clock_that_was_wrong_stops_nothing(
    wrong_house: House, clock: WallClock, scale: Scale, chance: Random, measured: Measured
) -> None:
    house, told = wrong_house, []
    gate = house.folder / "gate"
    house.connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, overlap)"
        " VALUES ('minutely', 'note', '* * * * *', 'allow')"
    )
    operator = an_operator(house)
    dying = house.worker(CONCURRENCY="1")
    run_id = house.enqueue("gated", {"gate": str(gate)})
    house.wait_until_started([run_id])
    other = house.worker(CONCURRENCY="4")
    jumps = scale.times([6 * HOUR], chance.sample([6 * HOUR, -HOUR, HOUR, -6 * HOUR], 4))
    for number, ahead in enumerate(jumps, 1):
        work_wrong(house, clock, ahead)
        slot = be(clock, house, number * 120)
        dying.kill()
        fired = seconds_until(partial(has_fired, house, slot), "the schedule fires")
        taken = seconds_until(partial(is_held_by, house, run_id, other), "the run is taken over")
        dying, other = other, house.worker(CONCURRENCY="4")
        well = seconds_until(lambda: operator.get("/statusz").code == 200, "the status page is well")
        told.append(f"{ahead:+} s: fires {fired:.1f} s later, taken over {fired + taken:.1f} s later")
        assert max(fired, well) < RIGHT_WITHIN
        assert fired + taken < RIGHT_WITHIN
    gate.touch()
    house.wait_until_status([run_id], "succeeded")
    house.settle(30)
    measured("; ".join(told))
    found = slots(house)
    assert len(found) == len(set(found)), "each slot once"
    # A clock that jumps makes every lease look overdue for a moment, and tells attempts in another order.
    house.check(but_for=("I5", "I6"))


def is_held_by(house: House, run_id: int, worker: Wakeboard) -> bool:
    found = "SELECT locked_by FROM wakeboard.job_runs WHERE id = %s"
    return house.connection.execute(found, (run_id,)).fetchone() == (house.id_of(worker),)


def move(house: House, seconds: int) -> None:
    """Move what was written by so much, as a clock that is ahead writes it."""
    house.connection.execute(
        "UPDATE wakeboard.job_runs SET locked_until = locked_until + make_interval(secs => %s)"
        " WHERE status = 'running'",
        (seconds,),
    )
    for table, columns in TIMES.items():
        moved = ", ".join(f"{name} = {name} + make_interval(secs => %(by)s)" for name in columns)
        house.connection.execute(f"UPDATE wakeboard.{table} SET {moved}".encode(), {"by": seconds})


@fault(
    "F74",
    injected="all that was written lies 6 h ahead (1 h, 6 h and 400 days at full scale), and no worker lives",
    expected="/statusz 503, the overview and doctor tell it, Release works; the next worker puts all right",
)
def test_nobody_seems_to_live_because_a_clock_was_ahead(
    house: House, scale: Scale, measured: Measured
) -> None:
    house.connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule)"
        " VALUES ('hourly', 'note', '0 * * * *')"
    )
    operator = an_operator(house)
    gate = house.folder / "gate"
    told = []
    worker = house.worker()
    for ahead in scale.times([6 * HOUR], [HOUR, 6 * HOUR, 400 * 24 * HOUR]):
        ids = [house.enqueue("gated", {"gate": str(gate)}) for _ in range(2)]
        house.wait_until_started(ids)
        wait_until(lambda: is_true(house, f"(SELECT bool_and(next_fire_at > now()) {DEFINITIONS})"), 30)
        worker.kill()
        worker.wait(10)
        move(house, ahead)
        assert is_true(
            house, f"(SELECT bool_and(next_fire_at > now() + interval '55 minutes') {DEFINITIONS})"
        )
        status, overview = operator.get("/statusz"), operator.get("/")
        assert status.code == 503, status.text
        assert "clock was ahead" in overview.text and "All is well" not in overview.text
        doctor = house.start("doctor")
        assert doctor.wait(60) == 1
        assert "clock was ahead" in doctor.output, doctor.output
        released = operator.post(f"/leases/{ids[0]}/release", headers=JSON)
        assert released.code == 200, released.text
        gate.touch()
        worker = house.worker()
        taken = seconds_until(
            lambda ids=ids: house.counts(ids) == {"succeeded": 2}, "the runs are taken over and end"
        )
        is_back = f"(SELECT bool_and(next_fire_at <= now() + interval '1 hour') {DEFINITIONS})"
        wait_until(partial(is_true, house, is_back), 30, "the schedule is back at its rule")
        wait_until(lambda: operator.get("/statusz").code == 200, 30, "all is well again")
        # The dashboard's own alert about late loops may go on for a moment.
        assert "clock was ahead" not in operator.get("/").text
        gate.unlink()
        told.append(f"{ahead // HOUR:,} h: taken over {taken:.1f} s after the next worker")
    measured("; ".join(told))
    house.check(but_for=("I5", "I6"))
