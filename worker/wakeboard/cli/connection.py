"""The database of a command: the configured one, or the embedded one, started when it is not up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg

from wakeboard.cli.flags import read_settings
from wakeboard.cli.terminal import print_notice
from wakeboard.config.settings import Settings
from wakeboard.core.text.tolerant_types import make_readable
from wakeboard.database import db, migrations
from wakeboard.database.read import read_all, read_one

Connection = psycopg.Connection
Row = dict[str, Any]


def database_url(settings: Settings) -> str:
    """Return the database's libpq URL; the embedded server is started when nothing is configured.

    It stays on afterwards: other commands and ``up`` find it there. Raises EmbeddedError or DatabaseError.
    """
    if settings.database_url is not None:
        return settings.database_url
    # Imported without a URL only: it takes as long as everything else that a command loads.
    from wakeboard.database import embedded

    if embedded.is_running(settings.data_dir):
        return embedded.url(settings.data_dir)
    server = embedded.start(settings.data_dir, progress=print_notice)
    if server.started_here:
        print_notice(
            "The embedded database was not running: started it. It stays on; to stop it: wakeboard db stop"
        )
    with db.connect(server.url, name="wakeboard cli") as connection:
        is_empty = migrations.current_revision(connection) is None
    if is_empty:
        migrations.migrate(server.url)
    return server.url


@contextmanager
def connect() -> Iterator[Connection]:
    """Open the connection of the current command; each statement commits by itself."""
    settings = read_settings()
    # Enqueueing reads the limit on payloads from the environment.
    if settings.origins.get("payload_bytes") == "flag":
        os.environ["WAKEBOARD_PAYLOAD_BYTES"] = str(settings.payload_bytes)
    with db.connect(database_url(settings), name="wakeboard cli") as connection:
        make_readable(connection)
        yield connection


def read_rows(
    connection: Connection, statement: str, values: Mapping[str, object] | None = None
) -> list[Row]:
    """Return the rows of ``statement`` as dictionaries."""
    return read_all(connection, statement, dict, values)


def read_row(
    connection: Connection, statement: str, values: Mapping[str, object] | None = None
) -> Row | None:
    """Return the first row of ``statement`` as a dictionary, None when there is none."""
    return read_one(connection, statement, dict, values)


def database_now(connection: Connection) -> datetime:
    """Return the database's clock."""
    row = read_row(connection, "SELECT now() AS now")
    assert row is not None
    now: datetime = row["now"]
    return now
