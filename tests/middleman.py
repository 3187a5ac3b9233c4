"""A program between a worker and PostgreSQL that speaks the protocol: what poolers and tired proxies do.

It passes everything on, but for what a test takes away: notifications, the server's process number, or every
byte while the connections stay open.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo

NOTIFICATION, BACKEND_KEY = b"A", b"K"


class Middleman:
    """Listens on a port of its own; ``url`` leads through it. The switches hold for what comes after."""

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self._server = (str(given["host"]), int(given.get("port") or 5432))
        self._door = socket.create_server(("127.0.0.1", 0))
        port = self._door.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        self.swallows_notifications = False
        self.hides_the_server = False
        self.deaf_connections: set[socket.socket] = set()
        self.connections = 0
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._welcome, daemon=True).start()

    def forget_subscriptions(self) -> None:
        """From now on, no connection that is open hears a notification; new ones do."""
        self.deaf_connections |= self._sockets

    def close(self) -> None:
        """End everything."""
        for one in [self._door, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _welcome(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self.connections += 1
                server = self._reach()
                self._sockets |= {client, server}
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _reach(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        """Pass the server's messages on, one by one."""
        with suppress(OSError), server.makefile("rb") as stream:
            while len(head := stream.read(5)) == 5:
                body = stream.read(int.from_bytes(head[1:], "big") - 4)
                is_deaf = self.swallows_notifications or client in self.deaf_connections
                if head[:1] == NOTIFICATION and is_deaf:
                    continue
                if head[:1] == BACKEND_KEY and self.hides_the_server:
                    body = b"\x7f\xff\xff\xff" + body[4:]
                client.sendall(head + body)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def between(url: str) -> Iterator[Middleman]:
    """Give a middleman in front of the server of ``url``; its connections end with it."""
    middleman = Middleman(url)
    try:
        yield middleman
    finally:
        middleman.close()
