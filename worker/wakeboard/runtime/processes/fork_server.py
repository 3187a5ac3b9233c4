"""The process that imports the handlers once and forks a child per slot on demand. It runs no handler and
writes no row.

It adopts and kills whatever its dead children leave behind, and ends with everything below it when the
supervisor is gone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wakeboard.config.stop_signals import STOPS, outlast
from wakeboard.config.working_directory import NOWHERE, current
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
from wakeboard.runtime.processes import ending, spawn
from wakeboard.runtime.processes.fork_safety import find_hazards, hazard_warning

MESSAGE_BYTES = 128 * 1024
_TYPES_PER_MESSAGE = 50
_SWEEP_SECONDS = 1.0
# A child in the middle of a disk's work stops only afterwards; others must not wait for it.
_STOP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Member:
    slot: int
    generation: int


class Template:
    """The template's loop: fork, kill, watch for deaths."""

    def __init__(self, given: dict[str, Any]) -> None:
        """`given`: app, folder (to work in), pages (descriptor), recycle_runs, recycle_mb, exit_seconds,
        control (descriptor), parent (process id)."""
        self._given = given
        self._control = socket.socket(fileno=given["control"])
        self._members: dict[int, _Member] = {}
        self._spawns = False
        self._folder, self._is_astray = given["folder"], False
        self._bell, self._bell_rope = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_rope.setblocking(False)

    def load(self) -> bool:
        """Import the handlers and tell the supervisor what can run; False when the import failed."""
        self._keep_to_folder()
        app = self._given["app"]
        try:
            added = load_app(app)
        except BaseException as error:
            self._tell(told="failed", message=_import_failure(app, error))
            return False
        if app is not None and added == 0:
            self._tell(told="warned", message=without_handlers(app))
        hazards = find_hazards({self._control.fileno(), self._bell.fileno(), self._bell_rope.fileno()})
        self._spawns = bool(hazards)
        if hazards:
            self._tell(told="warned", message=hazard_warning(hazards))
        policies = [job_type.policy() for job_type in JOB_TYPES.values()]
        for start in range(0, len(policies), _TYPES_PER_MESSAGE):
            self._tell(told="types", types=policies[start : start + _TYPES_PER_MESSAGE])
        self._tell(told="ready")
        return True

    def serve(self) -> None:
        """Obey until the supervisor is gone, then end every descendant."""
        signal.set_wakeup_fd(self._bell_rope.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._bell.fileno() in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._bell.recv(4096)
                    self._bury()
                if self._control.fileno() in ready and not self._obey():
                    return
        finally:
            kill_children(_SWEEP_SECONDS)

    def _obey(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 4)
        except ConnectionError:
            return False
        if not data:
            return False
        order = json.loads(data)
        if order["order"] == "fork":
            self._fork(order["slot"], order["generation"], *fds)
        elif order["order"] != "answer":
            self._signal(order)
        self._tell(told="obeyed")
        return True

    def _signal(self, order: dict[str, Any]) -> None:
        wanted = _Member(order["slot"], order["generation"])
        for pid, member in self._members.items():
            if member != wanted:
                continue
            if order["order"] == "terminate":
                os.kill(pid, signal.SIGTERM)
            elif order["run"] is None or self._stopped_in(pid, order["slot"], *order["run"]):
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGCONT)

    def _stopped_in(self, pid: int, slot: int, run_id: int, lease_epoch: int) -> bool:
        """Stop a child and say whether it is in that run: stopped, it cannot go on to the next meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + _STOP_SECONDS
        while hasattr(os, "waitid") and time.monotonic() < end:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.0002)
        page = SharedSlot(self._given["pages"], slot)
        started = page.current_run()
        page.close()
        return started is not None and (started.run_id, started.lease_epoch) == (run_id, lease_epoch)

    def _keep_to_folder(self) -> None:
        """Be in the worker's folder, into which children are born, or in `/` while that is gone."""
        if current() is not None and not self._is_astray:
            return
        try:
            os.chdir(self._folder)
            self._is_astray = False
        except OSError as error:
            if not self._is_astray:
                os.chdir(NOWHERE)
                self._is_astray = True
                self._tell(told="warned", message=_lost_folder(self._folder, error))

    def _fork(self, slot: int, generation: int, work: int, output: int) -> None:
        self._keep_to_folder()
        try:
            pid = (
                self._spawn_child(slot, work, output)
                if self._spawns
                else self._fork_child(slot, work, output)
            )
        except OSError as error:
            self._tell(
                told="died",
                slot=slot,
                generation=generation,
                status=None,
                text=f"it could not be started: {error}",
            )
            return
        finally:
            os.close(work)
            os.close(output)
        self._members[pid] = _Member(slot, generation)
        # Nobody but this process reaps it, so the descriptor is surely the child's.
        pidfd = open_pidfd(pid)
        self._tell(pidfd, told="forked", slot=slot, generation=generation, pid=pid)
        if pidfd is not None:
            os.close(pidfd)

    def _fork_child(self, slot: int, work: int, output: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            spawn.settle(parent, output)
            for end in (self._control, self._bell, self._bell_rope):
                end.close()
            given = self._given
            spawn.live(
                slot, given["pages"], work, given["recycle_runs"], given["recycle_mb"], given["exit_seconds"]
            )
        finally:
            os._exit(70)

    def _spawn_child(self, slot: int, work: int, output: int) -> int:
        names = ("app", "pages", "recycle_runs", "recycle_mb", "exit_seconds")
        given = {name: self._given[name] for name in names}
        given |= {"slot": slot, "work": work, "output": output, "parent": os.getpid()}
        kept = (work, output, self._given["pages"])
        try:
            for fd in kept:
                os.set_inheritable(fd, True)
            program = command("wakeboard.runtime.processes.spawn", given)
            return os.posix_spawn(sys.executable, program, os.environ, setsigmask=STOPS)
        finally:
            os.set_inheritable(self._given["pages"], False)

    def _bury(self) -> None:
        """Reap the dead; when a child died, kill what it leaves to us before its death is told."""
        dead: list[tuple[_Member, int]] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                member = self._members.pop(pid, None)
                if member is not None:
                    dead.append((member, status))
        kill_children(_SWEEP_SECONDS, spare=self._members.keys())
        for member, status in dead:
            self._tell(told="died", slot=member.slot, generation=member.generation, status=status, text=None)

    def _tell(self, pidfd: int | None = None, **message: Any) -> None:
        """Tell the supervisor; a child's `pidfd` goes along with the message."""
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [data], [] if pidfd is None else [pidfd])


