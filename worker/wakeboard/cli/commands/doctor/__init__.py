"""``doctor`` and ``config``: is all in order here, and with which settings. Changes nothing.

Each check yields findings: ok, warning or fail, with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import psycopg

from wakeboard.cli.commands.doctor import app, database, indexes, liveness
from wakeboard.cli.commands.doctor.finding import LEVELS, CheckResult
from wakeboard.cli.flags import LeafCommand, is_json, settings
from wakeboard.cli.printing import answer, listing
from wakeboard.cli.reach import Connection
from wakeboard.cli.terminal import say
from wakeboard.config.settings import Settings, find_misspelt
from wakeboard.database import db, embedded, migrations

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
    database.tokens,
    liveness.schedules,
    liveness.commands,
)


@click.command(cls=LeafCommand)
def doctor() -> int:
    """Check configuration, database, schema, workers and app; exit code 1 when something fails."""
    findings = examine(settings())
    worst = max((finding.level for finding in findings), key=LEVELS.index)
    if is_json():
        items = [{"check": f.check, "level": f.level, "says": f.says, "mend": f.mend} for f in findings]
        answer({"result": worst, "items": items}, "")
    else:
        for finding in findings:
            mend = f" → {finding.mend}" if finding.mend else ""
            say(f"{finding.level:<8} {finding.check}: {finding.says}{mend}")
    return 1 if worst == "fail" else 0


@click.command(cls=LeafCommand)
def config() -> None:
    """List every setting, its value and where it came from; secrets are masked."""
    listing(settings().rows(), ("name", "value", "origin"), "")


def examine(chosen: Settings) -> list[CheckResult]:
    """Return the findings on everything that can be looked at with these settings."""
    changed = sum(origin != "default" for origin in chosen.origins.values())
    found = [
        CheckResult("configuration", "ok", f"Valid; changed from the defaults: {changed} (wakeboard config).")
    ]
    found += [
        CheckResult("configuration", "warning", sentence, "Correct its name, or take it out.")
        for sentence in find_misspelt()
    ]
    found += _embedded(chosen)
    found += _database(chosen)
    found += app.app(chosen)
    return found


def _embedded(chosen: Settings) -> Iterator[CheckResult]:
    if chosen.database_url is not None:
        return
    folder = chosen.data_dir
    if not folder.exists():
        yield CheckResult("embedded server", "warning", f"{folder} does not exist yet.", "Run: wakeboard up")
        return
    mode = folder.stat().st_mode & 0o777
    if mode & 0o022:
        yield CheckResult(
            "embedded server",
            "fail",
            f"Others may write into {folder} (mode {mode:o}).",
            f"chmod go-w {folder}",
        )
    running = embedded.is_running(folder)
    word = "runs" if running else "does not run"
    mend = None if running else "Run: wakeboard up"
    yield CheckResult(
        "embedded server", "ok" if running else "warning", f"It {word}, with its data in {folder}.", mend
    )


def _database(chosen: Settings) -> Iterator[CheckResult]:
    url = chosen.database_url
    try:
        if url is None:
            if not embedded.is_running(chosen.data_dir):
                return
            url = embedded.url(chosen.data_dir)
        connection = db.connect(url, name="wakeboard doctor")
    except (db.UnsupportedDatabaseError, db.RefusedError) as failure:
        # What helps stands in its sentence.
        yield CheckResult("database", "fail", str(failure))
        return
    except (db.DatabaseError, embedded.EmbeddedError) as failure:
        yield CheckResult("database", "fail", str(failure), "Start it, or correct WAKEBOARD_DATABASE_URL.")
        return
    with connection:
        yield CheckResult("database", "ok", f"PostgreSQL {connection.info.server_version // 10_000} answers.")
        for check in CHECKS:
            yield from _guarded(check, connection)


def _guarded(
    check: Callable[[Connection], Iterator[CheckResult]], connection: Connection
) -> Iterator[CheckResult]:
    try:
        yield from check(connection)
    except psycopg.Error as failure:
        said = " ".join(str(failure).split("\n")[0].split())
        is_shut_out = isinstance(failure, psycopg.errors.InsufficientPrivilege)
        mend = "Use the role that owns the schema." if is_shut_out else _mend_of_schema(connection)
        yield CheckResult(check.__name__, "fail", f"It cannot be checked: {said}.", mend)


def _mend_of_schema(connection: Connection) -> str:
    try:
        return migrations.upgrade_advice(migrations.current_revision(connection)) or migrations.RUN_UPGRADE
    except psycopg.Error:
        return migrations.RUN_UPGRADE
