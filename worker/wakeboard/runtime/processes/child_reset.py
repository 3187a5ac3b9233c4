"""What a run may leave behind in its child, and its removal: processes, folder, environment, signals, umask,
streams. docs/handlers.md has the table.

Looks cost up to a microsecond each, and a quick run not much more. So the dear ones come after a run that
was long, after the first run of a type and those of a type that has left something, and else now and then
or before answers leave.
"""

from __future__ import annotations

import importlib
import locale
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from time import monotonic_ns, sleep
from typing import Any

from wakeboard.config.working_directory import WorkingDirectory
from wakeboard.core.process.output_file import has_marker_length, is_empty, written_bytes
from wakeboard.core.process.process_tree import has_children, kill_children
from wakeboard.runtime.processes.identity import Identity
from wakeboard.runtime.processes.interpreter import Interpreter

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KILL_SECONDS = 2.0
_RUNS_BETWEEN_LONG_LOOKS = 100
_SHORT_NS, _LONG_NS = 1_000_000, 10_000_000
_SIGNALS = tuple(
    map(
        int,
        (
            signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGALRM,
            signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2,
        ),
    )
)  # fmt: skip
_RARER_SIGNALS = tuple(sorted(set(signal.valid_signals()) - {*_SIGNALS, signal.SIGKILL, signal.SIGSTOP}))
_SIG_BLOCK = int(signal.SIG_BLOCK)
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
# Two private parts of CPython, and what is public in their place; CONTRIBUTING.md lists them.
try:
    # The functions under the signal module's: without their enumerations a look costs a twentieth.
    _look: Any = importlib.import_module("_signal")
except ImportError:
    _look = signal


def _environment_of(environ: Any) -> Any:
    """The mapping behind `environ`, encoded: comparing `os.environb` itself costs twenty times as much."""
    return getattr(environ, "_data", None) or dict(os.environb)


