"""A PostgreSQL server of a row's own, which the row may crash, stop and start as it likes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.postgres.servers import Server, own_server
from tests.support.processes import wait_until
from wakeboard.database import embedded

# Commits reach the operating system, which is not what crashes here.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "100"}


class Cluster:
    """The server of ``server``, and the ways in which it can go and come back."""

    def __init__(self, server: Server) -> None:
        assert server.data_dir is not None
        self.server = server
        self._folder = Path(server.data_dir)

    def crash(self) -> None:
        """End it as ``pg_ctl -m immediate stop`` does: no checkpoint, no goodbye; the next start recovers."""
        postmaster = self._postmaster()
        os.kill(postmaster.pid, signal.SIGQUIT)
        psutil.wait_procs([postmaster], timeout=10)
        wait_until(lambda: not embedded.is_running(self._folder), 10, "the server is gone")

    def freeze(self) -> None:
        """Stop the clock of all its processes: connections stay open, and nothing is answered."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Let all its processes go on."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def lose_power(self) -> None:
        """End every one of its processes at once, with SIGKILL."""
        everything = self._processes()
        for process in everything:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, timeout=10)

    def _processes(self) -> list[psutil.Process]:
        postmaster = self._postmaster()
        return [postmaster, *postmaster.children(recursive=True)]

    def _postmaster(self) -> psutil.Process:
        (pid_file,) = self._folder.rglob("postmaster.pid")
        return psutil.Process(int(pid_file.read_text().split()[0]))

    def stop(self) -> None:
        """End it as ``pg_ctl -m fast stop`` does: every session is cut, what they did is rolled back."""
        embedded.stop(self._folder, only_if_unused=False)

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        embedded.start(self._folder, settings=SETTINGS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The server of a file of rows, which these may stop; it is gone at the end."""
    with own_server(SETTINGS) as server:
        yield Cluster(server)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """A fresh database on the file's own server; ``house`` stands on it where a file imports this."""
    name = cluster.server.create()
    yield cluster.server.url(name)
    cluster.start()
    cluster.server.drop(name)
