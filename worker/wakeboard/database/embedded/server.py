"""The server process: start it, find it, stop it when nobody else uses it.

Trusts no process id that only a file names, and signals no process that is not this server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from wakeboard.database.embedded import admin, binaries, cluster, cluster_owner, locks
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.paths import DATABASE, ROLE, ClusterPaths, home, resolve

STOP_SECONDS = 60
GRACE_SECONDS = 2
# The shell puts the server into the background and ends, so init becomes its parent.
DETACH = '"$@" &'
REFUSALS = ("authentication failed", "requirepeer", "pg_hba.conf")
NOT_OPEN = ("starting up", "not yet accepting", "shutting down")
RECOVERY_SECONDS = 1
PROGRESS_SECONDS = 5


class WaitNotice:
    """Reports what is waited for: each new sentence, and again every PROGRESS_SECONDS with the time."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self._progress = progress
        self._since = self._last = time.monotonic()
        self._sentence = ""

    def __call__(self, sentence: str) -> None:
        now = time.monotonic()
        if sentence == self._sentence and now - self._last < PROGRESS_SECONDS:
            return
        if sentence != self._sentence:
            self._sentence, self._since = sentence, now
        self._last = now
        waited = int(now - self._since)
        if self._progress:
            self._progress(f"{sentence} ({waited} s)" if waited else sentence)


@dataclass(frozen=True, slots=True)
class Server:
    """A running embedded server; ``url`` is a libpq URL of its database ``wakeboard``."""

    data_dir: Path
    url: str
    started_here: bool
    pid: int


