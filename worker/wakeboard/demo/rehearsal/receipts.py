"""The handlers of the rehearsal: ``--app wakeboard.demo.rehearsal.receipts``. Run by its workers alone.

Written as an application's would be, with one difference: without the ledger, mail is sent unguarded.
"""

from __future__ import annotations

import json
import os
import signal
import smtplib
import time
from email.message import EmailMessage
from pathlib import Path

from wakeboard.core.outcome import Retryable
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job

PORT = "REHEARSAL_SMTP_PORT"
INBOX = "REHEARSAL_INBOX"
EFFECTS = "REHEARSAL_EFFECTS"
BEAT_SECONDS = 0.05
# Longer than the mail server ever holds an answer.
_TIMEOUT_SECONDS = 90


@job("send_receipt", max_attempts=10, timeout="2m", backoff="fixed 1s")
def send_receipt(context: Context) -> dict[str, str | bool]:
    """Mail one receipt; the result says under which Message-ID, and whether it was found sent already."""
    mail = receipt(int(context.payload["receipt"]), str(context.payload["to"]))
    found: list[str] = []

    def look_up(_unconfirmed: object) -> str | None:
        found.extend(each for each in received() if each == mail["Message-ID"])
        return found[0] if found else None

    if os.environ[EFFECTS] == "on":
        context.once("mail", lambda: send(mail), if_unconfirmed=look_up)
    else:
        send(mail)
    return {"mail": str(mail["Message-ID"]), "found": bool(found)}


@job("count_patiently", max_attempts=1, timeout="10m")
def count_patiently(context: Context) -> None:
    """Work for ever, and look where stopping is safe whether it should."""
    while True:
        beat(context)
        context.check()


@job("count_deafly", max_attempts=1, timeout="10m")
def count_deafly(context: Context) -> None:
    """Work for ever, and hear neither a cancel nor SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        beat(context)


def beat(context: Context) -> None:
    """Leave the time in the run's file, as a sign of work, and wait a moment."""
    Path(str(context.payload["file"])).touch()
    time.sleep(BEAT_SECONDS)


def receipt(number: int, to: str) -> EmailMessage:
    """Return a mail whose Message-ID is the same for every attempt, so that it can be found again."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.com", to, f"Your receipt {number}"
    message["Message-ID"] = f"<receipt-{number}@shop.example.com>"
    message.set_content(f"Thank you. This is receipt {number}.\n")
    return message


def send(message: EmailMessage) -> str:
    """Hand ``message`` to the mail server and return its Message-ID. Raises Retryable."""
    try:
        with smtplib.SMTP("127.0.0.1", int(os.environ[PORT]), timeout=_TIMEOUT_SECONDS) as server:
            server.send_message(message)
    except smtplib.SMTPResponseException as refused:
        raise Retryable(
            f"smtp_{refused.smtp_code}", f"The mail server said {refused.smtp_error!r}."
        ) from None
    except OSError as away:
        raise Retryable("smtp_unreachable", f"The mail server cannot be reached: {away}") from away
    return str(message["Message-ID"])


def received() -> list[str]:
    """Return the Message-IDs in the inbox: what to ask when nobody knows."""
    return [json.loads(line)["message_id"] for line in Path(os.environ[INBOX]).read_text().splitlines()]
