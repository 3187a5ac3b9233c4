"""``doctor`` and ``config``: is all in order here, and with which settings. Changes nothing.

Each check yields results: ok, warning or fail, with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import click
import psycopg

from wakeboard.cli.commands.doctor import app, database, indexes, liveness
from wakeboard.cli.commands.doctor.result import LEVELS, CheckResult
from wakeboard.cli.connection import Connection
from wakeboard.cli.flags import LeafCommand, is_json, read_settings
from wakeboard.cli.printing import print_result, print_table
from wakeboard.cli.terminal import print_text
from wakeboard.config.settings import Settings, find_misspelt
from wakeboard.database import db, embedded, migrations

# The checks of the database, in the order of the report.
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
    results = examine(read_settings())
    worst = max((result.level for result in results), key=LEVELS.index)
    if is_json():
        print_result({"result": worst, "items": [asdict(result) for result in results]}, "")
    else:
        for result in results:
            mend = f" → {result.mend}" if result.mend else ""
            print_text(f"{result.level:<8} {result.check}: {result.says}{mend}")
    return 1 if worst == "fail" else 0


@click.command(cls=LeafCommand)
def config() -> None:
    """List every setting, its value and where it came from; secrets are masked."""
    print_table(read_settings().rows(), ("name", "value", "origin"), "")


def examine(settings: Settings) -> list[CheckResult]:
    """Return the results of all checks that these settings allow."""
    changed = sum(origin != "default" for origin in settings.origins.values())
    results = [
        CheckResult("configuration", "ok", f"Valid; changed from the defaults: {changed} (wakeboard config).")
    ]
    results += [
        CheckResult("configuration", "warning", sentence, "Correct its name, or take it out.")
        for sentence in find_misspelt()
    ]
    results += _embedded(settings)
    results += _database(settings)
    results += app.app(settings)
    return results


def _embedded(settings: Settings) -> Iterator[CheckResult]:
    if settings.database_url is not None:
        return
    folder = settings.data_dir
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


def _database(settings: Settings) -> Iterator[CheckResult]:
    url = settings.database_url
    try:
        if url is None:
            if not embedded.is_running(settings.data_dir):
                return
            url = embedded.url(settings.data_dir)
        connection = db.connect(url, name="wakeboard doctor")
    except (db.UnsupportedDatabaseError, db.RefusedError) as failure:
        # The sentence of the failure says what to do.
        yield CheckResult("database", "fail", str(failure))
        return
    except (db.DatabaseError, embedded.EmbeddedError) as failure:
        yield CheckResult("database", "fail", str(failure), "Start it, or correct WAKEBOARD_DATABASE_URL.")
        return
    with connection:
        yield CheckResult("database", "ok", f"PostgreSQL {connection.info.server_version // 10_000} answers.")
        for check in CHECKS:
            yield from _run_check(check, connection)


def _run_check(
    check: Callable[[Connection], Iterator[CheckResult]], connection: Connection
) -> Iterator[CheckResult]:
    try:
        yield from check(connection)
    except psycopg.Error as failure:
        message = " ".join(str(failure).split("\n")[0].split())
        is_denied = isinstance(failure, psycopg.errors.InsufficientPrivilege)
        mend = "Use the role that owns the schema." if is_denied else _schema_advice(connection)
        yield CheckResult(check.__name__, "fail", f"It cannot be checked: {message}.", mend)


def _schema_advice(connection: Connection) -> str:
    try:
        return migrations.upgrade_advice(migrations.current_revision(connection)) or migrations.RUN_UPGRADE
    except psycopg.Error:
        return migrations.RUN_UPGRADE
