"""The supervisor's end of the socket to the template: it starts, orders, hears and ends the template.

What is told of a child is passed on. Nothing here waits, but for the template's end.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worker.processes.events import describe_status
from worker.processes.family import become_subreaper
from worker.processes.firstborn import Firstborn
from worker.processes.leftovers import end_leftovers, new_mark
from worker.processes.stops import held_back
from worker.processes.template import MESSAGE_BYTES, command

_GONE_SECONDS = 0.05
_SWEEP_SECONDS = 0.5


class Control:
    """One template at a time, and what it tells; that it is gone is told as one more message, `ended`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        pages: int,
        given: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        firstborn: Firstborn | None,
    ) -> None:
        """`selector`: where the socket is watched, with None as its data; `pages`: descriptor of the slots'
        pages; `given`: what each template is told beside who starts it; `environment`: variables added to
        this process's own; `firstborn`: what becomes the first template."""
        self._selector, self._pages = selector, pages
        self._given, self._environment = dict(given), environment
        self._firstborn = firstborn
        self.template: subprocess.Popen[bytes] | Firstborn | None = None
        self._socket: socket.socket | None = None
        self._orders: deque[tuple[bytes, list[int]]] = deque()
        self._mark = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a template to give orders to."""
        return self._socket is not None

    def start(self) -> None:
        """Start a template; returns at once. RuntimeError when one lives."""
        if self.template is not None:
            raise RuntimeError("The template is running already; call stop() first.")
        become_subreaper()
        self._mark = new_mark()
        given = self._given | {"parent": os.getpid(), "mark": self._mark}
        firstborn, self._firstborn = self._firstborn, None
        if firstborn is None:
            ours = self._start_afresh(given)
        else:
            self.template, ours = firstborn, firstborn.control
            firstborn.load(given, self._environment, self._pages)
        ours.setblocking(False)
        self._socket = ours
        self._selector.register(ours, selectors.EVENT_READ, None)

    def _start_afresh(self, given: dict[str, Any]) -> socket.socket:
        """Start a template as a program of its own; return our end of the socket between both."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, held_back():
            given = given | {"pages": self._pages, "control": theirs.fileno()}
            self.template = subprocess.Popen(
                command("worker.processes.template", given),
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(), self._pages),
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        return ours

    def order(
        self, order: str, slot: int, generation: int, fds: Sequence[int], run: Sequence[int] | None
    ) -> None:
        """Have the template do something with that generation of the slot's children; `fds` become the
        template's."""
        message = {"order": order, "slot": slot, "generation": generation, "run": run}
        self._orders.append((json.dumps(message).encode(), list(fds)))
        self._send()

    def _send(self) -> None:
        if self._socket is None:
            return
        while self._orders:
            message, fds = self._orders[0]
            try:
                socket.send_fds(self._socket, [message], fds)
            except BlockingIOError:
                break
            except OSError:
                return  # the template's end is told by its closed socket
            self._orders.popleft()
            _close_all(fds)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._orders else 0)
        self._selector.modify(self._socket, events, None)

    def hear(self, mask: int) -> Iterator[dict[str, Any]]:
        """Go on with what the selector found, `mask`; give each message that has arrived, and the end."""
        if mask & selectors.EVENT_WRITE:
            self._send()
        while mask & selectors.EVENT_READ and self._socket is not None:
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            yield json.loads(data) if data else {"told": "ended", "how": self.end(_GONE_SECONDS)}

    def end(self, seconds: float) -> str:
        """Close the socket, by which the template ends; kill it when it has not in `seconds`, end what it
        left to us. How it ended."""
        self._hang_up()
        template, self.template = self.template, None
        if template is None:
            return "not running"
        try:
            code = template.wait(seconds)
        except subprocess.TimeoutExpired:
            template.kill()
            code = template.wait()
        end_leftovers(self._mark, _SWEEP_SECONDS)
        return describe_status(-code if code < 0 else code << 8)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        while self._orders:
            _close_all(self._orders.popleft()[1])


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
