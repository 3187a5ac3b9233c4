"""One message, sent by one process at a time: the row is claimed, sent outside of any transaction, recorded.

The row is the ledger, shared by runs of type ``alert`` and by the web process, so either may go on where the
other stopped. Nobody can know whether a mail server that took a message before its sender died delivered it:
such a message is sent again, says that it may be a repeat, and carries the same id. A missed alarm is worse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage
from wakeboard.core.time.clock_skew import is_ahead, is_before
from wakeboard.database.db import DatabaseError

Connection = psycopg.Connection[Any]
# Longer than any channel takes, so that a claim which ended means that its process died.
CLAIM_SECONDS = 120
WAITS = (10, 30, 60, 300, 900, 1800, 3600)
MOST_TRIES = len(WAITS) + 1
# After this long without a try a message that waits for a worker is taken by the web process.
PATIENCE_SECONDS = 120
RECORD_SECONDS = 20.0
_LONGEST = f"CASE WHEN error IS NULL THEN {CLAIM_SECONDS} ELSE {WAITS[-1]} END"
_IS_FREE = f"(claimed_until <= now() OR {is_ahead('claimed_until', _LONGEST)})"

CLAIM = f"""
UPDATE wakeboard.alert_messages AS m
SET claimed_until = now() + interval '{CLAIM_SECONDS} seconds', tries = m.tries + 1, error = NULL
FROM (
    SELECT id, tries > 0 AND error IS NULL AS is_repeat FROM wakeboard.alert_messages
    WHERE id = %(id)s AND sent_at IS NULL AND gave_up_at IS NULL
      AND channel = ANY(%(channels)s) AND tries < {MOST_TRIES}
      AND (claimed_until IS NULL OR {_IS_FREE})
    FOR UPDATE
) AS before
WHERE m.id = before.id
RETURNING m.channel, m.subject, m.body, m.tries, before.is_repeat
"""
# The process of every try ended in its midst: one more would be the next repeat of many.
EXHAUSTED = f"""
UPDATE wakeboard.alert_messages SET gave_up_at = now(),
    error = coalesce(error, 'Each of {MOST_TRIES} processes ended while it sent this; it may have arrived.')
WHERE id = %(id)s AND sent_at IS NULL AND gave_up_at IS NULL AND tries >= {MOST_TRIES}
  AND {_IS_FREE}
"""
STANDING = f"""
SELECT sent_at IS NOT NULL, gave_up_at IS NOT NULL,
    CASE WHEN {_IS_FREE} THEN 0 ELSE extract(epoch FROM claimed_until - now()) END::float8, channel
FROM wakeboard.alert_messages WHERE id = %(id)s
"""
SENT = """
UPDATE wakeboard.alert_messages SET sent_at = now(), claimed_until = NULL, error = NULL, answer = %(words)s
WHERE id = %(id)s AND sent_at IS NULL
"""
FAILED = """
UPDATE wakeboard.alert_messages SET error = %(words)s,
    claimed_until = now() + make_interval(secs => %(wait)s),
    gave_up_at = CASE WHEN %(over)s THEN now() END
WHERE id = %(id)s AND sent_at IS NULL
"""
# What nobody is at: the web's own, and a worker's that no worker has touched for a while. A test is over when
# its only try is.
WAITING = f"""
SELECT id, run_id FROM wakeboard.alert_messages
WHERE sent_at IS NULL AND gave_up_at IS NULL AND kind <> 'test' AND channel = ANY(%(channels)s)
  AND (claimed_until IS NULL OR {_IS_FREE})
  AND (run_id IS NULL OR {is_before("coalesce(claimed_until, created_at)", PATIENCE_SECONDS)})
ORDER BY created_at LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of a try. ``wait_seconds``: how long until the next one makes sense."""

    result: Literal["sent", "already", "busy", "failed", "gave_up", "missing"]
    words: str
    wait_seconds: float = 0.0


def deliver(connection: Connection, channels: Channels, message_id: int) -> Delivery:
    """Send one message unless it is sent, given up, in another process's hands, or for a channel that only
    others know."""
    values = {"id": message_id, "channels": list(channels.names)}
    row = connection.execute(CLAIM.encode(), values).fetchone()
    if row is None:
        connection.execute(EXHAUSTED.encode(), values)
        return _standing(connection, channels, message_id)
    channel, subject, body, tries, is_repeat = row
    name = f"alert.{body.get('installation') or 'wakeboard'}.{message_id}"
    try:
        words = channels.send(channel, OutgoingMessage(name, subject, body, is_repeat))
    except NotSent as failure:
        return _failed(connection, message_id, tries, str(failure))
    _record(connection, message_id, words)
    return Delivery("sent", words)


def waiting(connection: Connection, channels: Channels, most: int = 20) -> list[tuple[int, int | None]]:
    """Return (message, its run) of what the web process should send now by ``channels``, oldest first."""
    values = {"most": most, "channels": list(channels.names)}
    return [(row[0], row[1]) for row in connection.execute(WAITING.encode(), values).fetchall()]


def _standing(connection: Connection, channels: Channels, message_id: int) -> Delivery:
    row = connection.execute(STANDING.encode(), {"id": message_id}).fetchone()
    if row is None:
        return Delivery("missing", f"There is no message {message_id}; retention may have removed it.")
    if row[0]:
        return Delivery("already", "It was sent already.")
    if row[1]:
        return Delivery("gave_up", "It was given up after too many tries.")
    if row[3] not in channels.names:
        # No try of the message's: whoever knows the channel goes on with it.
        words = f"This process knows no channel “{row[3]}”: its WAKEBOARD_ALERT_… are not set."
        return Delivery("busy", words, PATIENCE_SECONDS)
    return Delivery("busy", "Another process is at it, or its next try is not due yet.", row[2] or 1.0)


def _failed(connection: Connection, message_id: int, tries: int, words: str) -> Delivery:
    over = tries >= MOST_TRIES
    wait = WAITS[min(tries, len(WAITS)) - 1]
    connection.execute(FAILED.encode(), {"id": message_id, "words": words, "wait": wait, "over": over})
    return Delivery("gave_up" if over else "failed", words, wait)


def _record(connection: Connection, message_id: int, words: str) -> None:
    """Write that it was accepted, again and again while the database is away, within bounds."""
    until = time.monotonic() + RECORD_SECONDS
    while True:
        try:
            connection.execute(SENT.encode(), {"id": message_id, "words": words})
            return
        except (psycopg.OperationalError, DatabaseError):
            if connection.closed or time.monotonic() > until:
                raise
            time.sleep(0.5)
