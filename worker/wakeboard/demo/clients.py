"""The clients of the shop's handlers: they send mail and ask the providers, on loopback only."""

from __future__ import annotations

import json
import smtplib
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Any

from wakeboard.core.outcome import Permanent, Retryable
from wakeboard.demo.mail_server import LOOPBACK
from wakeboard.demo.shop import port_of
from wakeboard.queue.handler_connection import own_connection

SENDER = "shop@example.com"
_TIMEOUT_SECONDS = 10


def new_mail(to: str, subject: str, text: str, message_id: str) -> EmailMessage:
    """Return a mail whose Message-ID is the same for every attempt, so that it can be found again."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = SENDER, to, subject
    message["Message-ID"] = f"<{message_id}@shop.example.com>"
    message.set_content(text)
    return message


def send(message: EmailMessage) -> str:
    """Hand ``message`` to the shop's mail server and return its Message-ID. Raises what ``deliver`` does."""
    return deliver(message, _port("smtp"))


def deliver(message: EmailMessage, port: int, timeout_seconds: float = _TIMEOUT_SECONDS) -> str:
    """Hand ``message`` to the mail server on ``port``; return its Message-ID. Raises Retryable, Permanent."""
    try:
        with smtplib.SMTP(LOOPBACK, port, timeout=timeout_seconds) as server:
            server.send_message(message)
    except smtplib.SMTPResponseException as refused:
        text = refused.smtp_error.decode() if isinstance(refused.smtp_error, bytes) else refused.smtp_error
        error = Permanent if refused.smtp_code >= 500 else Retryable
        raise error(f"smtp_{refused.smtp_code}", f"The mail server said {refused.smtp_code} {text}") from None
    except OSError as failure:
        raise Retryable("smtp_unreachable", f"The mail server cannot be reached: {failure}") from failure
    return str(message["Message-ID"])


def find_received(message: EmailMessage) -> str | None:
    """Return the Message-ID if ``message`` is in the mailbox: the check of an unconfirmed mail."""
    with own_connection() as connection:
        row = connection.execute(
            "SELECT message_id FROM shop.mails WHERE message_id = %s LIMIT 1", (message["Message-ID"],)
        ).fetchone()
    return None if row is None else str(row[0])


def call_provider(
    path: str, body: object = None, key: str | None = None, timeout: float = _TIMEOUT_SECONDS
) -> Any:
    """Return the JSON answer of the provider at ``path``; a ``body`` makes it a POST with an idempotency key.

    ``timeout`` is in seconds. Raises Retryable for 5xx and without an answer, urllib's HTTPError for 4xx.
    """
    request = urllib.request.Request(f"http://{LOOPBACK}:{_port('http')}{path}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Idempotency-Key", key or "")
    # No proxy, whatever the environment says: the demo talks to this machine only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        if refused.code < 500:
            raise
        text = refused.read(300).decode(errors="replace").strip()
        raise Retryable(f"http_{refused.code}", f"The provider answered {refused.code}: {text}") from None
    except OSError as failure:
        raise Retryable("http_unreachable", f"The provider cannot be reached: {failure}") from failure


def _port(place: str) -> int:
    with own_connection() as connection:
        port = port_of(connection, place)
    if port is None:
        raise Permanent("shop_closed", "The shop was never opened. Start it with: wakeboard up --demo")
    return port
