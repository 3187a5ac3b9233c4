"""Everything that a run may leave in its process: how it is left, and how the next run sees it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import decimal
import faulthandler
import gc
import locale
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wakeboard import Context, job
from wakeboard.runtime.processes import child_reset

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="as imported")
KEPT: list[Any] = []
# As libraries leave it that count while they are imported.
decimal.getcontext().prec = 40
MANY_FILES = 350


def to_tokyo() -> None:
    """Go to another zone."""
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def to_tokyo_and_half_back() -> None:
    """Go to another zone, and put back the environment alone."""
    before = os.environ.get("TZ")
    to_tokyo()
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before


def with_streams() -> None:
    """Put other streams in the place of the process's own."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123


def with_no_loop() -> None:
    """Leave asyncio without an event loop, as `asyncio.run` does."""
    asyncio.run(asyncio.sleep(0))


def with_closed_loop() -> None:
    """Close the loop that `asyncio.get_event_loop()` gave."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()


def other_locale() -> None:
    """Change how numbers and text are written."""
    locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")


def fewer_processors() -> None:
    """Use one processor alone."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def limits_of_python() -> None:
    """Change what the interpreter allows."""
    sys.setrecursionlimit(sys.getrecursionlimit() + 77)
    sys.setswitchinterval(0.123)
    sys.set_int_max_str_digits(0)


def hooks_of_python() -> None:
    """Watch what the interpreter does."""
    sys.excepthook = lambda *_: None
    sys.setprofile(lambda *_: None)
    sys.settrace(lambda *_: None)


def no_garbage() -> None:
    """Collect no garbage."""
    gc.set_threshold(123_456)
    gc.disable()


def no_faults() -> None:
    """Tell of no faults, and end the process in a while."""
    faulthandler.dump_traceback_later(600, exit=True)
    faulthandler.disable()


def a_wakeup_fd() -> None:
    """Have signals written into a socket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    KEPT.extend([ours, theirs])
    signal.set_wakeup_fd(ours.fileno())


def another_root() -> None:
    """Make an empty folder the root."""
    os.chroot(tempfile.mkdtemp())


def many_files() -> None:
    """Open more than half of what the process may."""
    KEPT.extend(open(os.devnull) for _ in range(MANY_FILES))  # noqa: SIM115, PTH123


def a_thread() -> None:
    """Leave a thread."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def a_process() -> None:
    """Leave a process."""
    KEPT.append(subprocess.Popen(["/bin/sleep", "600"]))


def process_lives() -> Any:
    """Whether one that was left lives."""
    return [Path(f"/proc/{each.pid}").exists() for each in KEPT if isinstance(each, subprocess.Popen)]


def the_mask() -> Any:
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def a_loop() -> Any:
    """Whether the event loop that everybody gets works."""
    return asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, "works"))


def the_umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def set_other_handlers() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)


def handlers(*numbers: signal.Signals) -> Any:
    return [repr(signal.getsignal(number)) for number in numbers]


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})


def soft_limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


