"""The cluster on disk: created once by initdb, cleaned up and restricted to its OS user before each start.

Touches files only; starts no server.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from wakeboard.core.text.sanitize import last_line
from wakeboard.database.embedded import binaries
from wakeboard.database.embedded.cluster_owner import private_folder
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.paths import SUPERUSER, ClusterPaths

LOG_DAYS = 5

# Written into postgresql.conf at initdb, where an operator may change them. Dynamic shared memory is mapped
# files because containers have a small /dev/shm, and logind empties it when an ordinary user logs out.
SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
}

HBA = "local all all peer map=wakeboard\nlocal replication all peer map=wakeboard\n"


def create(paths: ClusterPaths, bin_folder: Path, settings: Mapping[str, str]) -> bool:
    """Create the cluster unless it exists; return whether it was created here.

    It is made beside its place and renamed, so an interrupted initdb leaves nothing half made.
    Raises EmbeddedError when initdb fails, or when what is there is not a PostgreSQL 18 cluster.
    """
    if _exists(paths):
        return False
    fresh = paths.home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    initdb = paths.owner.run(_initdb(bin_folder, fresh, settings))
    if initdb.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise EmbeddedError(
            f"initdb could not create {paths.cluster}: {last_line(initdb.stderr) or 'no message'}"
        )
    fresh.rename(paths.cluster)
    return True


def remove_leftovers(paths: ClusterPaths) -> None:
    """Remove what a dead server left: its process id file, its sockets, logs older than LOG_DAYS.

    Only for the holder of server.lock: PostgreSQL itself trusts a stale process id that some other process
    has now, and gives up at an empty file.
    """
    paths.postmaster_file.unlink(missing_ok=True)
    for leftover in paths.socket_folder.glob(".s.PGSQL.*"):
        leftover.unlink(missing_ok=True)
    # Rotation truncates a weekday's file only in a server that lives over midnight.
    oldest = time.time() - LOG_DAYS * 86_400
    for log in paths.log_folder.glob("postgres-*"):
        with suppress(FileNotFoundError):
            if log.lstat().st_mtime < oldest:
                log.unlink()


def write_access_files(paths: ClusterPaths) -> None:
    """Write who may connect: the OS user that owns the cluster, and root, by the socket alone."""
    private_folder(paths.socket_folder, paths.owner)
    # Root can become the owner anyway; with a line of its own it need not.
    names = {paths.owner.name, "root"}
    _write(paths.hba_file, HBA, paths)
    _write(paths.ident_file, "".join(f'wakeboard "{name}" all\n' for name in sorted(names)), paths)


def server_arguments(paths: ClusterPaths, settings: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``postgres``: ``settings``, then those that always hold."""
    socket_folder = str(paths.socket_folder).replace('"', '""')
    fixed = {
        "listen_addresses": "",
        "unix_socket_directories": f'"{socket_folder}"',
        "unix_socket_permissions": "0700",
        "port": "5432",
        "hba_file": str(paths.hba_file),
        "ident_file": str(paths.ident_file),
        "external_pid_file": "",
    }
    arguments = ["-D", str(paths.cluster)]
    for name, value in [*settings.items(), *fixed.items()]:
        arguments += ["-c", f"{name}={value}"]
    return arguments


def last_fatal_line(paths: ClusterPaths) -> str:
    """Return the newest fatal line of the server's logs, or the last line of its start, or ''."""
    logs = sorted(paths.log_folder.glob("postgres-*"), key=lambda log: log.lstat().st_mtime)
    lines = []
    for log in [*logs[-1:], paths.startup_log]:
        with suppress(OSError):
            lines += log.read_text(errors="replace")[-20_000:].splitlines()
    fatal = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    return (fatal or lines or [""])[-1].strip()


def _exists(paths: ClusterPaths) -> bool:
    try:
        version = (paths.cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        if paths.cluster.is_dir() and any(paths.cluster.iterdir()):
            raise EmbeddedError(
                f"{paths.cluster} is not empty and holds no PostgreSQL cluster: move it away."
            ) from None
        return False
    if version != binaries.MAJOR:
        raise EmbeddedError(
            f"{paths.cluster} was made by PostgreSQL {version or '(empty PG_VERSION)'}, and Wakeboard brings "
            f"PostgreSQL {binaries.MAJOR}: dump it with the old version and restore it into a new "
            "WAKEBOARD_DATA_DIR."
        )
    return True


def _initdb(bin_folder: Path, fresh: Path, settings: Mapping[str, str]) -> list[str | Path]:
    command: list[str | Path] = [bin_folder / "initdb", "-D", fresh, "-U", SUPERUSER, "--data-checksums"]
    command += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command += ["--auth-local=peer", "--auth-host=reject", "--no-instructions"]
    if settings.get("fsync") == "off":
        command.append("--no-sync")
    for name, value in SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    return command


def _write(path: Path, text: str, paths: ClusterPaths) -> None:
    with suppress(OSError):
        if path.read_text() == text:
            return
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    mode = 0o644 if paths.owner.is_foreign else 0o600
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(opened, "w") as file:
        file.write(text)
        os.fchmod(opened, mode)
    fresh.replace(path)
