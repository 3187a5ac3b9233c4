"""``db``: migrations, and the embedded server's URL, shell, backup, restore, fence and stop."""

from __future__ import annotations

import os
import shutil

import click

from wakeboard.cli import backups, fencing, reach
from wakeboard.cli.flags import Noun, settings
from wakeboard.cli.printing import answer
from wakeboard.cli.refusals import Failed, Wrong
from wakeboard.database import db as databases


@click.group(cls=Noun)
def db() -> None:
    """The database: upgrade, check, url, shell, backup, restore, fence, stop."""


db.add_command(backups.backup)
db.add_command(backups.restore)
db.add_command(fencing.fence)


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
        raise Failed("There is no psql here; install PostgreSQL's client, or use the URL: wakeboard db url")
    # The URL may carry a password, which every user of the machine could read among the arguments.
    os.execve(program, [program, *arguments], os.environ | _as_variables(found))


def _own_psql() -> str:
    from wakeboard.database import embedded

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
    from wakeboard.database import embedded

    chosen = settings()
    if chosen.database_url is not None:
        raise Wrong("A database URL is set, so there is no embedded server to stop. Stop that server itself.")
    said = embedded.stop(chosen.data_dir)
    stopped = not embedded.is_running(chosen.data_dir)
    answer({"stopped": stopped, "message": said}, said)
    return 0 if stopped else 1
