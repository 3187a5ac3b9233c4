"""The test button: sends a message of a rule from this process, and returns what the other side answered.

The audit row and the message's row are written first and the answer afterwards: no transaction is open while
a mail server works.
"""

from __future__ import annotations

from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.alerts import report
from wakeboard.alerts.channels import Channels
from wakeboard.alerts.delivery import deliver
from wakeboard.alerts.evaluation import post
from wakeboard.alerts.messages import MessageText, Origin, write_message
from wakeboard.alerts.rule_state import COLUMNS, AlertRule, RuleState
from wakeboard.config.settings import Settings
from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import KINDS
from wakeboard.database.audit import Actor
from wakeboard.queue.alerts import missing
from wakeboard.queue.operator import Transition, act

HOW = (
    "No channel is configured: set WAKEBOARD_ALERT_MAIL with WAKEBOARD_SMTP_URL, or "
    "WAKEBOARD_ALERT_WEBHOOK_URL with WAKEBOARD_ALERT_WEBHOOK_SECRET, and start dashboard and workers "
    "again."
)
RULE = f"SELECT {COLUMNS} FROM wakeboard.alert_rules AS r WHERE r.id = %s"
GIVE_UP = "UPDATE wakeboard.alert_messages SET gave_up_at = now(), claimed_until = NULL WHERE id = %s"


def send_test(
    connection: Connection,
    settings: Settings,
    rule_id: int,
    actor: Actor,
    reason: str | None = None,
    *,
    channel: str | None = None,
) -> Answer:
    """Send a test message of a rule through ``channel`` (None: every configured one) and say what happened.

    Done when every channel accepted it, else forbidden with the reasons. Takes at most about 30 s.
    """
    written: dict[str, int] = {}

    def begin() -> Transition:
        with connection.cursor(row_factory=class_row(AlertRule)) as cursor:
            rule = cursor.execute(RULE.encode(), (rule_id,)).fetchone()
        if rule is None:
            return Transition(missing(rule_id))
        chosen = [name for name in settings.alert_channels if channel in (None, name)]
        if not chosen:
            known = ", ".join(settings.alert_channels)
            refusal = f"There is no channel “{str(channel)[:40]}”; there are: {known}." if known else HOW
            return Transition(Answer(rule_id, rule.state, "forbidden", refusal))
        text = _write_test(connection, settings, rule)
        for name in chosen:
            written[name] = post(connection, rule_id, "test", name, text)
        return Transition(Answer(rule_id, rule.state, "done", ""), after={"channels": chosen})

    answer = act(connection, actor, "alert.test", ("alert", rule_id), reason, begin)
    if not written:
        return answer
    sentences, is_sent = [], True
    for name, message_id in written.items():
        delivery = deliver(connection, Channels(settings), message_id)
        if delivery.result != "sent":
            # A test has one try.
            connection.execute(GIVE_UP, (message_id,))
            is_sent = False
        sentences.append(f"{name.capitalize()}: {delivery.sentence}")
    return Answer(rule_id, answer.status, "done" if is_sent else "forbidden", " ".join(sentences))


def _write_test(connection: Connection, settings: Settings, rule: AlertRule) -> MessageText:
    """Return the text of a test; for a report rule the last report, whether or not it was sent."""
    origin = Origin.of(settings, rule.installation)
    if KINDS[rule.kind].is_report:
        latest = report.times_of(rule, settings).latest_report(rule.now)
        return report.write_report(connection, settings, rule, latest, origin, "test")
    return write_message(rule.name, rule.kind, "test", None, RuleState(), origin, rule.now)
