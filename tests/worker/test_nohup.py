"""Started behind nohup and &: the end of the terminal is outlived, and an interrupt ends it all the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT, free_port, surroundings, wait_until

IGNORING = 'trap "" HUP INT; exec "$@"'


@contextmanager
def in_the_background(
    database: str, folder: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield ``wakeboard <words>``, which was born with both signals ignored, and the file with its output."""
    output = folder / "output"
    with output.open("wb") as file:
        command = ["/bin/sh", "-c", IGNORING, "sh", sys.executable, "-m", "wakeboard", *words]
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT, env=surroundings(database),
            start_new_session=True,
        )  # fmt: skip
    try:
        yield started, output
    finally:
        family = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
        for member in family:
            member.kill()
        started.kill()
        started.wait()


@pytest.mark.parametrize(
    ("words", "ready"),
    [(("worker",), "Worker started"), (("up", "--port", "{port}"), "Wakeboard is at")],
    ids=["worker", "up"],
)
def test_a_hangup_is_outlived_and_an_interrupt_is_an_end_in_order(
    database: str, tmp_path: Path, words: tuple[str, ...], ready: str
) -> None:
    given = [word.format(port=free_port()) for word in words]
    with in_the_background(database, tmp_path, *given) as (started, output):
        wait_until(lambda: ready in output.read_text(), 30, f"it says {ready!r}")
        assert ignores(started.pid, signal.SIGHUP) and not ignores(started.pid, signal.SIGINT)
        os.kill(started.pid, signal.SIGINT)
        assert started.wait(40) == 0


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether this process never hears of the signal."""
    return masked(Path(f"/proc/{pid}/status").read_text(), number)


def masked(status: str, number: signal.Signals) -> bool:
    """Whether ``status``, of a process as /proc tells it, has the signal among the ignored ones."""
    [mask] = re.findall(r"^SigIgn:\s+([0-9a-f]+)$", status, re.M)
    return bool(int(mask, 16) >> (number - 1) & 1)


START_ONE = """
import subprocess, tests.conftest
print(subprocess.check_output(["cat", "/proc/self/status"], text=True))
"""


def test_what_tests_start_behind_nohup_hears_what_they_send() -> None:
    command = ["/bin/sh", "-c", IGNORING, "sh", sys.executable, "-c", START_ONE]
    said = subprocess.run(
        command, cwd=ROOT, env=surroundings(None), capture_output=True, text=True, timeout=60, check=True
    )
    assert not masked(said.stdout, signal.SIGHUP) and not masked(said.stdout, signal.SIGINT)
