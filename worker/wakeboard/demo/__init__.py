"""The example shop: ``wakeboard up --demo`` or ``--app wakeboard.demo``. An import registers its job types.

Its effects are real, on one machine: rows in the schema ``shop``, files in the data folder, mail to a server
of its own on loopback. It reaches no other host.
"""

from __future__ import annotations

import socket
import sys

from psycopg import Connection

from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.database.db import connect
from wakeboard.demo import catalogue, history, orders, reports, shop
from wakeboard.demo.mail_server import LOOPBACK, free_port
from wakeboard.queue.definitions import Definition, add
from wakeboard.queue.enqueue import enqueue

DEMO_ACTOR = Actor("demo", Role.ADMIN, "cli")
_SET_PORT = """
INSERT INTO shop.places (name, port) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET port = excluded.port
"""


def prepare(url: str) -> list[list[str]]:
    """Make the shop's tables, and at the first start its history, in the migrated database at ``url``.

    Returns the commands to run beside the workers (the shop's servers), which need
    WAKEBOARD_DATABASE_URL. Safe to repeat. Raises DatabaseError when the database does not answer.
    """
    with connect(url, name="wakeboard demo") as connection:
        shop.create_tables(connection)
        ports = {place: _choose_port(connection, place) for place in ("smtp", "http")}
        history.write_history(connection)
        history.write_stuck_run(connection)
        _define_schedules(connection, ports["http"])
        enqueue(connection, "import_catalogue", delay=75, key="import:first", enqueued_by="demo")
    servers = [sys.executable, "-P", "-m", "wakeboard.demo.servers"]
    return [[*servers, "--smtp", str(ports["smtp"]), "--http", str(ports["http"])]]


def _choose_port(connection: Connection, place: str) -> int:
    """Return the loopback port of a server, and store it: the last one if it is free, else another."""
    last = shop.port_of(connection, place)
    port = last if last and _is_free(last) else free_port()
    connection.execute(_SET_PORT, (place, port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _define_schedules(connection: Connection, http: int) -> None:
    """Make two schedules of built-in types, which need no Python."""
    health = {"url": f"http://{LOOPBACK}:{http}/health"}
    disk = {"argv": ["/bin/df", "-h", "/"]}
    for definition in (
        Definition("provider-health", "http", "*/5 * * * *", health, max_attempts=3, timeout_seconds=20),
        Definition("disk-space", "command", "*/10 * * * *", disk, max_attempts=1, timeout_seconds=20),
    ):
        add(connection, definition, DEMO_ACTOR, "the example shop opens")


__all__ = ["catalogue", "orders", "prepare", "reports"]
