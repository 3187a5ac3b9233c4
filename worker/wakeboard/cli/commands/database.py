"""``db``: migrations, and the embedded server's URL, shell, backup, restore, fence and stop."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from wakeboard.cli.connection import Connection, connect, database_url, read_row
from wakeboard.cli.exceptions import CommandFailed, WrongUse
from wakeboard.cli.flags import CommandGroup, read_settings
from wakeboard.cli.printing import print_result
from wakeboard.cli.terminal import print_notice
from wakeboard.config.settings import Settings
from wakeboard.database import embedded, migrations
from wakeboard.database.audit import terminal_actor
from wakeboard.database.db import DatabaseError
from wakeboard.database.db import connect as open_connection
from wakeboard.database.embedded.cluster_owner import make_folders
from wakeboard.database.embedded.server import WaitNotice
from wakeboard.maintenance.backups.dump import BackupError, dump, list_entries, load
from wakeboard.maintenance.backups.fence import FencePreview, fence_database, preview_fence

DATA_LOSS = (
    "What was done since the backup is forgotten, effects included: runs that ended since then may run "
    "again, and what they sent may be sent again."
)
BACKED_UP = "UPDATE wakeboard.installation SET backed_up_at = %s"
NOTHING_ELSE = "Payloads, results, schedules, people and tokens stay as they are."


@click.group(cls=CommandGroup)
def db() -> None:
    """The database: upgrade, check, url, shell, backup, restore, fence, stop."""


@db.command()
def upgrade() -> None:
    """Bring the schema to this version's; safe when several do it at once."""
    before, after = migrations.migrate(database_url(read_settings()))
    is_changed = before != after
    words = f"was brought from {before or 'nothing'} to {after}" if is_changed else f"is current: {after}"
    print_result({"before": before, "revision": after, "changed": is_changed}, f"The schema {words}.")


@db.command()
def check() -> int:
    """Say whether the schema is this version's; exit code 1 when it is not."""
    with connect() as connection:
        revision, head = migrations.current_revision(connection), migrations.head_revision()
        size = read_row(connection, "SELECT pg_database_size(current_database()) AS bytes")
    is_current, is_newer = revision == head, migrations.is_newer(revision)
    advice = migrations.upgrade_advice(revision)
    if is_current:
        words = "is current"
    elif is_newer:
        words = f"is not of this version, which needs {head}: {migrations.MIGRATED_BY_NEWER} {advice}"
    else:
        words = f"is not current: this version needs {head}. {advice}"
    fields = {
        "revision": revision, "needed": head, "current": is_current, "newer": is_newer,
        "bytes": size["bytes"] if size else None,
    }  # fmt: skip
    print_result(fields, f"The schema ({revision or 'none'}) {words.rstrip('.')}.")
    return 0 if is_current else 1


@db.command()
def url() -> None:
    """Print the libpq URL of the database, its password included."""
    address = database_url(read_settings())
    print_result({"url": address}, address)


@db.command()
@click.argument("arguments", nargs=-1)
def shell(arguments: tuple[str, ...]) -> None:
    """Open psql on the database; arguments after -- go to psql."""
    settings = read_settings()
    url = database_url(settings)
    program = (
        shutil.which("psql") if settings.database_url else str(embedded.binary("psql", settings.data_dir))
    )
    if program is None:
        raise CommandFailed(
            "There is no psql here; install PostgreSQL's client, or use the URL: wakeboard db url"
        )
    # Not as an argument: every user of the machine could read its password.
    os.execve(program, [program, *arguments], os.environ | _libpq_variables(url))


def _libpq_variables(url: str) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict

    names = {
        "host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT", "dbname": "PGDATABASE",
        "user": "PGUSER", "password": "PGPASSWORD", "passfile": "PGPASSFILE", "service": "PGSERVICE",
        "options": "PGOPTIONS", "sslmode": "PGSSLMODE", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
        "sslrootcert": "PGSSLROOTCERT", "connect_timeout": "PGCONNECT_TIMEOUT",
        "target_session_attrs": "PGTARGETSESSIONATTRS",
    }  # fmt: skip
    parameters = conninfo_to_dict(url)
    return {names[key]: str(value) for key, value in parameters.items() if key in names and value is not None}


