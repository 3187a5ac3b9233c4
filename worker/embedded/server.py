"""The server process: started or found, asked by connecting, stopped when nobody else uses it.

Never trusts a process id that it only read in a file, and signals no process that is not this server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from worker.embedded import binaries, cluster, identity, locks
from worker.embedded.errors import EmbeddedError
from worker.embedded.places import DATABASE, ROLE, SUPERUSER, Places, home, resolve

CONNECT_SECONDS = 5
STOP_SECONDS = 60
GRACE_SECONDS = 2
PROGRESS_SECONDS = 5
# The shell puts the server into the background and ends, so init becomes its parent.
DETACH = '"$@" &'
REFUSALS = ("authentication failed", "requirepeer", "pg_hba.conf")
POSTMASTER = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int"
OTHERS = """SELECT count(*) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""


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
    tell = _Teller(progress)
    try:
        places = _prepare(data_dir)
        with locks.starting(places, deadline, tell):
            locks.mark_use(places)
            started = _start(places, deadline, tell, settings or {})
            pid = _furnish(places)
    except OSError as failed:
        raise EmbeddedError(f"Cannot start the database in {data_dir}: {failed}.") from failed
    return Server(places.data_dir, places.url(), started, pid)


def stop(data_dir: Path, *, only_if_unused: bool = True) -> str:
    """Stop the server, unless others use it and ``only_if_unused``; return one sentence saying what happened.

    Raises EmbeddedError when it does not stop in a minute.
    """
    _refuse_windows()
    if not home(resolve(data_dir)).exists():
        return "The embedded database was not running."
    places = _find(data_dir)
    deadline = time.monotonic() + STOP_SECONDS
    with locks.starting(places, deadline, _Teller(None)):
        locks.unmark_use(places)
        pid = _postmaster(places)
        if pid is None:
            return _say_not_running(places)
        if only_if_unused and (reason := _used(places)):
            return f"The embedded database was left running because {reason}."
        return _stop(places, pid, deadline)


def url(data_dir: Path, *, user: str = ROLE, database: str = DATABASE) -> str:
    """Return the libpq URL of the server of ``data_dir``, whether it runs or not.

    The default user owns the database and is no superuser; ``postgres`` is the superuser.
    """
    return _find(data_dir).url(user=user, database=database)


def is_running(data_dir: Path) -> bool:
    """Tell whether the server of ``data_dir`` accepts connections now."""
    _refuse_windows()
    return home(resolve(data_dir)).exists() and _ask(_find(data_dir)).ready


def binary(name: str, data_dir: Path) -> Path:
    """Return the path of a PostgreSQL program (``psql``, ``pg_dump`` …); raises EmbeddedError if unknown."""
    places = _find(data_dir, create=True)
    path = binaries.folder(places.data_dir, places.owner) / name
    if not path.is_file():
        known = ", ".join(sorted(program.name for program in path.parent.iterdir()))
        raise EmbeddedError(f"PostgreSQL has no program {name!r} here; it has {known}.")
    return path


@dataclass(frozen=True, slots=True)
class _Answer:
    ready: bool
    complaint: str = ""


class _Teller:
    """Passes on a sentence when it is new, and again every few seconds with the time that passed."""

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


def _prepare(data_dir: Path) -> Places:
    _refuse_windows()
    root = resolve(data_dir)
    identity.make_folders(root)
    owner = identity.owner(home(root), create=True)
    identity.require_reachable(root, owner)
    places = Places(root, owner)
    identity.private_folder(places.home, owner)
    return places


def _find(data_dir: Path, *, create: bool = False) -> Places:
    _refuse_windows()
    root = resolve(data_dir)
    return Places(root, identity.owner(home(root), create=create))


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise EmbeddedError(
            "The embedded database runs on Linux and macOS, not on Windows: set WAKEBOARD_DATABASE_URL."
        )


