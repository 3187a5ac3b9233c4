"""The database goes away and comes back under a working worker: no run is lost, no result forgotten."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.factories import rows
from tests.support.postgres.servers import make_folder, on_disk
from tests.support.processes import run_wakeboard, wait_until
from tests.support.workers.worker_processes import (
    SHORT,
    a_worker,
    insert,
    insert_many,
    now,
    outcomes,
    truth,
    wait_until_all,
    wait_until_started,
    wait_until_status,
)
from wakeboard.database import db, embedded, migrations

# Commits must reach the operating system: the server is crashed, the machine is not.
SETTINGS = {"fsync": "off", "full_page_writes": "off"}


@pytest.fixture
def cluster() -> Iterator[Path]:
    """The folder of a cluster of our own, migrated, which a test may crash."""
    folder = make_folder(on_disk())
    try:
        embedded.start(folder, settings=SETTINGS)
        migrations.migrate(embedded.url(folder))
        yield folder
    finally:
        embedded.stop(folder, only_if_unused=False)
        shutil.rmtree(folder, ignore_errors=True)


def crash(folder: Path) -> None:
    """End the server as ``pg_ctl -m immediate`` does, and wait until it is gone."""
    (pid_file,) = folder.rglob("postmaster.pid")
    postmaster = psutil.Process(int(pid_file.read_text().split()[0]))
    os.kill(postmaster.pid, signal.SIGQUIT)
    psutil.wait_procs([postmaster], timeout=10)
    wait_until(lambda: not embedded.is_running(folder), 10, "the server is gone")


def test_a_crash_of_the_database_loses_no_run_and_no_result(cluster: Path, tmp_path: Path) -> None:
    url, record, gate = embedded.url(cluster), tmp_path / "truth", tmp_path / "gate"
    with a_worker(url, LEASE_SECONDS=20, CONCURRENCY=3, TRUTH=record) as worker:
        with db.connect(url, name="wakeboard test") as connection:
            through = insert(connection, "patient", {"seconds": 12})
            held = insert(connection, "gated", {"gate": str(gate)})
            wait_until_started(record, through, held, seconds=30)
            many = insert_many(connection, "quick", 3_000, {"answer": 42})
            wait_until_status(connection, many[50], "succeeded")
        crash(cluster)
        gate.touch()
        wait_until(lambda: [line for line in truth(record) if line.word == "end"], 10, "the handler ends")
        began = now()
        wait_until(lambda: now() - began > 1, 5)
        embedded.start(cluster, settings=SETTINGS)
        with db.connect(url, name="wakeboard test") as connection:
            wait_until_all(connection, [held, through, *many], "succeeded", 60)
            assert outcomes(connection, held) == ["succeeded"]
            assert outcomes(connection, through) == ["succeeded"]
            kept = connection.execute(
                "SELECT count(*) FROM wakeboard.job_attempts WHERE outcome = 'succeeded' AND result = '42'"
            ).fetchone()
            assert kept == (3_000,)
            assert not rows(connection, "job_attempts", "outcome NOT IN ('succeeded', 'lost')")
        assert worker.terminate() == 0
    starts = [line.run_id for line in truth(record) if line.word == "start"]
    assert set(starts) == {held, through, *many}


def test_after_a_crash_of_the_database_no_run_with_a_single_try_has_lost_it_or_had_two(
    cluster: Path, tmp_path: Path
) -> None:
    url, record = embedded.url(cluster), tmp_path / "truth"
    with a_worker(url, LEASE_SECONDS=20, TRUTH=record) as worker:
        with db.connect(url, name="wakeboard test") as connection:
            ids = insert_many(connection, "only_try", 8_000)
            wait_until_status(connection, ids[1_000], "succeeded", seconds=30)
            assert rows(connection, "unbegun_attempts")
        crash(cluster)
        embedded.start(cluster, settings=SETTINGS)
        with db.connect(url, name="wakeboard test") as connection:
            wait_until_all(connection, ids, "succeeded", 60)
        assert worker.terminate() == 0
    starts = [line.run_id for line in truth(record) if line.word == "start"]
    assert sorted(starts) == ids


def test_a_worker_waits_for_a_database_that_is_not_there_yet(cluster: Path) -> None:
    url = embedded.url(cluster)
    with db.connect(url, name="wakeboard test") as connection:
        run_id = insert(connection, "quick")
    crash(cluster)
    with a_worker(url) as worker:
        worker.wait_for("does not answer")
        embedded.start(cluster, settings=SETTINGS)
        with db.connect(url, name="wakeboard test") as connection:
            wait_until_status(connection, run_id, "succeeded", seconds=30)
        crash(cluster)
        worker.wait_for("connection was lost")
        assert worker.terminate(10) == 0, worker.output
        assert "Traceback" not in worker.output
    embedded.start(cluster, settings=SETTINGS)


def test_a_worker_before_the_migration_says_in_a_line_what_to_run_and_works_after_it(
    empty_database: str,
) -> None:
    with a_worker(empty_database) as worker:
        worker.wait_for("Run: wakeboard db upgrade")
        began = now()
        wait_until(lambda: now() - began > 5, 6)
        assert worker.output.count("WARNING") == 1, worker.output
        migrations.migrate(empty_database)
        worker.wait_for("The database has the tables now.")
        with db.connect(empty_database, name="wakeboard test") as connection:
            wait_until_status(connection, insert(connection, "quick"), "succeeded")
        assert worker.terminate(10) == 0, worker.output
        assert worker.output.count("WARNING") == 1, worker.output


def test_a_worker_whose_tables_are_taken_away_says_so_and_works_on_when_they_are_back(
    database: str, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    with a_worker(database, ready=connection) as worker:
        connection.execute("ALTER SCHEMA wakeboard RENAME TO elsewhere")
        worker.wait_for("Run: wakeboard db upgrade")
        began = now()
        wait_until(lambda: now() - began > 5, 6)
        assert worker.output.count("does not exist") == 1, worker.output
        connection.execute("ALTER SCHEMA elsewhere RENAME TO wakeboard")
        worker.wait_for("The database has the tables now.")
        wait_until_status(connection, insert(connection, "quick"), "succeeded")


def test_hostile_settings_of_the_role_change_nothing(
    database: str, superuser: psycopg.Connection[tuple[object, ...]]
) -> None:
    role = psycopg.conninfo.conninfo_to_dict(database)["user"]
    name = superuser.info.dbname
    hostile = {
        "statement_timeout": "100ms",
        "timezone": "Asia/Kathmandu",
        "datestyle": "German",
        "search_path": "nowhere",
        "default_transaction_isolation": "serializable",
        "plan_cache_mode": "force_custom_plan",
    }
    try:
        for setting, value in hostile.items():
            superuser.execute(f"ALTER ROLE {role} IN DATABASE {name} SET {setting} = '{value}'".encode())
        with db.connect(database, name="wakeboard test") as connection:
            ids = insert_many(connection, "quick", 50)
            ids.append(insert(connection, "patient", {"seconds": 0.3}))
            done = run_wakeboard("tick", database=database, environment=SHORT)
            assert done.returncode == 0, done.stderr
            wait_until_all(connection, ids, "succeeded", 1)
    finally:
        superuser.execute(f"ALTER ROLE {role} IN DATABASE {name} RESET ALL".encode())
