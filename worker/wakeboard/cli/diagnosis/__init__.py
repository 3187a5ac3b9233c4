"""What ``doctor`` looks at: each check → findings, ok / warning / fail, with the mend. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg

from wakeboard.cli.diagnosis import app, commands, database, indexes, liveness, people, schedules
from wakeboard.cli.diagnosis.finding import LEVELS, Finding
from wakeboard.cli.reach import Connection
from wakeboard.config.settings import Settings, misspelt
from wakeboard.database import db
from wakeboard.database.embedded.errors import EmbeddedError

__all__ = ["LEVELS", "Finding", "examine"]
# What is asked of the database, in the order in which it is told.
CHECKS = (
    database.clock,
    database.schema,
    database.privileges,
    indexes.indexes,
    database.transactions,
    liveness.workers,
    liveness.loops,
    liveness.times,
    people.tokens,
    schedules.schedules,
    commands.commands,
)


def examine(settings: Settings) -> list[Finding]:
    """Return the findings on everything that can be looked at with these settings."""
    changed = sum(origin != "default" for origin in settings.origins.values())
    found = [
        Finding("configuration", "ok", f"Valid; changed from the defaults: {changed} (wakeboard config).")
    ]
    found += [
        Finding("configuration", "warning", sentence, "Correct its name, or take it out.")
        for sentence in misspelt()
    ]
    found += _embedded(settings)
    found += _database(settings)
    found += app.app(settings)
    return found


def _embedded(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is not None:
        return
    from wakeboard.database import embedded

    folder = settings.data_dir
    if not folder.exists():
        yield Finding("embedded server", "warning", f"{folder} does not exist yet.", "Run: wakeboard up")
        return
    mode = folder.stat().st_mode & 0o777
    if mode & 0o022:
        yield Finding(
            "embedded server",
            "fail",
            f"Others may write into {folder} (mode {mode:o}).",
            f"chmod go-w {folder}",
        )
    running = embedded.is_running(folder)
    word = "runs" if running else "does not run"
    mend = None if running else "Run: wakeboard up"
    yield Finding(
        "embedded server", "ok" if running else "warning", f"It {word}, with its data in {folder}.", mend
    )


def _database(settings: Settings) -> Iterator[Finding]:
    url = settings.database_url
    try:
        if url is None:
            from wakeboard.database import embedded

            if not embedded.is_running(settings.data_dir):
                return
            url = embedded.url(settings.data_dir)
        connection = db.connect(url, name="wakeboard doctor")
    except (db.UnfitError, db.RefusedError) as failure:
        # What helps stands in its sentence.
        yield Finding("database", "fail", str(failure))
        return
    except (db.DatabaseError, EmbeddedError) as failure:
        yield Finding("database", "fail", str(failure), "Start it, or correct WAKEBOARD_DATABASE_URL.")
        return
    with connection:
        yield Finding("database", "ok", f"PostgreSQL {connection.info.server_version // 10_000} answers.")
        for check in CHECKS:
            yield from _guarded(check, connection)


def _guarded(check: Callable[[Connection], Iterator[Finding]], connection: Connection) -> Iterator[Finding]:
    try:
        yield from check(connection)
    except psycopg.Error as failure:
        said = " ".join(str(failure).split("\n")[0].split())
        is_shut_out = isinstance(failure, psycopg.errors.InsufficientPrivilege)
        mend = "Use the role that owns the schema." if is_shut_out else _mend_of_schema(connection)
        yield Finding(check.__name__, "fail", f"It cannot be checked: {said}.", mend)


def _mend_of_schema(connection: Connection) -> str:
    try:
        return db.way_to_head(db.current_revision(connection)) or db.MEND_OLDER
    except psycopg.Error:
        return db.MEND_OLDER
