"""The job type ``alert``: deliver one message of ``alert_messages``. ``{"message_id": 12}``.

Who may send is decided by the message's own row, which the web process may take over, not by the ledger of
effects; see ``wakeboard.alerts.delivery``.
"""

from __future__ import annotations

from wakeboard.config.settings import Settings
from wakeboard.core import rule_types
from wakeboard.core.outcome import Permanent, Retryable
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue.handler_connection import own_connection

# One more than the message's own tries, each of which says itself when the next one makes sense.
ATTEMPTS = 12


@job(rule_types.JOB_TYPE, max_attempts=ATTEMPTS, timeout=60, backoff="10s,30s,1m,5m,15m,30m,1h")
def alert(context: Context) -> dict[str, str]:
    """Send the message and return what was answered.

    Raises Permanent ``message_gone`` or ``gave_up``, Retryable ``alert_not_sent`` or ``alert_in_progress``.
    """
    # Every worker registers this type, few deliver: HTTP and mail clients are loaded by the first message.
    from wakeboard.alerts.channels import Channels
    from wakeboard.alerts.delivery import deliver

    message_id = context.payload.get("message_id") if isinstance(context.payload, dict) else None
    if not isinstance(message_id, int) or isinstance(message_id, bool):
        raise Permanent("message_gone", 'The payload must name a message, such as {"message_id": 12}.')
    with own_connection() as connection:
        delivery = deliver(connection, Channels(Settings.load()), message_id)
    if delivery.result in ("sent", "already"):
        return {"answer": delivery.sentence}
    if delivery.result in ("gave_up", "missing"):
        raise Permanent("gave_up" if delivery.result == "gave_up" else "message_gone", delivery.sentence)
    code = "alert_not_sent" if delivery.result == "failed" else "alert_in_progress"
    raise Retryable(code, delivery.sentence, after=delivery.wait_seconds)