Line = tuple[Callable[[], object], Callable[[], Any]]
# By the words of the page: how it is left, how it is seen.
LINES: dict[str, Line] = {
    "`os.environ`": (lambda: os.environ.update(LEFT="yes"), lambda: dict(os.environ)),
    "the zone of local times (`TZ`, `time.tzset()`)": (to_tokyo, lambda: [time.tzname, time.localtime(0)[:]]),
    "the zone, with the environment put back": (to_tokyo_and_half_back, lambda: time.localtime(0)[:]),
    "the working folder": (lambda: os.chdir("/proc"), lambda: str(Path.cwd())),
    "the umask": (lambda: os.umask(0o077), the_umask),
    "`sys.stdout`, `sys.stderr`, `sys.stdin`": (
        with_streams, lambda: [sys.stdout.name, sys.stderr.name, sys.stdin.name],
    ),
    "handlers of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD, SIGALRM, SIGPIPE, SIGUSR1, SIGUSR2": (
        set_other_handlers, lambda: handlers(signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD),
    ),
    "blocked signals": (block_signals, the_mask),
    "`signal.alarm()`, `ITIMER_REAL`": (
        lambda: signal.alarm(600), lambda: signal.getitimer(signal.ITIMER_REAL),
    ),
    "asyncio without an event loop": (with_no_loop, a_loop),
    "asyncio's event loop, closed": (with_closed_loop, a_loop),
    "context variables": (lambda: VARIABLE.set("left"), VARIABLE.get),
    "the context of `decimal`": (
        lambda: setattr(decimal.getcontext(), "prec", 3), lambda: decimal.getcontext().prec,
    ),
    "processes": (a_process, process_lives),
    "handlers of other signals": (
        lambda: signal.signal(signal.SIGWINCH, lambda *_: None), lambda: handlers(signal.SIGWINCH),
    ),
    "resource limits": (soft_limit, lambda: resource.getrlimit(resource.RLIMIT_FSIZE)),
    "`ITIMER_VIRTUAL`, `ITIMER_PROF`": (
        lambda: signal.setitimer(signal.ITIMER_PROF, 600), lambda: signal.getitimer(signal.ITIMER_PROF),
    ),
    "the locale": (other_locale, lambda: locale.setlocale(locale.LC_ALL)),
    "the processors it may use": (fewer_processors, lambda: sorted(os.sched_getaffinity(0))),
    "`gc.disable()`, `gc.set_threshold()`": (no_garbage, lambda: [gc.isenabled(), gc.get_threshold()]),
    "the recursion limit, the switch interval, the digits of integers": (
        limits_of_python,
        lambda: [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
    ),
    "`sys.settrace()`, `sys.setprofile()`, `sys.excepthook`": (
        hooks_of_python, lambda: [sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__],
    ),
    "`sys.argv`": (lambda: sys.argv.append("left"), lambda: sys.argv),
    "`socket.setdefaulttimeout()`": (lambda: socket.setdefaulttimeout(7), socket.getdefaulttimeout),
    "`logging.disable()`": (
        lambda: logging.disable(logging.ERROR),
        lambda: logging.getLogger("any").isEnabledFor(logging.ERROR),
    ),
    "`faulthandler`": (no_faults, faulthandler.is_enabled),
    "`signal.set_wakeup_fd()`": (a_wakeup_fd, lambda: signal.set_wakeup_fd(-1)),
    "another user (`setuid`)": (lambda: os.setuid(65534), os.getresuid),
    "another group (`setgid`)": (lambda: os.setgid(65534), os.getresgid),
    "other groups (`setgroups`)": (lambda: os.setgroups([65534]), lambda: sorted(os.getgroups())),
    "another root (`chroot`)": (another_root, lambda: sorted(os.listdir("/"))),  # noqa: PTH208
    "niceness": (lambda: os.nice(3), lambda: os.getpriority(os.PRIO_PROCESS, 0)),
    "a thread": (a_thread, threading.active_count),
    "half of the files that it may have open": (many_files, lambda: len(KEPT)),
    "what modules hold, and what was patched in them": (lambda: KEPT.append(1), lambda: len(KEPT)),
    "open files and connections, and locks on them": (
        lambda: KEPT.append(open(os.devnull)),  # noqa: SIM115, PTH123
        lambda: len(os.listdir("/proc/self/fd")),  # noqa: PTH208
    ),
    "`sys.path`, modules that were imported": (lambda: sys.path.append("/left"), lambda: sys.path),
    "filters of `warnings`": (
        lambda: warnings.simplefilter("error", UserWarning), lambda: len(warnings.filters),
    ),
    "handlers and levels of `logging`": (
        lambda: logging.getLogger().addHandler(logging.NullHandler()),
        lambda: len(logging.getLogger().handlers),
    ),
    "the state of `random`": (lambda: random.seed(7), lambda: repr(random.getstate())),
    "functions of `atexit` (they run when the process ends)": (
        lambda: atexit.register(int), lambda: atexit._ncallbacks(),
    ),
    "`os.putenv()`": (
        lambda: os.putenv("LEFT_BELOW", "yes"),
        lambda: subprocess.run(["/usr/bin/printenv", "LEFT_BELOW"], capture_output=True).returncode,
    ),
}  # fmt: skip


@job("state_litter")
def litter(ctx: Context) -> None:
    """Leave what the payload names, if it names anything; in a while, if it says so."""
    if ctx.payload.get("what"):
        LINES[ctx.payload["what"]][0]()
    if ctx.payload.get("slow"):
        time.sleep(0.02)


@job("state_canary")
def canary(ctx: Context) -> list[Any]:
    """See it."""
    return [os.getpid(), LINES[ctx.payload["what"]][1]()]


@job("state_all_short")
def all_short(ctx: Context) -> None:
    """From now on every run of this process is taken for one of less than a millisecond."""
    child_reset._SHORT_NS = child_reset._LONG_NS = 10**12
