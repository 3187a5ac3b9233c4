"""From a command to its database: the configured one, or the embedded one, started when it is not up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg

from wakeboard.cli.flags import settings
from wakeboard.cli.terminal import tell
from wakeboard.config.settings import Settings
from wakeboard.core.text.tolerant_types import make_readable
from wakeboard.database import db, migrations
from wakeboard.database.read import read_all

Connection = psycopg.Connection[Any]
Row = dict[str, Any]


def database_url(chosen: Settings) -> str:
    """Return the database's libpq URL; the embedded server is started when nothing is configured.

    It stays on afterwards: other commands and ``up`` find it there. Raises EmbeddedError or DatabaseError.
    """
    if chosen.database_url is not None:
        return chosen.database_url
    # Loaded without a URL only: it takes as long as everything else that a command loads.
    from wakeboard.database import embedded

    if embedded.is_running(chosen.data_dir):
        return embedded.url(chosen.data_dir)
    server = embedded.start(chosen.data_dir, progress=tell)
    if server.started_here:
        tell("The embedded database was not running: started it. It stays on; to stop it: wakeboard db stop")
    _make_tables(server.url)
    return server.url


def _make_tables(url: str) -> None:
    """Migrate a database that is empty because it was made a moment ago."""
    with db.connect(url, name="wakeboard cli") as connection:
        is_new = migrations.current_revision(connection) is None
    if is_new:
        migrations.migrate(url)


@contextmanager
def connection() -> Iterator[Connection]:
    """Yield a connection of the command that runs; each statement commits by itself."""
    chosen = settings()
    # The limit on payloads is read where runs are enqueued, which no settings reach.
    if chosen.origins.get("payload_bytes") == "flag":
        os.environ["WAKEBOARD_PAYLOAD_BYTES"] = str(chosen.payload_bytes)
    with db.connect(database_url(chosen), name="wakeboard cli") as opened:
        make_readable(opened)
        yield opened


def rows(opened: Connection, statement: str, values: Row | None = None) -> list[Row]:
    """Return the rows of ``statement`` as dictionaries."""
    return read_all(opened, statement, dict, values)


def one(opened: Connection, statement: str, values: Row | None = None) -> Row | None:
    """Return the first row of ``statement`` as a dictionary, None when there is none."""
    found = rows(opened, statement, values)
    return found[0] if found else None


def database_now(opened: Connection) -> datetime:
    """Return the database's clock."""
    row = one(opened, "SELECT now() AS now")
    assert row is not None
    now: datetime = row["now"]
    return now


def ourselves(*arguments: str) -> list[str]:
    """Return the command line that runs this installation's ``worker`` with ``arguments``.

    Without -P the working folder would come first, and a user's own ``worker.py`` in the place of ours.
    """
    return [sys.executable, "-P", "-m", "wakeboard", *arguments]