@db.command()
def stop() -> int:
    """Stop the embedded server, unless somebody uses it."""
    settings = read_settings()
    if settings.database_url is not None:
        raise WrongUse(
            "A database URL is set, so there is no embedded server to stop. Stop that server itself."
        )
    sentence = embedded.stop(settings.data_dir)
    is_stopped = not embedded.is_running(settings.data_dir)
    print_result({"stopped": is_stopped, "message": sentence}, sentence)
    return 0 if is_stopped else 1


@db.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE when it exists.")
def backup(file: Path | None, force: bool) -> None:
    """Write the embedded database into FILE, while all goes on; without FILE into DATA_DIR/backups."""
    settings = read_settings()
    _require_embedded(settings, 'pg_dump --format=custom --file=FILE "$WAKEBOARD_DATABASE_URL"')
    if not embedded.has_cluster(settings.data_dir):
        # A new, empty database would be created and backed up instead of the right one.
        raise CommandFailed(
            f"There is no database in {settings.data_dir}: set WAKEBOARD_DATA_DIR to the folder that up uses."
        )
    url = database_url(settings)
    target = _default_file(settings) if file is None else file.absolute()
    with open_connection(url, name="wakeboard backup") as connection:
        started = connection.execute("SELECT clock_timestamp()").fetchone()
    assert started is not None
    programs = [embedded.binary(name, settings.data_dir) for name in ("pg_dump", "pg_restore")]
    try:
        size = dump(programs[0], programs[1], url, target, force=force, progress=WaitNotice(print_notice))
    except BackupError as failed:
        raise CommandFailed(str(failed)) from failed
    with open_connection(url, name="wakeboard backup") as connection:
        connection.execute(BACKED_UP, started)
    sentence = f"Backed up into {target} ({size / 1e6:.1f} MB). Keep a copy on another machine."
    print_result({"file": str(target), "bytes": size, "backed_up_at": started[0]}, sentence)


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask; what was done since the backup is forgotten.")
def restore(file: Path, yes: bool) -> None:
    """Put the backup FILE in the place of the embedded database; the one before is kept aside."""
    settings = read_settings()
    _require_embedded(settings, 'pg_restore --dbname="$WAKEBOARD_DATABASE_URL" FILE, into an empty database')
    _require_unused(settings.data_dir)
    program = embedded.binary("pg_restore", settings.data_dir)
    try:
        list_entries(program, file)
        print_notice(DATA_LOSS)
        if not yes:
            click.confirm("Restore?", abort=True, err=True)
        was_running = embedded.is_running(settings.data_dir)
        with _temporary_data_dir(settings.data_dir) as temporary:
            running = _rebuild(temporary, program, file.absolute())
            aside = embedded.swap_in(settings.data_dir, temporary)
    except BackupError as failed:
        raise CommandFailed(str(failed)) from failed
    _start_restored(settings.data_dir, aside, was_running)
    sentences = [f"Restored {file}."]
    if running:
        sentences.append(f"{running} runs were running then: they count as lost and run again by their rule.")
    sentences += [DATA_LOSS, "Look at people and tokens: who was shut out since then is let in again."]
    if aside is not None:
        sentences.append(f"The database before is kept in {aside}: remove it when all is well.")
    fields = {"file": str(file), "kept": None if aside is None else str(aside), "running": running}
    print_result({**fields, "message": " ".join(sentences)}, "\n".join(sentences))


def _require_embedded(settings: Settings, instead: str) -> None:
    """Raise WrongUse unless the database is the embedded one; ``up`` gives its processes that URL."""
    if settings.database_url is None:
        return
    embedded_url = None
    with suppress(embedded.EmbeddedError):
        embedded_url = embedded.url(settings.data_dir)
    if settings.database_url != embedded_url:
        raise WrongUse(
            "A database URL is set, and this command is for the embedded database. Use that server's own: "
            f"{instead}"
        )


def _default_file(settings: Settings) -> Path:
    folder = settings.data_dir / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"wakeboard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.dump"


