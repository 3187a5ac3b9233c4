"""The street the shop stands in: mailbox and providers in one process, on loopback.

``python -m wakeboard.demo.street --smtp PORT --http PORT``, with WAKEBOARD_DATABASE_URL. Ends with
SIGTERM, and when its starter has gone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import zlib
from collections.abc import Sequence

import psycopg

from wakeboard.database.db import DatabaseError
from wakeboard.demo.mailbox import Mail, serve
from wakeboard.demo.neighbours import LOOPBACK
from wakeboard.demo.provider import Provider
from wakeboard.queue.handler_connection import drop, own_connection

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


class Postbox:
    """Keeps mails in the database; one in six is asked for a second time, as busy servers do."""

    def __init__(self) -> None:
        self._asked_again: set[str] = set()
        self._lock = threading.Lock()

    def keep(self, mail: Mail) -> str:
        """Return the SMTP reply to ``mail``: 250 when it is in the table."""
        if self._is_busy(mail.message_id or ""):
            return "451 The mailbox is busy, try again later"
        with self._lock:
            try:
                with own_connection() as connection:
                    connection.execute(_KEEP, (
                        mail.message_id, mail.sender, mail.recipients, mail.subject, mail.body,
                        mail.attachments,
                    ))  # fmt: skip
            except (psycopg.Error, DatabaseError):
                return "451 The mailbox cannot be written"
            finally:
                # Each message comes in a thread of its own, and a thread's connection would outlive it.
                drop()
        return "250 Kept"

    def _is_busy(self, message_id: str) -> bool:
        if zlib.crc32(message_id.encode()) % _BUSY_ONE_IN or message_id in self._asked_again:
            return False
        self._asked_again.add(message_id)
        return True


def charge(key: str, cents: int) -> str:
    """Keep a charge and return its id; the same key gives the same charge."""
    try:
        with own_connection() as connection:
            row = connection.execute(_CHARGE, (key[:200], cents)).fetchone()
    finally:
        drop()
    assert row is not None
    return str(row[0])


async def _live(smtp: int, http: int) -> None:
    starter, stop = os.getppid(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    provider = Provider(LOOPBACK, http, charge)
    threading.Thread(target=provider.serve_forever, name="provider", daemon=True).start()
    server = await serve(LOOPBACK, smtp, Postbox().keep)
    while not stop.is_set() and os.getppid() == starter:
        try:
            await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
        except TimeoutError:
            continue
    server.close()
    provider.closing.set()
    provider.shutdown()
    provider.server_close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Live until told to stop."""
    parser = argparse.ArgumentParser(description="The example shop's mailbox and providers, on loopback.")
    parser.add_argument("--smtp", type=int, required=True, metavar="PORT")
    parser.add_argument("--http", type=int, required=True, metavar="PORT")
    given = parser.parse_args(arguments)
    asyncio.run(_live(given.smtp, given.http))


if __name__ == "__main__":
    main()
