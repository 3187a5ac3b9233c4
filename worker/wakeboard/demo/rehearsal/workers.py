"""The rehearsal's workers: real ``wakeboard worker`` processes with short leases, ended as deploys and
crashes do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wakeboard.core.process.process_tree import die_with_parent
from wakeboard.demo.rehearsal import process_scan
from wakeboard.demo.rehearsal.waiting import Patience, RehearsalError

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


@dataclass(frozen=True, slots=True)
class Member:
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

    def exit_code(self, patience: Patience) -> int | None:
        """Return its exit code (negative: a signal), None when it does not end in time."""
        patience.sees(lambda: self.process.poll() is not None, SHUTDOWN_SECONDS + 5)
        return self.process.returncode

    def kill(self) -> None:
        """Kill the worker itself, without a word, as the kernel does when memory is short."""
        self.process.kill()
        self.process.wait()


@dataclass
class Crew:
    """All workers of one rehearsal, one after the other."""

    folder: Path
    environment: dict[str, str]
    members: list[Member] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, url: str, more: dict[str, str]) -> Crew:
        """Return a crew that works on the database at ``url``; ``more`` is for its handlers."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        ours = {"WAKEBOARD_DATABASE_URL": url, process_scan.MARK: str(folder)}
        return cls(folder, given | SETTINGS | ours | more)

    def start(self) -> Member:
        """Start another worker, in a group of its own so that a Ctrl-C in the terminal reaches us alone."""
        log, us = self.folder / f"worker-{len(self.members) + 1}.log", os.getpid()
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
        self.members.append(Member(process, log))
        return self.members[-1]

    def family(self) -> list[psutil.Process]:
        """Return every living process of every worker."""
        return process_scan.workers_of(self.folder)

    def last_words(self) -> str:
        """Return the last lines that the latest worker printed."""
        if not self.members:
            return "(no worker was started)"
        lines = self.members[-1].log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-LAST_LINES:])
