"""The first template of a worker, forked from the process that is to be its supervisor.

A template that is started afresh loads once more most of what the supervisor has; psycopg, with all that it
brings, is more than half of either's start. So one process loads what both need, forks, and goes on: what the
supervisor alone has is not there yet, no thread and no connection either. A template that has to be replaced
later is started afresh. Linux only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from wakeboard.config.stop_signals import STOPS, outlast
from wakeboard.core.process.process_tree import die_with_parent

# What handlers' processes have loaded anyway: here it is loaded for the supervisor, too.
from wakeboard.queue import handler_connection as handler_connection
from wakeboard.runtime.processes import fork_server
from wakeboard.runtime.processes.fork_safety import find_hazards

_PAUSE_SECONDS = 0.001


class Zygote:
    """The forked process, waiting for ``load``; then what ``subprocess.Popen`` is for one started afresh."""

    def __init__(self, pid: int, control: socket.socket, output: int) -> None:
        """`pid`: the process; `control`: the supervisor's end of the socket between both; `output`: the end
        of the pipe at which what it prints arrives."""
        self.pid, self.control, self.output = pid, control, output
        self.returncode: int | None = None

    def load(self, given: Mapping[str, Any], environment: Mapping[str, str], pages: int) -> None:
        """Let it become the template: `given` as `Template` wants it, `environment` beside its own, `pages`
        (descriptor)."""
        message = json.dumps({"given": dict(given), "environment": dict(environment)}).encode()
        with contextlib.suppress(ConnectionError):  # its end is told by the closed socket
            socket.send_fds(self.control, [message], [pages])

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, a signal as its negative number. Raises TimeoutExpired after `timeout`
        seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0
                break
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("the template", timeout or 0.0)
            else:
                time.sleep(_PAUSE_SECONDS)
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def fork(leave: Callable[[], object] = int) -> Zygote | None:
    """Fork what is to be the template; None where it has to be started afresh.

    Call it before anything is opened or started that must not be in handlers' processes. `leave` is called in
    the forked one, to forget what this process was doing.
    """
    if sys.platform != "linux" or find_hazards(()) or _opened_here():
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if min(ours.fileno(), theirs.fileno()) <= 2:
        # A standard stream was closed: what is in its place would be taken for it.
        ours.close()
        theirs.close()
        return None
    output, printed = os.pipe()
    # Objects that neither process looks at for garbage stay in memory that both share.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A Ctrl-C at this moment is the supervisor's; whoever is the template lets none through.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        os.close(printed)
        return Zygote(pid, ours, output)
    try:
        ours.close()
        _settle(parent, theirs, printed)
        leave()
        _become_template(theirs)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _opened_here() -> bool:
    """Whether this process has opened a file that lives on: its object would stay, over a number used anew.

    What it was born with is open over ``exec``; what Python opens is not.
    """
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the listing's own
            if number > 2 and not os.get_inheritable(number):
                return True
    return False


def _settle(parent: int, control: socket.socket, printed: int) -> None:
    """Leave what is the supervisor's: its session, its streams and descriptors, its program and arguments.

    `printed`: the end of the pipe into which it prints: it must not wait for who reads the log.
    """
    os.setsid()
    outlast(*STOPS)
    die_with_parent(parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    for fd in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {0, 1, 2, control.fileno()}:
        with contextlib.suppress(OSError):  # the listing's own
            os.close(fd)
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    if not sys.flags.safe_path:
        # The script's folder, or the working folder, which comes last and with the handlers.
        del sys.path[0]
    root = str(Path(__file__).absolute().parents[3])
    sys.path[:] = [folder for folder in sys.path if folder]
    if root not in sys.path:
        sys.path.append(root)


def _become_template(control: socket.socket) -> NoReturn:
    data, fds, _, _ = socket.recv_fds(control, fork_server.MESSAGE_BYTES, 1)
    if not data:
        os._exit(0)
    message = json.loads(data)
    os.environ.update(message["environment"])
    fork_server.live({**message["given"], "pages": fds[0], "control": control.detach()})
