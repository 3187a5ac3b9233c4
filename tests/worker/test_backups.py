"""Backups of the embedded database, made while work goes on, and the new life that a restore begins."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.conftest import Connection
from tests.support.factories import row
from tests.support.postgres.servers import make_folder, on_disk
from tests.support.processes import Wakeboard, run_wakeboard, wait_until, wakeboard
from tests.support.workers.worker_processes import (
    SHORT,
    insert_many,
    wait_until_registered,
    wait_until_status,
)
from wakeboard.database import db, embedded, migrations
from wakeboard.database.embedded import locks
from wakeboard.database.embedded.server import find_paths
from wakeboard.queue import enqueue

ENOUGH_SECONDS = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path for data folders and backups."""
    made = make_folder(on_disk())
    yield made
    for home in [*made.rglob("postgres")]:
        if home.is_dir():
            embedded.stop(home.parent, only_if_unused=False)
    shutil.rmtree(made)


def data_dir(folder: Path, name: str = "a") -> Path:
    """Start an embedded database without fsync, with its tables."""
    url = embedded.start(folder / name, settings={"fsync": "off"}).url
    locks.unmark_use(find_paths(folder / name))
    migrations.migrate(url)
    return folder / name


def command(data: Path, *words: str) -> CompletedProcess[str]:
    return run_wakeboard(*words, environment={"WAKEBOARD_DATA_DIR": str(data)}, seconds=ENOUGH_SECONDS)


@contextmanager
def connected(data: Path) -> Iterator[Connection]:
    with db.connect(embedded.url(data), name="wakeboard test") as connection:
        yield connection


@contextmanager
def worker_on(data: Path) -> Iterator[Wakeboard]:
    with wakeboard("worker", environment=SHORT | {"WAKEBOARD_DATA_DIR": str(data)}) as started:
        yield started


def test_a_backup_amid_work_restored_elsewhere_ends_every_run_it_knows(folder: Path) -> None:
    old, new, file = data_dir(folder), folder / "b", folder / "amid.dump"
    with connected(old) as connection, worker_on(old) as worker:
        wait_until_registered(connection, worker)
        slow = insert_many(connection, "patient", 2, {"seconds": 30})
        for run_id in slow:
            wait_until_status(connection, run_id, "running")
        waiting = insert_many(connection, "quick", 300)
        said = command(old, "db", "backup", str(file), "--json")
        assert said.returncode == 0, said.stderr
        later = insert_many(connection, "quick", 1)[0]
        held = row(connection, slow[0])
    told = json.loads(said.stdout)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and told["bytes"] == file.stat().st_size
    assert [path.name for path in folder.iterdir() if "part" in path.name] == []

    said = command(new, "db", "restore", str(file), "--yes", "--json")
    assert said.returncode == 0, said.stderr
    assert "may be sent again" in said.stderr and json.loads(said.stdout)["running"] == 2
    embedded.start(new)
    with connected(new) as connection:
        restored = row(connection, slow[0])
        assert restored["status"] == "running" and restored["lease_epoch"] > held["lease_epoch"] + 100_000
        # The worker of the old life comes back with its answer: nothing of it fits.
        assert restored["locked_by"] == held["locked_by"]
        assert enqueue(connection, "quick") > later + 100_000
        with worker_on(new) as worker:
            wait_until_registered(connection, worker)
            connection.execute(
                "UPDATE wakeboard.job_runs SET payload = '{\"seconds\": 0}' WHERE id = ANY(%s)", (slow,)
            )
            unended = "SELECT count(*) FROM wakeboard.job_runs WHERE id = ANY(%s) AND status <> 'succeeded'"
            wait_until(
                lambda: connection.execute(unended, (slow + waiting,)).fetchone() == (0,), 90, "all runs end"
            )
        outcomes = connection.execute(
            "SELECT outcome FROM wakeboard.job_attempts WHERE run_id = %s ORDER BY attempt", (slow[0],)
        ).fetchall()
        assert [one[0] for one in outcomes] == ["lost", "succeeded"]
        audited = connection.execute(
            "SELECT count(*) FROM wakeboard.audit_log WHERE action = 'database.restore'"
        )
        assert audited.fetchone() == (1,)


