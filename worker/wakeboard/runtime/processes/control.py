"""The supervisor's end of the socket to the fork server: starts it, sends orders, reads messages, ends it.

A fork server that owes a receipt and stays silent is taken for dead: it is killed, which ends its children.
Nothing here waits, but for the end of a fork server that was killed.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from wakeboard.config.stop_signals import blocked
from wakeboard.config.streams import forward
from wakeboard.core.process.process_tree import become_subreaper, kill_children, new_mark
from wakeboard.runtime.deadlines import (
    SERVER_EXIT_SECONDS,
    SERVER_KILL_SECONDS,
    SERVER_ORPHANS_SECONDS,
    SERVER_SILENT_SECONDS,
    SERVER_SUSPENDED_SECONDS,
)
from wakeboard.runtime.processes.child_exit import describe_status
from wakeboard.runtime.processes.fork_server import ForkServerOptions, Zygote, command
from wakeboard.runtime.processes.protocol import (
    PACKET_BYTES,
    AppTypes,
    ChildStart,
    ForkServerExit,
    Order,
    OrderReceipt,
    ServerMessage,
    decode_server_message,
    encode_order,
)

# The most that counts between two checks: while the supervisor was frozen, so may its fork server have been.
_MAX_CHECK_SECONDS = 0.5
_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ForkServerControl:
    """Runs one fork server at a time."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        options: ForkServerOptions,
        *,
        environment: Mapping[str, str],
        zygote: Zygote | None,
    ) -> None:
        """`selector`: where the socket is registered, with None as its data; `environment`: variables added
        to this process's own; `zygote`: what becomes the first fork server."""
        self._selector, self._options = selector, options
        self._environment = environment
        self._zygote = zygote
        self.process: subprocess.Popen[bytes] | Zygote | None = None
        self._socket: socket.socket | None = None
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._receipts_due = 0
        self._is_ready = self._is_taken_for_dead = False
        self._silent_seconds, self._checked_at = 0.0, time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether there is a fork server to give orders to."""
        return self._socket is not None

    def start(self) -> None:
        """Start a fork server; returns at once. Raises RuntimeError when one runs."""
        if self.process is not None:
            raise RuntimeError("The fork server is running already; call end_or_kill() first.")
        become_subreaper()
        self._options = self._options._replace(mark=new_mark())
        self._receipts_due, self._silent_seconds = 0, 0.0
        self._is_ready = self._is_taken_for_dead = False
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            ours, output = self._spawn()
        else:
            self.process, ours, output = zygote, zygote.control, zygote.output
            zygote.load(self._options, self._environment)
        ours.setblocking(False)
        self._socket = ours
        self._selector.register(ours, selectors.EVENT_READ, None)
        try:
            # The fork server forks and kills, so it must not wait for whoever reads the log.
            forward(output)
        except RuntimeError:
            os.close(output)
            self.end_or_kill(0.0)
            raise

    def _spawn(self) -> tuple[socket.socket, int]:
        """Start a fork server as a fresh program; return our ends of its socket and of its output pipe."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, output_writer = os.pipe()
        with theirs, os.fdopen(output_writer, "wb"), blocked(), ExitStack() as cleanup:
            cleanup.callback(ours.close)
            cleanup.callback(os.close, output)
            options = self._options._replace(control_fd=theirs.fileno())
            self.process = subprocess.Popen(
                command("wakeboard.runtime.processes.fork_server", options),
                stdin=subprocess.DEVNULL,
                stdout=output_writer,
                stderr=output_writer,
                pass_fds=(options.control_fd, options.slots_fd),
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
            cleanup.pop_all()
        return ours, output

    def order(self, order: Order, fds: Sequence[int] = ()) -> None:
        """Send an order. `fds`: descriptors that are given to the fork server and closed here."""
        self._receipts_due += 1
        self._unsent.append((encode_order(order), fds))
        self._send()

    def ping(self) -> None:
        """Have the fork server send a receipt, unless it owes one already.

        To be called when a message of it is expected, such as a child's status.
        """
        if self.is_open and not self._receipts_due:
            self.order(Order("ping"))

    def kill_if_silent(self) -> bool:
        """Kill a fork server that has been silent for too long; return whether this call did.

        To be called several times a second. Its end comes as a message, as any other end does.
        """
        self._measure_silence()
        if self.process is None or not self.is_open or self._is_taken_for_dead or not self._is_overdue():
            return False
        self._is_taken_for_dead = True
        self.process.kill()
        return True

    def _measure_silence(self) -> None:
        """Add the time since the last call to the silence, while a message is due."""
        now = time.monotonic()
        if self._receipts_due or not self._is_ready:
            self._silent_seconds += min(now - self._checked_at, _MAX_CHECK_SECONDS)
        self._checked_at = now

    def _is_overdue(self) -> bool:
        """Return whether it is silent for too long. While it imports it may be, unless it is suspended."""
        if self._is_ready and self._silent_seconds >= SERVER_SILENT_SECONDS:
            return True
        return self._silent_seconds >= SERVER_SUSPENDED_SECONDS and self._is_suspended()

    def _is_suspended(self) -> bool:
        """Return whether a stop signal has suspended the fork server."""
        if self.process is None or not hasattr(os, "waitid"):
            return False
        try:
            options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, options) is not None
        except ChildProcessError:
            return False

    def _send(self) -> None:
        if self._socket is None:
            return
        while self._unsent:
            packet, fds = self._unsent[0]
            try:
                socket.send_fds(self._socket, [packet], fds)
            except BlockingIOError:
                break
            except OSError:
                return  # the fork server's end shows by its closed socket
            self._unsent.popleft()
            _close_all(fds)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._socket, events, None)

    def messages(self, mask: int) -> Iterator[ServerMessage | ForkServerExit]:
        """Send and receive what the selector's `mask` allows; yield each message, and the end as the last."""
        if mask & selectors.EVENT_WRITE:
            self._send()
        while mask & selectors.EVENT_READ and self._socket is not None:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, 1, _RECEIVE_FLAGS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                yield ForkServerExit(self.end_or_kill(SERVER_EXIT_SECONDS))
                return
            self._silent_seconds = 0.0
            match decode_server_message(data):
                case OrderReceipt():
                    self._receipts_due -= 1
                case ChildStart() as message:
                    yield message._replace(pidfd=fds[0] if fds else None)
                case message:
                    self._is_ready |= isinstance(message, AppTypes) and message.is_complete
                    yield message

    def end_or_kill(self, seconds: float) -> str:
        """Close the socket, by which the fork server ends, and kill what it left to this process.

        It is killed when it has not ended in `seconds`. Returns how it ended, in words.
        """
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        while self._unsent:
            _close_all(self._unsent.popleft()[1])
        if self.process is None:
            return "not running"
        code = self._wait(0.0 if self._is_suspended() else seconds)
        if code is None:
            self.process.kill()
            code = self._wait(SERVER_KILL_SECONDS)
        self.process = None
        kill_children(SERVER_ORPHANS_SECONDS, mark=self._options.mark)
        how = "killed and did not end" if code is None else describe_status(-code if code < 0 else code << 8)
        return f"{how}, because it did not answer" if self._is_taken_for_dead else how

    def _wait(self, seconds: float) -> int | None:
        """Return the exit status, a signal as its negative number; None after `seconds` without an end."""
        try:
            return self.process.wait(seconds) if self.process is not None else 0
        except subprocess.TimeoutExpired:
            return None


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
