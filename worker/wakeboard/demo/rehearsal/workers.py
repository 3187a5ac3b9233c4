"""The rehearsal's workers: real ``wakeboard worker`` processes with short leases, ended as deploys and
crashes do."""

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
from wakeboard.demo.rehearsal.waiting import RehearsalError, Waiter, comes_true

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
# What would steer our workers, or libpq in them, and was meant for others.
FOREIGN = ("WAKEBOARD_", "PG")
# Each of our workers, and so each of its children, is started with this variable: so the system tells ours.
MARK = "WAKEBOARD_DATA_DIR"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process; ``log`` is the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raise RehearsalError when it has ended although nobody told it to."""
        if self.process.poll() is not None:
            raise RehearsalError(f"A worker ended by itself, with code {self.process.returncode}.")

    def terminate(self) -> None:
        """Ask it to stop, as a deploy does."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, waiting: Waiter) -> int | None:
        """Return its exit code (negative: a signal), None when it does not end in time."""
        waiting.sees(lambda: self.process.poll() is not None, SHUTDOWN_SECONDS + 5)
        return self.process.returncode

    def kill(self) -> None:
        """Kill the worker itself, without a word, as the kernel does when memory is short."""
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
        """Return workers that work on the database at ``url``; ``more`` is for their handlers."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        ours = {"WAKEBOARD_DATABASE_URL": url, MARK: str(folder)}
        return cls(folder, given | SETTINGS | ours | more)

    def start(self) -> Worker:
        """Start another worker, in a group of its own so that a Ctrl-C in the terminal reaches us alone."""
        log, us = self.folder / f"worker-{len(self.started) + 1}.log", os.getpid()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wakeboard", "worker"],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(us, signal.SIGTERM),
            )
        self.started.append(Worker(process, log))
        return self.started[-1]

    def processes(self) -> list[psutil.Process]:
        """Return every living process of every worker."""
        return workers_of(self.folder)

    def last_words(self) -> str:
        """Return the last lines that the latest worker printed."""
        if not self.started:
            return "(no worker was started)"
        lines = self.started[-1].log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-LAST_LINES:])


def workers_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes that were started as workers of the rehearsal in ``folder``."""
    return [each for each in _others() if _environment(each).get(MARK) == str(folder)]


def servers_of(folder: Path) -> list[psutil.Process]:
    """Return the living database servers whose data is inside ``folder``."""
    return [each for each in _others() if any(word.startswith(f"{folder}/") for word in _words(each))]


def end(processes: list[psutil.Process], by: signal.Signals, seconds: float = 10) -> bool:
    """Send ``by`` to ``processes`` and tell whether they are gone within ``seconds``."""
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(by)
    return comes_true(lambda: not any(_lives(each) for each in processes), seconds)


def _others() -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and _lives(each)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _words(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()
    except (psutil.Error, OSError):
        return []
    return words if words and Path(words[0]).name == "postgres" else []
