"""The fork server: imports the handlers once and forks a child per slot on demand. It runs no handler and
writes no row.

It adopts and kills what its dead children leave behind, and ends with every process below it when the
supervisor is gone.

The first fork server of a worker is a zygote: forked from the process that becomes the supervisor
(`fork_zygote`). A fork server that is started as a fresh program, as every later one is, loads once more most
of what the supervisor has loaded; psycopg, with all its imports, is more than half of either's start.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

from wakeboard.config.stop_signals import STOPS, set_no_action
from wakeboard.config.working_directory import ROOT, current_folder
from wakeboard.core.errors.exceptions import TRACEBACK_CHARACTERS
from wakeboard.core.process.process_tree import (
    become_subreaper,
    die_with_parent,
    kill_children,
    open_pidfd,
    outlive_parent,
    set_mark,
)
from wakeboard.core.process.shared_slot import SharedSlot
from wakeboard.core.text.sanitize import clean_text
from wakeboard.handlers.registry import JOB_TYPES, load_app, without_handlers
from wakeboard.runtime.deadlines import CHILD_ORPHANS_SECONDS, CHILD_STOP_SECONDS
from wakeboard.runtime.processes import spawn
from wakeboard.runtime.processes.fork_safety import find_hazards, hazard_warning
from wakeboard.runtime.processes.protocol import (
    PACKET_BYTES,
    AppFailure,
    AppTypes,
    ChildStart,
    ChildStatus,
    Notice,
    Order,
    OrderReceipt,
    ServerMessage,
    decode_order,
    encode_server_message,
)

_POLICIES_PER_MESSAGE = 50
_WAIT_PAUSE_SECONDS = 0.001


class ForkServerOptions(NamedTuple):
    """What a fork server is started with.

    `folder`: where it works; `parent`: the supervisor's process id; `mark`: of its process tree; `*_fd`:
    descriptors of the slots' shared memory and of the socket to the supervisor.
    """

    app: str | None
    folder: str
    recycle_runs: int
    recycle_mb: int
    child_exit_seconds: float
    slots_fd: int
    parent: int
    mark: int = 0
    control_fd: int = -1


class ForkServer:
    """The loop of the fork server: forks, kills and reaps children."""

    def __init__(self, options: ForkServerOptions) -> None:
        self._options = options
        self._control = socket.socket(fileno=options.control_fd)
        # The slot of each child, by process id.
        self._slot_by_pid: dict[int, int] = {}
        self._must_spawn = False
        self._is_folder_lost = False
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)

    def load(self) -> bool:
        """Import the handlers and tell the supervisor what can run; return whether the import succeeded."""
        self._enter_folder()
        app = self._options.app
        try:
            added = load_app(app)
        except BaseException as error:
            self._send(AppFailure(_import_failure(app, error)))
            return False
        if app is not None and added == 0:
            self._send(Notice(without_handlers(app)))
        sockets = (self._control, self._wakeup_reader, self._wakeup_writer)
        hazards = find_hazards({each.fileno() for each in sockets})
        self._must_spawn = bool(hazards)
        if hazards:
            self._send(Notice(hazard_warning(hazards)))
        policies = [job_type.policy() for job_type in JOB_TYPES.values()]
        while len(policies) > _POLICIES_PER_MESSAGE:
            self._send(AppTypes(policies[:_POLICIES_PER_MESSAGE], is_complete=False))
            del policies[:_POLICIES_PER_MESSAGE]
        self._send(AppTypes(policies))
        return True

    def serve(self) -> None:
        """Carry out orders until the supervisor is gone, then kill every descendant."""
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup_reader, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._wakeup_reader.fileno() in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup_reader.recv(4096)
                    self._reap()
                if self._control.fileno() in ready and not self._carry_out_order():
                    return
        finally:
            kill_children(CHILD_ORPHANS_SECONDS)

    def _carry_out_order(self) -> bool:
        """Carry out one order; return whether the supervisor is still there."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 4)
        except ConnectionError:
            return False
        if not data:
            return False
        order = decode_order(data)
        if order.action == "fork":
            self._start_child(order.slot, *fds)
        elif order.action != "ping":
            self._signal_child(order)
        self._send(OrderReceipt())
        return True

    def _signal_child(self, order: Order) -> None:
        for pid, slot in self._slot_by_pid.items():
            if slot != order.slot:
                continue
            if order.action == "terminate":
                os.kill(pid, signal.SIGTERM)
            elif order.run is None or self._stop_in_run(pid, slot, order.run):
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGCONT)

    def _stop_in_run(self, pid: int, slot: int, run: tuple[int, int]) -> bool:
        """Stop a child, so it cannot go on to the next run, and return whether it executes `run`."""
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + CHILD_STOP_SECONDS
        while hasattr(os, "waitid") and time.monotonic() < end:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.0002)
        shared = SharedSlot(self._options.slots_fd, slot)
        current_run = shared.current_run()
        shared.close()
        return current_run is not None and (current_run.run_id, current_run.lease_epoch) == run

    def _enter_folder(self) -> None:
        """Be in the worker's folder, which children inherit, or in `/` while that folder is gone."""
        if current_folder() is not None and not self._is_folder_lost:
            return
        folder = self._options.folder
        try:
            os.chdir(folder)
            self._is_folder_lost = False
        except OSError as error:
            if not self._is_folder_lost:
                os.chdir(ROOT)
                self._is_folder_lost = True
                self._send(
                    Notice(
                        f"The folder in which this worker was started, {folder}, is gone "
                        f"({error.strerror}): new processes for handlers work in / until it is there again. "
                        "Restart the worker in the folder it should have."
                    )
                )

    def _start_child(self, slot: int, work: int, output: int) -> None:
        self._enter_folder()
        options = spawn.ChildOptions(
            app=self._options.app,
            slot=slot,
            parent=os.getpid(),
            slots_fd=self._options.slots_fd,
            work_fd=work,
            output_fd=output,
            recycle_runs=self._options.recycle_runs,
            recycle_mb=self._options.recycle_mb,
            child_exit_seconds=self._options.child_exit_seconds,
        )
        try:
            pid = self._spawn_child(options) if self._must_spawn else self._fork_child(options)
        except OSError as error:
            self._send(ChildStatus(slot, None, f"it could not be started: {error}"))
            return
        finally:
            os.close(work)
            os.close(output)
        self._slot_by_pid[pid] = slot
        # Only this process reaps the child, so the descriptor is surely the child's.
        pidfd = open_pidfd(pid)
        self._send(ChildStart(slot, pid), pidfd)
        if pidfd is not None:
            os.close(pidfd)

    def _fork_child(self, options: spawn.ChildOptions) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            spawn.isolate(options)
            for each in (self._control, self._wakeup_reader, self._wakeup_writer):
                each.close()
            spawn.run_child(options)
        finally:
            os._exit(70)

    def _spawn_child(self, options: spawn.ChildOptions) -> int:
        try:
            for fd in (options.work_fd, options.output_fd, options.slots_fd):
                os.set_inheritable(fd, True)
            program = command("wakeboard.runtime.processes.spawn", options)
            return os.posix_spawn(sys.executable, program, os.environ, setsigmask=STOPS)
        finally:
            os.set_inheritable(options.slots_fd, False)

    def _reap(self) -> None:
        """Reap dead children; kill what they left before their deaths are reported."""
        dead: list[ChildStatus] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                slot = self._slot_by_pid.pop(pid, None)
                if slot is not None:
                    dead.append(ChildStatus(slot, status))
        kill_children(CHILD_ORPHANS_SECONDS, spare=self._slot_by_pid.keys())
        for message in dead:
            self._send(message)

    def _send(self, message: ServerMessage, pidfd: int | None = None) -> None:
        with contextlib.suppress(ConnectionError):
            fds = [] if pidfd is None else [pidfd]
            socket.send_fds(self._control, [encode_server_message(message)], fds)


