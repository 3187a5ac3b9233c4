"""A real standby of a test's own server: a copy by pg_basebackup that follows it over its socket.

Either may crash, stop, be promoted or follow the other.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.postgres.servers import Server, make_folder, with_database
from tests.support.processes import wait_until
from wakeboard.database import embedded
from wakeboard.database.embedded import binaries, cluster
from wakeboard.database.embedded.paths import DATABASE, PORT, ROLE, SUPERUSER, ClusterPaths
from wakeboard.database.embedded.server import find_paths, prepare_paths

# It may not take fewer connections than the server that it follows.
SETTINGS = {"fsync": "off", "max_connections": "300", "wal_receiver_status_interval": "1s"}


@dataclass
class Node:
    """One of the servers that copy each other, at ``places``, with the ``settings`` of each start."""

    places: ClusterPaths
    settings: Mapping[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def url(self, name: str) -> str:
        """Return the URL of the database ``name`` for its owner."""
        return with_database(self.places.url(), name)

    def tell(self, statement: str) -> object:
        """Send a statement as a superuser and return the first value of its answer, if it has one."""
        there = self.places.url(user=SUPERUSER, database="postgres")
        with psycopg.connect(there, autocommit=True) as connection:
            answer = connection.execute(statement.encode())
            row = answer.fetchone() if answer.description else None
        return row and row[0]

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        postgres = binaries.for_server(self.places.data_dir, self.places.owner) / "postgres"
        cluster.write_access_files(self.places)
        with (self.places.data_dir / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [postgres, *cluster.server_arguments(self.places, self.settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.places.owner.subprocess_options(),
            )  # fmt: skip
        wait_until(self._answers, 60, f"{self.places.data_dir} takes connections")

    def stop(self) -> None:
        """End it as ``pg_ctl -m fast stop`` does: sessions are cut, a standby gets all that was written."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it as ``pg_ctl -m immediate stop`` does: no checkpoint, no goodbye."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(30)

    def promote(self) -> None:
        """Make it a primary, with a history of its own from here on."""
        assert self.tell("SELECT pg_promote()") is True

    def follow(self, primary: Node) -> None:
        """Let it, which does not run, follow ``primary`` from its next start on."""
        self._write("standby.signal", "")
        told = make_conninfo(host=str(primary.places.socket_folder), port=PORT, user=SUPERUSER)
        escaped = told.replace("'", "''")
        self._write("postgresql.auto.conf", f"primary_conninfo = '{escaped}'\n")

    def _write(self, name: str, text: str) -> None:
        written = self.places.cluster / name
        written.write_text(text)
        shutil.chown(written, self.places.owner.uid, self.places.owner.gid)

    def follows(self) -> bool:
        """Return whether it takes what the other one writes."""
        assert self._process is not None and self._process.poll() is None, "the standby ended"
        with suppress(psycopg.OperationalError):
            followed = "SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM pg_stat_wal_receiver)"
            return bool(self.tell(followed))
        return False

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the server ended"
        with suppress(psycopg.OperationalError):
            return self.tell("SELECT true") is True
        return False

    @property
    def log(self) -> str:
        """What it has written into its logs."""
        files = [self.places.data_dir / "node.log", *sorted(self.places.log_folder.glob("postgres-*"))]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())


def as_one(nodes: Sequence[Node], name: str) -> str:
    """Return what leads to the database ``name`` of whichever of ``nodes`` takes writes, asked in turn."""
    hosts = ",".join(str(node.places.socket_folder) for node in nodes)
    ports = ",".join(PORT for _ in nodes)
    owner = nodes[0].places.owner.name
    return make_conninfo(host=hosts, port=ports, user=ROLE, dbname=name or DATABASE, requirepeer=owner)


@contextmanager
def standby_of(server: Server, settings: Mapping[str, str] = SETTINGS) -> Iterator[Node]:
    """Give a standby that streams from ``server``, an own server of the tests; it is gone at the end."""
    assert server.data_dir is not None
    folder = make_folder(Path(server.data_dir).parent)
    try:
        standby = Node(prepare_paths(folder), settings)
        _copy(find_paths(Path(server.data_dir)), standby.places)
        standby.start()
        try:
            wait_until(standby.follows, 60, "the standby follows")
            yield standby
        finally:
            standby.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pair_of(server: Server, settings: Mapping[str, str] = SETTINGS) -> Iterator[tuple[Node, Node]]:
    """Give ``server``, an own server of the tests, and a standby that streams from it; both may be ended."""
    assert server.data_dir is not None
    folder = Path(server.data_dir)
    embedded.stop(folder, only_if_unused=False)
    primary = Node(find_paths(folder), settings)
    primary.start()
    try:
        with standby_of(server, settings) as standby:
            yield primary, standby
    finally:
        primary.stop()


def _copy(source: ClusterPaths, target: ClusterPaths) -> None:
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
