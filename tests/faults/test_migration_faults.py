"""Faults of migrations: several at once, under workers of the version before, behind somebody's lock."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory

from tests.support.faults.deployment import SETTINGS, House, a_house
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.truth_file import PLACE, now
from tests.support.postgres.servers import Server
from tests.support.processes import ROOT, Wakeboard, surroundings, wait_until, wakeboard
from wakeboard.database import db, migrations
from wakeboard.database.migrations.locks import PATIENCE_SECONDS, TRY_SECONDS

Measured = Callable[[str], None]
STARTERS = 5
WAIT_SECONDS = 60
# What a migration waits for its tables, what others wait behind one of its tries; and a busy machine.
GIVES_UP_WITHIN = PATIENCE_SECONDS + 10
WAITS_AT_MOST = TRY_SECONDS + 3
HEAD = migrations.head_revision()
HISTORY = """
INSERT INTO wakeboard.job_runs (job_type, payload, status, finished_at)
SELECT 'mail', jsonb_build_object('n', n), 'cancelled', now() FROM generate_series(1, %s) AS n
"""


def version_before() -> str:
    """Return the revision before this version's."""
    script = ScriptDirectory.from_config(migrations.alembic_config()).get_revision(HEAD)
    assert script is not None
    return str(script.down_revision)


@pytest.fixture
def old_database(server: Server) -> Iterator[str]:
    """The URL of a database with the schema of the version before."""
    name = server.create(empty=True)
    config = migrations.alembic_config()
    config.attributes["url"] = server.url(name)
    command.upgrade(config, version_before())
    yield server.url(name)
    server.drop(name)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, what it said, and after how many seconds."""

    code: int
    said: str
    complained: str
    seconds: float


def upgrade(url: str) -> Ended:
    """Run ``wakeboard db upgrade`` to its end."""
    began = now()
    done = subprocess.run(
        [sys.executable, "-m", "wakeboard", "db", "upgrade"],
        cwd=ROOT,
        env=surroundings(url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,
    )
    return Ended(done.returncode, done.stdout.strip(), done.stderr.strip(), now() - began)


def upgrade_at_once(url: str, count: int = STARTERS) -> list[Ended]:
    """Run several of them at the same time."""
    ended: list[Ended] = []
    threads = [threading.Thread(target=lambda: ended.append(upgrade(url))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def assert_migrated_once(ended: list[Ended], before: str) -> None:
    """Check that one brought the schema from ``before``, that the others waited, and none complained."""
    brought, current = f"The schema was brought from {before} to {HEAD}.", f"The schema is current: {HEAD}."
    assert sorted(each.said for each in ended) == sorted([brought, *[current] * (len(ended) - 1)]), ended
    assert {(each.code, each.complained) for each in ended} == {(0, "")}, ended
    assert max(each.seconds for each in ended) <= WAIT_SECONDS


def source_before(folder: Path) -> Path | None:
    """Put the program that knew only the revision before into ``folder``; None where no history is at hand.

    It is the last commit before this version's migration came.
    """
    (newest,) = (ROOT / "worker/wakeboard/database/migrations/versions").glob(f"{HEAD}_*.py")
    words = ["log", "--diff-filter=A", "--format=%H", "-1", "--", str(newest.relative_to(ROOT))]
    commit = _git(*words).decode().strip() if shutil.which("git") else ""
    archive = _git("archive", "--format=tar", f"{commit}~1", "worker") if commit else b""
    if not archive:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder)  # Our own; and filters came with Python 3.11.4.
    # Today's handlers run on yesterday's worker.
    parts = ("__init__.py", "faults/__init__.py", "faults/truth_file.py", "faults/apps/__init__.py")
    for name in ("__init__.py", *(f"support/{part}" for part in (*parts, "faults/apps/handlers.py"))):
        place = folder / "tests" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "tests" / name, place)
    return folder


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    return done.stdout if done.returncode == 0 else b""


@contextmanager
def worker_before(house: House, source: Path) -> Iterator[Wakeboard]:
    """Run a worker of the version before."""
    given = {f"WAKEBOARD_{name}": value for name, value in SETTINGS.items()}
    roots = os.pathsep.join([str(source / "worker"), str(source)])
    world = given | {PLACE: str(house.truth_file), "PYTHONPATH": roots}
    with wakeboard("worker", database=house.database, environment=world, folder=source) as started:
        house.processes.append(started)
        house.wait_until_registered(started)
        yield started


def print_of_history(connection: psycopg.Connection[Any], columns: str) -> object:
    """Return a number that changes when any of these columns of an old run does."""
    statement = f"""
    SELECT count(*), md5(string_agg(r::text, ',' ORDER BY id))
    FROM (SELECT {columns} FROM wakeboard.job_runs WHERE job_type = 'mail') AS r
    """
    return connection.execute(statement.encode()).fetchone()


def columns_of_runs(connection: psycopg.Connection[Any]) -> str:
    """Return the names of a run's columns as a list for SELECT."""
    found = connection.execute(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'wakeboard.job_runs'::regclass AND attnum > 0 AND NOT attisdropped"
    ).fetchone()
    return str((found or ("",))[0])