def _import_failure(app: str | None, error: BaseException) -> str:
    """Return why `app` cannot be imported, with the traceback unless there is just no such module."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{app}.".startswith(f"{missing}."):
        return clean_text(
            f"The handlers' module {app!r} cannot be imported: ModuleNotFoundError: {error}. It is looked "
            f"for on Python's path and in {current_folder() or 'a folder that is gone'}; name another with "
            "--app or WAKEBOARD_APP.",
            TRACEBACK_CHARACTERS,
        )
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = ""
    name = type(error).__name__
    return clean_text(
        f"The handlers' module {app!r} cannot be imported: {name}: {error}\n{text}",
        TRACEBACK_CHARACTERS,
        keep="ends",
    )


# The folder that holds the package, never one inside it: there our modules would be taken for the user's.
_SOURCE_ROOT = str(Path(__file__).absolute().parents[3])


def command(module: str, options: Sequence[object]) -> list[str]:
    """Return the arguments of a program that calls `main` of `module` with `options` as JSON.

    Neither the working folder nor a script's folder is on its path.
    """
    program = (
        "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
        f"{_SOURCE_ROOT!r} in sys.path or sys.path.append({_SOURCE_ROOT!r}); "
        f"from {module} import main; main(sys.argv[1])"
    )
    return [sys.executable, "-P", "-c", program, json.dumps(options)]


def main(argument: str) -> NoReturn:
    """Run a fork server that was started as a fresh program; `argument`: its `ForkServerOptions` as JSON."""
    _run(ForkServerOptions._make(json.loads(argument)))


def _run(options: ForkServerOptions) -> NoReturn:
    """Be the fork server until the supervisor is gone."""
    # A service manager signals every process; the supervisor alone decides how this one ends.
    set_no_action(*STOPS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent(options.parent)
    become_subreaper()
    set_mark(options.mark)
    os.set_inheritable(options.slots_fd, False)
    os.set_inheritable(options.control_fd, False)
    spawn.register_exit()
    server = ForkServer(options)
    is_loaded = server.load()
    if is_loaded:
        # A fork server killed with the supervisor could not sweep; from here on the closed socket ends it.
        outlive_parent()
        gc.collect()
        gc.freeze()
        server.serve()
    os._exit(0 if is_loaded else 1)


# ---- the zygote ----------------------------------------------------------------------------------------


class Zygote:
    """The forked process: waits for `load`, then it is what `Popen` is for a fresh fork server."""

    def __init__(self, pid: int, control: socket.socket, output: int) -> None:
        """`control`: the supervisor's end of the socket between both; `output`: the end of the pipe at which
        the process's output arrives."""
        self.pid, self.control, self.output = pid, control, output
        self.returncode: int | None = None

    def load(self, options: ForkServerOptions, environment: Mapping[str, str]) -> None:
        """Make it the fork server with `options`, and `environment` added to its own."""
        message = json.dumps([options, dict(environment)]).encode()
        with contextlib.suppress(ConnectionError):  # its end shows by the closed socket
            socket.send_fds(self.control, [message], [options.slots_fd])

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, a signal as its negative number.

        Raises `subprocess.TimeoutExpired` after `timeout` seconds.
        """
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
                raise subprocess.TimeoutExpired("the fork server", timeout or 0.0)
            else:
                time.sleep(_WAIT_PAUSE_SECONDS)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def fork_zygote(on_fork: Callable[[], object] = int) -> Zygote | None:
    """Fork the first fork server; None where it has to be started as a fresh program. Linux only.

    Call it before anything is opened or started that must not be in handlers' processes. `on_fork` is called
    in the forked process, to drop the state of its caller.
    """
    # Handlers' processes load it anyway: loaded before the fork, it is the supervisor's too.
    from wakeboard.queue import handler_connection  # noqa: F401

    if sys.platform != "linux" or find_hazards(()) or _has_open_files():
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if min(ours.fileno(), theirs.fileno()) <= 2:
        # A standard stream was closed: the socket in its place would be taken for it.
        ours.close()
        theirs.close()
        return None
    output, output_writer = os.pipe()
    # Objects that neither process's garbage collector visits stay in shared memory.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A Ctrl-C at this moment is the supervisor's; the fork server unblocks none.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        os.close(output_writer)
        return Zygote(pid, ours, output)
    try:
        ours.close()
        _detach(parent, theirs, output_writer)
        on_fork()
        _await_load(theirs)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _has_open_files() -> bool:
    """Return whether this process has opened a file that stays open: its object would outlive the number.

    Inherited files are open over `exec`; files that Python opens are not.
    """
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the listing's own
            if number > 2 and not os.get_inheritable(number):
                return True
    return False


def _detach(parent: int, control: socket.socket, output: int) -> None:
    """Leave the supervisor's session, streams, descriptors, program and arguments.

    `output`: the end of the pipe for output, so that nothing here waits for whoever reads the log.
    """
    os.setsid()
    set_no_action(*STOPS)
    die_with_parent(parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for fd in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {0, 1, 2, control.fileno()}:
        with contextlib.suppress(OSError):  # the listing's own
            os.close(fd)
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    if not sys.flags.safe_path:
        # The script's folder, or the working folder, which comes last and with the handlers.
        del sys.path[0]
    sys.path[:] = [folder for folder in sys.path if folder]
    if _SOURCE_ROOT not in sys.path:
        sys.path.append(_SOURCE_ROOT)


def _await_load(control: socket.socket) -> NoReturn:
    data, fds, _, _ = socket.recv_fds(control, PACKET_BYTES, 1)
    if not data:
        os._exit(0)
    options, environment = json.loads(data)
    os.environ.update(environment)
    options = ForkServerOptions._make(options)
    _run(options._replace(slots_fd=fds[0], control_fd=control.detach()))
