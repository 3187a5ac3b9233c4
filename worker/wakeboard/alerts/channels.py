"""Sends one message by mail or webhook, and returns the answer as a sentence or raises NotSent.

The addresses come from the operator's settings, never from a page, so hosts inside the own network are
allowed. Still no redirect is followed, no body of an answer is shown, and every call ends within seconds.
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
    """A message to send. ``id`` is the same for every try; ``is_repeat``: an earlier try may have arrived."""

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
        """Send ``message`` now and return the answer of the other side as a sentence. Raises NotSent."""
        if channel not in self.names:
            raise NotSent(f"This process knows no channel “{channel}”: its WAKEBOARD_ALERT_… are not set.")
        send = _send_mail if channel == "mail" else _call_webhook
        return send(self.settings, message)

    def targets(self) -> dict[str, str]:
        """Return, by channel, where messages go, without secrets."""
        targets = {}
        if self.settings.alert_mail:
            targets["mail"] = f"{self.settings.alert_mail} through {host_of(str(self.settings.smtp_url))}"
        if self.settings.alert_webhook_url:
            targets["webhook"] = host_of(self.settings.alert_webhook_url)
        return targets


def host_of(url: str) -> str:
    """Return host and port of a URL, the part without secrets."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def signature(secret: str, seconds: int, body: bytes) -> str:
    """Return the header that signs a webhook: HMAC-SHA256 of ``<seconds>.<body>``, with the seconds."""
    digest = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


def call(
    url: str, *, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
) -> int:
    """Send one HTTP request and follow no redirect; return the status of the answer.

    Raises NotSent, also when the answer ends within its first LARGEST_ANSWER bytes.
    """
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            str(parts.hostname), parts.port, timeout=WEBHOOK_SECONDS, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=WEBHOOK_SECONDS)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    all_headers = {"User-Agent": f"wakeboard/{__version__}", "Connection": "close"}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        all_headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    all_headers |= headers or {}
    try:
        with _deadline(WEBHOOK_SECONDS, lambda: connection.sock):
            connection.request(method, path, body, all_headers)
            answer = connection.getresponse()
            read_body(answer, method, LARGEST_ANSWER)
            return answer.status
    except (OSError, http.client.HTTPException, ValueError) as failure:
        raise NotSent(f"{host_of(url)} {_describe(failure, WEBHOOK_SECONDS)}.") from failure
    finally:
        connection.close()


@contextmanager
def _deadline(seconds: float, find_socket: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Shut the socket down when the block takes longer than ``seconds``: its own timeout is for each read.

    Then raises TimeoutError in place of the block's error.
    """
    is_over, is_late = threading.Event(), threading.Event()

    def shut_down() -> None:
        # Repeated: at the deadline the connection may only just have been opened.
        wait = seconds
        while not is_over.wait(wait):
            is_late.set()
            wait = 0.1
            with suppress(OSError, AttributeError):
                peer = find_socket()
                if peer is not None:
                    peer.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=shut_down, name="deadline", daemon=True).start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as failure:
        # What smtplib raises is an OSError as well.
        if is_late.is_set():
            raise TimeoutError from failure
        raise
    finally:
        is_over.set()


def _describe(failure: Exception, seconds: float) -> str:
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


def _call_webhook(settings: Settings, message: OutgoingMessage) -> str:
    url, secret = str(settings.alert_webhook_url), str(settings.alert_webhook_secret)
    content = {"id": message.id, "subject": message.subject, "is_repeat": message.is_repeat, **message.body}
    body = json.dumps(content, ensure_ascii=False).encode()
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


def _send_mail(settings: Settings, message: OutgoingMessage) -> str:
    url = urlsplit(str(settings.smtp_url))
    server: smtplib.SMTP | None = None

    def set_server(connecting: smtplib.SMTP) -> None:
        nonlocal server
        server = connecting

    try:
        mail = _write_mail(settings, message)
        with _deadline(MAIL_SECONDS, lambda: server.sock if server else None):
            server = _connect(url, set_server)
            if url.scheme == "smtp+starttls":
                server.starttls(context=ssl.create_default_context())
            if url.username:
                server.login(unquote(url.username), unquote(url.password or ""))
            refused = server.send_message(mail)
    except (OSError, smtplib.SMTPException, ValueError) as failure:
        raise NotSent(f"{host_of(str(settings.smtp_url))} {_describe(failure, MAIL_SECONDS)}.") from failure
    finally:
        if server is not None:
            _quit(server)
    but = f", but refused {', '.join(refused)}" if refused else ""
    return f"{host_of(str(settings.smtp_url))} accepted the mail{but}."


class _Smtp(smtplib.SMTP):
    """Calls ``on_connect`` with itself before it connects, so that the greeting has a deadline as well."""

    def __init__(
        self, on_connect: Callable[[smtplib.SMTP], None], host: str, port: int, **options: Any
    ) -> None:
        self._on_connect = on_connect
        super().__init__(host, port, **options)

    def connect(
        self, host: str = "localhost", port: int = 0, source_address: Any = None
    ) -> tuple[int, bytes]:
        self._on_connect(self)
        return super().connect(host, port, source_address)


class _SmtpOverTls(_Smtp, smtplib.SMTP_SSL):
    """The same, encrypted from its first byte."""


def _connect(url: SplitResult, on_connect: Callable[[smtplib.SMTP], None]) -> smtplib.SMTP:
    host, port = str(url.hostname), url.port or PORTS[url.scheme]
    if url.username and url.scheme == "smtp" and not _is_loopback(host):
        raise NotSent(f"{host} would get its password in clear: use smtp+starttls:// or smtps://.")
    if url.scheme == "smtps":
        context = ssl.create_default_context()
        return _SmtpOverTls(on_connect, host, port, timeout=MAIL_SECONDS / 2, context=context)
    return _Smtp(on_connect, host, port, timeout=MAIL_SECONDS / 2)


def _quit(server: smtplib.SMTP) -> None:
    """End the session; an error now changes nothing about a mail that was accepted."""
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


def _write_mail(settings: Settings, message: OutgoingMessage) -> EmailMessage:
    sender = settings.alert_from or f"wakeboard@{socket.getfqdn()}"
    mail = EmailMessage()
    mail["From"], mail["To"] = f"Wakeboard <{sender}>", str(settings.alert_mail)
    mail["Subject"] = ("(repeat?) " if message.is_repeat else "") + message.subject
    mail["Date"] = format_datetime(datetime.now(UTC))
    # The same for every try, so that a mailbox may recognize a repeat.
    mail["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    text = str(message.body.get("text", ""))
    mail.set_content(f"{REPEAT}\n\n{text}" if message.is_repeat else text)
    return mail