@fault(
    "F72",
    injected="5 processes migrate an empty database at once",
    expected="one migrates, the others wait; errors 0",
)
def test_an_empty_database_is_migrated_once(empty_database: str, measured: Measured) -> None:
    ended = upgrade_at_once(empty_database)
    measured(f"{STARTERS} processes, 0 errors, the last done after {max(e.seconds for e in ended):.1f} s")
    assert_migrated_once(ended, "nothing")


@fault(
    "F72",
    injected="5 processes migrate the schema of the version before, while workers of that version work",
    expected="one migrates, the others wait; errors 0; no row changed; the old workers go on finishing",
)
def test_workers_of_the_version_before_go_on_through_a_migration(
    old_database: str, tmp_path: Path, scale: Scale, measured: Measured
) -> None:
    source = source_before(tmp_path / "before")
    if source is None:
        pytest.skip("the version before is not at hand: no git history here")
    history = scale.times(2_000, 100_000)
    with a_house(old_database, tmp_path) as house:
        house.connection.execute(HISTORY.encode(), (history,))
        columns = columns_of_runs(house.connection)
        before = print_of_history(house.connection, columns)
        with worker_before(house, source) as old, worker_before(house, source) as other:
            through = house.enqueue_many("effect", 120, {"seconds": 0.1})
            house.wait_until_started(through[:4])
            ended = upgrade_at_once(old_database)
            after = house.enqueue_many("effect", 40, {"seconds": 0.05})
            wait_until(lambda: house.counts(after) == {"succeeded": 40}, 60, "old workers do new runs")
            new = house.worker()
            mixed = house.enqueue_many("effect", 80, {"seconds": 0.05})
            house.settle(60)
            codes = [old.terminate(), other.terminate()]
            house.settle(60)
            told = old.output + other.output
            shared = {line.pid for line in house.truth("start") if line.run_id in mixed}
            measured(
                f"{history} old runs unchanged; {STARTERS} processes, 0 errors, the last done after "
                f"{max(each.seconds for each in ended):.1f} s; {len(through)} runs through the migration, "
                f"{len(after)} by old workers on the new schema, {len(mixed)} by old and new together"
            )
            assert_migrated_once(ended, version_before())
            assert print_of_history(house.connection, columns) == before
            assert codes == [0, 0], told
            assert shared & {member.pid for member in new.family()}
            assert "Traceback" not in told
            assert house.counts([*through, *after, *mixed]) == {"succeeded": 240}
            house.check()


@contextmanager
def somebody_reading(url: str) -> Iterator[None]:
    """Hold an open transaction that has read the runs, as a forgotten session or a dump does."""
    with psycopg.connect(url) as session:
        session.execute("SELECT count(*) FROM wakeboard.job_runs")
        yield


@contextmanager
def enqueuing(url: str) -> Iterator[list[float]]:
    """Enqueue a run again and again; the list holds how long each took. A refusal is the test's."""
    took: list[float] = []
    refused: list[psycopg.Error] = []
    stopping = threading.Event()

    def enqueue() -> None:
        with db.connect(url, name="wakeboard test") as session:
            while not stopping.wait(0.05):
                began = now()
                session.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")
                took.append(now() - began)

    def note_refusal() -> None:
        try:
            enqueue()
        except psycopg.Error as failure:
            refused.append(failure)

    thread = threading.Thread(target=note_refusal)
    thread.start()
    try:
        yield took
    finally:
        stopping.set()
        thread.join(30)
    assert not refused, refused


@fault(
    "F72",
    injected="a migration meets a session that has read the runs and does not end",
    expected="it gives up in time and says why, nothing changed; nobody waits long behind it; later it goes",
)
def test_a_migration_does_not_wait_for_ever_behind_a_reader(old_database: str, measured: Measured) -> None:
    with somebody_reading(old_database), enqueuing(old_database) as took:
        wait_until(lambda: took, 10, "somebody enqueues")
        refused = upgrade(old_database)
        with db.connect(old_database, name="wakeboard test") as session:
            assert migrations.current_revision(session) == version_before()
    later = upgrade(old_database)
    measured(
        f"gave up after {refused.seconds:.1f} s (patience {PATIENCE_SECONDS} s); an enqueuer waited "
        f"{max(took):.1f} s at most; migrated when the reader had gone"
    )
    assert refused.code == 1, refused
    assert "has been open for" in refused.complained and "wakeboard db upgrade" in refused.complained, refused
    assert refused.seconds <= GIVES_UP_WITHIN
    assert max(took) <= WAITS_AT_MOST
    assert_migrated_once([later], version_before())