def start(
    data_dir: Path,
    *,
    wait_seconds: float = 300,
    progress: Callable[[str], None] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Return the server of ``data_dir``: the one that runs, or one that is made and started now.

    ``wait_seconds`` bounds the whole wait, crash recovery included; ``progress`` gets a sentence now and
    then. ``settings`` are PostgreSQL settings for a server that is started here; one that runs keeps its own.
    The server outlives this process; stop() ends it. Raises EmbeddedError.
    """
    deadline = time.monotonic() + wait_seconds
    notice = WaitNotice(progress)
    try:
        paths = prepare_paths(data_dir)
        with locks.start_lock(paths, deadline, notice), locks.mark_use(paths):
            started = _start(paths, deadline, notice, settings or {})
            pid = admin.create_role_and_database(paths)
    except (OSError, psycopg.Error) as failed:
        message = str(failed).strip().rstrip(".")
        raise EmbeddedError(
            f"Cannot start the database in {data_dir}: {message}. Fix that, or set WAKEBOARD_DATA_DIR to "
            "another folder."
        ) from failed
    return Server(paths.data_dir, paths.url(), started, pid)


def stop(data_dir: Path, *, only_if_unused: bool = True) -> str:
    """Stop the server, unless others use it and ``only_if_unused``; return one sentence saying what happened.

    Raises EmbeddedError when it does not stop in a minute.
    """
    paths = existing_paths(data_dir)
    if paths is None:
        return "The embedded database was not running."
    deadline = time.monotonic() + STOP_SECONDS
    with locks.start_lock(paths, deadline, WaitNotice(None)):
        locks.unmark_use(paths)
        pid = admin.find_postmaster(paths)
        if pid is None:
            return _not_running(paths)
        if only_if_unused and (reason := reason_in_use(paths)):
            return f"The embedded database was left running because {reason}."
        return stop_postmaster(paths, pid, deadline)


def url(data_dir: Path, *, user: str = ROLE, database: str = DATABASE) -> str:
    """Return the libpq URL of the server of ``data_dir``, whether it runs or not.

    The default user owns the database and is no superuser; ``postgres`` is the superuser.
    """
    return find_paths(data_dir).url(user=user, database=database)


def is_running(data_dir: Path) -> bool:
    """Return whether the server of ``data_dir`` accepts connections now."""
    paths = existing_paths(data_dir)
    return paths is not None and admin.probe(paths).is_ready


def has_cluster(data_dir: Path) -> bool:
    """Return whether a database was ever made in ``data_dir``, running or not."""
    paths = existing_paths(data_dir)
    return paths is not None and paths.cluster.exists()


def binary(name: str, data_dir: Path) -> Path:
    """Return the path of a PostgreSQL program (``psql``, ``pg_dump`` …); raises EmbeddedError if unknown."""
    paths = find_paths(data_dir, create=True)
    path = binaries.for_caller(paths.data_dir, paths.owner) / name
    if not path.is_file():
        names = ", ".join(sorted(program.name for program in path.parent.iterdir()))
        raise EmbeddedError(f"PostgreSQL has no program {name!r} here; it has {names}.")
    return path


def prepare_paths(data_dir: Path) -> ClusterPaths:
    """Return the paths of ``data_dir``, its folders made and owned as they must be."""
    root = resolve(data_dir)
    cluster_owner.make_folders(root)
    owner = cluster_owner.find_owner(home(root), create=True)
    cluster_owner.require_reachable(root, owner)
    paths = ClusterPaths(root, owner)
    cluster_owner.private_folder(paths.home, owner)
    return paths


def find_paths(data_dir: Path, *, create: bool = False) -> ClusterPaths:
    """Return the paths of ``data_dir``, whether anything is there or not."""
    root = resolve(data_dir)
    return ClusterPaths(root, cluster_owner.find_owner(home(root), create=create))


def existing_paths(data_dir: Path) -> ClusterPaths | None:
    """Return the paths of ``data_dir``, None when no cluster was ever made there."""
    return None if cluster_owner.owner_uid(home(resolve(data_dir))) is None else find_paths(data_dir)


def _start(paths: ClusterPaths, deadline: float, notice: WaitNotice, settings: Mapping[str, str]) -> bool:
    is_launched, began_at = False, time.monotonic()
    while not (readiness := admin.probe(paths)).is_ready:
        if any(word in readiness.message for word in REFUSALS):
            raise EmbeddedError(f"The database in {paths.data_dir} refused us: {readiness.message}")
        with locks.server_lock(paths) as lock:
            is_down = lock is not None and not admin.is_postmaster(admin.read_pid_file(paths), paths)
            if is_down and is_launched:
                message = cluster.last_fatal_line(paths) or readiness.message
                raise EmbeddedError(f"The database in {paths.data_dir} did not start: {message}")
            if lock is not None and is_down:
                _launch(paths, lock, notice, settings)
                is_launched = True
        notice(_wait_reason(readiness, is_launched, time.monotonic() - began_at))
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {paths.data_dir} is not ready yet ({readiness.message}). It goes on by "
                f"itself; try again later. Its log is in {paths.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return is_launched


def _wait_reason(readiness: admin.Readiness, is_launched: bool, waited_seconds: float) -> str:
    if "too many clients" in readiness.message:
        return "the database has no free connection"
    if "shutting down" in readiness.message:
        return "the database is shutting down"
    # Every start says "starting up" for a moment; a recovery says it for longer.
    if any(word in readiness.message for word in NOT_OPEN) and waited_seconds > RECOVERY_SECONDS:
        return "the database is recovering"
    return "the database is starting" if is_launched else "waiting for the previous server to end"


def _launch(paths: ClusterPaths, lock: int, notice: WaitNotice, settings: Mapping[str, str]) -> None:
    bin_folder = binaries.for_server(paths.data_dir, paths.owner)
    notice("preparing the database")
    cluster.create(paths, bin_folder, settings)
    cluster.write_access_files(paths)
    cluster.remove_leftovers(paths)
    # Unlinked and created anew: root must not follow a link that the server's user put there.
    paths.startup_log.unlink(missing_ok=True)
    output = os.open(paths.startup_log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        subprocess.run(
            [
                "/bin/sh",
                "-c",
                DETACH,
                "sh",
                bin_folder / "postgres",
                *cluster.server_arguments(paths, settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
            check=True,
            **paths.owner.subprocess_options(),
        )
    finally:
        os.close(output)


def reason_in_use(paths: ClusterPaths) -> str:
    """Return why the server is still needed, or ''. Sessions that just closed get GRACE_SECONDS to go."""
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        while others := admin.count_other_sessions(paths):
            if time.monotonic() > deadline:
                return f"{others} other session{'s are' if others > 1 else ' is'} connected"
            time.sleep(locks.WAIT_SECONDS)
    except psycopg.Error as refused:
        # A server that is not open yet has no sessions; one that is full or slow may have many.
        if not any(word in str(refused) for word in NOT_OPEN):
            return f"its sessions could not be counted ({' '.join(str(refused).split())})"
    return "another Wakeboard process uses it" if locks.is_used_by_others(paths) else ""


def stop_postmaster(paths: ClusterPaths, pid: int, deadline: float) -> str:
    """Stop the postmaster ``pid``, for the holder of start.lock; raises EmbeddedError at ``deadline``."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    while locks.is_server_alive(paths) or admin.is_postmaster(pid, paths):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {paths.data_dir} was told to stop and has not yet: its log is in "
                f"{paths.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return "The embedded database was stopped."


def _not_running(paths: ClusterPaths) -> str:
    if admin.probe(paths).is_ready or locks.is_server_alive(paths):
        return (
            "The embedded database was left alone: its process is not visible here; "
            "another container may run it."
        )
    return "The embedded database was not running."
