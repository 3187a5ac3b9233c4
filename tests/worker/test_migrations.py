"""Migrations end in exactly the tables that the code reads. Several at once: row F72 of the fault table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tests.conftest import Connection
from tests.support.processes import wait_until
from wakeboard.database import db, migrations
from wakeboard.database.tables import SCHEMA, metadata


def test_migrations_end_in_the_tables(database: str) -> None:
    engine = db.engine(database, name="wakeboard test")
    with engine.connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
            "version_table_schema": SCHEMA,
            "compare_type": True,
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


@pytest.mark.parametrize("what", ["CHECK", "INDEX"])
def test_every_rule_and_index_of_the_code_is_in_the_database(
    database: str, empty_database: str, what: str
) -> None:
    engine = db.engine(empty_database, name="wakeboard test")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        metadata.create_all(connection)
    engine.dispose()
    assert definitions(database, what) == definitions(empty_database, what)


def definitions(url: str, what: str) -> list[tuple[str, ...]]:
    """Return the text of each CHECK, or of each index, of our schema but Alembic's own."""
    queries = {
        "CHECK": "SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid)"
        " FROM pg_constraint WHERE connamespace = 'wakeboard'::regnamespace AND conname !~ '^alembic'"
        " ORDER BY 1, 2",
        "INDEX": "SELECT tablename::text, indexname::text, indexdef FROM pg_indexes"
        " WHERE schemaname = 'wakeboard' AND tablename !~ '^alembic' ORDER BY 1, 2",
    }
    with db.connect(url, name="wakeboard test") as connection:
        found = connection.execute(queries[what].encode()).fetchall()
    assert len(found) > 20
    return found


def test_a_second_migration_changes_nothing(empty_database: str) -> None:
    head = migrations.head_revision()
    assert migrations.migrate(empty_database) == (None, head)
    assert migrations.migrate(empty_database) == (head, head)


def test_the_revision_we_need_is_the_one_that_alembic_calls_its_head() -> None:
    assert (
        migrations.head_revision()
        == ScriptDirectory.from_config(migrations.alembic_config()).get_current_head()
    )


def test_a_database_from_the_future_is_refused_and_left_alone(database: str, connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.alembic_version SET version_num = '9999'")
    with pytest.raises(db.DatabaseError, match=r"at revision 9999, which this version does not know.*newer"):
        migrations.migrate(database)
    assert migrations.current_revision(connection) == "9999"


def test_a_migration_leaves_no_session_behind(empty_database: str) -> None:
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with db.connect(empty_database, name="wakeboard test") as watcher:
        migrations.migrate(empty_database)
        wait_until(
            lambda: watcher.execute(others).fetchone() == (0,), 5, "every session of the migration ends"
        )


# Connections


def test_a_session_means_the_same_whatever_its_role_was_set_to(
    database: str, superuser: Connection, connection: Connection
) -> None:
    (role,) = connection.execute("SELECT quote_ident(current_user)").fetchone() or ("",)
    (name,) = connection.execute("SELECT quote_ident(current_database())").fetchone() or ("",)
    for setting in (
        "timezone TO 'America/New_York'",
        "default_transaction_isolation TO 'serializable'",
        "search_path TO nowhere",
        "datestyle TO 'SQL, DMY'",
        "statement_timeout TO '7s'",
    ):
        superuser.execute(f"ALTER ROLE {role} IN DATABASE {name} SET {setting}".encode())
    with db.connect(database, name="wakeboard test") as fresh:
        shown = [
            fresh.execute(f"SHOW {setting}".encode()).fetchone()
            for setting in ("timezone", "transaction_isolation", "datestyle", "statement_timeout")
        ]
        assert shown == [("UTC",), ("read committed",), ("ISO, DMY",), ("30s",)]
        fresh.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')")


def test_nobody_listening_is_said_in_a_sentence(database: str) -> None:
    with pytest.raises(db.DatabaseError, match=r"The database does not answer: .*WAKEBOARD_DATABASE_URL"):
        db.connect("postgresql://nobody@127.0.0.1:1/none", name="wakeboard test")


@pytest.mark.parametrize(
    "spell",
    [lambda url: url, lambda url: url + ("&" if "?" in url else "?") + "connect_timeout=7"],
    ids=["plain", "with options"],
)
def test_an_engine_takes_any_libpq_url(database: str, spell: Callable[[str], str]) -> None:
    engine = db.engine(spell(database), name="wakeboard pages")
    with engine.connect() as connection:
        assert (
            connection.execute(text("SELECT current_setting('application_name')")).scalar()
            == "wakeboard pages"
        )
    engine.dispose()


def test_runs_have_at_most_twelve_indexes_beside_their_key(connection: Connection) -> None:
    found = connection.execute(
        "SELECT count(*) FROM pg_index WHERE indrelid = 'wakeboard.job_runs'::regclass AND NOT indisprimary"
    ).fetchone()
    assert found is not None and found[0] <= 12
