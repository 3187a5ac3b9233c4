"""What a run may leave behind in its child, and its removal: processes, folder, environment, signals, umask,
streams.

Looks cost about a microsecond each and run after every run; the dear ones only after a long run or now and
then.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import threading
from operator import attrgetter
from typing import Any

from worker.processes.family import has_children, kill_children

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KILL_SECONDS = 2.0
_RUNS_BETWEEN_LONG_LOOKS = 100
_SHORT_NS, _LONG_NS = 1_000_000, 10_000_000
_SIGNALS = tuple(map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM)))
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA)
_NO_TIMER = (0.0, 0.0)
# The functions under the signal module's: without their enumerations a look costs a tenth.
_look: Any = importlib.import_module("_signal")
# The mapping behind os.environ: comparing it costs a twentieth of comparing decoded copies.
_encoded: Any = attrgetter("_data")


class Hygiene:
    """The state of a child that has not run anything yet, to compare with and to return to."""

    def __init__(self, work_fd: int, recycle_mb: int) -> None:
        """`work_fd`: the socket to the supervisor; `recycle_mb`: resident memory above which the child is
        replaced."""
        self._recycle_bytes = recycle_mb * 1024 * 1024
        self._folder = os.getcwd()  # noqa: PTH109 - compared after every run as text
        self._environment: dict[Any, Any] = dict(_encoded(os.environ))
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._handlers = list(map(_look.getsignal, _SIGNALS))
        self._limits = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]
        self._streams = (sys.stdout, sys.stderr)
        self._threads = threading.active_count()
        self._work_fd = work_fd
        self._work_inode = os.fstat(work_fd).st_ino
        self._output_inode = os.fstat(1).st_ino
        self._runs = 0
        self._long_look_is_due = True
        self.output_bytes = 0

    def descriptors_whole(self, run_ns: int) -> bool:
        """Flush the streams; False when standard output or error or the supervisor's socket is not ours any
        more.

        After a run of less than a millisecond standard output speaks for all three, but for one time in a
        hundred.
        """
        try:
            for stream in self._streams:
                stream.flush()
            output = os.fstat(1)
            self.output_bytes = output.st_size
            whole = output.st_ino == self._output_inode
            if whole and (run_ns >= _SHORT_NS or self._long_look_is_due):
                whole = os.fstat(2).st_ino == self._output_inode
                whole = whole and os.fstat(self._work_fd).st_ino == self._work_inode
        except (OSError, ValueError):
            return False
        return whole

    def tidy(self, run_ns: int) -> str | None:
        """Put everything back after a run of `run_ns` nanoseconds; why the child must be replaced, or
        None."""
        reason = None
        if has_children() and not kill_children((), _KILL_SECONDS):
            reason = "it left a process that could not be killed"
        reason = reason or self._restore(run_ns >= _SHORT_NS or self._long_look_is_due)
        if threading.active_count() != self._threads:
            reason = "it left a thread running"
        if run_ns >= _LONG_NS or self._long_look_is_due:
            reason = reason or self._long_look()
        self._runs += 1
        self._long_look_is_due = self._runs % _RUNS_BETWEEN_LONG_LOOKS == 0
        return reason

    def _restore(self, is_long: bool) -> str | None:
        if _encoded(os.environ) != self._environment:
            _restore_environment(self._environment)
        if os.umask(self._umask) != self._umask:
            os.umask(self._umask)
        if (sys.stdout, sys.stderr) != self._streams:
            sys.stdout, sys.stderr = self._streams
        self._restore_signals(is_long)
        try:
            if is_long:
                self._restore_limits()
            self._return_to_folder()
        except (OSError, ValueError) as error:
            return f"it left a limit or a folder that cannot be put back: {error}"
        return None

    def _restore_signals(self, is_long: bool) -> None:
        if signal.getitimer(signal.ITIMER_REAL) != _NO_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if list(map(_look.getsignal, _SIGNALS)) != self._handlers:
            for number, handler in zip(_SIGNALS, self._handlers, strict=True):
                if _look.getsignal(number) != handler:
                    signal.signal(number, handler)
        if is_long and _look.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _restore_limits(self) -> None:
        for limit, wanted in self._limits:
            if resource.getrlimit(limit) != wanted:
                resource.setrlimit(limit, wanted)

    def _return_to_folder(self) -> None:
        try:
            here = os.getcwd()  # noqa: PTH109
        except OSError:
            here = ""
        if here != self._folder:
            os.chdir(self._folder)

    def _long_look(self) -> str | None:
        if sys.platform != "linux":
            return None
        if _count("/proc/self/task") != self._threads:
            return "it left a thread running"
        if _count("/proc/self/fd") > self._limits[0][1][0] // 2:
            return "it left many files open"
        resident = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
        return f"it holds {resident // 1024 // 1024} MB" if resident > self._recycle_bytes else None


def _count(folder: str) -> int:
    # Without a path object for each entry: one run in a hundred pays for such a look.
    return len(os.listdir(folder))  # noqa: PTH208


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _restore_environment(wanted: dict[Any, Any]) -> None:
    decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in wanted.items()}
    for name in os.environ.keys() - decoded.keys():
        del os.environ[name]
    os.environ.update(decoded)
