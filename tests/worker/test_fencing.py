"""``wakeboard db fence``: a database that was restored by PostgreSQL's own programs begins a new life."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, a_worker, row, rows
from tests.support.processes import run_wakeboard
from wakeboard.accounts import sessions
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.maintenance.backups.fence import EPOCHS_AHEAD, NUMBERS_AHEAD

Said = Any


def fence(database: str, *words: str, typed: str | None = None) -> Said:
    return run_wakeboard("db", "fence", *words, database=database, input=typed)


@pytest.fixture
def lived(connection: Connection) -> dict[str, int]:
    """A database as it was in its old life: a worker at a run, one that is done, somebody signed in."""
    a_worker(connection, "old", seen="1 minute")
    sessions.open_session(connection, "anna", Role.ADMIN)
    return {
        "held": a_run(connection, "running", locked_by="old", lease_epoch=3),
        "waiting": a_run(connection, "queued"),
        "done": a_run(connection, "succeeded"),
    }


def test_it_lets_no_answer_of_the_old_life_in(
    database: str, connection: Connection, lived: dict[str, int]
) -> None:
    done = row(connection, lived["done"])
    said = fence(database, "--yes", "--json")
    assert said.returncode == 0, said.stderr
    assert "end the leases of 1 running runs" in said.stderr and "end 1 sign-ins" in said.stderr
    held = row(connection, lived["held"])
    assert (held["status"], held["lease_epoch"]) == ("running", 3 + EPOCHS_AHEAD)
    assert rows(connection, "job_runs", "status = 'running' AND locked_until > now()") == []
    assert row(connection, lived["done"]) == done
    assert a_run(connection, "queued") > lived["done"] + NUMBERS_AHEAD
    assert rows(connection, "sessions") == []
    assert rows(connection, "workers", "stopped_at IS NULL") == []
    (audited,) = rows(connection, "audit_log", "action = 'database.fence'")
    assert audited["actor"].startswith("cli:") and audited["after"] == {"running": 1}


def test_it_asks_first_and_changes_nothing_without_a_yes(
    database: str, connection: Connection, lived: dict[str, int]
) -> None:
    before = row(connection, lived["held"])
    said = fence(database, typed="n\n")
    assert said.returncode == 1 and "Fence? [y/N]: Nothing was done." in said.stderr
    assert row(connection, lived["held"]) == before and len(rows(connection, "sessions")) == 1
    assert rows(connection, "audit_log", "action = 'database.fence'") == []


def test_to_do_it_twice_does_no_harm(database: str, connection: Connection, lived: dict[str, int]) -> None:
    for _ in range(2):
        assert fence(database, "--yes").returncode == 0
    assert row(connection, lived["held"])["lease_epoch"] == 3 + 2 * EPOCHS_AHEAD
    assert a_run(connection, "queued") > lived["done"] + 2 * NUMBERS_AHEAD
    assert row(connection, lived["waiting"])["status"] == "queued"


def test_it_is_refused_while_a_worker_is_connected(
    database: str, connection: Connection, lived: dict[str, int]
) -> None:
    before = row(connection, lived["held"])
    with db.connect(database, name="wakeboard duties"):
        said = fence(database, "--yes")
        assert said.returncode == 1 and "wakeboard duties" in said.stderr and "--force" in said.stderr
        assert row(connection, lived["held"]) == before
        assert fence(database, "--yes", "--force").returncode == 0


def test_a_database_of_another_version_is_refused(empty_database: str) -> None:
    said = fence(empty_database, "--yes")
    assert said.returncode == 1 and "wakeboard db upgrade" in said.stderr
