"""The other side of alerts: a mail server and an HTTP server on loopback, which remember what came."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.support.processes import free_port

SECRET = "a secret of more than sixteen letters"


class Mailbox:
    """A mail server. ``refuse`` is what it answers instead of taking a mail; ``hold`` makes it wait
    with its answer after it took one."""

    def __init__(self) -> None:
        self.letters: list[EmailMessage] = []
        self.refuse: str | None = None
        self.hold: threading.Event | None = None
        self.port = free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    @property
    def environment(self) -> dict[str, str]:
        """The settings that name it."""
        return {
            "WAKEBOARD_ALERT_MAIL": "ops@example.org, night@example.org",
            "WAKEBOARD_ALERT_FROM": "wakeboard@example.org",
            "WAKEBOARD_SMTP_URL": f"smtp://127.0.0.1:{self.port}",
        }

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Take a mail, or not."""
        if self.refuse is not None:
            return self.refuse
        content = envelope.content
        assert isinstance(content, bytes)
        letter = message_from_bytes(content, policy=policy.default)
        assert isinstance(letter, EmailMessage)
        self.letters.append(letter)
        while self.hold is not None and not self.hold.is_set():
            await asyncio.sleep(0.02)
        return "250 taken"

    def start(self) -> None:
        """Listen."""
        self._controller.start()

    def stop(self) -> None:
        """End."""
        self._controller.stop()


class Receiver(ThreadingHTTPServer):
    """An HTTP server that checks signatures. ``status`` is what it answers, without a body, of which it
    announces ``announced`` bytes; requests are remembered."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.location: str | None = None
        self.announced = 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.release: threading.Event | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}/hook?token=hidden"

    @property
    def environment(self) -> dict[str, str]:
        """The settings that name it."""
        return {"WAKEBOARD_ALERT_WEBHOOK_URL": self.url, "WAKEBOARD_ALERT_WEBHOOK_SECRET": SECRET}

    def bodies(self) -> list[dict[str, Any]]:
        """Return the JSON bodies that came."""
        return [json.loads(body) for _, _, body in self.requests]

    def is_genuine(self, place: int = -1) -> bool:
        """Whether a request was signed with the secret."""
        _, headers, body = self.requests[place]
        parts = dict(part.split("=", 1) for part in headers["x-wakeboard-signature"].split(","))
        wanted = hmac.new(SECRET.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(wanted, parts["v1"])


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        if self.server.release is not None:
            self.server.release.wait(20)
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(self.server.announced))
        self.end_headers()

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A mail server."""
    server = Mailbox()
    server.start()
    yield server
    server.stop()


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Let an HTTP server answer within the block, at whose end it must hold no answer back."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An HTTP server for webhooks and heartbeats."""
    server = Receiver()
    with serving(server):
        yield server
        if server.release is not None:
            server.release.set()
