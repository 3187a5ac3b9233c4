"""The programs that a benchmark starts: workers, dashboards, and those of peers."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks import bench
from tests.support.processes import free_port, wait_until
from wakeboard.accounts.sessions import open_session
from wakeboard.accounts.users import install_id
from wakeboard.core.states import Role

START_SECONDS = 30
STOP_SECONDS = 40


@contextmanager
def running(
    command: Sequence[str | Path], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a session of its own while the block lasts; yield its process."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running_wakeboard(words: Sequence[str], url: str, log: Path) -> Iterator[int]:
    """Run ``wakeboard <words>`` while the block lasts; yield its process id."""
    command = [sys.executable, "-m", "wakeboard", *words]
    with running(command, bench.environment(url), log) as process:
        yield process.pid


@contextmanager
def running_dashboard(url: str, log: Path) -> Iterator[tuple[int, int]]:
    """Run ``wakeboard web`` while the block lasts; yield its port and its process id once it answers."""
    port = free_port()
    with running_wakeboard(["web", "--bind", f"127.0.0.1:{port}"], url, log) as pid:
        wait_until(lambda: is_answering(port), START_SECONDS)
        yield port, pid


def is_answering(port: int) -> bool:
    """Return whether a dashboard answers on ``port``."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def session_cookie(connection: psycopg.Connection, user: str = "benchmark", role: Role = Role.ADMIN) -> str:
    """Sign ``user`` in; return the header ``Cookie``."""
    return f"wakeboard_{install_id(connection)}={open_session(connection, user, role)}"


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def megabytes(pids: Sequence[int]) -> float:
    """Return the proportional set size of the processes together."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
