"""The sandbox of a rehearsal: a temporary folder, and in it an embedded PostgreSQL of its own.

The folder's lock tells a living rehearsal from a killed one, whose folder the next rehearsal clears.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from wakeboard.database import embedded
from wakeboard.demo.rehearsal.workers import end, servers_of, workers_of

NAME = "wakeboard-rehearsal-"
UNFINISHED = "wakeboard-making-rehearsal-"
# Only processes are killed here, never the machine, so nothing is lost by not flushing.
DATABASE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
START_SECONDS = 60
# A longer path, or a comma, would send the server's socket to another folder than ours.
LONGEST_PLACE = 40


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The folder of one rehearsal."""

    folder: Path

    @property
    def data_dir(self) -> Path:
        return self.folder / "database"

    @property
    def inbox(self) -> Path:
        return self.folder / "inbox"

    def start_database(self) -> str:
        """Start the server and return the URL of its database. Raises EmbeddedError."""
        return embedded.start(self.data_dir, wait_seconds=START_SECONDS, settings=DATABASE_SETTINGS).url

    def clear(self) -> None:
        """End what still runs here, the database last, and remove the folder."""
        end(workers_of(self.folder), signal.SIGKILL)
        with suppress(embedded.EmbeddedError):
            embedded.stop(self.data_dir, only_if_unused=False)
        if left := servers_of(self.folder):
            end(left, signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> list[str]:
        """Return what clear() could not remove, in words."""
        servers = ["the database server"] if servers_of(self.folder) else []
        return servers + ([f"files in {self.folder}"] if self.folder.exists() else [])


@contextmanager
def new_sandbox() -> Iterator[Sandbox]:
    """Give a new sandbox, and clear it afterwards whatever happened."""
    made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=place()))
    # As root the database's own OS user must be able to pass.
    made.chmod(0o711 if os.geteuid() == 0 else 0o700)
    with _locked(made / "lock") as is_ours:
        assert is_ours
        # Nobody looks at it under its first name, so nobody can take the lock before us.
        sandbox = Sandbox(made.rename(made.with_name(NAME + made.name.removeprefix(UNFINISHED))))
        try:
            yield sandbox
        finally:
            sandbox.clear()


def clear_abandoned(tell: Callable[[str], None]) -> None:
    """Clear the sandboxes of this user's rehearsals that were killed."""
    for folder in sorted(Path(place()).glob(f"{NAME}*")):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.geteuid() or folder.is_symlink() or not folder.is_dir():
                continue
            with _locked(folder / "lock") as is_abandoned:
                if is_abandoned:
                    tell("Removing what a killed rehearsal had left.")
                    Sandbox(folder).clear()


def place() -> str:
    """Return the folder for temporary files, or /tmp where the database could not live in it.

    Its path may be too long for a socket; and root's own one may be closed to the database's OS user.
    """
    usual = os.path.realpath(tempfile.gettempdir())
    is_fit = os.geteuid() != 0 and len(os.fsencode(usual)) <= LONGEST_PLACE and "," not in usual
    return usual if is_fit else "/tmp"


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Give whether the lock could be taken; hold it while the block lasts."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(opened)