def command(module: str, given: dict[str, Any]) -> list[str]:
    """Arguments that start `module`'s main with `given`, with neither the working folder nor a script folder
    on its path."""
    # The folder that holds the package, never one inside it: there our jobs would be taken for the user's.
    root = str(Path(__file__).absolute().parents[3])
    program = (
        "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
        f"{root!r} in sys.path or sys.path.append({root!r}); "
        f"from {module} import main; main(sys.argv[1])"
    )
    return [sys.executable, "-P", "-c", program, json.dumps(given)]


def _lost_folder(folder: str, error: OSError) -> str:
    return (
        f"The folder in which this worker was started, {folder}, is gone ({error.strerror}): new processes "
        "for handlers work in / until it is there again. Restart the worker in the folder it should have."
    )


def _import_failure(app: str | None, error: BaseException) -> str:
    """Say why `app` cannot be imported; the traceback goes along unless there is just no such module."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{app}.".startswith(f"{missing}."):
        return clean_text(
            f"The handlers' module {app!r} cannot be imported: ModuleNotFoundError: {error}. It is looked "
            f"for on Python's path and in {current() or 'a folder that is gone'}; name another with --app or "
            "WAKEBOARD_APP.",
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


def main(argument: str) -> NoReturn:
    """Entry of a template that was started afresh; `argument` is JSON made by `Control`."""
    live(json.loads(argument))


def live(given: dict[str, Any]) -> NoReturn:
    """Be the template until the supervisor is gone; `given` as `Template` wants it, with `mark` as well."""
    # A service manager signals every process; how to end is the supervisor's to say.
    outlast(*STOPS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent(given["parent"])
    become_subreaper()
    set_mark(given["mark"])
    os.set_inheritable(given["pages"], False)
    os.set_inheritable(given["control"], False)
    ending.prepare()
    template = Template(given)
    loaded = template.load()
    if loaded:
        # A template killed with the supervisor could not sweep; from here on the closed socket tells it to.
        outlive_parent()
        gc.collect()
        gc.freeze()
        template.serve()
    os._exit(0 if loaded else 1)
