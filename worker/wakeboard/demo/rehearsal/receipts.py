"""The handlers of the rehearsal's workers: ``--app wakeboard.demo.rehearsal.receipts``.

They are written as an application's would be, except that mail is sent without the effects ledger on request.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from wakeboard.demo.clients import deliver, new_mail
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
    """Mail one receipt; the result has its Message-ID, and whether it was ``found`` in the inbox already."""
    number, to = int(context.payload["receipt"]), str(context.payload["to"])
    text = f"Thank you. This is receipt {number}.\n"
    mail = new_mail(to, f"Your receipt {number}", text, f"receipt-{number}")
    message_id = str(mail["Message-ID"])
    is_found = False

    def send() -> str:
        return deliver(mail, int(os.environ[PORT]), _TIMEOUT_SECONDS)

    def look_up(_unconfirmed: object) -> str | None:
        nonlocal is_found
        is_found = message_id in _received()
        return message_id if is_found else None

    if os.environ[EFFECTS] == "on":
        context.once("mail", send, if_unconfirmed=look_up)
    else:
        send()
    return {"mail": message_id, "found": is_found}


@job("count_patiently", max_attempts=1, timeout="10m")
def count_patiently(context: Context) -> None:
    """Work for ever; stop after a cancel."""
    while True:
        _beat(context)
        context.check()


@job("count_deafly", max_attempts=1, timeout="10m")
def count_deafly(context: Context) -> None:
    """Work for ever; ignore a cancel and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        _beat(context)


def _beat(context: Context) -> None:
    """Touch the file of the run, as a sign of work, and wait a moment."""
    Path(str(context.payload["file"])).touch()
    time.sleep(BEAT_SECONDS)


def _received() -> set[str]:
    """Return the Message-IDs in the inbox."""
    return {json.loads(line)["message_id"] for line in Path(os.environ[INBOX]).read_text().splitlines()}
