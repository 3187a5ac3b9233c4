"""The sandbox of a rehearsal: a temporary folder with an embedded PostgreSQL of its own.

A living rehearsal has the lock of its folder. The folder of a killed one is cleared by the next rehearsal.
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
NAME_WITHOUT_LOCK = "wakeboard-making-rehearsal-"
# Only processes are killed here, never the machine: nothing is lost without fsync.
DATABASE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
START_SECONDS = 60
# With a longer path, or a comma, the server's socket would be in another folder.
LONGEST_PATH = 40


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
    """Yield a new sandbox, and clear it afterwards in any case."""
    folder = Path(tempfile.mkdtemp(prefix=NAME_WITHOUT_LOCK, dir=parent_folder()))
    # Under root the OS user of the database must be able to enter.
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    with _lock(folder / "lock") as is_ours:
        assert is_ours
        # Other rehearsals ignore its first name, so none can take the lock before us.
        sandbox = Sandbox(folder.rename(folder.with_name(NAME + folder.name.removeprefix(NAME_WITHOUT_LOCK))))
        try:
            yield sandbox
        finally:
            sandbox.clear()


def clear_abandoned(say: Callable[[str], None]) -> None:
    """Clear the sandboxes of this user's rehearsals that were killed."""
    for folder in sorted(Path(parent_folder()).glob(f"{NAME}*")):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.geteuid() or folder.is_symlink() or not folder.is_dir():
                continue
            with _lock(folder / "lock") as is_abandoned:
                if is_abandoned:
                    say("Removing what a killed rehearsal had left.")
                    Sandbox(folder).clear()


def parent_folder() -> str:
    """Return the folder for temporary files, or /tmp where a database cannot be in it.

    Its path may be too long for a socket, and that of root may be closed to the OS user of the database.
    """
    folder = os.path.realpath(tempfile.gettempdir())
    is_fit = os.geteuid() != 0 and len(os.fsencode(folder)) <= LONGEST_PATH and "," not in folder
    return folder if is_fit else "/tmp"


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Yield whether the lock could be taken; hold it while the block lasts."""
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