def test_a_restore_puts_the_old_database_aside_and_says_where(folder: Path) -> None:
    data, file = data_dir(folder), folder / "one.dump"
    with connected(data) as connection:
        before = insert_many(connection, "quick", 1)[0]
    assert command(data, "db", "backup", str(file)).returncode == 0
    with connected(data) as connection:
        after = insert_many(connection, "quick", 1)[0]
        assert connection.execute("SELECT backed_up_at FROM wakeboard.installation").fetchone() != (None,)
    said = command(data, "db", "restore", str(file), "--yes", "--json")
    assert said.returncode == 0, said.stderr
    kept = Path(json.loads(said.stdout)["kept"])
    assert (kept / "PG_VERSION").read_text().strip() == "18" and kept.parent == data / "postgres"
    embedded.start(data)
    with connected(data) as connection:
        assert row(connection, before)["status"] == "queued"
        found = connection.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s", (after,)).fetchone()
        assert found is None
    assert [path for path in data.iterdir() if path.name.startswith("restore-")] == []


def test_a_restore_is_refused_while_anybody_is_connected_and_names_them(folder: Path) -> None:
    data, file = data_dir(folder), folder / "one.dump"
    assert command(data, "db", "backup", str(file)).returncode == 0
    with db.connect(embedded.url(data), name="wakeboard web") as dashboard:
        said = command(data, "db", "restore", str(file), "--yes")
        assert said.returncode == 1 and "wakeboard web" in said.stderr and "Stop wakeboard up" in said.stderr
        assert dashboard.execute("SELECT 1").fetchone() == (1,)
    assert list((data / "postgres").glob("data.*")) == []


def test_a_backup_overwrites_nothing_unless_forced_and_leaves_nothing_half_done(folder: Path) -> None:
    data, file = data_dir(folder), folder / "one.dump"
    file.write_text("precious")
    refused = command(data, "db", "backup", str(file))
    assert refused.returncode == 1 and "--force" in refused.stderr and file.read_text() == "precious"
    assert command(data, "db", "backup", str(file), "--force").returncode == 0
    assert file.read_bytes().startswith(b"PGDMP")
    nowhere = command(data, "db", "backup", str(folder / "no" / "such" / "place.dump"))
    assert nowhere.returncode == 1 and "Cannot write into" in nowhere.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a", "one.dump"]


def test_a_file_that_is_no_backup_changes_nothing(folder: Path) -> None:
    data, file = data_dir(folder), folder / "torn.dump"
    assert command(data, "db", "backup", str(file)).returncode == 0
    whole = file.read_bytes()
    for content in (b"", b"not a dump", whole[: len(whole) // 2]):
        file.write_bytes(content)
        said = command(data, "db", "restore", str(file), "--yes")
        assert said.returncode == 1 and "torn.dump" in said.stderr, (len(content), said.stderr)
    with connected(data) as connection:
        assert migrations.current_revision(connection) == migrations.head_revision()
    assert [path.name for path in data.iterdir() if path.name.startswith("restore-")] == []


def test_a_backup_of_a_folder_without_a_database_makes_none_and_says_so(folder: Path) -> None:
    said = command(folder / "elsewhere", "db", "backup", str(folder / "x.dump"))
    assert said.returncode == 1 and "set WAKEBOARD_DATA_DIR" in said.stderr
    assert list(folder.iterdir()) == []


def test_a_cluster_that_does_not_start_gives_way_to_the_one_before(folder: Path) -> None:
    data = data_dir(folder)
    with connected(data) as connection:
        (run_id,) = insert_many(connection, "quick", 1)
    fresh = data_dir(folder, "b")
    embedded.stop(fresh, only_if_unused=False)
    aside = embedded.swap_in(data, fresh)
    (data / "postgres" / "data" / "global" / "pg_control").unlink()
    with pytest.raises(embedded.EmbeddedError):
        embedded.start(data)
    broken = embedded.swap_back(data, aside)
    assert broken.name.startswith("data.failed-")
    embedded.start(data)
    with connected(data) as connection:
        assert row(connection, run_id)["status"] == "queued"


def test_with_a_database_url_both_name_the_servers_own_programs(database: str, folder: Path) -> None:
    for words, program in ((("db", "backup"), "pg_dump"), (("db", "restore", "x"), "pg_restore")):
        said = run_wakeboard(
            *words, database=database, environment={"WAKEBOARD_DATA_DIR": str(folder / "none")}
        )
        assert said.returncode == 2 and f"{program} -" in said.stderr


def test_a_backup_from_inside_a_run_finds_the_embedded_server_by_its_url(folder: Path) -> None:
    data = data_dir(folder)
    said = run_wakeboard(
        "db", "backup", "--json", database=embedded.url(data), environment={"WAKEBOARD_DATA_DIR": str(data)}
    )
    assert said.returncode == 0, said.stderr
    file = Path(json.loads(said.stdout)["file"])
    assert file.parent == data / "backups" and file.parent.stat().st_mode & 0o077 == 0
