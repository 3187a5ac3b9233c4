"""Standard input, output and error: always open, and written in the background by a process that serves.

A pipe that nobody reads blocks its writer. So in a process that serves one thread for each file writes, and
nobody else. The text that waits for it is bounded; more is dropped, counted, and reported in one line once
something is read again.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from time import monotonic, sleep
from typing import TextIO

from wakeboard.core.text.sanitize import describe_error

# How many characters may wait to be written: three seconds of a log at full speed.
MOST_WAITING = 2 * 1024 * 1024
# How much is written at once, and how long to gather it: each write waits for Python's own lock.
BLOCK = 64 * 1024
GATHER_SECONDS = 0.01
# How long a process that ends waits for the reader.
END_SECONDS = 1.0
# The pause of a thread after an error, which may come again.
ERROR_PAUSE_SECONDS = 0.5
NOT_READ = "nobody read the log"

Notice = Callable[[int, str], str]


def open_standard_streams() -> None:
    """Open the null device on each standard stream that is closed: the next file would get its number.

    To be called before any file is opened.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # This is the lowest free number. Programs started from here inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            errors = "backslashreplace" if name == "stderr" else None
            stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def redirect_to_null(stream: TextIO) -> None:
    """Write ``stream`` to the null device: Python writes the rest of it at the end, and would fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def unless_finalizing(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold ``lock``, but not while Python ends: its threads are stopped by then, perhaps with the lock."""
    with nullcontext() if sys.is_finalizing() else lock:
        yield


