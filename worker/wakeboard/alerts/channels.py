"""Mail and webhook: one message out, an answer in words, or NotSent with the reason. Knows no database.

The addresses are the operator's own settings, never a page's, so hosts inside the own network are allowed;
still no redirect is followed, no answer's body is shown, and every call ends within seconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from wakeboard import __version__
from wakeboard.config.settings import Settings
from wakeboard.core.http_response import TruncatedResponse, read_body

WEBHOOK_SECONDS = 5.0
MAIL_SECONDS = 20.0
LARGEST_BODY = 64_000
LARGEST_ANSWER = 65_536
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
REPEAT = (
    "This may be a repeat: the process that sent this message first ended before it could say whether it was "
    "accepted."
)


class NotSent(Exception):
    """The message was not accepted; ``str()`` is a sentence without secrets."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message on its way. ``id`` is the same for every try; ``is_repeat`` when an earlier try may have
    been accepted."""

    id: str
    subject: str
    body: dict[str, Any]
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels that the settings name."""

    settings: Settings

    @property
    def names(self) -> tuple[str, ...]:
        """The configured ones of ``mail`` and ``webhook``."""
        return self.settings.alert_channels

    def send(self, channel: str, message: OutgoingMessage) -> str:
        """Send ``message`` now and return what the other side answered, in words. Raises NotSent."""
        if channel not in self.names:
            raise NotSent(f"This process knows no channel “{channel}”: its WAKEBOARD_ALERT_… are not set.")
        return _mail(self.settings, message) if channel == "mail" else _webhook(self.settings, message)

    def described(self) -> dict[str, str]:
        """Return, by channel, where messages go, without secrets."""
        told = {}
        if self.settings.alert_mail:
            told["mail"] = f"{self.settings.alert_mail} through {host_of(str(self.settings.smtp_url))}"
        if self.settings.alert_webhook_url:
            told["webhook"] = host_of(self.settings.alert_webhook_url)
        return told


