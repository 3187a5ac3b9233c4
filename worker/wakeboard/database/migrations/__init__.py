"""The schema's revision, and Alembic's migrations to the one that this version needs.

``database.tables`` describes the same schema; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from wakeboard.database.db import DatabaseError, connect, is_pooled

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATION_LOCK = 7_229_190_501
LOCK_WAIT_SECONDS = 60
LOCK_RETRY_SECONDS = 0.2

# What is wrong with the schema, and what to do about it.
MIGRATED_BY_NEWER = "it was migrated by a newer Wakeboard."
INSTALL_NEWER = "Install that version here too."
STAMP_UNRELEASED = (
    "It was made before the first release: bring it to revision 0022 with the program that made it, "
    "then run: UPDATE wakeboard.alembic_version SET version_num = '0100'"
)
RUN_UPGRADE = "Run: wakeboard db upgrade"


def alembic_config() -> Config:
    """Return Alembic's configuration, which lives inside the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("wakeboard.database") / "migrations"))
    return config


def head_revision() -> str:
    """Return the revision that this version of the program needs: the number in its last migration's name.

    Alembic would tell it too, for 15 MB of memory in each process.
    """
    return max(_revisions())


def is_newer(revision: str | None) -> bool:
    """Return whether a later version of the program brought the schema to ``revision``: no upgrade helps."""
    return revision is not None and revision > head_revision()


def upgrade_advice(revision: str | None) -> str | None:
    """Return what to do about a schema at ``revision`` that this version cannot use, None where it can."""
    if revision == head_revision():
        return None
    if revision is None or revision in _revisions():
        return RUN_UPGRADE
    return INSTALL_NEWER if is_newer(revision) else STAMP_UNRELEASED


def _revisions() -> set[str]:
    versions = resources.files("wakeboard.database") / "migrations" / "versions"
    return {file.name.partition("_")[0] for file in versions.iterdir() if file.name.endswith(".py")}


def current_revision(connection: psycopg.Connection) -> str | None:
    """Return the revision the database is at, None when it was never migrated."""
    row = connection.execute("SELECT to_regclass('wakeboard.alembic_version') IS NOT NULL").fetchone()
    if not row or not row[0]:
        return None
    row = connection.execute("SELECT version_num FROM wakeboard.alembic_version").fetchone()
    return str(row[0]) if row else None


@contextmanager
def migration_lock(connection: psycopg.Connection) -> Iterator[None]:
    """Hold the advisory lock under which one process migrates while others wait, up to LOCK_WAIT_SECONDS.

    Raises DatabaseError when the time is over. The lock is tried, not waited for: a session that waits inside
    the server holds a snapshot, and an index that is made concurrently waits for old snapshots.
    """
    deadline = monotonic() + LOCK_WAIT_SECONDS
    while connection.execute("SELECT pg_try_advisory_lock(%s)", (MIGRATION_LOCK,)).fetchone() != (True,):
        if monotonic() > deadline:
            raise DatabaseError(
                f"Another process has been migrating this database for {LOCK_WAIT_SECONDS} s. "
                "Wait until it is done, then start this one again."
            )
        sleep(LOCK_RETRY_SECONDS)
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))


def migrate(url: str) -> tuple[str | None, str]:
    """Bring the schema to this version's revision; safe when several processes start at once.

    Returns (revision before, revision after). Raises DatabaseError when the database is newer than we are.
    """
    from alembic import command

    head = head_revision()
    with connect(url, name="wakeboard migrate", lock_timeout_seconds=60) as lock:
        before = current_revision(lock)
        if before == head:
            return before, head
        if is_pooled(lock):
            raise DatabaseError(
                f"The schema has to be brought to revision {head}, which takes a session of its own, and "
                "this address leads through a pooler. Run once with the server's own: wakeboard db upgrade"
            )
        with migration_lock(lock):
            before = current_revision(lock)
            if before == head:
                return before, head
            if is_newer(before):
                raise DatabaseError(
                    f"The schema is at revision {before}, which this version does not know: "
                    f"{MIGRATED_BY_NEWER} {INSTALL_NEWER}"
                )
            if upgrade_advice(before) == STAMP_UNRELEASED:
                raise DatabaseError(f"The schema is at revision {before}. {STAMP_UNRELEASED}")
            config = alembic_config()
            config.attributes["url"] = url
            command.upgrade(config, "head")
    return before, head
