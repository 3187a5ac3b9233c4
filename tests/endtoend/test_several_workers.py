"""Several workers on one database: a killed one costs nothing but time, two schedulers fire once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.factories import Row, rows
from tests.support.installation import APP, ENDED, QUICK
from tests.support.processes import Wakeboard, wait_until, wakeboard

RUNS = 50
LEASE_SECONDS = 2
EVERY_MINUTE = ("--cron", "* * * * *", "--misfire", "all", "--overlap", "allow")
FIVE_MINUTES_AGO = """
UPDATE wakeboard.job_definitions
SET next_fire_at = date_trunc('minute', now()) - interval '5 minutes' WHERE name = %s
"""
LETTERS = """
INSERT INTO wakeboard.job_runs (job_type, payload)
SELECT 'post_letter', jsonb_build_object('file', %s::text, 'seconds', 0.3) FROM generate_series(1, %s)
"""
HOLDS = """
SELECT locked_by FROM wakeboard.job_runs r JOIN wakeboard.workers w ON w.id = r.locked_by
WHERE r.status = 'running' AND w.pid = %s AND r.started_at < now() - interval '0.1 seconds'
"""


@pytest.fixture(scope="module")
def workers(shared_database: str, shared: Connection) -> Iterator[list[Wakeboard]]:
    """Three workers, each with two slots, with leases of two seconds."""
    environment = QUICK | {"WAKEBOARD_LEASE_SECONDS": str(LEASE_SECONDS), "WAKEBOARD_CONCURRENCY": "2"}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                wakeboard("worker", "--app", APP, database=shared_database, environment=environment)
            )
            for _ in range(3)
        ]
        alive = "SELECT count(*) FROM wakeboard.workers WHERE stopped_at IS NULL"
        wait_until(lambda: shared.execute(alive).fetchone() == (3,), 60, "three workers are alive")
        yield started


def test_two_schedulers_fire_every_minute_once(
    workers: list[Wakeboard], shared: Connection, command: Callable[..., Any]
) -> None:
    """Five missed minutes stand for five minutes of waiting; three workers race for every fire."""
    command("schedule", "add", "race", "--type", "tidy", *EVERY_MINUTE)
    shared.execute(FIVE_MINUTES_AGO, ("race",))
    assert_fires_and_runs_agree(shared, "race", at_least=5, seconds=30)


@pytest.mark.slow
def test_two_schedulers_fire_every_minute_once_in_real_time(
    workers: list[Wakeboard],
    shared: Connection,
    command: Callable[..., Any],
    request: pytest.FixtureRequest,
) -> None:
    if "slow" not in str(request.config.option.markexpr):
        pytest.skip("it takes five minutes; ask for it with -m slow")
    command("schedule", "add", "patient", "--type", "tidy", *EVERY_MINUTE)
    assert_fires_and_runs_agree(shared, "patient", at_least=5, seconds=400)


def assert_fires_and_runs_agree(connection: Connection, name: str, at_least: int, seconds: float) -> None:
    """Assert that each minute between the first fire and the next one has one run with one attempt."""
    of_it = "definition_id = (SELECT id FROM wakeboard.job_definitions WHERE name = %s)"

    def fired() -> list[Row]:
        found = rows(connection, "job_runs", of_it, name, order="scheduled_for")
        return found if len(found) >= at_least and all(run["status"] == "succeeded" for run in found) else []

    runs = wait_until(fired, seconds, f"{at_least} fires of {name} have succeeded")
    times = [run["scheduled_for"] for run in runs]
    assert times == [times[0] + timedelta(minutes=number) for number in range(len(times))]
    assert {run["attempts"] for run in runs} == {1}
    (definition,) = rows(connection, "job_definitions", "name = %s", name)
    assert definition["next_fire_at"] - times[-1] in (timedelta(minutes=1), timedelta(minutes=2))


def test_a_killed_worker_loses_no_run_and_repeats_no_effect(
    workers: list[Wakeboard], shared: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "letters"
    shared.execute(LETTERS, (str(file), RUNS))
    victim = workers[0]
    wait_until(
        lambda: posted(file) > RUNS // 4 and shared.execute(HOLDS, (victim.pid,)).fetchone(),
        30,
        "the work is half done and the victim holds some of it",
    )
    victim.kill()
    ends = Counter(run["status"] for run in wait_until(lambda: all_ended(shared), 60, "all runs ended"))
    assert ends == {"succeeded": RUNS}
    letters = Counter(file.read_text().split())
    assert set(letters.values()) == {1}
    lost = rows(shared, "job_attempts", "outcome = 'lost' AND job_type = 'post_letter'")
    assert lost
    assert {each["worker_id"] for each in lost} == {worker_id(shared, victim.pid)}
    # A letter whose worker died while it was posted is listed for a person instead of posted twice.
    doubtful = {str(each["run_id"]) for each in rows(shared, "effects", "status = 'started'")}
    every = {str(run["id"]) for run in rows(shared, "job_runs", "job_type = 'post_letter'")}
    assert every - set(letters) <= doubtful


def posted(file: Path) -> int:
    return len(file.read_text().split()) if file.exists() else 0


def all_ended(connection: Connection) -> list[Row]:
    found = rows(connection, "job_runs", "job_type = 'post_letter'")
    return found if all(run["status"] in ENDED for run in found) else []


def worker_id(connection: Connection, pid: int) -> str:
    (found,) = rows(connection, "workers", "pid = %s", pid)
    return str(found["id"])
