"""A mail server on loopback that forwards nothing: aiosmtpd, with a function that keeps each message.

Used by the example shop and by the rehearsal. aiosmtpd comes with the extra ``[demo]``.
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
    """A message as it is kept; texts without NUL, attachments by name."""

    message_id: str | None
    sender: str
    recipients: list[str]
    subject: str
    body: str
    attachments: list[str]


# Returns the SMTP reply to a message: "250 …" once it is kept, "4…" to be asked again.
Keep = Callable[[Mail], str]


def require_mail_server() -> None:
    """Raise MailServerMissing when aiosmtpd is not installed."""
    if find_spec("aiosmtpd") is None:
        raise MailServerMissing(
            "This needs a mail server of its own, which is not installed. Install it: "
            "pip install 'wakeboard[demo]'"
        )


class _MailHandler:
    """What aiosmtpd calls; it looks at every member of this object for each connection."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Return the reply to a message."""
        assert isinstance(envelope.content, bytes)
        mail = read(envelope.content, envelope.mail_from or "", envelope.rcpt_tos)
        return await asyncio.to_thread(self._keep, mail)


class MailServer:
    """An SMTP server in a thread of its own; ``keep`` is called in another thread for each message.

    Raises MailServerMissing without aiosmtpd.
    """

    def __init__(self, keep: Keep, port: int | None = None) -> None:
        """Listen, once started, on ``port`` of loopback; None chooses a free one."""
        require_mail_server()
        from aiosmtpd.controller import Controller

        self.port = port or free_port()
        self._controller = Controller(
            _MailHandler(keep),
            hostname=LOOPBACK,
            port=self.port,
            ready_timeout=START_SECONDS,
            server_hostname=HOST_NAME,
            data_size_limit=LARGEST_BYTES,
            timeout=IDLE_SECONDS,
        )

    def start(self) -> None:
        """Listen; return when it does. Raises OSError."""
        self._controller.start()

    def stop(self) -> None:
        """Close every conversation and end the thread; without start() nothing happens."""
        if self._controller.server is not None:
            self._controller.stop()

    def is_listening(self) -> bool:
        """Whether somebody answers on the port."""
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def read(content: bytes, sender: str, recipients: list[str]) -> Mail:
    """Return the message in ``content``; whatever is wrong with it, there is a Mail."""
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    try:
        part = message.get_body(("plain", "html"))
        body = part.get_content() if part is not None else ""
        names = [attachment.get_filename() or "unnamed" for attachment in message.iter_attachments()]
    except Exception:  # The parser of hostile mail raises what it likes.
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
    except Exception:  # As above: "Message-ID: <" is an IndexError.
        return ""


def _clean(text: object) -> str:
    plain = str(text or "").replace("\x00", "\ufffd").strip()
    return plain.encode("utf-8", "replace").decode()
