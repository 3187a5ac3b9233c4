"""Real processes, and real waiting: for a condition, never for a time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import psycopg

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
# Where the packages and the tests are, for processes that do not find them by themselves.
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("worker", "dashboard", ""))
PAUSE_SECONDS = 0.02
# A wait ends with what it waits for. How soon that has to come is measured and compared, never left to a
# wait: on a busy machine a short one fails without a reason.
PATIENCE_SECONDS = 30.0


def wait_until(condition: Callable[[], T], seconds: float = 10, sentence: str | None = None) -> T:
    """Return the first true answer of ``condition``, asked again and again for ``seconds`` or more.

    Fails the test with ``sentence`` (what was waited for) and the last answer.
    """
    seconds = max(seconds, PATIENCE_SECONDS)
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            what = sentence or getattr(condition, "__doc__", None) or "the condition"
            raise AssertionError(f"Waited {seconds:g} s in vain: {what}. Last answer: {answer!r}")
        time.sleep(PAUSE_SECONDS)
    return answer


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_blocked(
    watcher: psycopg.Connection[tuple[object, ...]], waiting_pid: int, seconds: float = 10
) -> None:
    """Wait until PostgreSQL says that the session of ``waiting_pid`` waits for a lock."""
    wait_until(
        lambda: (
            watcher.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (waiting_pid,)).fetchone()
            == (True,)
        ),
        seconds,
        f"the session {waiting_pid} waits for a lock",
    )


@dataclass(frozen=True, slots=True)
class Wakeboard:
    """A running ``wakeboard`` command; its output goes to a file."""

    process: subprocess.Popen[bytes]
    output_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has printed so far, both streams."""
        return self.output_file.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Return its living descendants."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def terminate(self, seconds: float = 35) -> int:
        """Ask it to stop as a deploy would; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """Kill it as a lost machine would, without a word."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop its clock: it neither renews nor notices."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self, seconds: float = 35) -> int:
        """Return its exit code, which must come within ``seconds``."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"wakeboard did not end within {seconds:g} s. It printed:\n{self.output}"
            ) from None

    def wait_for(self, text: str, seconds: float = 20) -> None:
        """Wait until it has printed ``text``."""

        def printed() -> bool:
            if self.process.poll() is not None and text not in self.output:
                raise AssertionError(f"wakeboard ended before it printed {text!r}:\n{self.output}")
            return text in self.output

        wait_until(printed, seconds, f"wakeboard prints {text!r}; it printed:\n{self.output}")


@contextmanager
def wakeboard(
    *words: str,
    database: str | None = None,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    program: Path | None = None,
    printed: int | None = None,
) -> Iterator[Wakeboard]:
    """Run ``wakeboard <words>`` while the block lasts; afterwards it and every descendant are gone.

    ``database`` is the libpq URL it works on; ``environment`` adds variables; ``folder`` is where it starts
    (its output file is elsewhere); ``program`` is another installation's ``wakeboard``; ``printed`` is a
    descriptor that gets its output instead of the file.
    """
    with tempfile.TemporaryDirectory(prefix="wakeboard-") as place:
        output = Path(place) / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [str(program), *words] if program else _command(words),
                stdin=subprocess.DEVNULL,
                stdout=file if printed is None else printed,
                stderr=subprocess.STDOUT,
                cwd=folder or ROOT,
                env=surroundings(database, environment),
                start_new_session=True,
            )
        started = Wakeboard(process, output)
        try:
            yield started
        finally:
            _end(started)


def run_wakeboard(
    *words: str,
    database: str | None = None,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    input: str | None = None,
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run ``wakeboard <words>`` to its end; return it with its two outputs as text."""
    return subprocess.run(
        _command(words),
        input=input or "",
        capture_output=True,
        text=True,
        cwd=folder or ROOT,
        env=surroundings(database, environment),
        timeout=seconds,
    )


def surroundings(database: str | None, environment: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command: ours, with ``database`` and ``environment`` on top."""
    variables = dict(os.environ) | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": SOURCES}
    variables |= {"WAKEBOARD_DATABASE_URL": database} if database else {}
    return variables | (environment or {})


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "wakeboard", *words]


def _end(started: Wakeboard) -> None:
    """Kill the command with everything below it; what was found living is waited for."""
    family = started.family()
    if started.process.poll() is None:
        started.kill()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=5)
