"""Large tables are worked on while a migration reads them, and what it left half done is done anew."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from alembic import command

from tests.conftest import Connection
from tests.support.postgres.servers import Server
from tests.support.processes import wait_until
from tests.worker.test_migrations import definitions
from wakeboard.database import db, migrations
from wakeboard.database.migrations import large_indexes

# The revision before the first one that makes indexes of tables that others may be using.
BEFORE = "0100"
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('wakeboard.job_runs_by_status')"
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE 'CREATE INDEX CONCURRENTLY job_runs_by_status%' AND cardinality(pg_blocking_pids(pid)) > 0
"""
STARTERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'wakeboard migrate'"


@pytest.fixture
def old_database(server: Server) -> Iterator[str]:
    """The URL of a database with the schema of the version before, and a run in it."""
    name = server.create(empty=True)
    url = server.url(name)
    config = migrations.alembic_config()
    config.attributes["url"] = url
    command.upgrade(config, BEFORE)
    with db.connect(url, name="wakeboard test") as connection:
        connection.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")
    yield url
    server.drop(name)


@pytest.fixture
def watcher(old_database: str) -> Iterator[Connection]:
    with db.connect(old_database, name="wakeboard test") as connection:
        yield connection


def test_others_enqueue_while_an_upgrade_makes_its_indexes(old_database: str, watcher: Connection) -> None:
    with ThreadPoolExecutor() as pool, psycopg.connect(old_database) as author:
        author.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")
        first = pool.submit(migrations.migrate, old_database)
        wait_until(lambda: watcher.execute(WAITING).fetchone() == (1,), 10, "the index waits for the author")
        second = pool.submit(migrations.migrate, old_database)
        wait_until(lambda: watcher.execute(STARTERS).fetchone() == (3,), 10, "a second starter waits")
        watcher.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")
        assert migrations.current_revision(watcher) == BEFORE
        author.commit()
        assert first.result(30) == (BEFORE, migrations.head_revision())
        assert second.result(30) == (migrations.head_revision(), migrations.head_revision())
    assert watcher.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() == (3,)


def test_an_upgraded_database_has_the_rules_and_indexes_of_a_new_one(
    old_database: str, database: str
) -> None:
    migrations.migrate(old_database)
    for what in ("CHECK", "INDEX"):
        assert definitions(old_database, what) == definitions(database, what)


def test_an_index_that_was_cut_short_is_made_anew(
    old_database: str, watcher: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_indexes, "PATIENCE_SECONDS", 0.2)
    with psycopg.connect(old_database, application_name="forgotten") as author:
        author.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")
        with pytest.raises(db.DatabaseError, match=r"forgotten.*been open for \d+ s.*db upgrade"):
            migrations.migrate(old_database)
        assert watcher.execute(VALID).fetchone() == (False,)
        assert migrations.current_revision(watcher) == BEFORE
    migrations.migrate(old_database)
    assert watcher.execute(VALID).fetchone() == (True,)


def test_who_waits_for_another_migration_says_so_in_the_end(
    old_database: str, watcher: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_WAIT_SECONDS", 0)
    with (
        migrations.migration_lock(watcher),
        pytest.raises(db.DatabaseError, match="Another process has been"),
    ):
        migrations.migrate(old_database)


def test_a_schema_that_is_there_waits_for_nobody(database: str, connection: Connection) -> None:
    with migrations.migration_lock(connection):
        assert migrations.migrate(database) == (migrations.head_revision(), migrations.head_revision())
