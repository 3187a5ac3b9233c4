"""How the shop's handlers send mail and ask its providers: on loopback alone."""

from __future__ import annotations

import json
import smtplib
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Any

from wakeboard.core.outcome import Permanent, Retryable
from wakeboard.demo.shop import port_of
from wakeboard.queue.handler_connection import own_connection

LOOPBACK = "127.0.0.1"
SENDER = "shop@example.com"
_TIMEOUT_SECONDS = 10


def letter(to: str, subject: str, text: str, message_id: str) -> EmailMessage:
    """Return a mail whose Message-ID is the same for every attempt, so that it can be found again."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = SENDER, to, subject
    message["Message-ID"] = f"<{message_id}@shop.example.com>"
    message.set_content(text)
    return message


def send(message: EmailMessage) -> str:
    """Hand ``message`` to the shop's mailbox and return its Message-ID. Raises Retryable or Permanent."""
    try:
        with smtplib.SMTP(LOOPBACK, _port("smtp"), timeout=_TIMEOUT_SECONDS) as server:
            server.send_message(message)
    except smtplib.SMTPResponseException as refused:
        text = refused.smtp_error.decode() if isinstance(refused.smtp_error, bytes) else refused.smtp_error
        kind = Permanent if refused.smtp_code >= 500 else Retryable
        raise kind(f"smtp_{refused.smtp_code}", f"The mail server said {refused.smtp_code} {text}") from None
    except OSError as away:
        raise Retryable("smtp_unreachable", f"The mail server cannot be reached: {away}") from away
    return str(message["Message-ID"])


def was_received(message: EmailMessage) -> str | None:
    """Return the Message-ID when the mailbox holds ``message``: what to ask when nobody knows."""
    with own_connection() as connection:
        row = connection.execute(
            "SELECT message_id FROM shop.mails WHERE message_id = %s LIMIT 1", (message["Message-ID"],)
        ).fetchone()
    return None if row is None else str(row[0])


def ask(path: str, body: Any = None, key: str | None = None, timeout: float = _TIMEOUT_SECONDS) -> Any:
    """Return the JSON answer of the provider at ``path``; a ``body`` makes it a POST with an idempotency key.

    Raises Retryable for its 5xx and when it is away, urllib's HTTPError for 4xx.
    """
    request = urllib.request.Request(f"http://{LOOPBACK}:{_port('http')}{path}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Idempotency-Key", key or "")
    # No proxy: whatever the environment says, the demo talks to this machine alone.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        if refused.code < 500:
            raise
        text = refused.read(300).decode(errors="replace").strip()
        raise Retryable(f"http_{refused.code}", f"The provider answered {refused.code}: {text}") from None
    except OSError as away:
        raise Retryable("http_unreachable", f"The provider cannot be reached: {away}") from away


def _port(place: str) -> int:
    with own_connection() as connection:
        port = port_of(connection, place)
    if port is None:
        raise Permanent("shop_closed", "The shop was never opened. Start it with: wakeboard up --demo")
    return port
