"""The OS user that the server runs as, and folders and commands of that user.

PostgreSQL refuses to run as root, so root gives the cluster to a system user. The mode of a folder that was
not created here is never changed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wakeboard.database.embedded.errors import EmbeddedError

SYSTEM_USER = "wakeboard"
CHECK_EACH = 'for folder; do test -x "$folder" || { printf %s "$folder"; exit 1; }; done'


@dataclass(frozen=True, slots=True)
class ClusterOwner:
    """The OS user that owns the cluster and runs its server."""

    name: str
    uid: int
    gid: int

    @property
    def is_foreign(self) -> bool:
        """Whether commands must change to this user first: we are root, the cluster is not."""
        return self.uid != os.geteuid()

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run ``command`` as this user with a clean environment; return it with its output as text.

        Raises EmbeddedError when the change of user is not permitted.
        """
        try:
            return subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                **self.subprocess_options(),
            )
        except OSError as failed:
            raise EmbeddedError(
                f"Cannot run {command[0]} as the OS user {self.name}: {failed.strerror or failed}."
            ) from failed

    def subprocess_options(self) -> dict[str, Any]:
        """Return the ``subprocess`` options that run a command as this user, away from our environment."""
        # PGDATA, PGPORT, PGOPTIONS … of the caller would otherwise steer initdb and postgres.
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        options: dict[str, Any] = {"env": environment, "cwd": "/", "umask": 0o077}
        if self.is_foreign:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return options


def owner_of_uid(uid: int) -> ClusterOwner:
    """Return the OS user with this id; raises EmbeddedError when it has no name, which PostgreSQL needs."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"The OS user with id {uid} has no name, and PostgreSQL needs one: add it to /etc/passwd, "
            "or set WAKEBOARD_DATABASE_URL to a PostgreSQL server of your own."
        ) from None
    return ClusterOwner(entry.pw_name, entry.pw_uid, entry.pw_gid)


def owner_uid(home: Path) -> int | None:
    """Return the id of the OS user that the folder ``home`` belongs to, or None when it does not exist.

    Raises EmbeddedError when we may not look.
    """
    try:
        return home.lstat().st_uid
    except FileNotFoundError:
        return None
    except OSError as failed:
        raise EmbeddedError(
            f"Cannot look into {home.parent}: {failed.strerror}. Run Wakeboard as the owner of that folder, "
            "or set WAKEBOARD_DATA_DIR to a folder of your own."
        ) from failed


def find_owner(home: Path, *, create: bool = False) -> ClusterOwner:
    """Return the OS user of the cluster in the folder ``home``, which need not exist yet.

    As root a new cluster belongs to the system user ``wakeboard``, added when ``create`` is true.
    Raises EmbeddedError when the cluster belongs to somebody else and we are not root.
    """
    me = os.geteuid()
    existing_uid = owner_uid(home)
    uid = me if existing_uid is None else existing_uid
    if me != 0 and uid != me:
        raise EmbeddedError(
            f"The database in {home} belongs to the OS user {_name(uid)}: run Wakeboard as that user, "
            "or set WAKEBOARD_DATA_DIR to a folder of your own."
        )
    return owner_of_uid(uid) if uid != 0 else _system_user(create)


def make_folders(folder: Path) -> None:
    """Create ``folder`` and its missing parents; root's are 0711, so that the server's user can pass."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            folder.chmod(0o711)


def private_folder(folder: Path, owner: ClusterOwner) -> None:
    """Make sure ``folder`` is a real folder of mode 0700 that belongs to ``owner``; create it if missing.

    Raises EmbeddedError when it is a link or belongs to another user.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as failed:
        raise EmbeddedError(
            f"{folder} is not a folder of the OS user {owner.name} ({failed.strerror}): "
            "remove it, or set WAKEBOARD_DATA_DIR to another folder."
        ) from failed
    try:
        _take_over(opened, folder, owner)
    finally:
        os.close(opened)


def _take_over(opened: int, folder: Path, owner: ClusterOwner) -> None:
    status = os.fstat(opened)
    if status.st_uid == os.geteuid() == 0 and owner.is_foreign:
        os.fchown(opened, owner.uid, owner.gid)
    elif status.st_uid != owner.uid:
        raise EmbeddedError(
            f"{folder} belongs to the OS user {_name(status.st_uid)}, not to {owner.name}: "
            "remove it, or set WAKEBOARD_DATA_DIR to another folder."
        )
    if status.st_mode & 0o777 != 0o700:
        os.fchmod(opened, 0o700)


def require_reachable(folder: Path, owner: ClusterOwner) -> None:
    """Raise EmbeddedError naming the first parent of ``folder`` (or itself) that ``owner`` may not enter."""
    blocked = first_unreachable(folder, owner)
    if blocked:
        raise EmbeddedError(
            f"The OS user {owner.name}, which runs the database for root, may not enter {blocked}: "
            "set WAKEBOARD_DATA_DIR to a folder below /var/lib, or allow it with "
            f"'chmod o+x {blocked}'."
        )


def first_unreachable(folder: Path, owner: ClusterOwner) -> str:
    """Return the first folder on the way to ``folder`` that ``owner`` may not enter, or an empty text."""
    if not owner.is_foreign:
        return ""
    way = [*reversed(folder.parents), folder]
    return owner.run(["/bin/sh", "-c", CHECK_EACH, "sh", *way]).stdout


def _system_user(create: bool) -> ClusterOwner:
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        if not create:
            raise EmbeddedError(
                f"The OS user {SYSTEM_USER} does not exist yet: start the embedded database first."
            ) from None
        return _add_system_user()
    if entry.pw_uid == 0:
        raise EmbeddedError(f"The OS user {SYSTEM_USER} is root by another name; PostgreSQL refuses root.")
    return ClusterOwner(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _add_system_user() -> ClusterOwner:
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    reason = "there is no useradd here"
    if useradd:
        shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
        command = [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        added = subprocess.run([*command, "--shell", shell, SYSTEM_USER], capture_output=True, text=True)
        reason = added.stderr.strip() or "useradd failed"
    # Another starter may have added it in the same moment, so the user's presence decides.
    with suppress(KeyError):
        entry = pwd.getpwnam(SYSTEM_USER)
        return ClusterOwner(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        f"PostgreSQL refuses to run as root, and the OS user {SYSTEM_USER} could not be added ({reason}): "
        f"add it (useradd --system {SYSTEM_USER}), run Wakeboard as an ordinary user, "
        "or set WAKEBOARD_DATABASE_URL to a PostgreSQL server of your own."
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"with id {uid}"
