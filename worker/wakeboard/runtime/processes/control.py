"""The supervisor's end of the socket to the template: it starts, orders, hears and ends the template.

What is told of a child is passed on. A template that is asked and does not answer is taken for dead: it is
killed, which ends its children. Nothing here waits, but for the end of a template that was killed.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from wakeboard.config.stop_signals import holding_back
from wakeboard.config.streams import pass_on
from wakeboard.config.working_directory import place
from wakeboard.core.process.process_tree import become_subreaper, kill_children, new_mark
from wakeboard.runtime.processes.events import describe_status
from wakeboard.runtime.processes.fork_server import MESSAGE_BYTES, command
from wakeboard.runtime.processes.zygote import Zygote

_GONE_SECONDS = 0.05
_KILLED_SECONDS = 1.0
_SWEEP_SECONDS = 0.5
# So long a template that was asked may be silent; one that is stopped, by a signal, does not answer.
SILENT_SECONDS, STOPPED_SECONDS = 3.0, 1.0
# A supervisor that was frozen counts no more than this of it: its template may have been frozen with it.
_AWAKE_SECONDS = 0.5
_RECEIVE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Control:
    """One template at a time, and what it tells; that it is gone is told as one more message, `ended`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        pages: int,
        given: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        firstborn: Zygote | None,
    ) -> None:
        """`selector`: where the socket is watched, with None as its data; `pages`: descriptor of the slots'
        pages; `given`: what each template is told beside who starts it; `environment`: variables added to
        this process's own; `firstborn`: what becomes the first template."""
        self._selector, self._pages = selector, pages
        self._given = dict(given) | {"folder": place()}
        self._environment = environment
        self._firstborn = firstborn
        self.template: subprocess.Popen[bytes] | Zygote | None = None
        self._socket: socket.socket | None = None
        self._orders: deque[tuple[bytes, list[int]]] = deque()
        self._mark = 0
        self._unanswered = 0
        self._is_ready = self._is_condemned = False
        self._silent_seconds, self._looked_at = 0.0, time.monotonic()

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
        self._unanswered, self._silent_seconds = 0, 0.0
        self._is_ready = self._is_condemned = False
        given = self._given | {"parent": os.getpid(), "mark": self._mark}
        firstborn, self._firstborn = self._firstborn, None
        if firstborn is None:
            ours, output = self._start_afresh(given)
        else:
            self.template, ours, output = firstborn, firstborn.control, firstborn.output
            firstborn.load(given, self._environment, self._pages)
        ours.setblocking(False)
        self._socket = ours
        self._selector.register(ours, selectors.EVENT_READ, None)
        try:
            # It forks and kills, so it must not wait for who reads the log.
            pass_on(output)
        except RuntimeError:
            os.close(output)
            self.end(0.0)
            raise

    def _start_afresh(self, given: dict[str, Any]) -> tuple[socket.socket, int]:
        """Start a template as a program of its own; return our end of the socket between both, and of the
        pipe into which it prints."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, printed = os.pipe()
        with theirs, os.fdopen(printed, "wb"), holding_back(), ExitStack() as unless_started:
            unless_started.callback(ours.close)
            unless_started.callback(os.close, output)
            given = given | {"pages": self._pages, "control": theirs.fileno()}
            self.template = subprocess.Popen(
                command("wakeboard.runtime.processes.fork_server", given),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(theirs.fileno(), self._pages),
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
            unless_started.pop_all()
        return ours, output

    def order(
        self, order: str, slot: int, generation: int, fds: Sequence[int], run: Sequence[int] | None
    ) -> None:
        """Have the template do something with that generation of the slot's children; `fds` become the
        template's."""
        message = {"order": order, "slot": slot, "generation": generation, "run": run}
        self._give(message, fds)

    def ask(self) -> None:
        """Have the template answer, unless it is asked already. Something is expected of it, such as to tell
        of a death."""
        if self.is_open and not self._unanswered:
            self._give({"order": "answer"}, ())

    def _give(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        self._unanswered += 1
        self._orders.append((json.dumps(message).encode(), list(fds)))
        self._send()

    def condemn_if_silent(self) -> bool:
        """Look at the template; True once, when it has been silent for too long and is taken for dead.

        To be called several times a second. While it imports the handlers it may take its time.
        """
        now = time.monotonic()
        if self._unanswered or not self._is_ready:
            self._silent_seconds += min(now - self._looked_at, _AWAKE_SECONDS)
        self._looked_at = now
        if not self.is_open or self._is_condemned:
            return False
        is_overdue = self._is_ready and self._silent_seconds >= SILENT_SECONDS
        self._is_condemned = is_overdue or (self._silent_seconds >= STOPPED_SECONDS and self._is_stopped())
        return self._is_condemned

    def _is_stopped(self) -> bool:
        """Whether a signal has stopped the template."""
        if self.template is None or not hasattr(os, "waitid"):
            return False
        try:
            look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.template.pid, look) is not None
        except ChildProcessError:
            return False

    def kill(self) -> None:
        """Kill the template; its end is told as any other."""
        if self.template is not None:
            self.template.kill()

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
                data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1, _RECEIVE)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if data:
                yield from self._heard(json.loads(data), fds)
            else:
                yield {"told": "ended", "how": self.end(_GONE_SECONDS)}

    def _heard(self, message: dict[str, Any], fds: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Take a message in, which gives a sign of life, and give it on with the descriptor that came with
        it."""
        self._silent_seconds = 0.0
        if message["told"] == "obeyed":
            self._unanswered -= 1
            return
        self._is_ready = self._is_ready or message["told"] == "ready"
        yield message | {"pidfd": fds[0] if fds else None}

    def end(self, seconds: float) -> str:
        """Close the socket, by which the template ends; kill it when it has not in `seconds`, end what it
        left to us. How it ended."""
        self._hang_up()
        if self.template is None:
            return "not running"
        code = self._wait(0.0 if self._is_stopped() else seconds)
        if code is None:
            self.template.kill()
            code = self._wait(_KILLED_SECONDS)
        self.template = None
        kill_children(_SWEEP_SECONDS, mark=self._mark)
        how = "killed and did not end" if code is None else describe_status(-code if code < 0 else code << 8)
        return f"{how}, because it did not answer" if self._is_condemned else how

    def _wait(self, seconds: float) -> int | None:
        """How the template ended, a signal as its negative number; None when it has not in `seconds`."""
        try:
            return self.template.wait(seconds) if self.template is not None else 0
        except subprocess.TimeoutExpired:
            return None

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
