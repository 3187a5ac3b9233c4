"""The street the shop stands in: mailbox and providers in one process, on loopback.

``python -m wakeboard.demo.street --smtp PORT --http PORT``, with WAKEBOARD_DATABASE_URL. Ends with
SIGTERM, and when its starter has gone.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from wakeboard.database.db import DatabaseError
from wakeboard.demo.mail_server import LOOPBACK, Mail, MailServer
from wakeboard.demo.provider import Provider
from wakeboard.handlers.handler_connection import drop, own_connection

_KEEP = """
INSERT INTO shop.mails (message_id, sender, recipients, subject, body, attachments)
VALUES (%s, %s, %s, %s, %s, %s)
"""
_CHARGE = """
INSERT INTO shop.charges (key, id, cents) VALUES (%s, 'ch_' || substr(md5(random()::text), 1, 12), %s)
ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING id
"""
_BUSY_ONE_IN = 6
_LOOK_SECONDS = 1.0


class Mailbox:
    """Keeps mails in the database; one in six is refused at first, as busy servers do."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def keep(self, mail: Mail) -> str:
        """Return the SMTP reply to ``mail``: 250 when it is in the table."""
        if self._is_busy(mail.message_id or ""):
            return "451 The mailbox is busy, try again later"
        try:
            with _connection() as connection:
                connection.execute(_KEEP, mail)
        except (psycopg.Error, DatabaseError):
            return "451 The mailbox cannot be written"
        return "250 Kept"

    def _is_busy(self, message_id: str) -> bool:
        if zlib.crc32(message_id.encode()) % _BUSY_ONE_IN or message_id in self._refused:
            return False
        self._refused.add(message_id)
        return True


def charge(key: str, cents: int) -> str:
    """Keep a charge and return its id; the same key gives the same charge."""
    with _connection() as connection:
        row = connection.execute(_CHARGE, (key[:200], cents)).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def _connection() -> Iterator[psycopg.Connection[Any]]:
    try:
        with own_connection() as connection:
            yield connection
    finally:
        # Each message and each request has a thread of its own, and the thread's connection would outlive it.
        drop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description="The example shop's mailbox and providers, on loopback.")
    parser.add_argument("--smtp", type=int, required=True, metavar="PORT")
    parser.add_argument("--http", type=int, required=True, metavar="PORT")
    given = parser.parse_args(arguments)
    starter, stops = os.getppid(), {signal.SIGTERM, signal.SIGINT}
    # Before any thread starts: each would else take the signal itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    provider = Provider(LOOPBACK, given.http, charge)
    threading.Thread(target=provider.serve_forever, name="provider", daemon=True).start()
    mail_server = MailServer(Mailbox().keep, given.smtp)
    mail_server.start()
    while os.getppid() == starter and signal.sigtimedwait(stops, _LOOK_SECONDS) is None:
        pass
    mail_server.stop()
    provider.closing.set()
    provider.shutdown()
    provider.server_close()


if __name__ == "__main__":
    main()
