"""The shop's mailbox: a small SMTP server that keeps what it is sent in ``shop.mails`` and forwards nothing.

RFC 5321 as far as clients need it: EHLO, HELO, MAIL, RCPT, DATA, RSET, NOOP, VRFY, QUIT. It says 250 to a
message only when the row is committed.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import EmailMessage

LARGEST_BYTES = 1024 * 1024
_LINE_BYTES = 2_048
_IDLE_SECONDS = 60
_MOST_RECIPIENTS = 100


@dataclass(slots=True)
class Envelope:
    """What a client said before its message."""

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mail:
    """A message as it is kept; texts without NUL, attachments by name."""

    message_id: str | None
    sender: str
    recipients: list[str]
    subject: str
    body: str
    attachments: list[str]


# Returns the reply to a message: "250 …" once it is kept, "4…" to be asked again.
Keep = Callable[[Mail], str]


async def serve(host: str, port: int, keep: Keep) -> asyncio.Server:
    """Listen on ``host:port`` (0: any port); ``keep`` is called in a thread for each message."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Conversation(reader, writer, keep).run()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(talk, host, port, limit=_LINE_BYTES)


class _Conversation:
    """One client from greeting to QUIT."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: Keep) -> None:
        self._reader, self._writer, self._keep = reader, writer, keep
        self._envelope = Envelope()

    async def run(self) -> None:
        await self._say("220 shop.example.com mailbox")
        while True:
            line = (await self._line()).decode("utf-8", "replace").strip()
            verb, _, rest = line.partition(" ")
            if verb.upper() == "QUIT":
                await self._say("221 Bye")
                return
            await self._say(await self._answer(verb.upper(), rest))

    async def _answer(self, verb: str, rest: str) -> str:
        if verb in ("EHLO", "HELO", "RSET"):
            self._envelope = Envelope()
            return (
                f"250-shop.example.com\r\n250-8BITMIME\r\n250 SIZE {LARGEST_BYTES}"
                if verb == "EHLO"
                else "250 OK"
            )
        if verb == "MAIL":
            self._envelope = Envelope(sender=_address(rest))
            return "250 OK" if self._envelope.sender is not None else "501 Write MAIL FROM:<address>"
        if verb == "RCPT":
            return self._recipient(_address(rest))
        if verb == "DATA":
            return await self._message()
        return {"NOOP": "250 OK", "VRFY": "252 Send it and see"}.get(verb, "502 Not known here")

    def _recipient(self, address: str | None) -> str:
        if self._envelope.sender is None:
            return "503 MAIL comes first"
        if not address:
            return "501 Write RCPT TO:<address>"
        if len(self._envelope.recipients) >= _MOST_RECIPIENTS:
            return "452 Too many recipients"
        self._envelope.recipients.append(address)
        return "250 OK"

    async def _message(self) -> str:
        envelope, self._envelope = self._envelope, Envelope()
        if envelope.sender is None or not envelope.recipients:
            return "503 MAIL and RCPT come first"
        await self._say("354 End with a line that holds one dot")
        content = await self._content()
        if content is None:
            return "552 The message is too large"
        return await asyncio.to_thread(self._keep, read(content, envelope.sender, envelope.recipients))

    async def _content(self) -> bytes | None:
        """Read up to the line that is one dot; None when it was more than allowed (all of it is read)."""
        content = bytearray()
        while (line := await self._line()) not in (b".\r\n", b".\n"):
            if len(content) <= LARGEST_BYTES:
                content += line[1:] if line.startswith(b".") else line
        return bytes(content) if len(content) <= LARGEST_BYTES else None

    async def _line(self) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(b"\n"), _IDLE_SECONDS)

    async def _say(self, reply: str) -> None:
        self._writer.write(reply.encode() + b"\r\n")
        await self._writer.drain()


def _address(rest: str) -> str | None:
    """Return the address of ``FROM:<a@b> …`` or ``TO:<a@b>``; empty for ``<>``, None when there is none."""
    _, colon, path = rest.partition(":")
    start, end = path.find("<"), path.find(">")
    if not colon or start < 0 or end < start:
        return None
    return path[start + 1 : end].replace("\x00", "")[:320]


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
        sender,
        recipients,
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
