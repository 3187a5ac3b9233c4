"""The house in which a fault row happens: a database, processes with short leases, a truth file.

It keeps what was acknowledged and what was started, so that ``check`` can ask the invariants of all of it.
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support import factories
from tests.support.faults import invariants
from tests.support.faults.run_sampler import Sampler
from tests.support.faults.truth_file import PLACE, Line, hash_of, now, read
from tests.support.processes import Wakeboard, free_port, wait_until, wakeboard
from wakeboard.database import db

Connection = psycopg.Connection[Any]
APP = "tests.support.faults.apps.handlers"
LEASE_SECONDS = 2.0
KILL_SECONDS = 1.0
SHUTDOWN_SECONDS = 5.0
# A reaper looks every second, and waits a heartbeat and five seconds when it has just come.
PATIENCE_SECONDS = 6.0
RECLAIM_SECONDS = 10.0
SETTINGS = {
    "APP": APP,
    "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "CONCURRENCY": "4",
    "POLL_SECONDS": "0.2",
    "KILL_SECONDS": f"{KILL_SECONDS:g}",
    "SHUTDOWN_SECONDS": f"{SHUTDOWN_SECONDS:g}",
}
OPEN = "SELECT status, count(*)::int FROM wakeboard.job_runs WHERE status NOT IN {} GROUP BY 1"


class House:
    """One row's world. Processes end with the house, whatever happens."""

    def __init__(self, database: str, connection: Connection, folder: Path, stack: ExitStack) -> None:
        self.database = database
        self.connection = connection
        self.folder = folder
        self.truth_file = folder / "truth"
        self.acknowledged: dict[int, str] = {}
        self.processes: list[Wakeboard] = []
        self._workers: dict[int, float] = {}
        self._frozen: frozenset[int] = frozenset()
        self.was_checked = False
        self.reclaim_seconds = RECLAIM_SECONDS
        self._mark = secrets.token_hex(16)
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self._stack = stack
        self.sampler = Sampler(database, reclaim_seconds=self.reclaim_seconds, is_attended=self.is_attended)

    def reconnect(self) -> None:
        """Open the house's own connection anew: its database was away."""
        self.connection.close()
        self.connection = self._stack.enter_context(db.connect(self.database, name="wakeboard test"))

    def start(
        self, *words: str, database: str | None = None, printed: int | None = None, **settings: object
    ) -> Wakeboard:
        """Start ``wakeboard <words>``; it ends with the house.

        ``settings`` are WAKEBOARD_… without the prefix; ``database`` is another way to the same database;
        ``printed`` is a descriptor that gets its output.
        """
        return self._start(words, settings, database, printed=printed)

    def _start(
        self,
        words: Sequence[str],
        settings: Mapping[str, object],
        database: str | None = None,
        environment: Mapping[str, str] | None = None,
        program: Path | None = None,
        folder: Path | None = None,
        printed: int | None = None,
    ) -> Wakeboard:
        given = {f"WAKEBOARD_{name}": str(value) for name, value in (SETTINGS | dict(settings)).items()}
        world = {PLACE: str(self.truth_file), "HOUSE": self._mark, "TMPDIR": str(self._temporary)}
        started = self._stack.enter_context(
            wakeboard(
                *words,
                database=database or self.database,
                environment=given | world | dict(environment or {}),
                program=program,
                folder=folder,
                printed=printed,
            )
        )
        self.processes.append(started)
        if words[0] == "worker":
            self._workers[started.pid] = now()
        return started

    def worker(
        self,
        *words: str,
        database: str | None = None,
        environment: Mapping[str, str] | None = None,
        program: Path | None = None,
        folder: Path | None = None,
        wait: bool = True,
        **settings: object,
    ) -> Wakeboard:
        """Start a worker with short leases and ``wait`` until it is registered; ``environment`` is added.

        ``program`` is another ``wakeboard``; it works in ``folder``.
        """
        started = self._start(("worker", *words), settings, database, environment, program, folder)
        if wait:
            self.wait_until_registered(started)
        return started

    def workers(self, count: int, *words: str, **settings: object) -> list[Wakeboard]:
        """Start several workers at once and wait until all are registered."""
        started = [self._start(("worker", *words), settings) for _ in range(count)]
        for each in started:
            self.wait_until_registered(each)
        return started

    def web(self) -> str:
        """Start the dashboard; return its address."""
        return self.web_process()[1]

    def web_process(self, environment: Mapping[str, str] | None = None) -> tuple[Wakeboard, str]:
        """Start the dashboard; return its first process, and its address."""
        address = f"127.0.0.1:{free_port()}"
        started = self._start(("web", "--bind", address), {}, None, environment)
        started.wait_for(f"dashboard listens on {address}", 30)
        return started, f"http://{address}"

    def tick(self) -> None:
        """Run a tick to its end: it takes back ended leases at once and runs what is due."""
        started = self.start("tick")
        assert started.wait(120) == 0, started.output

    def up(self, *words: str, **settings: Any) -> Wakeboard:
        """Start ``wakeboard up`` and wait until it says where it is; from then on its worker is there."""
        started = self.start("up", "--port", "0", *words, **settings)
        started.wait_for("Wakeboard is at", 90)
        self._workers[started.pid] = now()
        return started

    def wait_until_registered(self, worker: Wakeboard, seconds: float = 30) -> str:
        """Wait until the worker's row stands; return its id."""
        said = f"the worker registers:\n{worker.output}"
        return str(wait_until(lambda: self.id_of(worker), seconds, said))

    def id_of(self, worker: Wakeboard) -> str | None:
        """Return the id under which the worker is registered, None when it is not."""
        found = self.connection.execute(
            "SELECT id FROM wakeboard.workers WHERE pid = %s AND stopped_at IS NULL ORDER BY started_at DESC",
            (worker.pid,),
        ).fetchone()
        return found[0] if found else None

    def is_attended(self) -> bool:
        """Whether a worker is awake and has been started long enough ago to take back ended leases."""
        living = {each.pid for each in self.processes if each.process.poll() is None}
        able = living & self._workers.copy().keys() - self._frozen
        return any(now() - self._workers[pid] > PATIENCE_SECONDS for pid in able)

    def enqueue(self, job_type: str, payload: object = None, **columns: Any) -> int:
        """Enqueue a run as any program would, by INSERT; return its id."""
        values = {"job_type": job_type, "payload": json.dumps(payload or {})} | columns
        run_id = int(factories.insert(self.connection, "job_runs", values))
        self.acknowledge(run_id, payload or {})
        return run_id

    def enqueue_many(self, job_type: str, count: int, payload: object = None) -> list[int]:
        """Enqueue ``count`` runs in one statement, each with its number in the payload; return their ids."""
        payloads = [{**(payload if isinstance(payload, dict) else {}), "n": n} for n in range(count)]
        with self.connection.cursor() as cursor:
            found = cursor.execute(
                "INSERT INTO wakeboard.job_runs (job_type, payload) SELECT %s, p FROM"
                " unnest(%s::jsonb[]) WITH ORDINALITY AS given (p, n) ORDER BY n RETURNING id,"
                " (payload->>'n')::int",
                (job_type, [json.dumps(each) for each in payloads]),
            ).fetchall()
        for run_id, n in found:
            self.acknowledge(run_id, payloads[n])
        return [run_id for run_id, _ in found]

    def acknowledge(self, run_id: int, payload: object) -> None:
        """Remember a run enqueued elsewhere: it has to end, and its handler has to get ``payload``."""
        self.acknowledged[run_id] = hash_of(payload)

    def truth(self, word: str | None = None) -> list[Line]:
        """Return what really happened, or only the lines of one word."""
        return [line for line in read(self.truth_file) if word in (None, line.word)]

    def wait_until_started(self, ids: Sequence[int], seconds: float = 30) -> list[Line]:
        """Wait until the handlers of all these runs have begun; return their first start lines by run."""

        def firsts() -> dict[int, Line]:
            wanted = set(ids)
            found: dict[int, Line] = {}
            for line in self.truth("start"):
                if line.run_id in wanted:
                    found.setdefault(line.run_id, line)
            return found

        wait_until(lambda: len(firsts()) == len(set(ids)), seconds, f"{len(ids)} handlers begin")
        return list(firsts().values())

    def wait_until_status(self, ids: Sequence[int], status: str, seconds: float = 30) -> None:
        """Wait until each of the runs has ``status``."""
        wait_until(lambda: self.counts(ids) == {status: len(ids)}, seconds, f"{len(ids)} runs are {status}")

    def counts(self, ids: Sequence[int] | None = None) -> dict[str, int]:
        """Return how many runs have each status, of all or of some."""
        return dict(
            self.connection.execute(
                "SELECT status, count(*)::int FROM wakeboard.job_runs WHERE %(ids)s::bigint[] IS NULL"
                " OR id = ANY(%(ids)s) GROUP BY 1",
                {"ids": None if ids is None else list(ids)},
            ).fetchall()
        )

    def outcomes(self) -> dict[str, int]:
        """Return how many attempts ended in each way."""
        return dict(
            self.connection.execute(
                "SELECT outcome, count(*)::int FROM wakeboard.job_attempts GROUP BY 1"
            ).fetchall()
        )

    def settle(self, seconds: float = 60) -> None:
        """Wait until every run has ended."""
        try:
            wait_until(lambda: not self._open(), seconds)
        except AssertionError:
            raise AssertionError(f"After {seconds:g} s runs have not ended: {self._open()}") from None

    def _open(self) -> dict[str, int]:
        return dict(self.connection.execute(OPEN.format(invariants.ENDED).encode()).fetchall())

    def freeze(self, process: Wakeboard, *, children: bool = True) -> list[psutil.Process]:
        """Stop the clock of a worker and, unless said otherwise, of everything below it."""
        self._frozen |= {process.pid}
        family = [psutil.Process(process.pid), *(process.family() if children else [])]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.suspend()
        return family

    def thaw(self, family: Sequence[psutil.Process]) -> None:
        """Let them go on, children first, so that nothing is told before it can happen."""
        for member in reversed(family):
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGCONT)
        self._frozen -= {member.pid for member in family}

    def close_down(self, seconds: float = 35) -> None:
        """Ask every living process to stop, as a deploy would, and wait; each must end with exit code 0."""
        living = [each for each in self.processes if each.process.poll() is None]
        for each in living:
            each.process.send_signal(signal.SIGTERM)
        for each in living:
            code = each.wait(seconds)
            assert code == 0, f"A process ended with {code}:\n{each.output[-3000:]}"

    def check(
        self,
        *,
        limits: Mapping[str, int] | None = None,
        fires: Mapping[int, Sequence[datetime]] | None = None,
        but_for: Sequence[str] = (),
    ) -> None:
        """Stop everything and assert every invariant; ``but_for`` names those that a row suspends ('I4')."""
        self.was_checked = True
        self.close_down()
        found = self.sampler.stop() + invariants.i6_epochs_grow(self.connection)
        found += invariants.check_invariants(
            self.connection, self.truth(), self.acknowledged, limits=limits, fires=fires
        )
        found += self._left()
        found = [each for each in found if each.partition(":")[0] not in but_for]
        shown = "\n".join(found[:20])
        assert not found, f"{len(found)} violations:\n{shown}"

    def _left(self) -> list[str]:
        def left() -> list[str]:
            return invariants.i11_nothing_is_left(self.connection, self._mark, self._temporary)

        with suppress(AssertionError):
            wait_until(lambda: not left(), 5)
        return left()

    def end_leftovers(self) -> None:
        """Kill what a broken row left behind."""
        for process in invariants.marked(self._mark):
            with suppress(psutil.Error):
                process.kill()


@contextmanager
def a_house(database: str, folder: Path) -> Iterator[House]:
    """Give a house on ``database``; afterwards nothing of it runs."""
    with db.connect(database, name="wakeboard test") as connection, ExitStack() as stack:
        house = House(database, connection, folder, stack)
        house.sampler.start()
        try:
            yield house
        finally:
            house.sampler.stop()
            stack.close()
            house.end_leftovers()
