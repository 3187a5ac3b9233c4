"""gunicorn's threads, and in front of them the polls that find nothing new, answered where they arrive.

Parsing a request and handing it to a thread costs more than a millisecond; a poll that was asked in the same
bytes before and finds nothing new needs neither. Everything else goes on to the threads, unread.
"""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from wakeboard_dashboard.pages.live import FRAGMENTS
from wakeboard_dashboard.server.polls import Polls
from wakeboard_dashboard.server.sharing import PAUSE_SECONDS, Share

log = logging.getLogger("wakeboard.web")

LARGEST = 16_384
# Between two looks whether the threads that make pages are all there.
THREADS_SECONDS = 1.0
# What follows such a line is a part of the request, and not the next one.
BODIES = (b"\r\ncontent-length:", b"\r\ntransfer-encoding:")
BEGINS, ENDS = f"GET {FRAGMENTS}/".encode(), b"\r\n\r\n"


class Listening(ThreadWorker):  # type: ignore[misc]
    """A worker process; ``polls`` is its memory, ``share`` its part of all; None until the app is there."""

    polls: Polls | None = None
    share: Share | None = None
    tpool: Any
    _pools = 0
    _threads: list[threading.Thread]
    _seen_at = 0.0

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Return threads whose names say that they make pages."""
        self._pools += 1
        self._threads = started = []
        return ThreadPoolExecutor(
            self.cfg.threads,
            thread_name_prefix=f"pages-{self._pools}",
            initializer=lambda: started.append(threading.current_thread()),
        )

    def _replace_lost_threads(self) -> None:
        """Make the threads anew when one of them has ended: an executor neither notices nor replaces it."""
        if monotonic() - self._seen_at < THREADS_SECONDS:
            return
        self._seen_at = monotonic()
        lost = sum(not thread.is_alive() for thread in self._threads)
        if lost:
            log.warning("%d of the threads that make pages ended; starting others", lost)
            before, self.tpool = self.tpool, self.get_thread_pool()
            before.shutdown(wait=False)

    def notify(self) -> None:
        """Say that this process lives, and how many it serves: in each round of its loop."""
        super().notify()
        if self.alive and self.tpool is not None:
            self._replace_lost_threads()
        if self.share is not None:
            self.share.tell(self.nr_conns)

    def accept(self, listener: Any) -> None:
        """Take a new connection, or leave it for a process that has fewer."""
        if self.share is not None and self.share.leaves_it(self.nr_conns):
            sleep(PAUSE_SECONDS)
        else:
            super().accept(listener)
            self.notify()

    def on_client_socket_readable(self, conn: Any, client: socket.socket) -> None:
        """Answer at once, or leave the request to a thread."""
        if not self._answers(conn, client):
            super().on_client_socket_readable(conn, client)

    def _answers(self, conn: Any, client: socket.socket) -> bool:
        if self.polls is None or not self.alive or self.cfg.is_ssl or conn.is_http2:
            return False
        try:
            raw = client.recv(LARGEST, socket.MSG_PEEK)
        except OSError:
            return False
        if not (raw.startswith(BEGINS) and raw.endswith(ENDS) and raw.count(ENDS) == 1):
            return False
        if any(line in raw.lower() for line in BODIES):
            return False
        answer = self.polls.answer(raw)
        if answer is None:
            self.polls.arriving(client, raw)
            return False
        client.recv(len(raw))
        self.keepalived_conns.remove(conn)
        if self._sends(client, answer):
            conn.set_timeout()
            self.keepalived_conns.append(conn)
        else:
            self.poller.unregister(client)
            self.nr_conns -= 1
            conn.close()
        return True

    @staticmethod
    def _sends(client: socket.socket, answer: bytes) -> bool:
        """Return whether the whole ``answer`` could be sent without waiting."""
        try:
            return client.send(answer) == len(answer)
        except OSError:
            return False