def _require_unused(data_dir: Path) -> None:
    """Raise CommandFailed, with the names of the programs that are connected, if any."""
    sessions = embedded.list_sessions(data_dir)
    if not sessions:
        return
    names = sorted({name for name, _ in sessions})
    raise CommandFailed(
        f"The database is in use by {len(sessions)} sessions ({', '.join(names)}). Stop wakeboard up, every "
        "worker and dashboard, then restore."
    )


@contextmanager
def _temporary_data_dir(data_dir: Path) -> Iterator[Path]:
    """Create a data folder beside the cluster, on the same disk, and remove it afterwards."""
    make_folders(data_dir)
    folder = Path(tempfile.mkdtemp(prefix="restore-", dir=data_dir))
    folder.chmod(data_dir.stat().st_mode & 0o777)
    try:
        yield folder
    finally:
        embedded.stop(folder, only_if_unused=False)
        shutil.rmtree(folder, ignore_errors=True)


def _rebuild(data_dir: Path, program: Path, file: Path) -> int:
    """Create the restored cluster in ``data_dir`` and stop it; return how many runs were running."""
    notice = WaitNotice(print_notice)
    server = embedded.start(data_dir, progress=notice)
    load(program, server.url, file, progress=notice)
    migrations.migrate(server.url)
    with open_connection(server.url, name="wakeboard restore", statement_timeout_seconds=0) as connection:
        running = fence_database(connection, terminal_actor(), "database.restore", str(file))
        connection.execute("ANALYZE")
    embedded.stop(data_dir, only_if_unused=False)
    return running


def _start_restored(data_dir: Path, aside: Path | None, was_running: bool) -> None:
    """Start the server on the restored cluster; when it does not answer, bring the old one back."""
    try:
        server = embedded.start(data_dir, progress=WaitNotice(print_notice))
        with open_connection(server.url, name="wakeboard restore") as connection:
            migrations.current_revision(connection)
    except (embedded.EmbeddedError, DatabaseError) as failed:
        failed_cluster = embedded.swap_back(data_dir, aside)
        raise CommandFailed(
            f"The restored database did not start: {failed} The one before is back; the other is in "
            f"{failed_cluster}."
        ) from failed
    if not was_running:
        embedded.stop(data_dir)


@db.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also while workers or dashboards are connected.")
def fence(yes: bool, force: bool) -> None:
    """Cut a restored database off from the workers of its old life; do it before anybody works on it."""
    url = database_url(read_settings())
    with open_connection(url, name="wakeboard fence", statement_timeout_seconds=0) as connection:
        _require_tables(connection)
        before = preview_fence(connection)
        if before.connected and not force:
            raise CommandFailed(
                f"Programs of Wakeboard are connected ({', '.join(before.connected)}). Stop every worker and "
                "dashboard, then fence; --force if one cannot be stopped."
            )
        print_notice(_fence_plan(before))
        if not yes and not click.confirm("Fence?", err=True):
            raise CommandFailed("Nothing was done.")
        running = fence_database(connection, terminal_actor(), "database.fence", before.database)
    fields = {
        "database": before.database, "fenced": before.unended, "running": running, "workers": before.workers,
        "sessions": before.sessions,
    }  # fmt: skip
    lost = f" {running:,} running runs have no worker: they count as lost and run again by their rule."
    print_result(fields, f"The database {before.database} is fenced.{lost if running else ''}")


def _require_tables(connection: Connection) -> None:
    revision, head = migrations.current_revision(connection), migrations.head_revision()
    if (advice := migrations.upgrade_advice(revision)) is not None:
        raise CommandFailed(
            f"The schema is at revision {revision or 'none'}; this version needs {head}. {advice}"
        )


def _fence_plan(before: FencePreview) -> str:
    return "\n".join(
        (
            f"In the database {before.database} this will",
            f"- end the leases of {before.running:,} running runs: the first worker takes them as lost;",
            f"- refuse late answers to {before.unended:,} runs that have not succeeded;",
            f"- let new runs begin far above number {before.last_run:,}, so that none is given twice;",
            f"- mark {before.workers:,} workers as stopped, and end {before.sessions:,} sign-ins.",
            NOTHING_ELSE,
        )
    )
