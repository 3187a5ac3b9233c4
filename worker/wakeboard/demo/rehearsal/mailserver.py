"""The drill's mail server: real SMTP on a port of loopback, every accepted message a line of a file.

It refuses chosen recipients once, and can hold its answers: a message is accepted then, and its sender does
not know. Lives in a thread; forwards nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wakeboard.demo.mailbox import Mail, serve
from wakeboard.demo.rehearsal.waiting import RehearsalError

LOOPBACK = "127.0.0.1"
ANSWERING_THREADS = 32
HOLD_SECONDS = 60
STOP_SECONDS = 10


class Mailbox:
    """What came in. Safe to use from any thread."""

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

    def keep(self, mail: Mail) -> str:
        """Return the SMTP reply to ``mail``, once answers are not held."""
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
        """Accept what comes after the first ``accepted`` messages, and leave its senders waiting."""
        with self._lock:
            self._hold_from, self._held = accepted, 0
            self._answering.clear()

    def answer(self) -> None:
        """Give the held answers, and hold no more."""
        with self._lock:
            self._hold_from = None
            self._answering.set()

    @property
    def held(self) -> int:
        """How many messages were accepted with their answer held, since the last hold_after()."""
        with self._lock:
            return self._held

    def message_ids(self) -> list[str]:
        """Return the Message-ID of every accepted message, in order."""
        if not self._file.exists():
            return []
        return [json.loads(line)["message_id"] for line in self._file.read_text().splitlines()]


class MailServer:
    """The listening thread. ``port`` is known after start()."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.port = 0
        self._mailbox = mailbox
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(ANSWERING_THREADS, "smtp"))
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="mail server", daemon=True)

    def start(self) -> None:
        """Listen on a free port; return when it does. Raises RehearsalError."""
        self._thread.start()
        if not self._ready.wait(STOP_SECONDS) or not self.port:
            raise RehearsalError(f"The mail server could not listen on {LOOPBACK}.")

    def stop(self) -> None:
        """Answer what waits, close every conversation and end the thread."""
        self._mailbox.answer()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_SECONDS)

    def left(self) -> list[str]:
        """Return what stop() could not end, in words."""
        with socket.socket() as probe:
            listens = self.port and probe.connect_ex((LOOPBACK, self.port)) == 0
        return ["the mail server"] if listens or self._thread.is_alive() else []

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        server = await serve(LOOPBACK, 0, self._mailbox.keep)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._stop.wait()
        server.close()
        talks = asyncio.all_tasks() - {asyncio.current_task()}
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
