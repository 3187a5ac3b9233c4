"""A real PgBouncer in transaction mode between a client and the test's PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.processes import free_port, wait_until

# Debian has it where only administrators look.
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
WHY_NOT = "there is no PgBouncer here (apt-get install pgbouncer)"
SETTINGS = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""


@contextmanager
def pooler(url: str, *, sessions: int) -> Iterator[str]:
    """Yield a libpq URL that leads to the database of ``url`` through a pooler with so many ``sessions``."""
    given, port = conninfo_to_dict(url), free_port()
    server = {name: str(given[name]) for name in ("host", "port", "user", "password") if name in given}
    told = " ".join(f"{name}='{value}'" for name, value in server.items())
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(SETTINGS.format(server=told, port=port, sessions=sessions))
        Path(folder).chmod(0o755)
        through = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        # It refuses to be root; the server knows its clients by their OS user.
        as_whom = {"user": _owner(server["host"]), "extra_groups": []} if os.geteuid() == 0 else {}
        with subprocess.Popen([str(PGBOUNCER), "-q", settings], **as_whom) as process:  # type: ignore[call-overload]
            try:
                wait_until(lambda: process.poll() is None and _answers(through), 10, "PgBouncer answers")
                yield through
            finally:
                process.send_signal(signal.SIGTERM)


def _owner(host: str) -> str:
    """Return the OS user of a server's socket folder, ``nobody`` for one that is reached by TCP."""
    return Path(host).owner() if host.startswith("/") else "nobody"


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