def host_of(url: str) -> str:
    """Return host and port of a URL: what may be shown of it."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def signature(secret: str, moment: int, body: bytes) -> str:
    """Return the header that proves a webhook: HMAC-SHA256 of ``<seconds>.<body>``, with the seconds."""
    told = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={told}"


def call(
    url: str, *, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
) -> int:
    """Send one HTTP request without following anything; return the status of an answer that came whole, as
    far as its first LARGEST_ANSWER bytes. Raises NotSent."""
    parts = urlsplit(url)
    connection = _http(parts)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {
        "User-Agent": f"wakeboard/{__version__}",
        "Connection": "close",
        **_login(parts),
        **(headers or {}),
    }
    try:
        with _within(WEBHOOK_SECONDS, lambda: connection.sock):
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            read_body(answer, method, LARGEST_ANSWER)
            return answer.status
    except (OSError, http.client.HTTPException, ValueError) as failure:
        raise NotSent(f"{host_of(url)} {_why(failure, WEBHOOK_SECONDS)}.") from failure
    finally:
        connection.close()


def _http(parts: SplitResult) -> http.client.HTTPConnection:
    host = str(parts.hostname)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=WEBHOOK_SECONDS, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=WEBHOOK_SECONDS)


def _login(parts: SplitResult) -> dict[str, str]:
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


@contextmanager
def _within(seconds: float, peer: Callable[[], socket.socket | None]) -> Iterator[None]:
    """End a conversation that takes longer than ``seconds`` in all: a socket's own limit is for each word.

    Raises TimeoutError then, in place of whatever became of it.
    """
    is_over, is_late = threading.Event(), threading.Event()

    def end() -> None:
        # Again and again: at the end of its time a connection may only just have been opened.
        wait = seconds
        while not is_over.wait(wait):
            is_late.set()
            wait = 0.1
            with suppress(OSError, AttributeError):
                found = peer()
                if found is not None:
                    found.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=end, name="deadline", daemon=True).start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as failure:
        # What smtplib raises is an OSError as well.
        if is_late.is_set():
            raise TimeoutError from failure
        raise
    finally:
        is_over.set()


def _why(failure: Exception, seconds: float) -> str:
    if isinstance(failure, TimeoutError):
        return f"did not answer within {seconds:g} s"
    if isinstance(failure, ssl.SSLError):
        return f"could not be trusted: {failure.reason or 'TLS failed'}"
    if isinstance(failure, smtplib.SMTPResponseException):
        return f"answered {failure.smtp_code}"
    if isinstance(failure, smtplib.SMTPRecipientsRefused):
        return "refused every address"
    if isinstance(failure, TruncatedResponse):
        return f"took it, but {failure}"
    if isinstance(failure, OSError) and failure.strerror:
        return f"cannot be reached: {failure.strerror}"
    return f"broke off the conversation ({type(failure).__name__})"


def _webhook(settings: Settings, message: OutgoingMessage) -> str:
    url, secret = str(settings.alert_webhook_url), str(settings.alert_webhook_secret)
    told = {"id": message.id, "subject": message.subject, "is_repeat": message.is_repeat, **message.body}
    body = json.dumps(told, ensure_ascii=False).encode()
    if len(body) > LARGEST_BODY:
        raise NotSent(f"The message has {len(body):,} bytes; allowed: {LARGEST_BODY:,}.")
    headers = {
        "Content-Type": "application/json",
        "X-Wakeboard-Delivery": message.id,
        "X-Wakeboard-Signature": signature(secret, int(time.time()), body),
    }
    status = call(url, method="POST", body=body, headers=headers)
    if not 200 <= status < 300:
        more = "; redirects are not followed" if 300 <= status < 400 else ""
        raise NotSent(f"{host_of(url)} answered {status}{more}.")
    return f"{host_of(url)} answered {status}."


def _mail(settings: Settings, message: OutgoingMessage) -> str:
    url = urlsplit(str(settings.smtp_url))
    server: smtplib.SMTP | None = None

    def began(begun: smtplib.SMTP) -> None:
        nonlocal server
        server = begun

    try:
        letter = _letter(settings, message)
        with _within(MAIL_SECONDS, lambda: server.sock if server else None):
            server = _connected(url, began)
            if url.scheme == "smtp+starttls":
                server.starttls(context=ssl.create_default_context())
            if url.username:
                server.login(unquote(url.username), unquote(url.password or ""))
            refused = server.send_message(letter)
    except (OSError, smtplib.SMTPException, ValueError) as failure:
        raise NotSent(f"{host_of(str(settings.smtp_url))} {_why(failure, MAIL_SECONDS)}.") from failure
    finally:
        if server is not None:
            _say_goodbye(server)
    but = f", but refused {', '.join(refused)}" if refused else ""
    return f"{host_of(str(settings.smtp_url))} accepted the mail{but}."


class _Plain(smtplib.SMTP):
    """A connection that ``began`` gets before its first word, so that a greeting can be cut off as well."""

    def __init__(self, began: Callable[[smtplib.SMTP], None], host: str, port: int, **options: Any) -> None:
        self._began = began
        super().__init__(host, port, **options)

    def connect(
        self, host: str = "localhost", port: int = 0, source_address: Any = None
    ) -> tuple[int, bytes]:
        self._began(self)
        return super().connect(host, port, source_address)


class _Tls(_Plain, smtplib.SMTP_SSL):
    """The same, encrypted from its first byte."""


def _connected(url: SplitResult, began: Callable[[smtplib.SMTP], None]) -> smtplib.SMTP:
    host, port = str(url.hostname), url.port or PORTS[url.scheme]
    if url.username and url.scheme == "smtp" and not _is_loopback(host):
        raise NotSent(f"{host} would get its password in clear: use smtp+starttls:// or smtps://.")
    if url.scheme == "smtps":
        context = ssl.create_default_context()
        return _Tls(began, host, port, timeout=MAIL_SECONDS / 2, context=context)
    return _Plain(began, host, port, timeout=MAIL_SECONDS / 2)


def _say_goodbye(server: smtplib.SMTP) -> None:
    """Leave; whatever is answered now changes nothing about a mail that was accepted."""
    with suppress(OSError, smtplib.SMTPException):
        if server.sock is not None:
            server.sock.settimeout(1)
        server.quit()
    with suppress(OSError):
        server.close()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _letter(settings: Settings, message: OutgoingMessage) -> EmailMessage:
    sender = settings.alert_from or f"wakeboard@{socket.getfqdn()}"
    letter = EmailMessage()
    letter["From"], letter["To"] = f"Wakeboard <{sender}>", str(settings.alert_mail)
    letter["Subject"] = ("(repeat?) " if message.is_repeat else "") + message.subject
    letter["Date"] = format_datetime(datetime.now(UTC))
    # The same for every try: a mailbox that has it already may know it by this.
    letter["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    letter["Auto-Submitted"] = "auto-generated"
    text = str(message.body.get("text", ""))
    letter.set_content(f"{REPEAT}\n\n{text}" if message.is_repeat else text)
    return letter
