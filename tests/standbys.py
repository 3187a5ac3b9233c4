"""A real standby of a test's own server: a copy by pg_basebackup that follows it over its socket."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.processes import wait_until
from tests.servers import Server, make_folder, with_database
from worker import embedded
from worker.embedded import binaries, cluster
from worker.embedded.places import SUPERUSER, Places
from worker.embedded.server import find, prepare

# It may not take fewer connections than the server that it follows.
SETTINGS = {"fsync": "off", "max_connections": "300", "wal_receiver_status_interval": "1s"}


@dataclass
class Standby:
    """A running standby; ``user_url`` is of the role that owns the tables, ``admin_url`` of a superuser."""

    user_url: str
    admin_url: str
    process: subprocess.Popen[bytes]

    def url(self, name: str) -> str:
        """Return the URL of the database ``name`` for its owner."""
        return with_database(self.user_url, name)

    def tell(self, statement: str) -> object:
        """Send a statement as a superuser and return the first value of its answer, if it has one."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            answer = connection.execute(statement.encode())
            row = answer.fetchone() if answer.description else None
        return row and row[0]

    def stop(self) -> None:
        """End it, and every session with it."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


@contextmanager
def standby_of(server: Server, settings: Mapping[str, str] = SETTINGS) -> Iterator[Standby]:
    """Give a standby that streams from ``server``, an own server of the tests; it is gone at the end."""
    assert server.data_dir is not None
    folder = make_folder(Path(server.data_dir).parent)
    try:
        places = prepare(folder)
        _copy(find(Path(server.data_dir)), places)
        cluster.guard(places)
        postgres = binaries.for_server(folder, places.owner) / "postgres"
        with (folder / "standby.log").open("wb") as log:
            process = subprocess.Popen(
                [postgres, *cluster.arguments(places, settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **places.owner.options(),
            )  # fmt: skip
        standby = Standby(places.url(), embedded.url(folder, user=SUPERUSER, database="postgres"), process)
        try:
            wait_until(lambda: _follows(standby), 60, "the standby follows")
            yield standby
        finally:
            if process.poll() is None:
                standby.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(source: Places, target: Places) -> None:
    """Copy the running server of ``source`` and note in the copy whom it follows."""
    program = binaries.for_server(source.data_dir, source.owner) / "pg_basebackup"
    words: list[str | Path] = [
        "--pgdata",
        target.cluster,
        "--host",
        source.socket_folder,
        "--username",
        SUPERUSER,
    ]
    made = source.owner.run(
        [program, *words, "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"]
    )
    assert made.returncode == 0, made.stderr


def _follows(standby: Standby) -> bool:
    assert standby.process.poll() is None, "the standby ended"
    with suppress(psycopg.OperationalError):
        return bool(standby.tell("SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM pg_stat_wal_receiver)"))
    return False
