"""Standard input, output and error: open, and never waited for by a process that serves.

A pipe that nobody reads stops whoever writes to it, for as long as nobody reads. So in a process that serves
a thread writes, one for each file, and nobody else. What waits for it is bounded; what is more is dropped,
counted, and told in one line once something is read again.
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

# How much may wait to be written, in characters: three seconds of a log at full speed.
MOST_WAITING = 2 * 1024 * 1024
# How much is written at once, and how long more is waited for: each write has to wait for Python's own lock.
BLOCK = 64 * 1024
GATHER_SECONDS = 0.01
# How long a process that ends waits for whoever reads.
END_SECONDS = 1.0
# How long a thread rests that met an error: it may be the same one again.
ERROR_PAUSE_SECONDS = 0.5
UNREAD = "nobody read the log"

Notice = Callable[[int, str], str]


def open_closed() -> None:
    """Open the null device on each standard stream that is closed: the next file would take its number.

    To be called before any file is opened.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one; what is started from here has it, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            errors = "backslashreplace" if name == "stderr" else None
            stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def silence(stream: TextIO) -> None:
    """Let what ``stream`` is written go nowhere: at its end Python would try to write the rest, and fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def held(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold ``lock``, but not when Python ends: its threads are stopped by then, wherever they were."""
    with nullcontext() if sys.is_finalizing() else lock:
        yield


