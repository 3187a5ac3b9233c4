"""Opening the shop: tables, ports, the past of the first start, two definitions, a stuck run."""

from __future__ import annotations

import socket
import sys
from typing import Any

from psycopg import Connection

from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.database.db import connect
from wakeboard.demo import past, shop
from wakeboard.demo.neighbours import LOOPBACK
from wakeboard.queue.definitions import Definition, add
from wakeboard.queue.enqueue import enqueue

OPENER = Actor("demo", Role.ADMIN, "cli")
_PLACE = """
INSERT INTO shop.places (name, port) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET port = excluded.port
"""


def prepare(url: str) -> list[list[str]]:
    """Make or refresh everything the shop needs in the database at ``url``; return the street's command."""
    with connect(url, name="wakeboard demo") as connection:
        shop.create(connection)
        ports = {place: _settle(connection, place) for place in ("smtp", "http")}
        past.write(connection)
        past.leave_stuck(connection)
        _define(connection, ports["http"])
        enqueue(connection, "import_catalogue", delay=75, key="import:first", enqueued_by="demo")
    street = [sys.executable, "-P", "-m", "wakeboard.demo.street"]
    return [[*street, "--smtp", str(ports["smtp"]), "--http", str(ports["http"])]]


def _settle(connection: Connection[Any], place: str) -> int:
    """Return the place's loopback port: that of the last start if it is free, else another, written down."""
    known = shop.port_of(connection, place)
    port = known if known and _is_free(known) else _free_port()
    connection.execute(_PLACE, (place, port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _define(connection: Connection[Any], http: int) -> None:
    """Two definitions of the built-in types, for people with no Python to write."""
    health = {"url": f"http://{LOOPBACK}:{http}/health"}
    disk = {"argv": ["/bin/df", "-h", "/"]}
    for definition in (
        Definition("provider-health", "http", "*/5 * * * *", health, max_attempts=3, timeout_seconds=20),
        Definition("disk-space", "command", "*/10 * * * *", disk, max_attempts=1, timeout_seconds=20),
    ):
        add(connection, definition, OPENER, "the example shop opens")
