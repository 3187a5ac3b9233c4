"""SIGTERM while what serves is starting: it ends with 0 and leaves nothing, at whatever moment it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.support.faults.invariants import marked
from tests.support.processes import ROOT, Wakeboard, wait_until, wakeboard
from tests.support.workers.worker_processes import SHORT

AT_ONCE = 6
COMMANDS = {
    "worker": (["worker"], 1.5),
    "tick": (["tick"], 1.5),
    "web": (["web", "--bind", "127.0.0.1:0"], 3.0),
    "up": (["up", "--port", "0"], 4.0),
}


def takes_stops(process: Wakeboard) -> bool:
    """Whether it takes SIGTERM in, which it must before it has as much as the database's driver."""
    assert process.process.poll() is None, process.output
    place = Path(f"/proc/{process.pid}")
    has_driver = "libpq" in (place / "maps").read_text()
    caught = next(line for line in (place / "status").read_text().splitlines() if line.startswith("SigCgt"))
    takes = bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    assert takes or not has_driver, "it has loaded the driver, and SIGTERM would still end it with -15"
    return takes


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stop_at_any_moment_of_the_start_ends_with_0(
    shared_database: str, tmp_path: Path, name: str
) -> None:
    words, most_seconds = COMMANDS[name]
    seed = time.time_ns() % 1_000_000
    chance = Random(seed)
    mark = f"{tmp_path}"
    with ExitStack() as stack:
        started = []
        for _ in range(AT_ONCE):
            how = SHORT | {"MARK": mark}
            started.append(stack.enter_context(wakeboard(*words, database=shared_database, environment=how)))
            wait_until(lambda: takes_stops(started[-1]))
        # From the first moment to well behind the last one of the start.
        due = sorted((time.monotonic() + chance.uniform(0, most_seconds), each.pid) for each in started)
        by_pid = {each.pid: each for each in started}
        for at, pid in due:
            wait_until(lambda at=at: time.monotonic() >= at)  # type: ignore[misc]
            by_pid[pid].process.send_signal(signal.SIGTERM)
        ended = [(each.wait(), each.output) for each in started]
        assert {code for code, _ in ended} == {0}, f"seed {seed}: {ended}"
        assert not [output for _, output in ended if "Traceback" in output], ended
        wait_until(lambda: not marked(mark), 5, f"seed {seed}: nothing is left of {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stop_at_the_first_moment_ends_with_0(shared_database: str, name: str) -> None:
    words, _ = COMMANDS[name]
    with wakeboard(*words, database=shared_database, environment=SHORT) as started:
        wait_until(lambda: takes_stops(started))
        assert (started.terminate(), "Traceback" in started.output) == (0, False), started.output


def test_a_stop_that_interrupts_what_makes_a_class_ends_with_0() -> None:
    program = (
        "from wakeboard.config import stop_signals\n"
        "stop_signals.record_early_stops()\n"
        "try:\n"
        "    with stop_signals.interruptible():\n"
        "        exec('import os, signal; os.kill(os.getpid(), signal.SIGTERM); 1 + 1')\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, b"stopped\n"), ended.stderr


def test_a_stop_while_the_database_does_not_let_it_in_ends_with_0(tmp_path: Path) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    with wakeboard("worker", database=nowhere, environment=SHORT) as started:
        wait_until(lambda: takes_stops(started))
        started.wait_for("Worker started.")
        assert started.terminate() == 0, started.output


# A type may be called as a command is that serves.
@pytest.mark.parametrize("job_type", ["mail", "worker"])
def test_other_commands_end_by_the_signal_as_any_program(job_type: str) -> None:
    command = [sys.executable, "-P", "-m", "wakeboard", "enqueue", job_type, "--payload", "-"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as waiting:
        reads = Path(f"/proc/{waiting.pid}/syscall")
        wait_until(lambda: reads.read_text().startswith("0 0x0 "), 10, "it reads its payload")
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(10) == -signal.SIGTERM
