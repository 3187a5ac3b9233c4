"""The servers of the shop, in one process on loopback: mail, a bank, a stock and an address service.

``python -m wakeboard.demo.servers --smtp PORT --http PORT``, with WAKEBOARD_DATABASE_URL. Ends on SIGTERM,
and when its parent process has ended. HTTP: ``POST /charges`` (idempotent by key), ``GET /stock/<sku>``,
``GET /address/<order>``, ``GET /health``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

from wakeboard.database.db import DatabaseError
from wakeboard.demo.mail_server import LOOPBACK, Mail, MailServer
from wakeboard.queue.handler_connection import close_thread_connection, own_connection

# The stock service is down for ninety seconds of every six minutes, the first time after one minute.
OUTAGE_EVERY_SECONDS, OUTAGE_FROM_SECONDS, OUTAGE_TO_SECONDS = 360, 60, 150
HANG_SECONDS = 60
_LARGEST_BYTES = 65_536
Reply = tuple[int, dict[str, str | int]]
_INSERT_MAIL = """
INSERT INTO shop.mails (message_id, sender, recipients, subject, body, attachments)
VALUES (%s, %s, %s, %s, %s, %s)
"""
_CHARGE = """
INSERT INTO shop.charges (key, id, cents) VALUES (%s, 'ch_' || substr(md5(random()::text), 1, 12), %s)
ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING id
"""
_BUSY_ONE_IN = 6
_PARENT_CHECK_SECONDS = 1.0


class ShopMailbox:
    """Stores mails in the database; refuses one in six at its first delivery, as a busy server does."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def store(self, mail: Mail) -> str:
        """Return the SMTP reply to ``mail``: 250 when it is in the table."""
        if self._is_busy(mail.message_id or ""):
            return "451 The mailbox is busy, try again later"
        try:
            with _connection() as connection:
                connection.execute(_INSERT_MAIL, mail)
        except (psycopg.Error, DatabaseError):
            return "451 The mailbox cannot be written"
        return "250 Kept"

    def _is_busy(self, message_id: str) -> bool:
        if zlib.crc32(message_id.encode()) % _BUSY_ONE_IN or message_id in self._refused:
            return False
        self._refused.add(message_id)
        return True


def charge(key: str, cents: int) -> str:
    """Store a charge and return its id; the same key gives the same charge."""
    with _connection() as connection:
        row = connection.execute(_CHARGE, (key[:200], cents)).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def _connection() -> Iterator[psycopg.Connection]:
    try:
        with own_connection() as connection:
            yield connection
    finally:
        # Each message and each request has a thread of its own, which its connection would outlive.
        close_thread_connection()


def is_outage(uptime_seconds: float) -> bool:
    """Return whether the stock service is down ``uptime_seconds`` after its start."""
    return OUTAGE_FROM_SECONDS <= uptime_seconds % OUTAGE_EVERY_SECONDS < OUTAGE_TO_SECONDS


class Provider(ThreadingHTTPServer):
    """The HTTP server of the bank, the stock and the address service."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.opened_at = time.monotonic()
        self.closing = threading.Event()
        self._hung: set[int] = set()

    def stock(self, sku: str) -> Reply:
        """Return how many there are, or 503 during an outage."""
        if is_outage(time.monotonic() - self.opened_at):
            return 503, {"error": "The stock service is down for a while."}
        return 200, {"sku": sku, "quantity": (zlib.crc32(sku.encode()) + int(time.time()) // 60) % 97}

    def address(self, order: int) -> Reply:
        """Return that the address is good; for one order in four the first request hangs."""
        if order % 4 == 1 and order not in self._hung:
            self._hung.add(order)
            self.closing.wait(HANG_SECONDS)
        return 200, {"order": order, "address": "good"}

    def pay(self, key: str, order: int, cents: int) -> Reply:
        """Charge once for each key; one order in six has a card that the bank declines."""
        if not key:
            return 400, {"error": "idempotency_key_missing"}
        if order % 6 == 5:
            return 402, {"error": "card_declined"}
        return 200, {"id": charge(key, cents), "cents": cents}


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    timeout = 30

    def do_GET(self) -> None:
        _, _, rest = self.path.partition("/")
        noun, _, name = rest.partition("/")
        if noun == "health":
            self._reply(200, {"health": "good"})
        elif noun == "stock" and name:
            self._reply(*self.server.stock(name[:100]))
        elif noun == "address" and name.isdecimal():
            self._reply(*self.server.address(int(name)))
        else:
            self._reply(404, {"error": "not_found"})

    def do_POST(self) -> None:
        try:
            length = min(int(self.headers.get("Content-Length", 0)), _LARGEST_BYTES)
            given = json.loads(self.rfile.read(length))
            order, cents = int(given["order"]), int(given["cents"])
        except (ValueError, KeyError, TypeError):
            self._reply(400, {"error": "unreadable"})
            return
        self._reply(*self.server.pay(self.headers.get("Idempotency-Key", ""), order, cents))

    def _reply(self, status: int, body: dict[str, str | int]) -> None:
        content = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            # The client was stopped meanwhile.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the runs have the same information."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or the end of the parent process."""
    parser = argparse.ArgumentParser(description="The example shop's servers, on loopback.")
    parser.add_argument("--smtp", type=int, required=True, metavar="PORT")
    parser.add_argument("--http", type=int, required=True, metavar="PORT")
    ports = parser.parse_args(arguments)
    parent, stops = os.getppid(), {signal.SIGTERM, signal.SIGINT}
    # Blocked before any thread starts: a thread would take the signal itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    provider = Provider(ports.http)
    threading.Thread(target=provider.serve_forever, name="provider", daemon=True).start()
    mail_server = MailServer(ShopMailbox().store, ports.smtp)
    mail_server.start()
    while os.getppid() == parent and signal.sigtimedwait(stops, _PARENT_CHECK_SECONDS) is None:
        pass
    mail_server.stop()
    provider.closing.set()
    provider.shutdown()
    provider.server_close()


if __name__ == "__main__":
    main()
