"""Faults of clocks: workers whose wall clock is wrong, and one whose wall clock jumps. Group C of the table.

The database's clock decides when something is due; a worker's only measures how long something took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.support.factories import rows
from tests.support.faults.deployment import KILL_SECONDS, PATIENCE_SECONDS, House
from tests.support.faults.fake_clock import TIMEOUT_SECONDS, WallClock, build, compiler
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.invariants import LATE
from tests.support.faults.timed_steps import Clockwork, every
from tests.support.faults.truth_file import Line, now

Measured = Callable[[str], None]
APP = "tests.support.faults.apps.clocks"
HOUR, DAY = 3_600, 86_400
# How exactly a deadline is kept.
EXACT_SECONDS = 1
# How much later than due a run may start on a busy machine.
LATE_SECONDS = 5
# A handler cannot tell its start sooner than this after the database's clock has reached the due time.
READING_SECONDS = 0.005
DELAYED = """
INSERT INTO wakeboard.job_runs (job_type, payload, run_at)
SELECT 'note', '{}', now() + make_interval(secs => given) FROM unnest(%s::float8[]) AS given
RETURNING id, extract(epoch FROM run_at)::float8
"""
EARLY_RETRIES = """
SELECT count(*)::int FROM (
    SELECT started_at, lag(next_run_at) OVER (PARTITION BY run_id ORDER BY attempt) AS due_at
    FROM wakeboard.job_attempts
) AS attempts WHERE started_at < due_at
"""
DELAYS = """
SELECT extract(epoch FROM child.run_at - child.created_at)::float8 FROM wakeboard.job_attempts AS parent
JOIN wakeboard.job_runs AS child ON child.id = parent.result::text::bigint
WHERE parent.job_type = 'postpone' AND parent.outcome = 'succeeded'
"""
BELIEFS = """
SELECT worker_id, result::text::float8 - extract(epoch FROM finished_at)::float8
FROM wakeboard.job_attempts WHERE job_type = 'asked' AND outcome = 'succeeded'
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lies about the time."""
    if compiler() is None:
        pytest.skip("There is no C compiler here to build the clock that lies (apt-get install gcc).")
    return build(tmp_path_factory.mktemp("clock"))


def enqueue_delayed(house: House, seconds: Sequence[float]) -> dict[int, float]:
    """Enqueue a run due in each of ``seconds``; return when each is due, on the clock of the truth file."""
    now_there = "SELECT extract(epoch FROM clock_timestamp())::float8"
    offset = now() - float(house.connection.execute(now_there).fetchall()[0][0])
    found = house.connection.execute(DELAYED, (list(seconds),)).fetchall()
    for run_id, _ in found:
        house.acknowledge(run_id, {})
    return {run_id: due + offset for run_id, due in found}


def deviations(house: House, due: dict[int, float]) -> list[float]:
    """Return how many seconds after its time each run started."""
    return [line.at - due[line.run_id] for line in house.wait_until_started(list(due), 60)]


@fault(
    "F43",
    injected="of 3 workers (5 at full scale), all but one have a wall clock wrong by an hour or a day",
    expected="nothing starts early, late or twice; no living run is taken back",
)
def test_wrong_wall_clocks_change_nothing(
    house: House, scale: Scale, chance: Random, library: Path, measured: Measured
) -> None:
    lies = scale.times([chance.choice((HOUR, -HOUR)), chance.choice((DAY, -DAY))], [HOUR, -HOUR, DAY, -DAY])
    clocks = [WallClock(library, house.folder / f"clock{lie}", lie) for lie in lies]
    count = 1 + len(lies)
    slots = count + 1
    house.worker(APP=APP, CONCURRENCY=slots)
    for clock in clocks:
        house.worker(APP=APP, CONCURRENCY=slots, environment=clock.environment)
    clockwork = Clockwork(house)
    due: dict[int, float] = {}

    def step() -> None:
        house.enqueue_many("asked", count * slots)  # more than all workers but one have slots
        house.enqueue_many("unsteady", 3, {"failures": 2})
        house.enqueue_many("postpone", 2)
        clockwork.add(1, chance.randrange(1, 4))
        due.update(enqueue_delayed(house, [chance.uniform(0.1, 3) for _ in range(10)]))

    # So long that every worker begins to look for ended leases while others' are renewed.
    long = house.enqueue_many("slow", count, {"seconds": PATIENCE_SECONDS + 2})
    every(0.5, now() + scale.times(3, 7), step)
    fires = clockwork.stop()
    started = deviations(house, due)
    house.settle(60)
    beliefs = believed(house)
    (early_retries,) = house.connection.execute(EARLY_RETRIES).fetchone() or (None,)
    delays = [seconds for (seconds,) in house.connection.execute(DELAYS).fetchall()]
    measured(
        f"clocks wrong by {', '.join(f'{lie:+} s' for lie in sorted(lies))}; {len(due)} delayed runs started "
        f"{min(started) * 1000:+.0f} ms to {max(started):+.2f} s from due; {early_retries} retries early; "
        f"{sum(map(len, fires.values()))} fires, each once; {len(long)} runs over several leases; attempts "
        f"{house.outcomes()}"
    )
    assert beliefs == sorted([0, *lies]), "every worker has run something, by its own wrong clock"
    assert min(started) > -READING_SECONDS
    assert max(started) < LATE_SECONDS
    assert early_retries == 0
    assert set(delays) == {1.0}
    assert "lost" not in house.outcomes()
    house.check(fires=fires)


def believed(house: House) -> list[int]:
    """Return by how many seconds, to the nearest minute, each worker's clock was wrong."""
    found = dict(house.connection.execute(BELIEFS).fetchall())
    return sorted(round(wrong / 60) * 60 for wrong in found.values())


