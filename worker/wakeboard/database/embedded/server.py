"""The server process: started or found, asked by connecting, stopped when nobody else uses it.

Never trusts a process id that it only read in a file, and signals no process that is not this server.
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

from wakeboard.database.embedded import binaries, cluster, contact, identity, locks
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.places import DATABASE, ROLE, ClusterPaths, home, resolve

STOP_SECONDS = 60
GRACE_SECONDS = 2
# The shell puts the server into the background and ends, so init becomes its parent.
DETACH = '"$@" &'
REFUSALS = ("authentication failed", "requirepeer", "pg_hba.conf")
NOT_OPEN = ("starting up", "not yet accepting", "shutting down")
RECOVERY_SECONDS = 1
PROGRESS_SECONDS = 5


class WaitNotice:
    """Tells a person what is waited for: a sentence that is new, and again each few seconds with the time."""

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
    tell = WaitNotice(progress)
    try:
        places = prepare(data_dir)
        with locks.starting(places, deadline, tell), locks.mark_use(places):
            started = _start(places, deadline, tell, settings or {})
            pid = contact.furnish(places)
    except (OSError, psycopg.Error) as failed:
        said = str(failed).strip().rstrip(".")
        raise EmbeddedError(
            f"Cannot start the database in {data_dir}: {said}. Fix that, or set WAKEBOARD_DATA_DIR to "
            "another folder."
        ) from failed
    return Server(places.data_dir, places.url(), started, pid)


def stop(data_dir: Path, *, only_if_unused: bool = True) -> str:
    """Stop the server, unless others use it and ``only_if_unused``; return one sentence saying what happened.

    Raises EmbeddedError when it does not stop in a minute.
    """
    places = existing(data_dir)
    if places is None:
        return "The embedded database was not running."
    deadline = time.monotonic() + STOP_SECONDS
    with locks.starting(places, deadline, WaitNotice(None)):
        locks.unmark_use(places)
        pid = contact.postmaster(places)
        if pid is None:
            return _say_not_running(places)
        if only_if_unused and (reason := why_used(places)):
            return f"The embedded database was left running because {reason}."
        return end(places, pid, deadline)


def url(data_dir: Path, *, user: str = ROLE, database: str = DATABASE) -> str:
    """Return the libpq URL of the server of ``data_dir``, whether it runs or not.

    The default user owns the database and is no superuser; ``postgres`` is the superuser.
    """
    return find(data_dir).url(user=user, database=database)


def is_running(data_dir: Path) -> bool:
    """Tell whether the server of ``data_dir`` accepts connections now."""
    places = existing(data_dir)
    return places is not None and contact.ask(places).ready


def has_cluster(data_dir: Path) -> bool:
    """Tell whether a database was ever made in ``data_dir``, running or not."""
    places = existing(data_dir)
    return places is not None and places.cluster.exists()


def binary(name: str, data_dir: Path) -> Path:
    """Return the path of a PostgreSQL program (``psql``, ``pg_dump`` …); raises EmbeddedError if unknown."""
    places = find(data_dir, create=True)
    path = binaries.for_caller(places.data_dir, places.owner) / name
    if not path.is_file():
        known = ", ".join(sorted(program.name for program in path.parent.iterdir()))
        raise EmbeddedError(f"PostgreSQL has no program {name!r} here; it has {known}.")
    return path


def prepare(data_dir: Path) -> ClusterPaths:
    """Return the places of ``data_dir``, its folders made and owned as they must be."""
    root = resolve(data_dir)
    identity.make_folders(root)
    owner = identity.owner(home(root), create=True)
    identity.require_reachable(root, owner)
    places = ClusterPaths(root, owner)
    identity.private_folder(places.home, owner)
    return places


def find(data_dir: Path, *, create: bool = False) -> ClusterPaths:
    """Return the places of ``data_dir``, whether anything is there or not."""
    root = resolve(data_dir)
    return ClusterPaths(root, identity.owner(home(root), create=create))


def existing(data_dir: Path) -> ClusterPaths | None:
    """Return the places of ``data_dir``, None when no cluster was ever made there."""
    return None if identity.holder(home(resolve(data_dir))) is None else find(data_dir)


def _start(places: ClusterPaths, deadline: float, tell: WaitNotice, settings: Mapping[str, str]) -> bool:
    launched, begun = False, time.monotonic()
    while not (answer := contact.ask(places)).ready:
        if any(word in answer.complaint for word in REFUSALS):
            raise EmbeddedError(f"The database in {places.data_dir} refused us: {answer.complaint}")
        with locks.server_lock(places) as lock:
            nobody_lives = lock is not None and not contact.is_postmaster(contact.written_pid(places), places)
            if nobody_lives and launched:
                complaint = cluster.last_complaint(places) or answer.complaint
                raise EmbeddedError(f"The database in {places.data_dir} did not start: {complaint}")
            if lock is not None and nobody_lives:
                _launch(places, lock, tell, settings)
                launched = True
        tell(_waiting_for(answer, launched, time.monotonic() - begun))
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {places.data_dir} is not ready yet ({answer.complaint}). It goes on by "
                f"itself; try again later. Its log is in {places.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return launched


def _waiting_for(answer: contact.ServerAnswer, launched: bool, waited_seconds: float) -> str:
    if "too many clients" in answer.complaint:
        return "the database has no free connection"
    if "shutting down" in answer.complaint:
        return "the database is shutting down"
    # Every start says "starting up" for a moment; only a recovery goes on saying it.
    if any(word in answer.complaint for word in NOT_OPEN) and waited_seconds > RECOVERY_SECONDS:
        return "the database is recovering"
    return "the database is starting" if launched else "waiting for the previous server to end"


def _launch(places: ClusterPaths, lock: int, tell: WaitNotice, settings: Mapping[str, str]) -> None:
    bin_folder = binaries.for_server(places.data_dir, places.owner)
    tell("preparing the database")
    cluster.make(places, bin_folder, settings)
    cluster.guard(places)
    cluster.tidy(places)
    # Unlinked and created anew: root must not follow a link that the server's user put there.
    places.startup_log.unlink(missing_ok=True)
    output = os.open(places.startup_log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        subprocess.run(
            ["/bin/sh", "-c", DETACH, "sh", bin_folder / "postgres", *cluster.arguments(places, settings)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(lock,),
            check=True,
            **places.owner.options(),
        )
    finally:
        os.close(output)


def why_used(places: ClusterPaths) -> str:
    """Return why the server is still needed, or ''. A session just closed is given a moment to go."""
    patience = time.monotonic() + GRACE_SECONDS
    try:
        while others := contact.other_sessions(places):
            if time.monotonic() > patience:
                return f"{others} other session{'s are' if others > 1 else ' is'} connected"
            time.sleep(locks.WAIT_SECONDS)
    except psycopg.Error as refused:
        # A server that is not open yet has no sessions; one that is full or slow may have many.
        if not any(word in str(refused) for word in NOT_OPEN):
            return f"its sessions could not be counted ({' '.join(str(refused).split())})"
    return "another Wakeboard process uses it" if locks.used_by_others(places) else ""


def end(places: ClusterPaths, pid: int, deadline: float) -> str:
    """Stop the postmaster ``pid``, for the holder of start.lock; raises EmbeddedError at ``deadline``."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    while locks.server_lives(places) or contact.is_postmaster(pid, places):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {places.data_dir} was told to stop and has not yet: its log is in "
                f"{places.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return "The embedded database was stopped."


def _say_not_running(places: ClusterPaths) -> str:
    if contact.ask(places).ready or locks.server_lives(places):
        return (
            "The embedded database was left alone: its process is not visible here; "
            "another container may run it."
        )
    return "The embedded database was not running."
