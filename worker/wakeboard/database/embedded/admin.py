"""Connections to a server as its superuser: is it ready, which process is it, who else is connected.

A process id from a file counts only when that process is this server.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from wakeboard.database.embedded.paths import DATABASE, ROLE, SUPERUSER, ClusterPaths

CONNECT_SECONDS = 5
POSTMASTER = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int"
COUNT_SESSIONS = """SELECT count(*) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""

SESSIONS = """SELECT coalesce(nullif(application_name, ''), 'a program without a name'), pid
              FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
              ORDER BY backend_start"""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a server accepts connections; ``message`` is libpq's when it does not."""

    is_ready: bool
    message: str = ""


def probe(paths: ClusterPaths) -> Readiness:
    """Connect and disconnect; return whether the server accepts connections, and if not, why."""
    try:
        _connect(paths).close()
    except psycopg.OperationalError as refused:
        return Readiness(False, " ".join(str(refused).split()))
    return Readiness(True)


def _connect(paths: ClusterPaths) -> psycopg.Connection:
    url = paths.url(user=SUPERUSER, database="postgres")
    return psycopg.connect(
        url, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name="wakeboard embedded"
    )


def create_role_and_database(paths: ClusterPaths) -> int:
    """Create what is missing of the two; return the postmaster's process id. Raises psycopg.Error."""
    with _connect(paths) as admin:
        if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone():
            role = sql.Identifier(ROLE)
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
            grant = sql.SQL("GRANT pg_monitor, pg_signal_backend, pg_checkpoint TO {}")
            admin.execute(grant.format(role))
        if not admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            names = sql.Identifier(DATABASE), sql.Identifier(ROLE)
            admin.execute(sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0").format(*names))
        row = admin.execute(POSTMASTER).fetchone()
    assert row is not None
    return int(row[0])


def find_postmaster(paths: ClusterPaths) -> int | None:
    """Return the process id of this server, or None when no process here can be shown to be it."""
    pid = None
    with suppress(psycopg.Error), _connect(paths) as admin:
        row = admin.execute(POSTMASTER).fetchone()
        pid = row[0] if row else None
    # Over a volume shared with another container the answer may be a number of that container.
    pid = pid or read_pid_file(paths)
    return pid if is_postmaster(pid, paths) else None


def read_pid_file(paths: ClusterPaths) -> int | None:
    """Return the process id in postmaster.pid, which may be stale, or None when there is none to read."""
    try:
        return int(paths.postmaster_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def is_postmaster(pid: int | None, paths: ClusterPaths) -> bool:
    """Return whether the process ``pid`` lives and is a postmaster of this cluster."""
    if pid is None or pid <= 0:
        return False
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return bool(words) and Path(words[0]).name == "postgres" and str(paths.cluster) in words


def list_sessions(paths: ClusterPaths) -> list[tuple[str, int]]:
    """Return (application, server process) of each client session but ours, oldest first.

    Raises psycopg.Error when the server does not answer.
    """
    with _connect(paths) as admin:
        return [(str(row[0]), int(row[1])) for row in admin.execute(SESSIONS).fetchall()]


def count_other_sessions(paths: ClusterPaths) -> int:
    """Return how many client sessions are connected beside the one that asks. Raises psycopg.Error."""
    with _connect(paths) as admin:
        row = admin.execute(COUNT_SESSIONS).fetchone()
    return row[0] if row else 0