def seconds_between(house: House, word: str, ids: Sequence[int]) -> list[float]:
    """Return how many seconds after their start the handlers told ``word``."""
    begun = {line.run_id: line for line in house.truth("start")}
    told: list[Line] = [line for line in house.truth(word) if line.run_id in ids]
    return [line.at - begun[line.run_id].at for line in told]


@fault(
    "F44",
    injected="a worker's wall clock jumps by up to a day, back and forth, five times a second",
    expected="timeouts within 1 s of their time, nothing late, no lease lost, every duty on time",
)
def test_a_jumping_wall_clock_moves_no_deadline(
    house: House, scale: Scale, chance: Random, library: Path, measured: Measured
) -> None:
    clock = WallClock(library, house.folder / "clock")
    house.worker(APP=APP, CONCURRENCY=8, environment=clock.environment)
    rounds = scale.times(1, 2)
    patient: list[int] = []
    endless: list[int] = []
    due: dict[int, float] = {}
    jumps = 0

    def jump() -> None:
        nonlocal jumps
        clock.jump(chance.choice((0, HOUR, -HOUR, DAY, -DAY, chance.randrange(-DAY, DAY))))
        jumps += 1
        due.update(enqueue_delayed(house, [0.0, chance.uniform(0, 1)]))

    slow = house.enqueue_many("slow", 2, {"seconds": 3.5})
    for _ in range(rounds):
        patient += house.enqueue_many("patient", 2)
        endless += house.enqueue_many("hang", 1, {"way": "loop"})
        every(0.2, now() + 4, jump)
    started = deviations(house, due)
    late = house.connection.execute(LATE).fetchall()
    house.settle(30)
    timeouts = seconds_between(house, "deadline", patient)
    killed = [
        (one["finished_at"] - one["started_at"]).total_seconds()
        for one in rows(house.connection, "job_attempts", "run_id = ANY(%s)", endless)
    ]
    measured(
        f"{jumps} jumps; timeouts of {TIMEOUT_SECONDS} s after {min(timeouts):.2f} to {max(timeouts):.2f} s, "
        f"deaf handlers killed after {min(killed):.2f} to {max(killed):.2f} s; {len(due)} runs started "
        f"{max(started):.2f} s after due at most; attempts {house.outcomes()}; {len(late)} duties late"
    )
    assert len(timeouts) == len(patient)
    assert all(abs(seconds - TIMEOUT_SECONDS) <= EXACT_SECONDS for seconds in timeouts)
    assert all(abs(seconds - TIMEOUT_SECONDS - KILL_SECONDS) <= EXACT_SECONDS for seconds in killed)
    assert min(started) > -READING_SECONDS
    assert max(started) < LATE_SECONDS
    assert house.outcomes() == {"timed_out": 3 * rounds, "succeeded": len(due) + len(slow)}
    assert not late
    house.check()
