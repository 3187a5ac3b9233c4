"""The mailbox of the rehearsal's mail server: each accepted message is a line of a file.

It refuses chosen recipients once. While it holds its answers, messages are accepted and their senders do not
know.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

from wakeboard.demo.mail_server import Mail

HOLD_SECONDS = 60


class Mailbox:
    """The accepted messages. Safe to use from any thread."""

    def __init__(self, file: Path, refused_once: Iterable[str]) -> None:
        """``file`` gets one JSON line per message; mail to ``refused_once`` gets 451 the first time."""
        self._file = file
        self._refused_once = set(refused_once)
        self._lock = threading.Lock()
        self._answering = threading.Event()
        self._answering.set()
        self._hold_from: int | None = None
        self._accepted = 0
        self._held = 0

    def store(self, mail: Mail) -> str:
        """Return the SMTP reply to ``mail``, as soon as answers are not held."""
        with self._lock:
            if refused := self._refused_once.intersection(mail.recipients):
                self._refused_once -= refused
                return "451 The mailbox is busy, try again later"
            self._write(mail)
            self._accepted += 1
            is_held = self._hold_from is not None and self._accepted > self._hold_from
            self._held += is_held
        if is_held:
            self._answering.wait(HOLD_SECONDS)
        return "250 Kept"

    def _write(self, mail: Mail) -> None:
        line = json.dumps({"message_id": mail.message_id, "to": mail.recipients, "subject": mail.subject})
        with self._file.open("a") as file:
            file.write(line + "\n")

    def hold_after(self, accepted: int) -> None:
        """Hold the answers to all messages after the first ``accepted`` ones."""
        with self._lock:
            self._hold_from, self._held = accepted, 0
            self._answering.clear()

    def answer(self) -> None:
        """Send the held answers, and hold no more."""
        with self._lock:
            self._hold_from = None
            self._answering.set()

    @property
    def held(self) -> int:
        """The number of messages whose answer was held since the last hold_after()."""
        with self._lock:
            return self._held

    def message_ids(self) -> list[str]:
        """Return the Message-ID of every accepted message, in order."""
        if not self._file.exists():
            return []
        return [json.loads(line)["message_id"] for line in self._file.read_text().splitlines()]
