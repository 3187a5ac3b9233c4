"""Sends one message from one process at a time: claims its row, sends outside of transactions, records.

Runs of type ``alert`` and the web process share the row, so each may continue where the other stopped. When
a sender died, nobody knows whether the mail server accepted its message: such a message is sent again, says
that it may be a repeat, and carries the same id. A missed alarm is worse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import psycopg
from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage
from wakeboard.core.time.clock_skew import is_ahead, is_before
from wakeboard.database.db import DatabaseError

# Longer than any channel takes: when a claim has ended, its process has died.
CLAIM_SECONDS = 120
WAITS = (10, 30, 60, 300, 900, 1800, 3600)
MOST_TRIES = len(WAITS) + 1
# The web process takes a message that has waited so long for a worker.
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
# Every try ended with the death of its process: one more try would be one more repeat.
EXHAUSTED = f"""
UPDATE wakeboard.alert_messages SET gave_up_at = now(),
    error = coalesce(error, 'Each of {MOST_TRIES} processes ended while it sent this; it may have arrived.')
WHERE id = %(id)s AND sent_at IS NULL AND gave_up_at IS NULL AND tries >= {MOST_TRIES}
  AND {_IS_FREE}
"""
READ = f"""
SELECT sent_at IS NOT NULL AS is_sent, gave_up_at IS NOT NULL AS is_given_up,
    CASE WHEN {_IS_FREE} THEN 0 ELSE extract(epoch FROM claimed_until - now()) END::float8 AS wait_seconds,
    channel
FROM wakeboard.alert_messages WHERE id = %(id)s
"""
SENT = """
UPDATE wakeboard.alert_messages SET sent_at = now(), claimed_until = NULL, error = NULL, answer = %(answer)s
WHERE id = %(id)s AND sent_at IS NULL
"""
FAILED = """
UPDATE wakeboard.alert_messages SET error = %(error)s,
    claimed_until = now() + make_interval(secs => %(wait)s),
    gave_up_at = CASE WHEN %(is_last)s THEN now() END
WHERE id = %(id)s AND sent_at IS NULL
"""
# Unclaimed messages: those of the web process, and those that no worker has tried for a while. A test has
# only one try.
WAITING = f"""
SELECT id, run_id FROM wakeboard.alert_messages
WHERE sent_at IS NULL AND gave_up_at IS NULL AND kind <> 'test' AND channel = ANY(%(channels)s)
  AND (claimed_until IS NULL OR {_IS_FREE})
  AND (run_id IS NULL OR {is_before("coalesce(claimed_until, created_at)", PATIENCE_SECONDS)})
ORDER BY created_at LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a try, in a word and a sentence; ``wait_seconds``: when the next one makes sense."""

    result: Literal["sent", "already", "busy", "failed", "gave_up", "missing"]
    sentence: str
    wait_seconds: float = 0.0


def deliver(connection: Connection, channels: Channels, message_id: int) -> Delivery:
    """Send one message unless it is sent, given up, claimed by another process or for an unknown channel."""
    values = {"id": message_id, "channels": list(channels.names)}
    row = connection.execute(CLAIM.encode(), values).fetchone()
    if row is None:
        connection.execute(EXHAUSTED.encode(), values)
        return _read_result(connection, channels, message_id)
    channel, subject, body, tries, is_repeat = row
    name = f"alert.{body.get('installation') or 'wakeboard'}.{message_id}"
    try:
        answer = channels.send(channel, OutgoingMessage(name, subject, body, is_repeat))
    except NotSent as failure:
        is_last = tries >= MOST_TRIES
        wait = WAITS[min(tries, len(WAITS)) - 1]
        values = {"id": message_id, "error": str(failure), "wait": wait, "is_last": is_last}
        connection.execute(FAILED.encode(), values)
        return Delivery("gave_up" if is_last else "failed", str(failure), wait)
    _record(connection, message_id, answer)
    return Delivery("sent", answer)


class WaitingMessage(NamedTuple):
    """A message that the web process should send, and the run that should have."""

    id: int
    run_id: int | None


def find_waiting(connection: Connection, channels: Channels, most: int = 20) -> list[WaitingMessage]:
    """Return what the web process should send now by ``channels``, oldest first."""
    values = {"most": most, "channels": list(channels.names)}
    with connection.cursor(row_factory=class_row(WaitingMessage)) as cursor:
        return cursor.execute(WAITING.encode(), values).fetchall()


def _read_result(connection: Connection, channels: Channels, message_id: int) -> Delivery:
    """Say why a message could not be claimed."""
    row = connection.execute(READ.encode(), {"id": message_id}).fetchone()
    if row is None:
        return Delivery("missing", f"There is no message {message_id}; retention may have removed it.")
    is_sent, is_given_up, wait_seconds, channel = row
    if is_sent:
        return Delivery("already", "It was sent already.")
    if is_given_up:
        return Delivery("gave_up", "It was given up after too many tries.")
    if channel not in channels.names:
        # This counts as no try: a process that has the channel continues.
        sentence = f"This process knows no channel “{channel}”: its WAKEBOARD_ALERT_… are not set."
        return Delivery("busy", sentence, PATIENCE_SECONDS)
    return Delivery("busy", "Another process is at it, or its next try is not due yet.", wait_seconds or 1.0)


def _record(connection: Connection, message_id: int, answer: str) -> None:
    """Write that the message was accepted; try for RECORD_SECONDS while the database is away."""
    until = time.monotonic() + RECORD_SECONDS
    while True:
        try:
            connection.execute(SENT.encode(), {"id": message_id, "answer": answer})
            return
        except (psycopg.OperationalError, DatabaseError):
            if connection.closed or time.monotonic() > until:
                raise
            time.sleep(0.5)
