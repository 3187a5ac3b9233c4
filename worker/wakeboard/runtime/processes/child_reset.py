"""Puts back what a run changed in its child: processes, folder, environment, signals, identity, interpreter.
docs/handlers.md has the table of what is put back, what ends the process and what stays.

A check costs up to a microsecond, and a quick run not much more. So expensive checks are made after a long
run, after the first run of a type, after runs of a type that has left something, before answers are sent,
and else once in a hundred runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextvars import Context, copy_context
from time import monotonic_ns, sleep
from typing import Any

from wakeboard.config.working_directory import WorkingDirectory
from wakeboard.core.process.output_file import has_marker_length, is_empty, written_bytes
from wakeboard.core.process.process_tree import has_children, kill_children
from wakeboard.runtime.deadlines import RUN_ORPHANS_SECONDS

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RUNS_BETWEEN_FULL_CHECKS = 100
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
_RARE_SIGNALS = tuple(sorted(set(signal.valid_signals()) - {*_SIGNALS, signal.SIGKILL, signal.SIGSTOP}))
_SIG_BLOCK = int(signal.SIG_BLOCK)
# The limit of open files first: it says how many a run may leave open.
_LIMITS = (
    resource.RLIMIT_NOFILE,
    *sorted(
        {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
        - {resource.RLIMIT_NOFILE}
    ),
)
# The kernel may take so long to end a joined thread on a busy machine; the pause between two checks.
_JOIN_NS, _JOIN_PAUSE_SECONDS = 20_000_000, 0.0005
# No process can be started in less.
_SPAWN_NS = 50_000
# Two private parts of CPython, each with its public replacement; CONTRIBUTING.md lists them.
try:
    # The functions behind the signal module: without its enumerations a call costs a twentieth.
    _signal: Any = importlib.import_module("_signal")
except ImportError:
    _signal = signal


def _encoded_environment() -> dict[bytes, bytes]:
    """Return the mapping behind `os.environ`: comparing `os.environb` itself costs twenty times as much."""
    return getattr(os.environ, "_data", None) or dict(os.environb)


class ChildReset:
    """The state of a child before its first run, to compare with and to return to."""

    def __init__(self, work_fd: int, recycle_mb: int) -> None:
        """`work_fd`: the socket to the supervisor; `recycle_mb`: resident memory above which the child is
        replaced."""
        self._recycle_bytes = recycle_mb * 1024 * 1024
        self._folder = WorkingDirectory()
        self._environment = dict(_encoded_environment())
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._handlers = list(map(_signal.getsignal, _SIGNALS))
        self._rare_handlers = list(map(_signal.getsignal, _RARE_SIGNALS))
        self._limits = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]
        self._streams = (sys.stdout, sys.stderr, sys.stdin)
        self._zone = time.tzname
        self._locale = locale.setlocale(locale.LC_ALL)
        self._interpreter = _Interpreter()
        self.new_context = self._interpreter.new_context
        self._user, self._identity, self._processors = os.geteuid(), _identity(), _processors()
        # Types whose runs were fully checked and had left nothing.
        self._clean_types: set[str] = set()
        self._thread_count = threading.active_count()
        self._task_count = _count_tasks()
        self._work_fd = work_fd
        self._work_inode = os.fstat(work_fd).st_ino
        self._output_inode = os.fstat(1).st_ino
        self._runs = 0
        self._is_full_check_due = True
        self.has_left_threads = False
        self.output_bytes, self.is_output_empty = 0, True

    def are_descriptors_intact(self, run_ns: int) -> bool:
        """Flush the streams; return whether standard output and error and the socket are the child's own.

        After a run of less than a millisecond that wrote nothing, the length of standard output is proof
        enough, but for one run in a hundred.
        """
        try:
            for stream in self._streams[:2]:
                stream.flush()
            if run_ns < _SHORT_NS and not self._is_full_check_due and has_marker_length(1):
                self.output_bytes, self.is_output_empty = 0, True
                return True
            if os.fstat(1).st_ino != self._output_inode or os.fstat(2).st_ino != self._output_inode:
                return False
            self.output_bytes, self.is_output_empty = written_bytes(1), is_empty(1)
            return os.fstat(self._work_fd).st_ino == self._work_inode
        except (OSError, ValueError):
            return False

    def reset(self, run_ns: int, job_type: str) -> str | None:
        """Put everything back after a run of `run_ns` nanoseconds.

        Returns why the child must be replaced, or None.
        """
        is_long = run_ns >= _SHORT_NS or self._is_full_check_due or job_type not in self._clean_types
        reason = self.kill_processes() if is_long or run_ns >= _SPAWN_NS else None
        try:
            self._restore_common()
            if is_long:
                reason = reason or self._restore_rare(job_type)
            else:
                self._folder.return_to()
            if os.geteuid() != self._user:
                reason = "it changed its user"
            is_very_long = run_ns >= _LONG_NS or self._is_full_check_due
            if (is_very_long or threading.active_count() != self._thread_count) and self._has_left_thread():
                self.has_left_threads = True
                reason = "it left a thread running"
            if is_very_long:
                reason = reason or self._resource_excess()
        except (OSError, ValueError, locale.Error) as error:
            reason = f"it left what cannot be put back, or looked at: {error}"
        self._runs += 1
        self._is_full_check_due = self._runs % _RUNS_BETWEEN_FULL_CHECKS == 0
        return reason

    def kill_processes(self) -> str | None:
        """Kill the processes that runs left; return why the child must be replaced, or None.

        Called before answers are sent, too: `reset` omits it after runs too short to have started a process.
        """
        try:
            if not has_children() or kill_children(RUN_ORPHANS_SECONDS):
                return None
        except OSError:
            # The run changed its user or its root: the fork server kills what is left.
            pass
        return "it left a process that could not be killed"

    def _restore_common(self) -> None:
        """Restore what is checked after every run."""
        if _encoded_environment() != self._environment:
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
        _signal.alarm(0)
        _restore_handlers(_SIGNALS, self._handlers)
        if _signal.pthread_sigmask(_SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._interpreter.restore_event_loop()

    def _restore_rare(self, job_type: str) -> str | None:
        """Restore what is checked after long runs and runs of types that may leave something."""
        reason = self._identity_change()
        _signal.set_wakeup_fd(-1)
        restored = (
            _restore_handlers(_RARE_SIGNALS, self._rare_handlers),
            self._restore_limits(),
            self._restore_locale(),
            _stop_cpu_timers(),
            self._interpreter.restore(),
        )
        if any(restored):
            self._clean_types.discard(job_type)
        else:
            self._clean_types.add(job_type)
        if reason is None:
            self._folder.return_by_name()
        return reason

    def _identity_change(self) -> str | None:
        """Return what changed for good in who the process is; None when nothing did.

        The processors that it may use are put back.
        """
        if _identity() != self._identity:
            return "it changed its user, groups, root folder or niceness"
        if _processors() != self._processors:
            try:
                os.sched_setaffinity(0, self._processors)
            except OSError as error:
                return f"it changed the processors that it may use: {error}"
        return None

    def _restore_zone(self) -> None:
        """Set the zone of local times by the environment; `os.putenv` may have changed it unseen."""
        zone = self._environment.get(b"TZ")
        if zone is None:
            os.unsetenv("TZ")
        else:
            os.putenv("TZ", os.fsdecode(zone))
        time.tzset()
        self._zone = time.tzname

    def _restore_locale(self) -> bool:
        is_changed: bool = locale.setlocale(locale.LC_ALL) != self._locale
        if is_changed:
            locale.setlocale(locale.LC_ALL, self._locale)
        return is_changed

    def _restore_limits(self) -> bool:
        changed = [(limit, value) for limit, value in self._limits if resource.getrlimit(limit) != value]
        for limit, value in changed:
            resource.setrlimit(limit, value)
        return bool(changed)

    def _resource_excess(self) -> str | None:
        if sys.platform != "linux":
            return None
        if _count_entries("/proc/self/fd") > self._limits[0][1][0] // 2:
            return "it left many files open"
        resident = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
        return f"it holds {resident // 1024 // 1024} MB" if resident > self._recycle_bytes else None

    def _has_left_thread(self) -> bool:
        """Return whether a thread is left; for a joined one the kernel may need a moment more than Python."""
        end_ns = monotonic_ns() + _JOIN_NS
        while (count := _count_tasks()) > self._task_count and monotonic_ns() < end_ns:
            sleep(_JOIN_PAUSE_SECONDS)
        # Python counts a foreign thread for ever once it has run Python code.
        self._thread_count = threading.active_count()
        return count != self._task_count


def _restore_handlers(signals: Sequence[int], handlers: Sequence[Any]) -> bool:
    """Put signal handlers back; return whether one was changed."""
    is_changed: bool = list(map(_signal.getsignal, signals)) != handlers
    if is_changed:
        for number, handler in zip(signals, handlers, strict=True):
            # None: a handler that was not installed by Python.
            if handler is not None and _signal.getsignal(number) != handler:
                signal.signal(number, handler)
    return is_changed


def _stop_cpu_timers() -> bool:
    """Stop the timers of processor time, whose signals would end a later run; return whether one was set."""
    previous = [signal.setitimer(timer, 0) for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    return any(map(any, previous))


def _restore_environment(environment: dict[bytes, bytes]) -> None:
    decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    for name in os.environ.keys() - decoded.keys():
        del os.environ[name]
    os.environ.update(decoded)


def _identity() -> tuple[object, ...]:
    """Return users, groups, niceness and root folder, which no run can put back."""
    users: tuple[object, ...] = (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
    if sys.platform == "linux":
        users = (*os.getresuid(), *os.getresgid())
    root: object = None
    with contextlib.suppress(OSError):
        state = os.stat("/")  # noqa: PTH116 - a path object costs as much again
        root = (state.st_dev, state.st_ino)
    return (*users, sorted(os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0), root)


def _processors() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


def _count_tasks() -> int:
    """Return how many threads there are; on Linux those that Python did not start as well."""
    return _count_entries("/proc/self/task") if sys.platform == "linux" else threading.active_count()


def _count_entries(folder: str) -> int:
    # Without a path object for each entry: one run in a hundred pays for it.
    return len(os.listdir(folder))  # noqa: PTH208


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class _Interpreter:
    """The state of Python before the first run. What modules keep for themselves is not put back."""

    def __init__(self) -> None:
        self._state = _interpreter_state()
        self._arguments = list(sys.argv)
        self._variables, self._decimal = _split_decimal(copy_context())
        self._new_policy = _event_loop_policy_factory()

    def new_context(self) -> Context:
        """Return the context variables for one run: as the import of the handlers left them."""
        context = self._variables.copy()
        if self._decimal is not None:
            context.run(sys.modules["decimal"].setcontext, self._decimal.copy())
        return context

    def restore(self) -> bool:
        """Put back everything but `asyncio`'s state; return whether something was changed."""
        # It may be due in an hour, and would end the process.
        faulthandler.cancel_dump_traceback_later()
        is_changed = _interpreter_state() != self._state or sys.argv != self._arguments
        if is_changed:
            _set_interpreter_state(self._state)
            sys.argv[:] = self._arguments
        return is_changed

    def restore_event_loop(self) -> None:
        """Reset `asyncio.get_event_loop()`: a run may have closed its loop or set none."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None:
            return
        if sys.version_info >= (3, 14):
            asyncio.set_event_loop(None)
        else:
            asyncio.set_event_loop_policy(None if self._new_policy is None else self._new_policy())


def _interpreter_state() -> tuple[Any, ...]:
    return (
        gc.isenabled(),
        gc.get_threshold(),
        sys.getrecursionlimit(),
        sys.gettrace(),
        sys.getprofile(),
        sys.excepthook,
        sys.getswitchinterval(),
        sys.get_int_max_str_digits(),
        faulthandler.is_enabled(),
        socket.getdefaulttimeout(),
        logging.root.manager.disable,
    )


def _set_interpreter_state(state: tuple[Any, ...]) -> None:
    (
        is_gc_enabled, thresholds, depth, trace, profile, hook, interval, digits, is_faulthandler_enabled,
        timeout, level,
    ) = state  # fmt: skip
    (gc.enable if is_gc_enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    sys.setrecursionlimit(depth)
    sys.settrace(trace)
    sys.setprofile(profile)
    sys.excepthook = hook
    sys.setswitchinterval(interval)
    sys.set_int_max_str_digits(digits)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        (faulthandler.enable if is_faulthandler_enabled else faulthandler.disable)()
    socket.setdefaulttimeout(timeout)
    logging.disable(level)


def _split_decimal(context: Context) -> tuple[Context, Any]:
    """Return all context variables but that of `decimal`, and the value of that one.

    A run would change that value for all later runs. It is None where it is Python's default.
    """
    decimal = sys.modules.get("decimal")
    others, decimal_context = Context(), None
    for variable, value in context.items():
        if decimal is not None and isinstance(value, decimal.Context):
            is_default = _decimal_rules(value) == _decimal_rules(decimal.DefaultContext)
            decimal_context = None if is_default else value.copy()
        else:
            others.run(variable.set, value)
    return others, decimal_context


def _decimal_rules(context: Any) -> tuple[object, ...]:
    """Return all of a decimal context but its flags."""
    return (
        context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp,
        dict(context.traps),
    )  # fmt: skip


def _event_loop_policy_factory() -> Any:
    """Return what makes the event loop policy of a new process; None for asyncio's own policy."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or sys.version_info >= (3, 14):
        return None
    policy = asyncio.get_event_loop_policy()
    if type(policy) is asyncio.DefaultEventLoopPolicy:
        return None
    try:
        type(policy)()
    except Exception:
        return lambda: policy
    return type(policy)
