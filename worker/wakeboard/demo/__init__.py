"""The example shop: ``wakeboard up --demo`` or ``--app wakeboard.demo``; importing registers its types.

Everything it does is real, on one machine: rows in the schema ``shop``, files in the data folder, mail to a
mailbox of its own on loopback. It reaches no other host.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from psycopg import Connection

from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.database.db import connect
from wakeboard.demo import catalogue, orders, past, reports, shop
from wakeboard.demo.mail_server import LOOPBACK, free_port
from wakeboard.queue.definitions import Definition, add
from wakeboard.queue.enqueue import enqueue

OPENER = Actor("demo", Role.ADMIN, "cli")
_PLACE = """
INSERT INTO shop.places (name, port) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET port = excluded.port
"""


def prepare(url: str) -> list[list[str]]:
    """Make the shop's tables, and at the first start its past, in the migrated database at ``url``.

    Returns the commands to keep running beside the workers (the shop's servers), which need
    WAKEBOARD_DATABASE_URL. Safe to repeat. Raises DatabaseError when the database does not answer.
    """
    with connect(url, name="wakeboard demo") as connection:
        shop.create(connection)
        ports = {place: _choose_port(connection, place) for place in ("smtp", "http")}
        past.write(connection)
        past.leave_stuck(connection)
        _define(connection, ports["http"])
        enqueue(connection, "import_catalogue", delay=75, key="import:first", enqueued_by="demo")
    servers = [sys.executable, "-P", "-m", "wakeboard.demo.servers"]
    return [[*servers, "--smtp", str(ports["smtp"]), "--http", str(ports["http"])]]


def _choose_port(connection: Connection[Any], place: str) -> int:
    """Return the place's loopback port: that of the last start if it is free, else another, written down."""
    known = shop.port_of(connection, place)
    port = known if known and _is_free(known) else free_port()
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


def _define(connection: Connection[Any], http: int) -> None:
    """Make two definitions of the built-in types, which need no Python."""
    health = {"url": f"http://{LOOPBACK}:{http}/health"}
    disk = {"argv": ["/bin/df", "-h", "/"]}
    for definition in (
        Definition("provider-health", "http", "*/5 * * * *", health, max_attempts=3, timeout_seconds=20),
        Definition("disk-space", "command", "*/10 * * * *", disk, max_attempts=1, timeout_seconds=20),
    ):
        add(connection, definition, OPENER, "the example shop opens")


__all__ = ["catalogue", "orders", "prepare", "reports"]