def _start(places: Places, deadline: float, tell: _Teller, settings: Mapping[str, str]) -> bool:
    launched = False
    while not (answer := _ask(places)).ready:
        if any(word in answer.complaint for word in REFUSALS):
            raise EmbeddedError(f"The database in {places.data_dir} refused us: {answer.complaint}")
        lock = locks.take_server_lock(places)
        if lock is not None and not _is_postmaster(_written_pid(places), places):
            try:
                if launched:
                    complaint = cluster.last_complaint(places) or answer.complaint
                    raise EmbeddedError(f"The database in {places.data_dir} did not start: {complaint}")
                _launch(places, lock, tell, settings)
                launched = True
            finally:
                os.close(lock)
        elif lock is not None:
            os.close(lock)
        tell(_waiting_for(answer))
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {places.data_dir} is not ready yet ({answer.complaint}). It goes on by "
                f"itself; try again later. Its log is in {places.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return launched


def _waiting_for(answer: _Answer) -> str:
    if "shutting down" in answer.complaint:
        return "the database is shutting down"
    if "starting up" in answer.complaint or "recovery" in answer.complaint:
        return "the database is recovering"
    return "the database is starting"


def _launch(places: Places, lock: int, tell: _Teller, settings: Mapping[str, str]) -> None:
    bin_folder = binaries.folder(places.data_dir, places.owner)
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
            **places.owner.options(),  # type: ignore[call-overload]
        )
    finally:
        os.close(output)


def _ask(places: Places) -> _Answer:
    try:
        _connect(places).close()
    except psycopg.OperationalError as refused:
        return _Answer(False, " ".join(str(refused).split()))
    return _Answer(True)


def _connect(places: Places) -> psycopg.Connection[tuple[int]]:
    there = places.url(user=SUPERUSER, database="postgres")
    return psycopg.connect(  # type: ignore[return-value]
        there, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name="wakeboard embedded"
    )


def _furnish(places: Places) -> int:
    """Create role and database where missing; return the postmaster's process id."""
    with _connect(places) as admin:
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone():
            role = sql.Identifier(ROLE)
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
            grant = sql.SQL("GRANT pg_monitor, pg_signal_backend, pg_checkpoint TO {}")
            admin.execute(grant.format(role))
        if not admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            names = sql.Identifier(DATABASE), sql.Identifier(ROLE)
            admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))
        row = admin.execute(POSTMASTER).fetchone()
    assert row is not None
    return row[0]


def _postmaster(places: Places) -> int | None:
    """Return the process id of this server, or None when no process here can be shown to be it."""
    pid = None
    with suppress(psycopg.Error), _connect(places) as admin:
        row = admin.execute(POSTMASTER).fetchone()
        pid = row[0] if row else None
    # Over a volume shared with another container the answer may be a number of that container.
    pid = pid or _written_pid(places)
    return pid if _is_postmaster(pid, places) else None


def _written_pid(places: Places) -> int | None:
    try:
        return int(places.postmaster_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _is_postmaster(pid: int | None, places: Places) -> bool:
    if pid is None or pid <= 0:
        return False
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return bool(words) and Path(words[0]).name == "postgres" and str(places.cluster) in words


def _used(places: Places) -> str:
    """Return why the server is still needed, or ''. A session just closed is given a moment to go."""
    patience = time.monotonic() + GRACE_SECONDS
    while others := _other_sessions(places):
        if time.monotonic() > patience:
            return f"{others} other sessions are connected" if others > 1 else "1 other session is connected"
        time.sleep(locks.WAIT_SECONDS)
    return "another Wakeboard process uses it" if locks.used_by_others(places) else ""


def _other_sessions(places: Places) -> int:
    with suppress(psycopg.Error), _connect(places) as admin:
        row = admin.execute(OTHERS).fetchone()
        return row[0] if row else 0
    return 0


def _stop(places: Places, pid: int, deadline: float) -> str:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    while locks.server_lives(places) or _is_postmaster(pid, places):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The database in {places.data_dir} was told to stop and has not yet: its log is in "
                f"{places.log_folder}."
            )
        time.sleep(locks.WAIT_SECONDS)
    return "The embedded database was stopped."


def _say_not_running(places: Places) -> str:
    if _ask(places).ready or locks.server_lives(places):
        return "The embedded database was left running because it was started in another container."
    return "The embedded database was not running."