class Hygiene:
    """The state of a child that has not run anything yet, to compare with and to return to."""

    def __init__(self, work_fd: int, recycle_mb: int) -> None:
        """`work_fd`: the socket to the supervisor; `recycle_mb`: resident memory above which the child is
        replaced."""
        self._recycle_bytes = recycle_mb * 1024 * 1024
        self._folder = WorkingDirectory()
        self._environment: dict[Any, Any] = dict(_environment_of(os.environ))
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._handlers = list(map(_look.getsignal, _SIGNALS))
        self._rarer_handlers = list(map(_look.getsignal, _RARER_SIGNALS))
        self._limits = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]
        self._streams = (sys.stdout, sys.stderr, sys.stdin)
        self._zone = time.tzname
        self._locale = locale.setlocale(locale.LC_ALL)
        self._interpreter, self._identity = Interpreter(), Identity()
        self.new_context = self._interpreter.new_context
        # Types whose runs were looked at and had left nothing.
        self._tidy_types: set[str] = set()
        self._threads = threading.active_count()
        self._tasks = _tasks()
        self._work_fd = work_fd
        self._work_inode = os.fstat(work_fd).st_ino
        self._output_inode = os.fstat(1).st_ino
        self._runs = 0
        self._long_look_is_due = True
        self.has_left_threads = False
        self.output_bytes, self.output_is_new = 0, True

    def descriptors_whole(self, run_ns: int) -> bool:
        """Flush the streams; False when standard output or error or the supervisor's socket is not ours any
        more.

        After a run of less than a millisecond that wrote nothing standard output's length speaks for all
        three, but for one time in a hundred.
        """
        try:
            for stream in self._streams[:2]:
                stream.flush()
            if run_ns < _SHORT_NS and not self._long_look_is_due and has_marker_length(1):
                self.output_bytes, self.output_is_new = 0, True
                return True
            if os.fstat(1).st_ino != self._output_inode or os.fstat(2).st_ino != self._output_inode:
                return False
            self.output_bytes, self.output_is_new = written_bytes(1), is_empty(1)
            return os.fstat(self._work_fd).st_ino == self._work_inode
        except (OSError, ValueError):
            return False

    def tidy(self, run_ns: int, job_type: str) -> str | None:
        """Put everything back after a run of `run_ns` nanoseconds; why the child must be replaced, or
        None."""
        is_long = run_ns >= _SHORT_NS or self._long_look_is_due or job_type not in self._tidy_types
        reason = self.end_processes() if is_long or run_ns >= _SPAWN_NS else None
        try:
            self._restore()
            if is_long:
                reason = reason or self._restore_rarer(job_type)
            else:
                self._folder.return_to()
            if os.geteuid() != self._identity.user:
                reason = "it changed its user"
            is_very_long = run_ns >= _LONG_NS or self._long_look_is_due
            if (is_very_long or threading.active_count() != self._threads) and self._has_another_thread():
                self.has_left_threads = True
                reason = "it left a thread running"
            if is_very_long:
                reason = reason or self._long_look()
        except (OSError, ValueError, locale.Error) as error:
            reason = f"it left what cannot be put back, or looked at: {error}"
        self._runs += 1
        self._long_look_is_due = self._runs % _RUNS_BETWEEN_LONG_LOOKS == 0
        return reason

    def end_processes(self) -> str | None:
        """Kill the processes that runs left; why the child must be replaced, or None.

        To be asked before answers leave, too: `tidy` spares it the runs that are too short to have left one.
        """
        try:
            if not has_children() or kill_children(_KILL_SECONDS):
                return None
        except OSError:
            # It changed its user or its root: the template ends what is left.
            pass
        return "it left a process that could not be killed"

    def _restore(self) -> None:
        """What is looked at after each run."""
        if _environment_of(os.environ) != self._environment:
            is_zone_same = os.environb.get(b"TZ") == self._environment.get(b"TZ")
            _restore_environment(self._environment)
            if not is_zone_same:
                self._restore_zone()
        if time.tzname is not self._zone:
            self._restore_zone()
        if os.umask(self._umask) != self._umask:
            os.umask(self._umask)
        if (sys.stdout, sys.stderr, sys.stdin) != self._streams:
            sys.stdout, sys.stderr, sys.stdin = self._streams
        # The timer of signal.setitimer(ITIMER_REAL), too: to stop it costs less than to look at it.
        _look.alarm(0)
        _restore_handlers(_SIGNALS, self._handlers)
        if _look.pthread_sigmask(_SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._interpreter.forget_event_loop()

    def _restore_rarer(self, job_type: str) -> str | None:
        """What is looked at after long runs, and after those of types that are not known to leave nothing."""
        reason = self._identity.changed()
        _look.set_wakeup_fd(-1)
        restored = (
            _restore_handlers(_RARER_SIGNALS, self._rarer_handlers),
            self._restore_limits(),
            self._restore_locale(),
            self._stop_timers(),
            self._interpreter.restore(),
        )
        if any(restored):
            self._tidy_types.discard(job_type)
        else:
            self._tidy_types.add(job_type)
        if reason is None:
            self._folder.return_by_name()
        return reason

    def _restore_zone(self) -> None:
        """The zone of local times: as the environment says, which `os.putenv` may have changed unseen."""
        zone = self._environment.get(b"TZ")
        if zone is None:
            os.unsetenv("TZ")
        else:
            os.putenv("TZ", os.fsdecode(zone))
        time.tzset()
        self._zone = time.tzname

    def _restore_locale(self) -> bool:
        found: bool = locale.setlocale(locale.LC_ALL) != self._locale
        if found:
            locale.setlocale(locale.LC_ALL, self._locale)
        return found

    def _stop_timers(self) -> bool:
        """Those that count the processor's time: their signals would end a later run."""
        found = [signal.setitimer(timer, 0) for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
        return any(map(any, found))

    def _restore_limits(self) -> bool:
        changed = [(limit, wanted) for limit, wanted in self._limits if resource.getrlimit(limit) != wanted]
        for limit, wanted in changed:
            resource.setrlimit(limit, wanted)
        return bool(changed)

    def _long_look(self) -> str | None:
        if sys.platform != "linux":
            return None
        if _count("/proc/self/fd") > self._limits[0][1][0] // 2:
            return "it left many files open"
        resident = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
        return f"it holds {resident // 1024 // 1024} MB" if resident > self._recycle_bytes else None

    def _has_another_thread(self) -> bool:
        """A thread that was joined has ended for Python; the kernel may take a moment more."""
        until_ns = monotonic_ns() + _JOIN_NS
        while (found := _tasks()) > self._tasks and monotonic_ns() < until_ns:
            sleep(_LOOK_SECONDS)
        # Python counts for ever a thread of somebody else's that once ran Python's code.
        self._threads = threading.active_count()
        return found != self._tasks


def _restore_handlers(signals: Sequence[int], handlers: Sequence[Any]) -> bool:
    """Put them back; True when one was another."""
    found: bool = list(map(_look.getsignal, signals)) != handlers
    if found:
        for number, handler in zip(signals, handlers, strict=True):
            # None: of somebody else than Python.
            if handler is not None and _look.getsignal(number) != handler:
                signal.signal(number, handler)
    return found


def _tasks() -> int:
    """How many threads there are; on Linux also those that no Python started."""
    return _count("/proc/self/task") if sys.platform == "linux" else threading.active_count()


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
