"""What a run may leave behind in its child, and its removal: processes, folder, environment, signals, umask,
streams.

Looks cost up to a microsecond each, and a quick run not much more. So the dear ones come after a run that
was long, and else now and then or before answers leave.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from operator import attrgetter
from time import monotonic_ns, sleep
from typing import Any

from worker.processes.family import has_children, kill_children
from worker.processes.folder import Folder
from worker.processes.output import is_as_new, is_silent, written_bytes

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KILL_SECONDS = 2.0
_RUNS_BETWEEN_LONG_LOOKS = 100
_SHORT_NS, _LONG_NS = 1_000_000, 10_000_000
_SIGNALS = tuple(map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE)))
_RARER_SIGNALS = tuple(sorted(set(signal.valid_signals()) - {*_SIGNALS, signal.SIGKILL, signal.SIGSTOP}))
# That of open files first: it says how many a run may leave open.
_LIMITS = (
    resource.RLIMIT_NOFILE,
    *sorted(
        {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
        - {resource.RLIMIT_NOFILE}
    ),
)
# So long the kernel may take to end a thread that was joined, on a busy machine; how often that is looked at.
_JOIN_NS, _LOOK_SECONDS = 20_000_000, 0.0005
# No process can be started in less.
_SPAWN_NS = 50_000
# The functions under the signal module's: without their enumerations a look costs a tenth.
_look: Any = importlib.import_module("_signal")
# How many threads Python started and did not see end, by whichever module; without a lock and a list.
_started_threads: Any = attrgetter("_count")(importlib.import_module("_thread"))
# The mapping behind os.environ: comparing it costs a twentieth of comparing decoded copies.
_encoded: Any = attrgetter("_data")


class Hygiene:
    """The state of a child that has not run anything yet, to compare with and to return to."""

    def __init__(self, work_fd: int, recycle_mb: int) -> None:
        """`work_fd`: the socket to the supervisor; `recycle_mb`: resident memory above which the child is
        replaced."""
        self._recycle_bytes = recycle_mb * 1024 * 1024
        self._folder = Folder()
        self._environment: dict[Any, Any] = dict(_encoded(os.environ))
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._handlers = list(map(_look.getsignal, _SIGNALS))
        self._rarer_handlers = list(map(_look.getsignal, _RARER_SIGNALS))
        self._limits = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]
        self._streams = (sys.stdout, sys.stderr)
        self._threads = _started_threads()
        self._tasks = _tasks()
        self._work_fd = work_fd
        self._work_inode = os.fstat(work_fd).st_ino
        self._output_inode = os.fstat(1).st_ino
        self._runs = 0
        self._long_look_is_due = True
        self.output_bytes, self.output_is_new = 0, True

    def descriptors_whole(self, run_ns: int) -> bool:
        """Flush the streams; False when standard output or error or the supervisor's socket is not ours any
        more.

        After a run of less than a millisecond that wrote nothing standard output's length speaks for all
        three, but for one time in a hundred.
        """
        try:
            for stream in self._streams:
                stream.flush()
            if run_ns < _SHORT_NS and not self._long_look_is_due and is_silent(1):
                self.output_bytes, self.output_is_new = 0, True
                return True
            if os.fstat(1).st_ino != self._output_inode or os.fstat(2).st_ino != self._output_inode:
                return False
            self.output_bytes, self.output_is_new = written_bytes(1), is_as_new(1)
            return os.fstat(self._work_fd).st_ino == self._work_inode
        except (OSError, ValueError):
            return False

    def tidy(self, run_ns: int) -> str | None:
        """Put everything back after a run of `run_ns` nanoseconds; why the child must be replaced, or
        None."""
        is_long = run_ns >= _SHORT_NS or self._long_look_is_due
        reason = self.end_processes() if is_long or run_ns >= _SPAWN_NS else None
        reason = reason or self._restore(is_long)
        if _started_threads() != self._threads:
            reason = "it left a thread running"
        if run_ns >= _LONG_NS or self._long_look_is_due:
            reason = reason or self._long_look()
        self._runs += 1
        self._long_look_is_due = self._runs % _RUNS_BETWEEN_LONG_LOOKS == 0
        return reason

    def end_processes(self) -> str | None:
        """Kill the processes that runs left; why the child must be replaced, or None.

        To be asked before answers leave, too: `tidy` spares it the runs that are too short to have left one.
        """
        if has_children() and not kill_children((), _KILL_SECONDS):
            return "it left a process that could not be killed"
        return None

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
                self._folder.return_by_name()
            else:
                self._folder.return_to()
        except (OSError, ValueError) as error:
            return f"it left a limit or a folder that cannot be put back: {error}"
        return None

    def _restore_signals(self, is_long: bool) -> None:
        # The timer of signal.setitimer(ITIMER_REAL), too: to stop it costs less than to look at it.
        _look.alarm(0)
        _restore_handlers(_SIGNALS, self._handlers)
        if is_long:
            _restore_handlers(_RARER_SIGNALS, self._rarer_handlers)
            if _look.pthread_sigmask(signal.SIG_BLOCK, ()):
                signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _restore_limits(self) -> None:
        for limit, wanted in self._limits:
            if resource.getrlimit(limit) != wanted:
                resource.setrlimit(limit, wanted)

    def _long_look(self) -> str | None:
        if sys.platform != "linux":
            return None
        if self._has_another_thread():
            return "it left a thread running"
        if _count("/proc/self/fd") > self._limits[0][1][0] // 2:
            return "it left many files open"
        resident = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
        return f"it holds {resident // 1024 // 1024} MB" if resident > self._recycle_bytes else None

    def _has_another_thread(self) -> bool:
        """A thread that was joined has ended for Python; the kernel may take a moment more."""
        until_ns = monotonic_ns() + _JOIN_NS
        while (tasks := _tasks()) > self._tasks and monotonic_ns() < until_ns:
            sleep(_LOOK_SECONDS)
        return tasks != self._tasks


def _restore_handlers(signals: Sequence[int], handlers: Sequence[Any]) -> None:
    if list(map(_look.getsignal, signals)) != handlers:
        for number, handler in zip(signals, handlers, strict=True):
            # None: of somebody else than Python.
            if handler is not None and _look.getsignal(number) != handler:
                signal.signal(number, handler)


def _tasks() -> int:
    """How many threads the kernel knows of, those that no Python started among them."""
    return _count("/proc/self/task") if sys.platform == "linux" else 0


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
