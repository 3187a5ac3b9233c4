"""A program between a client and PostgreSQL that speaks the protocol: what poolers, tired proxies and bad
networks do.

It passes everything on, but for what a test takes away: notifications, the server's process number, time,
every byte while the connections stay open, or the answer to a statement that has already happened.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import BinaryIO

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# Message types of the protocol, first those of the server.
NOTIFICATION, BACKEND_KEY, READY = b"A", b"K", b"Z"
PARSE, BIND, QUERY, SYNC = b"P", b"B", b"Q", b"S"
STARTUP = (3).to_bytes(2, "big")


class Way(Enum):
    """Where the connection of a statement is cut."""

    BEFORE = "before the statement reaches the server"
    DURING = "as soon as it has reached the server"
    AMID = "in the middle of its answer"
    AFTER = "when it has happened, before its answer"
    SILENT = "when it has happened; the connection stays open and says nothing more"
    STUCK = "before the statement reaches the server, behind others; the connection stays open"


class Middleman:
    """Listens on a port of its own; ``url`` leads through it. The switches hold for what comes after.

    Clients are told apart by their application_name. ``cuts`` is asked for every statement, with that name
    and the statement's text, and returns how to cut it, or None. It is called from several threads.
    """

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self._server = (str(given["host"]), int(given.get("port") or 5432))
        self._door = socket.create_server(("127.0.0.1", 0))
        port = self._door.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        self.swallows_notifications = False
        self.hides_the_server = False
        self.refuses = False
        self.cuts: Callable[[str, str], Way | None] = lambda name, text: None
        self.delay_seconds: Callable[[], float] = lambda: 0.0
        self.connections = 0
        self._links: list[_Link] = []
        self._silent: Callable[[str], bool] = lambda name: False
        self._changed = threading.Condition()
        self._is_closed = False
        threading.Thread(target=self._welcome, daemon=True).start()

    def forget_subscriptions(self) -> None:
        """From now on, no connection that is open hears a notification; new ones do."""
        for link in self._links:
            link.is_deaf = True

    def fall_silent(self, *names: str) -> None:
        """From now on, not a byte passes on the connections of these names (none given: on any)."""
        self._silent = lambda name: not names or name in names

    def strand(self, name: str) -> None:
        """From now on, not a byte passes on the open connections of this name; new ones work."""
        for link in self._links:
            link.is_silent = link.is_silent or link.name == name

    def refuse(self) -> None:
        """Hang up on everybody, and let nobody in."""
        self.refuses = True
        for link in self._links:
            link.close()

    def heal(self) -> None:
        """Pass everything on again; what was held back comes late."""
        self.refuses, self.cuts, self.delay_seconds = False, lambda name, text: None, lambda: 0.0
        with self._changed:
            self._silent = lambda name: False
            for link in self._links:
                link.is_silent = False
            self._changed.notify_all()

    def wait_while_silent(self, link: _Link) -> None:
        """Hold the calling thread for as long as nothing may pass on ``link``."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (link.is_silent or self._silent(link.name)))

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for link in self._links:
            link.close()

    def _welcome(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    if self.refuses:
                        raise ConnectionRefusedError
                    server = self._reach()
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                self._links.append(_Link(self, client, server))

    def _reach(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


class _Link:
    """One client and its session: a thread for each direction."""

    def __init__(self, middleman: Middleman, client: socket.socket, server: socket.socket) -> None:
        self.name = ""
        self.is_deaf = False
        self.is_silent = False
        self._middleman = middleman
        self._client = client
        self._server = server
        self._statements: dict[bytes, str] = {}
        self._way: Way | None = None
        for direction, source in ((self._ask, client), (self._answer, server)):
            threading.Thread(target=self._until_cut, args=(direction, source), daemon=True).start()

    def close(self) -> None:
        """End both connections."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _until_cut(self, direction: Callable[[], None], source: socket.socket) -> None:
        with suppress(OSError):
            direction()
        self.close()
        source.close()

    def _pass(self, sink: socket.socket, data: bytes, *, ends_a_turn: bool) -> None:
        """Pass a message on; a slow link costs time once for each turn of the conversation."""
        if ends_a_turn:
            time.sleep(self._middleman.delay_seconds())
        self._middleman.wait_while_silent(self)
        sink.sendall(data)

    def _ask(self) -> None:
        """Pass the client's messages on."""
        with self._client.makefile("rb") as stream:
            length = stream.read(4)
            if len(length) < 4:
                return
            greeting = stream.read(int.from_bytes(length, "big") - 4)
            if greeting[:2] == STARTUP:
                words = greeting[4:].split(b"\0")
                self.name = dict(zip(words[::2], words[1::2], strict=False))[b"application_name"].decode()
            self._pass(self._server, length + greeting, ends_a_turn=True)
            for kind, message in _messages(stream):
                if kind in (PARSE, BIND, QUERY):
                    self._way = self._way or self._look(kind, message[5:])
                if self._way is Way.BEFORE:
                    return
                if self._way is Way.STUCK:
                    self._way, self.is_silent = None, True
                is_turn = kind in (QUERY, SYNC)
                self._pass(self._server, message, ends_a_turn=is_turn)
                if is_turn and self._way is Way.DURING:
                    return

    def _look(self, kind: bytes, body: bytes) -> Way | None:
        """Learn a statement that is prepared; ask about one that is executed."""
        if kind == QUERY:
            return self._middleman.cuts(self.name, body[:-1].decode())
        first, second = body.split(b"\0", 2)[:2]
        if kind == PARSE:
            self._statements[first] = second.decode()
            return None
        return self._middleman.cuts(self.name, self._statements[second])

    def _answer(self) -> None:
        """Pass the server's messages on."""
        held = b""
        with self._server.makefile("rb") as stream:
            for kind, message in _messages(stream):
                if kind == NOTIFICATION and (self._middleman.swallows_notifications or self.is_deaf):
                    continue
                if kind == BACKEND_KEY and self._middleman.hides_the_server:
                    message = message[:5] + b"\x7f\xff\xff\xff" + message[9:]
                if self._way is None:
                    self._pass(self._client, message, ends_a_turn=kind == READY)
                    continue
                held += message
                if kind == READY:
                    self._cut_off(held)
                    return

    def _cut_off(self, answer: bytes) -> None:
        """The statement has happened: say nothing of it, or half, or hold it back."""
        self.is_silent = self._way is Way.SILENT
        if self._way in (Way.AMID, Way.SILENT):
            self._pass(self._client, answer[: len(answer) // 2], ends_a_turn=False)


def _messages(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield each message's type and the whole of it, until the other side hangs up."""
    while len(head := stream.read(5)) == 5:
        body = stream.read(int.from_bytes(head[1:], "big") - 4)
        yield head[:1], head + body


@contextmanager
def between(url: str) -> Iterator[Middleman]:
    """Give a middleman in front of the server of ``url``; its connections end with it."""
    middleman = Middleman(url)
    try:
        yield middleman
    finally:
        middleman.close()