class StreamWriter:
    """Writes text to a descriptor, in a thread that is started with the first text."""

    def __init__(self, descriptor: int, encoding: str, notice: Notice) -> None:
        """``notice`` makes the line (with its end) for a number of dropped lines and the reason."""
        self.descriptor, self._encoding, self._notice = descriptor, encoding, notice
        self.reset()

    def reset(self) -> None:
        """Start empty; also after a fork, where the parent has the thread and writes the rest."""
        self._lock = RLock()
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._waiting = self._dropped = 0
        self._reason = NOT_READ
        self._has_ended = False

    def put(self, text: str) -> None:
        """Queue ``text``, whole lines. Never waits."""
        with unless_finalizing(self._lock):
            if not self._has_ended:
                self._queue(text)
                return
        self._write(text)

    def _queue(self, text: str) -> None:
        if self._waiting >= MOST_WAITING:
            self._dropped, self._reason = self._dropped + text.count("\n"), NOT_READ
            return
        self._waiting += len(text)
        self._texts.put(text)
        if self._thread is None:
            thread = Thread(target=self._work, name="log", daemon=True)
            # Without room for a thread the text waits for the next ``put``.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def drain(self, seconds: float) -> None:
        """Wait ``seconds`` at most until all is written; later texts are written at once."""
        with unless_finalizing(self._lock):
            thread = self._thread
            if thread is not None:
                self._texts.put(None)
        if thread is None:
            self._write(self._rest())
            return
        thread.join(seconds)

    def _work(self) -> None:
        _retry("log", self._write_all, self._recount)
        self._write(self._rest())

    def _rest(self) -> str:
        """Return what was put after the end, and the notice of dropped lines. Nothing is queued any more."""
        with unless_finalizing(self._lock):
            self._has_ended = True
            rest = [self._texts.get() or "" for _ in range(self._texts.qsize())]
            return "".join(rest) + (self._notice(self._dropped, self._reason) if self._dropped else "")

    def _recount(self) -> None:
        """Count what waits again: an error may have come between taking a text and counting it."""
        with unless_finalizing(self._lock):
            texts = [self._texts.get() for _ in range(self._texts.qsize())]
            self._waiting = sum(len(text or "") for text in texts)
            for text in texts:
                self._texts.put(text)

    def _write_all(self) -> None:
        while (text := self._texts.get()) is not None:
            sleep(GATHER_SECONDS)
            block, size, is_last = [text], len(text), False
            with suppress(Empty):
                while size < BLOCK and not is_last:
                    more = self._texts.get_nowait()
                    is_last = more is None
                    block.append(more or "")
                    size += len(more or "")
            is_written = self._write("".join(block))
            with unless_finalizing(self._lock):
                self._waiting -= size
                if self._dropped and is_written and self._waiting < MOST_WAITING // 2:
                    self._report_dropped()
            if is_last:
                return

    def _report_dropped(self) -> None:
        """Queue the notice of dropped lines behind all that waits, which is older."""
        line = self._notice(self._dropped, self._reason)
        self._dropped, self._reason = 0, NOT_READ
        self._waiting += len(line)
        self._texts.put(line)

    def _write(self, text: str) -> bool:
        """Write ``text``, however long that takes; return whether that succeeded."""
        rest = memoryview(text.encode(self._encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                # Another process that has the same file has set O_NONBLOCK.
                poll = select.poll()
                poll.register(self.descriptor, select.POLLOUT)
                poll.poll()
            except OSError as failure:
                # A log that cannot be written (a full disk, a closed pipe) stops no work.
                with unless_finalizing(self._lock):
                    self._dropped += bytes(rest).count(b"\n")
                    self._reason = f"they could not be written ({failure.strerror})"
                return False
        return True


class Stream(io.TextIOBase):
    """Replaces ``sys.stdout`` or ``sys.stderr``: it gives whole lines to a writer."""

    def __init__(self, replaced: TextIO, writer: StreamWriter) -> None:
        self._replaced, self._writer = replaced, writer
        self.reset()

    def reset(self) -> None:
        """Start empty; also after a fork."""
        self._partial_line = ""
        self._lock = RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the replaced stream."""
        return self._replaced.encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Return how characters are written that the encoding lacks."""
        return "backslashreplace"

    def write(self, text: str) -> int:
        """Take ``text``; a partial line waits for its end, or for ``flush``."""
        with unless_finalizing(self._lock):
            lines, end, self._partial_line = (self._partial_line + text).rpartition("\n")
            if end:
                self._writer.put(lines + end)
            if len(self._partial_line) >= BLOCK:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Give the partial line to the writer."""
        with unless_finalizing(self._lock):
            partial, self._partial_line = self._partial_line, ""
        if partial:
            self._writer.put(partial)

    def fileno(self) -> int:
        """Return the descriptor of the replaced stream, for programs that are started with it."""
        return self._replaced.fileno()

    def isatty(self) -> bool:
        """Return whether people read it on a terminal."""
        return self._replaced.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True


_writers: list[StreamWriter] = []
_streams: list[Stream] = []
_forwarders: list[Thread] = []


def write_in_background(notice: Notice) -> None:
    """Write standard output and error by threads from now on; only the end of the process waits for readers.

    ``notice`` as for ``StreamWriter``. A second call does nothing.
    """
    if _writers:
        return
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if not _has_descriptor(stream):
            continue
        stream.flush()
        _streams.append(Stream(stream, _writer_of(stream, notice)))
        setattr(sys, name, _streams[-1])
    os.register_at_fork(after_in_child=_reset)
    atexit.register(drain)


def _has_descriptor(stream: TextIO) -> bool:
    """Return whether ``stream`` is a file of the system; a test's capture may be none."""
    with suppress(OSError, ValueError):
        return stream.fileno() >= 0
    return False


def _writer_of(stream: TextIO, notice: Notice) -> StreamWriter:
    """Return the writer of ``stream``. Two streams on one file share one, so that lines keep their order."""
    for writer in _writers:
        if os.path.samestat(os.fstat(writer.descriptor), os.fstat(stream.fileno())):
            return writer
    _writers.append(StreamWriter(stream.fileno(), stream.encoding, notice))
    return _writers[-1]


def _reset() -> None:
    _forwarders.clear()
    for writer in _writers:
        writer.reset()
    for stream in _streams:
        stream.reset()


def drain(seconds: float = END_SECONDS) -> None:
    """Wait until all is written, ``seconds`` at most."""
    until = monotonic() + seconds
    while _forwarders:
        _forwarders.pop().join(max(0.0, min(until - monotonic(), seconds / 4)))
    for writer in _writers:
        writer.drain(max(0.0, until - monotonic()))


def forward(descriptor: int) -> None:
    """Copy the lines of the pipe ``descriptor`` to standard error, in a thread, until its writers close it.

    For a child process that must not wait for the reader and has no thread of its own.
    """
    thread = Thread(target=_forward, args=(descriptor,), name="forward", daemon=True)
    _forwarders[:] = [*filter(Thread.is_alive, _forwarders), thread]
    thread.start()


def _forward(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="backslashreplace") as pipe:
        _retry("forward", lambda: _print_lines(pipe))


def _print_lines(pipe: TextIO) -> None:
    with suppress(OSError, ValueError):
        while line := pipe.readline(BLOCK):
            sys.stderr.write(line)
            sys.stderr.flush()


def _retry(name: str, body: Callable[[], None], recover: Callable[[], None] = lambda: None) -> None:
    """Run ``body``, the whole of a thread, until it returns; what ends it by an exception is printed.

    The log itself is written by these threads, so they are no ``ServiceThread``, which logs. ``recover`` is
    called before the body is run again.
    """
    is_done = False
    while not is_done:
        try:
            body()
            is_done = True
        except BaseException as failure:
            with suppress(BaseException):
                recover()
            with suppress(BaseException):
                sentence = (
                    f"The thread {name!r} ended by an error and is started again: {describe_error(failure)}"
                )
                sys.stderr.write(f"{sentence}\n{traceback.format_exc()}")
            with suppress(BaseException):
                sleep(ERROR_PAUSE_SECONDS)