class StreamWriter:
    """Writes text to a descriptor, in a thread that is started with the first text."""

    def __init__(self, descriptor: int, encoding: str, notice: Notice) -> None:
        """``notice`` makes the line (with its end) that tells how many lines were dropped, and why."""
        self.descriptor, self._encoding, self._notice = descriptor, encoding, notice
        self.begin()

    def begin(self) -> None:
        """Begin with nothing: in a forked process, too, whose parent has the thread and writes the rest."""
        self._lock = RLock()
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._waiting = self._dropped = 0
        self._why = UNREAD
        self._has_ended = False

    def put(self, text: str) -> None:
        """Have ``text``, whole lines, written. Never waits."""
        with held(self._lock):
            if not self._has_ended:
                self._queue(text)
                return
        self._write(text)

    def _queue(self, text: str) -> None:
        if self._waiting >= MOST_WAITING:
            self._dropped, self._why = self._dropped + text.count("\n"), UNREAD
            return
        self._waiting += len(text)
        self._texts.put(text)
        if self._thread is None:
            thread = Thread(target=self._work, name="log", daemon=True)
            # Where there is no room for a thread, the text waits for the next one.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def end(self, seconds: float) -> None:
        """Wait ``seconds`` at most until all is written; what is put later is written at once."""
        with held(self._lock):
            thread = self._thread
            if thread is not None:
                self._texts.put(None)
        if thread is None:
            self._write(self._rest())
            return
        thread.join(seconds)

    def _work(self) -> None:
        _until_done("log", self._write_all, self._count_anew)
        self._write(self._rest())

    def _rest(self) -> str:
        """Return what was put behind the end, and how many lines were dropped; from now on nothing waits."""
        with held(self._lock):
            self._has_ended = True
            rest = [self._texts.get() or "" for _ in range(self._texts.qsize())]
            return "".join(rest) + (self._notice(self._dropped, self._why) if self._dropped else "")

    def _count_anew(self) -> None:
        """Count what waits: an error may have come between a text's leaving and its being counted."""
        with held(self._lock):
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
            with held(self._lock):
                self._waiting -= size
                if self._dropped and is_written and self._waiting < MOST_WAITING // 2:
                    self._tell_dropped()
            if is_last:
                return

    def _tell_dropped(self) -> None:
        """Say what was dropped, behind all that waits: those lines are older."""
        line = self._notice(self._dropped, self._why)
        self._dropped, self._why = 0, UNREAD
        self._waiting += len(line)
        self._texts.put(line)

    def _write(self, text: str) -> bool:
        """Write ``text``, however long that takes; return whether it could be written."""
        rest = memoryview(text.encode(self._encoding, "backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                # Somebody who has the same file has made it one that does not block.
                poll = select.poll()
                poll.register(self.descriptor, select.POLLOUT)
                poll.poll()
            except OSError as failure:
                # A log that cannot be written (a full disk, a closed pipe) stops no work.
                with held(self._lock):
                    self._dropped += bytes(rest).count(b"\n")
                    self._why = f"they could not be written ({failure.strerror})"
                return False
        return True


class Stream(io.TextIOBase):
    """What stands in for ``sys.stdout`` or ``sys.stderr``: it hands whole lines to a writer."""

    def __init__(self, replaced: TextIO, writer: StreamWriter) -> None:
        self._replaced, self._writer = replaced, writer
        self.begin()

    def begin(self) -> None:
        """Begin with nothing: in a forked process, too."""
        self._begun = ""
        self._lock = RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of what is replaced."""
        return self._replaced.encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Return how characters are written that the encoding does not have."""
        return "backslashreplace"

    def write(self, text: str) -> int:
        """Take ``text``; the begin of a line waits for its end, or for ``flush``."""
        with held(self._lock):
            lines, end, self._begun = (self._begun + text).rpartition("\n")
            if end:
                self._writer.put(lines + end)
            if len(self._begun) >= BLOCK:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Hand on the begin of a line."""
        with held(self._lock):
            begun, self._begun = self._begun, ""
        if begun:
            self._writer.put(begun)

    def fileno(self) -> int:
        """Return the descriptor of what is replaced, for programs that are started with it."""
        return self._replaced.fileno()

    def isatty(self) -> bool:
        """Return whether people read it on a terminal."""
        return self._replaced.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True


_writers: list[StreamWriter] = []
_streams: list[Stream] = []
_passing: list[Thread] = []


def never_wait(notice: Notice) -> None:
    """Let this process wait no more for who reads its standard output and error, but for a second at its end.

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
    os.register_at_fork(after_in_child=_begin_anew)
    atexit.register(end)


def _has_descriptor(stream: TextIO) -> bool:
    """Return whether somebody else may have to read what is written; not so in a test that keeps it."""
    with suppress(OSError, ValueError):
        return stream.fileno() >= 0
    return False


def _writer_of(stream: TextIO, notice: Notice) -> StreamWriter:
    """Return the writer of ``stream``: two names of one file have one, so lines keep their order."""
    for writer in _writers:
        if os.path.samestat(os.fstat(writer.descriptor), os.fstat(stream.fileno())):
            return writer
    _writers.append(StreamWriter(stream.fileno(), stream.encoding, notice))
    return _writers[-1]


def _begin_anew() -> None:
    _passing.clear()
    for writer in _writers:
        writer.begin()
    for stream in _streams:
        stream.begin()


def end(seconds: float = END_SECONDS) -> None:
    """Wait until all is written, ``seconds`` at most."""
    until = monotonic() + seconds
    while _passing:
        _passing.pop().join(max(0.0, min(until - monotonic(), seconds / 4)))
    for writer in _writers:
        writer.end(max(0.0, until - monotonic()))


def pass_on(descriptor: int) -> None:
    """Print on standard error what arrives at ``descriptor``, the end of a pipe, until nobody writes there.

    For a process of ours that must not wait for who reads, and has no thread.
    """
    thread = Thread(target=_pass_on, args=(descriptor,), name="pass on", daemon=True)
    _passing[:] = [*filter(Thread.is_alive, _passing), thread]
    thread.start()


def _pass_on(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="backslashreplace") as pipe:
        _until_done("pass on", lambda: _print_lines(pipe))


def _print_lines(pipe: TextIO) -> None:
    with suppress(OSError, ValueError):
        while line := pipe.readline(BLOCK):
            sys.stderr.write(line)
            sys.stderr.flush()


def _until_done(name: str, body: Callable[[], None], mend: Callable[[], None] = lambda: None) -> None:
    """Run ``body``, the whole of a thread, until it returns: what ends it by an error is printed.

    The log itself stands on these threads, so they are no ``ServiceThread``, which logs. ``mend`` is called
    before the body begins anew.
    """
    is_done = False
    while not is_done:
        try:
            body()
            is_done = True
        except BaseException as failure:
            with suppress(BaseException):
                mend()
            with suppress(BaseException):
                trace = traceback.format_exc()
                told = (
                    f"The thread {name!r} ended by an error and is started again: {describe_error(failure)}"
                )
                sys.stderr.write(f"{told}\n{trace}")
            with suppress(BaseException):
                sleep(ERROR_PAUSE_SECONDS)
