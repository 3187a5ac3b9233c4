"""A real PostgreSQL of a version that is too old, where one is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres.servers import make_folder, on_disk

# Debian's; bin/test installs it.
BINARIES = Path("/usr/lib/postgresql/15/bin")
VERSION = 15
_QUICK = "-c fsync=off -c listen_addresses= -c unix_socket_directories={folder}"


def is_installed() -> bool:
    """Return whether there is one, and somebody other than root to run it."""
    return (BINARIES / "initdb").is_file() and (os.geteuid() != 0 or _somebody() is not None)


@contextmanager
def old_server() -> Iterator[str]:
    """Yield the libpq URL of its database ``postgres``; it is stopped and gone at the end."""
    folder = make_folder(on_disk())
    user = _somebody() if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"

    def run(program: str, *words: str) -> None:
        command = [str(BINARIES / program), "-D", str(data), *words]
        uid, gid = (user.pw_uid, user.pw_gid) if user else (None, None)
        done = subprocess.run(
            command, cwd=folder, user=uid, group=gid, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, timeout=60, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    try:
        run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        options = _QUICK.format(folder=folder)
        run("pg_ctl", "-w", "-s", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-w", "-s", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _somebody() -> pwd.struct_passwd | None:
    """Return Debian's own user of PostgreSQL; None where there is none."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None
