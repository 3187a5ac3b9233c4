"""Real workers for the tests of motion, and what those tests ask of the tables and the truth file."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support import factories
from tests.support.factories import Connection, attempts, row
from tests.support.processes import Wakeboard, wait_until, wakeboard
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

APP = "tests.support.workers.apps.motion"
LEASE = 2.0
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
# A lease ends after LEASE; a new worker's reaper waits a heartbeat and 5 s before its first look.
REAPED_WITHIN = LEASE + 5 + 10
# A type whose runs were slow to begin is not claimed ahead for a minute.
CLAIMED_AHEAD_WITHIN = 150
SHORT = {
    "WAKEBOARD_APP": APP,
    "WAKEBOARD_LEASE_SECONDS": f"{LEASE:g}",
    "WAKEBOARD_CONCURRENCY": "2",
    "WAKEBOARD_POLL_SECONDS": "0.2",
    "WAKEBOARD_KILL_SECONDS": "1",
    "WAKEBOARD_SHUTDOWN_SECONDS": "5",
}


@contextmanager
def a_worker(
    database: str, *words: str, ready: Connection | None = None, **settings: object
) -> Iterator[Wakeboard]:
    """Run a worker with short leases; ``settings`` are WAKEBOARD_… without the prefix, or plain variables.

    ``ready``: a connection on which to wait until the worker has published itself.
    """
    given = {
        (name if name == "TRUTH" else f"WAKEBOARD_{name}"): str(value) for name, value in settings.items()
    }
    with wakeboard("worker", *words, database=database, environment=SHORT | given) as started:
        if ready is not None:
            wait_until_registered(ready, started)
        yield started


def wait_until_registered(connection: Connection, worker: Wakeboard) -> str:
    """Wait until the worker's row stands; return its id."""
    return str(wait_until(lambda: _id_of(connection, worker), 30, f"the worker registers:\n{worker.output}"))


def _id_of(connection: Connection, worker: Wakeboard) -> str | None:
    found = connection.execute(
        "SELECT id FROM wakeboard.workers WHERE pid = %s AND stopped_at IS NULL", (worker.pid,)
    ).fetchone()
    return found[0] if found else None


def wait_until_idle(connection: Connection, worker: Wakeboard) -> None:
    """Wait until the worker has published that it waits for work."""
    wait_until(
        lambda: connection.execute(
            "SELECT 1 FROM wakeboard.workers WHERE pid = %s AND idle_since IS NOT NULL", (worker.pid,)
        ).fetchone(),
        30,
        f"the worker publishes itself idle:\n{worker.output}",
    )


def insert(connection: Connection, job_type: str, payload: object = None, **columns: Any) -> int:
    """Enqueue as any program would, by INSERT; return the id."""
    text = json.dumps(payload or {})
    return int(factories.insert(connection, "job_runs", {"job_type": job_type, "payload": text} | columns))


def insert_many(connection: Connection, job_type: str, count: int, payload: object = None) -> list[int]:
    """Enqueue ``count`` equal runs in one statement; return their ids."""
    found = connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload) SELECT %s, %s::jsonb FROM generate_series(1, %s)"
        " RETURNING id",
        (job_type, json.dumps(payload or {}), count),
    ).fetchall()
    return [one[0] for one in found]


def wait_until_status(
    connection: Connection, run_id: int, *wanted: str, seconds: float = 15
) -> factories.Row:
    """Wait until the run has one of the statuses; return its row."""

    def has_it() -> factories.Row:
        found = row(connection, run_id)
        return found if found["status"] in wanted else {}

    try:
        return wait_until(has_it, seconds)
    except AssertionError:
        raise AssertionError(
            f"Run {run_id} was not {' or '.join(wanted)} within {seconds:g} s: {row(connection, run_id)}, "
            f"attempts {attempts(connection, run_id)}"
        ) from None


def wait_until_all(connection: Connection, ids: Sequence[int], status: str, seconds: float = 30) -> None:
    """Wait until every one of the runs has ``status``."""
    wait_until(
        lambda: counts(connection, ids) == {status: len(ids)},
        seconds,
        f"all {len(ids)} runs are {status}; they are {counts(connection, ids)}",
    )


def counts(connection: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Return how many of the runs have each status."""
    return dict(
        connection.execute(
            "SELECT status, count(*)::int FROM wakeboard.job_runs WHERE id = ANY(%s) GROUP BY 1", (list(ids),)
        ).fetchall()
    )


def outcomes(connection: Connection, run_id: int) -> list[str]:
    """Return the outcomes of a run's attempts, oldest first."""
    return [one["outcome"] for one in attempts(connection, run_id)]


def claim_ahead(connection: Connection, gate: Path, job_type: str = "swift") -> list[int]:
    """Let the worker learn that ``job_type`` is quick, then enqueue 60 that stand before ``gate``.

    Returns their ids when more are claimed than four slots could have begun. On a busy machine the type may
    count as slow, for a minute when its runs have a single try: then these pass, and 60 others are tried.
    """
    end = time.monotonic() + CLAIMED_AHEAD_WITHIN
    while True:
        learn = insert_many(connection, job_type, 600)
        wait_until_all(connection, learn, "succeeded", 60)
        ids = insert_many(connection, job_type, 60, {"gate": str(gate)})
        until = time.monotonic() + 3
        while time.monotonic() < until:
            if counts(connection, ids).get("running", 0) > 4:
                return ids
            time.sleep(0.01)
        assert time.monotonic() < end, "runs are claimed ahead of need"
        gate.touch()
        wait_until_all(connection, ids, "succeeded", 60)
        gate.unlink()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the truth file; ``at`` is in seconds since boot."""

    word: str
    run_id: int
    attempt: int
    pid: int
    at: float


def truth(path: Path) -> list[Line]:
    """Return what really happened, in the order of the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Line(word, int(run), int(attempt), int(pid), float(at))
        for word, run, attempt, pid, at in (line.split() for line in lines)
    ]


def wait_until_started(path: Path, *ids: int, seconds: float = 15) -> None:
    """Wait until the handlers of the runs have begun: a claimed run may not have reached its child yet."""
    wait_until(
        lambda: set(ids) <= {line.run_id for line in truth(path) if line.word == "start"},
        seconds,
        f"the handlers of runs {ids} begin",
    )


def most_at_once(lines: Sequence[Line]) -> int:
    """Return how many stretches from start to end overlapped at most."""
    running = most = 0
    for line in sorted(lines, key=lambda line: (line.at, line.word == "start")):
        running += {"start": 1, "end": -1}.get(line.word, 0)
        most = max(most, running)
    return most


def now() -> float:
    """Return seconds since boot, as the truth file has them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be reaped does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def freeze(worker: Wakeboard) -> list[psutil.Process]:
    """Stop the clock of a worker and of everything below it, as a paused machine would."""
    family = [psutil.Process(worker.pid), *worker.family()]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.suspend()
    return family


def thaw(family: Sequence[psutil.Process]) -> None:
    """Let them go on, children first."""
    for member in reversed(family):
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGCONT)
