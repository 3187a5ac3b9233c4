"""The test button: a message sent right now by the process that was asked, and what the other side answered.

The audit row and the message's row are written first and the answer afterwards: no transaction is open while
a mail server thinks.
"""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from psycopg.rows import dict_row

from wakeboard.alerts import report
from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage
from wakeboard.alerts.messages import MessageText, words
from wakeboard.alerts.rule_state import RuleMemory
from wakeboard.alerts.watch import place_of, post
from wakeboard.config.settings import Settings
from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import KINDS
from wakeboard.database.audit import Actor
from wakeboard.queue.alerts import missing
from wakeboard.queue.operator import Transition, act

Connection = psycopg.Connection[Any]
HOW = (
    "No channel is configured: set WAKEBOARD_ALERT_MAIL with WAKEBOARD_SMTP_URL, or "
    "WAKEBOARD_ALERT_WEBHOOK_URL with WAKEBOARD_ALERT_WEBHOOK_SECRET, and start dashboard and workers "
    "again."
)
RULE = """
SELECT r.id, r.name, r.kind, r.state, r.settings, now() AS now,
    (SELECT i.id FROM wakeboard.installation AS i ORDER BY i.created_at LIMIT 1) AS place
FROM wakeboard.alert_rules AS r WHERE r.id = %s
"""
CLAIMED = "UPDATE wakeboard.alert_messages SET tries = 1 WHERE id = %s"
ENDED = """
UPDATE wakeboard.alert_messages SET claimed_until = NULL, answer = %(answer)s, error = %(error)s,
    sent_at = CASE WHEN %(error)s::text IS NULL THEN now() END,
    gave_up_at = CASE WHEN %(error)s::text IS NOT NULL THEN now() END
WHERE id = %(id)s
"""


def test(
    connection: Connection,
    settings: Settings,
    rule_id: int,
    actor: Actor,
    reason: str | None = None,
    *,
    channel: str | None = None,
) -> Answer:
    """Send a test message of a rule through ``channel`` (None: every configured one) and say what happened.

    Done when every channel took it, else forbidden with the reasons. Takes at most about 30 s.
    """
    written: list[tuple[int, str, OutgoingMessage]] = []

    def begin() -> Transition:
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(RULE, (rule_id,)).fetchone()
        if row is None:
            return Transition(missing(rule_id))
        chosen = [name for name in settings.alert_channels if channel in (None, name)]
        if not chosen:
            known = ", ".join(settings.alert_channels)
            message = f"There is no channel “{str(channel)[:40]}”; there are: {known}." if known else HOW
            return Transition(Answer(rule_id, row["state"], "forbidden", message))
        text = _words(connection, settings, row)
        for name in chosen:
            message_id = post(connection, rule_id, "test", name, text.subject, text.body)
            connection.execute(CLAIMED, (message_id,))
            label = f"alert.{row['place'] or 'wakeboard'}.{message_id}"
            written.append((message_id, name, OutgoingMessage(label, text.subject, text.body)))
        return Transition(Answer(rule_id, row["state"], "done", ""), after={"channels": chosen})

    answer = act(connection, actor, "alert.test", ("alert", rule_id), reason, begin)
    if not written:
        return answer
    said = [_sent(connection, Channels(settings), *each) for each in written]
    result = "done" if all(ok for ok, _ in said) else "forbidden"
    return Answer(rule_id, answer.status, result, " ".join(sentence for _, sentence in said))  # type: ignore[arg-type]


def _words(connection: Connection, settings: Settings, row: dict[str, Any]) -> MessageText:
    """Return what a test says; that of a report is the last night's, whether or not it was sent."""
    place = place_of(settings, row["place"])
    if KINDS[row["kind"]].is_report:
        clocks = report.clocks_of(row, ZoneInfo(settings.timezone))
        return report.letter(connection, settings, row, clocks.latest(row["now"]), place, "test")
    return words(row["name"], row["kind"], "test", None, RuleMemory(), place, row["now"])


def _sent(
    connection: Connection, channels: Channels, message_id: int, channel: str, message: OutgoingMessage
) -> tuple[bool, str]:
    answer = error = None
    try:
        answer = channels.send(channel, message)
    except NotSent as failure:
        error = str(failure)
    connection.execute(ENDED, {"id": message_id, "answer": answer, "error": error})
    return error is None, f"{channel.capitalize()}: {answer or error}"
