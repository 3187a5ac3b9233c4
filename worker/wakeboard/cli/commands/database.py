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

from wakeboard.cli import reach
from wakeboard.cli.flags import CommandGroup, settings
from wakeboard.cli.printing import answer
from wakeboard.cli.refusals import NotDone, WrongUse
from wakeboard.cli.terminal import tell
from wakeboard.config.settings import Settings
from wakeboard.database import db as databases
from wakeboard.database import embedded
from wakeboard.database.audit import terminal_actor
from wakeboard.database.embedded.identity import make_folders
from wakeboard.database.embedded.server import WaitNotice
from wakeboard.maintenance.backups.dump import BackupError, dump, list_entries, load
from wakeboard.maintenance.backups.fence import FencePreview, fence_database, preview_fence

FORGOTTEN = (
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
    before, after = databases.migrate(reach.database_url(settings()))
    changed = before != after
    words = f"was brought from {before or 'nothing'} to {after}" if changed else f"is current: {after}"
    answer({"before": before, "revision": after, "changed": changed}, f"The schema {words}.")


@db.command()
def check() -> int:
    """Say whether the schema is this version's; exit code 1 when it is not."""
    with reach.connection() as connection:
        found, wanted = databases.current_revision(connection), databases.head_revision()
        size = reach.one(connection, "SELECT pg_database_size(current_database()) AS bytes")
    current, newer, mend = found == wanted, databases.is_newer(found), databases.way_to_head(found)
    words = "is current" if current else f"is not current: this version needs {wanted}. {mend}"
    if newer:
        words = f"is not of this version, which needs {wanted}: {databases.NEWER} {mend}"
    known = {
        "revision": found,
        "needed": wanted,
        "current": current,
        "newer": newer,
        "bytes": size["bytes"] if size else None,
    }
    answer(known, f"The schema ({found or 'none'}) {words.rstrip('.')}.")
    return 0 if current else 1


@db.command()
def url() -> None:
    """Print the libpq URL of the database, its password included."""
    found = reach.database_url(settings())
    answer({"url": found}, found)


@db.command()
@click.argument("arguments", nargs=-1)
def shell(arguments: tuple[str, ...]) -> None:
    """Open psql on the database; arguments after -- go to psql."""
    chosen = settings()
    found = reach.database_url(chosen)
    program = shutil.which("psql") if chosen.database_url else _own_psql()
    if program is None:
        raise NotDone("There is no psql here; install PostgreSQL's client, or use the URL: wakeboard db url")
    # The URL may carry a password, which every user of the machine could read among the arguments.
    os.execve(program, [program, *arguments], os.environ | _as_variables(found))


def _own_psql() -> str:
    return str(embedded.binary("psql", settings().data_dir))


def _as_variables(url: str) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict

    names = {
        "host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT", "dbname": "PGDATABASE",
        "user": "PGUSER", "password": "PGPASSWORD", "passfile": "PGPASSFILE", "service": "PGSERVICE",
        "options": "PGOPTIONS", "sslmode": "PGSSLMODE", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
        "sslrootcert": "PGSSLROOTCERT", "connect_timeout": "PGCONNECT_TIMEOUT",
        "target_session_attrs": "PGTARGETSESSIONATTRS",
    }  # fmt: skip
    given = conninfo_to_dict(url)
    return {names[key]: str(value) for key, value in given.items() if key in names and value is not None}


@db.command()
def stop() -> int:
    """Stop the embedded server, unless somebody uses it."""
    chosen = settings()
    if chosen.database_url is not None:
        raise WrongUse(
            "A database URL is set, so there is no embedded server to stop. Stop that server itself."
        )
    said = embedded.stop(chosen.data_dir)
    stopped = not embedded.is_running(chosen.data_dir)
    answer({"stopped": stopped, "message": said}, said)
    return 0 if stopped else 1


@db.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE when it exists.")
def backup(file: Path | None, force: bool) -> None:
    """Write the embedded database into FILE, while all goes on; without FILE into DATA_DIR/backups."""
    chosen = settings()
    _require_embedded(chosen, 'pg_dump --format=custom --file=FILE "$WAKEBOARD_DATABASE_URL"')
    if not embedded.has_cluster(chosen.data_dir):
        # A fresh, empty one would be made and backed up, and the right one never.
        raise NotDone(
            f"There is no database in {chosen.data_dir}: set WAKEBOARD_DATA_DIR to the folder that up uses."
        )
    url = reach.database_url(chosen)
    target = _own_file(chosen) if file is None else file.absolute()
    with databases.connect(url, name="wakeboard backup") as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    programs = [embedded.binary(name, chosen.data_dir) for name in ("pg_dump", "pg_restore")]
    try:
        size = dump(programs[0], programs[1], url, target, force=force, progress=WaitNotice(tell))
    except BackupError as failed:
        raise NotDone(str(failed)) from failed
    assert row is not None
    with databases.connect(url, name="wakeboard backup") as connection:
        connection.execute(BACKED_UP, (row[0],))
    sentence = f"Backed up into {target} ({size / 1e6:.1f} MB). Keep a copy on another machine."
    answer({"file": str(target), "bytes": size, "backed_up_at": row[0]}, sentence)


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask; what was done since the backup is forgotten.")
def restore(file: Path, yes: bool) -> None:
    """Put the backup FILE in the place of the embedded database; the one before is kept aside."""
    chosen = settings()
    _require_embedded(chosen, 'pg_restore --dbname="$WAKEBOARD_DATABASE_URL" FILE, into an empty database')
    _require_unused(chosen.data_dir)
    program = embedded.binary("pg_restore", chosen.data_dir)
    try:
        list_entries(program, file)
        tell(FORGOTTEN)
        if not yes:
            click.confirm("Restore?", abort=True, err=True)
        was_running = embedded.is_running(chosen.data_dir)
        with _workshop(chosen.data_dir) as workshop:
            running = _rebuild(workshop, program, file.absolute())
            aside = embedded.exchange(chosen.data_dir, workshop)
    except BackupError as failed:
        raise NotDone(str(failed)) from failed
    _prove(chosen.data_dir, aside, was_running)
    _say_done(file, aside, running)


def _say_done(file: Path, aside: Path | None, running: int) -> None:
    said = [f"Restored {file}."]
    if running:
        said.append(f"{running} runs were running then: they count as lost and run again by their rule.")
    said += [FORGOTTEN, "Look at people and tokens: who was shut out since then is let in again."]
    if aside is not None:
        said.append(f"The database before is kept in {aside}: remove it when all is well.")
    found = {"file": str(file), "kept": None if aside is None else str(aside), "running": running}
    answer(found | {"message": " ".join(said)}, "\n".join(said))


def _require_embedded(chosen: Settings, instead: str) -> None:
    """Raise WrongUse unless the database is the embedded one (``up`` hands its URL to what it starts)."""
    if chosen.database_url is None:
        return
    own = None
    with suppress(embedded.EmbeddedError):
        own = embedded.url(chosen.data_dir)
    if chosen.database_url != own:
        raise WrongUse(
            "A database URL is set, and this command is for the embedded database. Use that server's own: "
            f"{instead}"
        )


def _own_file(chosen: Settings) -> Path:
    folder = chosen.data_dir / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"wakeboard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.dump"


def _require_unused(data_dir: Path) -> None:
    """Raise NotDone, naming who is connected, while anybody is."""
    connected = embedded.sessions(data_dir)
    if not connected:
        return
    names = sorted({name for name, _ in connected})
    raise NotDone(
        f"The database is in use by {len(connected)} sessions ({', '.join(names)}). Stop wakeboard up, every "
        "worker and dashboard, then restore."
    )


@contextmanager
def _workshop(data_dir: Path) -> Iterator[Path]:
    """Give a data folder of its own beside the cluster, on the same disk, gone afterwards."""
    make_folders(data_dir)
    made = Path(tempfile.mkdtemp(prefix="restore-", dir=data_dir))
    made.chmod(data_dir.stat().st_mode & 0o777)
    try:
        yield made
    finally:
        embedded.stop(made, only_if_unused=False)
        shutil.rmtree(made, ignore_errors=True)


def _rebuild(workshop: Path, program: Path, file: Path) -> int:
    """Make the restored cluster in ``workshop`` and stop it; return how many runs were running."""
    teller = WaitNotice(tell)
    server = embedded.start(workshop, progress=teller)
    load(program, server.url, file, progress=teller)
    databases.migrate(server.url)
    with databases.connect(server.url, name="wakeboard restore", statement_timeout_seconds=0) as connection:
        running = fence_database(connection, terminal_actor(), "database.restore", str(file))
        connection.execute("ANALYZE")
    embedded.stop(workshop, only_if_unused=False)
    return running


def _prove(data_dir: Path, aside: Path | None, was_running: bool) -> None:
    """Start the server on the restored cluster; when it does not answer, bring the old one back."""
    try:
        server = embedded.start(data_dir, progress=WaitNotice(tell))
        with databases.connect(server.url, name="wakeboard restore") as connection:
            databases.current_revision(connection)
    except (embedded.EmbeddedError, databases.DatabaseError) as failed:
        kept = embedded.put_back(data_dir, aside)
        raise NotDone(
            f"The restored database did not start: {failed} The one before is back; the other is in {kept}."
        ) from failed
    if not was_running:
        embedded.stop(data_dir)


@db.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also while workers or dashboards are connected.")
def fence(yes: bool, force: bool) -> None:
    """Cut a restored database off from the workers of its old life; do it before anybody works on it."""
    url = reach.database_url(settings())
    with databases.connect(url, name="wakeboard fence", statement_timeout_seconds=0) as connection:
        _require_tables(connection)
        before = preview_fence(connection)
        if before.connected and not force:
            raise NotDone(
                f"Programs of Wakeboard are connected ({', '.join(before.connected)}). Stop every worker and "
                "dashboard, then fence; --force if one cannot be stopped."
            )
        tell(_plan(before))
        if not yes and not click.confirm("Fence?", err=True):
            raise NotDone("Nothing was done.")
        done = fence_database(connection, terminal_actor(), "database.fence", before.database)
    found = {
        "database": before.database, "fenced": before.unended, "running": done, "workers": before.workers,
        "sessions": before.sessions,
    }  # fmt: skip
    lost = f" {done:,} running runs have no worker: they count as lost and run again by their rule."
    answer(found, f"The database {before.database} is fenced.{lost if done else ''}")


def _require_tables(connection: reach.Connection) -> None:
    found, wanted = databases.current_revision(connection), databases.head_revision()
    if (mend := databases.way_to_head(found)) is not None:
        raise NotDone(f"The schema is at revision {found or 'none'}; this version needs {wanted}. {mend}")


def _plan(before: FencePreview) -> str:
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
