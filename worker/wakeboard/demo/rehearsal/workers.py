"""The workers of the rehearsal: real ``wakeboard worker`` processes with short leases.

They are ended as by a deploy and as by a crash.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wakeboard.core.process.process_tree import die_with_parent
from wakeboard.demo.rehearsal.waiter import RehearsalError, Waiter, wait_until

SLOTS = 4
LAST_LINES = 5
KILL_SECONDS = 1.0
SHUTDOWN_SECONDS = 15.0
LEASE_SECONDS = 4.0
SETTINGS = {
    "WAKEBOARD_APP": "wakeboard.demo.rehearsal.receipts",
    "WAKEBOARD_CONCURRENCY": str(SLOTS),
    "WAKEBOARD_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "WAKEBOARD_POLL_SECONDS": "0.5",
    "WAKEBOARD_KILL_SECONDS": f"{KILL_SECONDS:g}",
    "WAKEBOARD_SHUTDOWN_SECONDS": f"{SHUTDOWN_SECONDS:g}",
}
# Variables of the user that would change our workers, or libpq in them.
FOREIGN = ("WAKEBOARD_", "PG")
# Our workers, and so their children, are recognised by this variable in their environment.
MARK = "WAKEBOARD_DATA_DIR"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process; ``log`` is the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raise RehearsalError if it has ended by itself."""
        if self.process.poll() is not None:
            raise RehearsalError(f"A worker ended by itself, with code {self.process.returncode}.")

    def terminate(self) -> None:
        """Send SIGTERM, as a deploy does."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, waiter: Waiter) -> int | None:
        """Return its exit code (negative: a signal), None when it does not end in time."""
        waiter.wait(lambda: self.process.poll() is not None, SHUTDOWN_SECONDS + 5)
        return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL to the supervisor alone, as the kernel does when memory is short."""
        self.process.kill()
        self.process.wait()


@dataclass
class Workers:
    """All workers of one rehearsal, one after the other."""

    folder: Path
    environment: dict[str, str]
    started: list[Worker] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, url: str, more: dict[str, str]) -> Workers:
        """Return workers for the database at ``url``; ``more`` are variables for their handlers."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        ours = {"WAKEBOARD_DATABASE_URL": url, MARK: str(folder)}
        return cls(folder, inherited | SETTINGS | ours | more)

    def start(self) -> Worker:
        """Start another worker, in a session of its own: Ctrl-C in the terminal reaches only our process."""
        log, parent = self.folder / f"worker-{len(self.started) + 1}.log", os.getpid()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wakeboard", "worker"],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )
        self.started.append(Worker(process, log))
        return self.started[-1]

    def processes(self) -> list[psutil.Process]:
        """Return every living process of every worker."""
        return workers_of(self.folder)

    def last_output(self) -> str:
        """Return the last lines that the latest worker printed."""
        if not self.started:
            return "(no worker was started)"
        lines = self.started[-1].log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-LAST_LINES:])


def workers_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes that were started as workers of the rehearsal in ``folder``."""
    return [each for each in _other_processes() if _environment(each).get(MARK) == str(folder)]


def servers_of(folder: Path) -> list[psutil.Process]:
    """Return the living database servers whose data is inside ``folder``."""
    return [
        each
        for each in _other_processes()
        if any(word.startswith(f"{folder}/") for word in _postgres_arguments(each))
    ]


def end(processes: list[psutil.Process], by: signal.Signals, seconds: float = 10) -> bool:
    """Send the signal ``by`` to ``processes``; return whether they end within ``seconds``."""
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(by)
    return wait_until(lambda: not any(_is_alive(each) for each in processes), seconds)


def _other_processes() -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and _is_alive(each)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _postgres_arguments(process: psutil.Process) -> list[str]:
    """Return the command line of a database server, an empty list for other programs."""
    try:
        words = process.cmdline()
    except (psutil.Error, OSError):
        return []
    return words if words and Path(words[0]).name == "postgres" else []
