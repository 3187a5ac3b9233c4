"""A mail server on loopback that forwards nothing: aiosmtpd, with a function that stores each message.

The example shop and the rehearsal use it. aiosmtpd comes with the extra ``[demo]``.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import socket
from collections.abc import Callable
from email.message import EmailMessage
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, Envelope, Session

LOOPBACK = "127.0.0.1"
LARGEST_BYTES = 1024 * 1024
HOST_NAME = "shop.example.com"
IDLE_SECONDS = 60
START_SECONDS = 30


class MailServerMissing(Exception):
    """The mail server is not installed; ``str()`` is a sentence that says how to install it."""


class Mail(NamedTuple):
    """A message as it is stored: texts without NUL, attachments by name."""

    message_id: str | None
    sender: str
    recipients: list[str]
    subject: str
    body: str
    attachments: list[str]


# Returns the SMTP reply to a message: "250 …" once it is stored, "4…" for a later attempt.
Store = Callable[[Mail], str]


def require_mail_server() -> None:
    """Raise MailServerMissing when aiosmtpd is not installed."""
    if find_spec("aiosmtpd") is None:
        raise MailServerMissing(
            "This needs a mail server of its own, which is not installed. Install it: "
            "pip install 'wakeboard[demo]'"
        )


class _MailHandler:
    """The handler of aiosmtpd, which looks at every member of this object for each connection."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Return the reply to a message."""
        assert isinstance(envelope.content, bytes)
        mail = parse_mail(envelope.content, envelope.mail_from or "", envelope.rcpt_tos)
        return await asyncio.to_thread(self._store, mail)


class MailServer:
    """An SMTP server in a thread of its own; ``store`` is called in another thread for each message.

    Raises MailServerMissing without aiosmtpd.
    """

    def __init__(self, store: Store, port: int | None = None) -> None:
        """Listen, once started, on ``port`` of loopback; None chooses a free one."""
        require_mail_server()
        from aiosmtpd.controller import Controller

        self.port = port or free_port()
        self._controller = Controller(
            _MailHandler(store),
            hostname=LOOPBACK,
            port=self.port,
            ready_timeout=START_SECONDS,
            server_hostname=HOST_NAME,
            data_size_limit=LARGEST_BYTES,
            timeout=IDLE_SECONDS,
        )

    def start(self) -> None:
        """Return when the server listens. Raises OSError."""
        self._controller.start()

    def stop(self) -> None:
        """Close every connection and end the thread; does nothing if it was not started."""
        if self._controller.server is not None:
            self._controller.stop()

    def is_listening(self) -> bool:
        """Return whether a process listens on the port."""
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def parse_mail(content: bytes, sender: str, recipients: list[str]) -> Mail:
    """Return the message in ``content``; a malformed one becomes a Mail too."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    try:
        part = message.get_body(("plain", "html"))
        body = part.get_content() if part is not None else ""
        names = [attachment.get_filename() or "unnamed" for attachment in message.iter_attachments()]
    except Exception:  # The parser raises many types of errors for hostile mail.
        body, names = content.decode("utf-8", "replace"), []
    return Mail(
        _header(message, "Message-ID")[:300] or None,
        _clean(sender)[:320],
        [_clean(recipient)[:320] for recipient in recipients],
        _header(message, "Subject")[:300],
        _clean(body).replace("\r\n", "\n")[:20_000],
        [_clean(name)[:200] for name in names],
    )


def _header(message: EmailMessage, name: str) -> str:
    """Return a header's text, empty when it is missing or cannot be read."""
    try:
        return _clean(message[name])
    except Exception:  # For instance IndexError for "Message-ID: <".
        return ""


def _clean(text: object) -> str:
    plain = str(text or "").replace("\x00", "\ufffd").strip()
    return plain.encode("utf-8", "replace").decode()
