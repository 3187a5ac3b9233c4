"""The log: nobody reads it, whoever read it is gone, its disk is full."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest

from tests.support.factories import row
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import ADMIN
from tests.support.faults.printed_lines import LINE, LINES
from tests.support.http_client import JSON, Visitor
from tests.support.processes import Wakeboard, free_port, wait_until
from wakeboard.accounts.tokens import create_token
from wakeboard.core.states import Role

Measured = Callable[[str], None]
TALKATIVE = "tests.support.faults.apps.talkative"
# A stop waits a second for whoever reads the log, `up` once more for each of its processes.
STOP_SECONDS = 10.0
DROPPED = re.compile(r"WARNING ([\d,]+) log lines were dropped because (.+)\.")


class Pipe:
    """A small pipe that is full from the start, and that nobody reads until ``wake``."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.into, False)
        self.filled = 0
        with suppress(BlockingIOError):
            while True:
                self.filled += os.write(self.into, b"." * 4095 + b"\n")
        os.set_blocking(self.into, True)
        self.read = b""
        self._reader = Thread(target=self._read, daemon=True)

    @property
    def text(self) -> str:
        """What was read, without what filled the pipe."""
        return self.read[self.filled :].decode()

    def wake(self) -> None:
        """Read all that comes from now on, until nobody can write any more."""
        self._reader.start()

    def _read(self) -> None:
        while data := os.read(self.out, 65536):
            self.read += data

    def close(self) -> None:
        """Close the end that is written; the reader, if it woke up, has read all when nobody else has it."""
        if self.into >= 0:
            os.close(self.into)
            self.into = -1
        if self._reader.ident is not None:
            self._reader.join(10)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe whose reader sleeps."""
    made = Pipe()
    yield made
    made.close()
    os.close(made.out)


def stop(process: Wakeboard) -> float:
    """Ask a process to end, with 0 and within STOP_SECONDS; return the seconds it took."""
    began = time.monotonic()
    code, took = process.terminate(), time.monotonic() - began
    assert code == 0, f"it ended with {code}"
    assert took < STOP_SECONDS
    return took


def work(house: House, count: int) -> int:
    """Have runs done that succeed, that fail first and that time out; return how many."""
    hangs = [house.enqueue("hang", {"way": way}) for way in ("deaf", "asleep")]
    house.enqueue_many("note", count)
    house.enqueue_many("unsteady", 20, {"failures": 2})
    house.settle(60)
    assert {row(house.connection, each)["error_code"] for each in hangs} == {"timed_out"}
    return count + 20 + len(hangs)


@fault(
    "F82",
    injected="a worker's log goes to a pipe that nobody reads; its handlers print 6 MB when imported",
    expected="all runs are done once, timeouts hold, SIGTERM ends it with 0 in 10 s; a reader that wakes up "
    "is told how many lines were dropped, and no line is torn",
)
def test_a_worker_whose_log_nobody_reads_works_on(
    house: House, scale: Scale, measured: Measured, pipe: Pipe
) -> None:
    stuck = house.start("worker", printed=pipe.into, APP=TALKATIVE)
    house.wait_until_registered(stuck)
    done = work(house, scale.times(200, 20_000))
    # Beside it another one would take over what is left for too long.
    house.worker()
    done += work(house, scale.times(200, 20_000))
    pipe.wake()
    wait_until(lambda: DROPPED.search(pipe.text), 30, "the reader is told what was dropped")
    after = house.enqueue_many("note", 100)
    house.settle(30)
    seconds = stop(stuck)
    pipe.close()
    lines = pipe.text.splitlines(keepends=True)
    printed = [line for line in lines if "printed while" in line]
    assert printed == [LINE.format(number) for number in range(len(printed))]
    dropped = sum(int(found[1].replace(",", "")) for found in DROPPED.finditer(pipe.text))
    assert len(printed) < LINES and len(printed) + dropped >= LINES
    assert set(DROPPED.findall(pipe.text)) and "Worker stopped." in lines[-1]
    told = {int(found) for found in re.findall(r" succeed run=(\d+)", pipe.text)}
    assert told & set(after), "what is logged once somebody reads is read"
    house.check()
    measured(f"{done + 100} runs, {dropped:,} lines dropped and told; stopped in {seconds:.1f} s")


@fault(
    "F82",
    injected="a worker's log goes to a pipe that nobody reads, until its end",
    expected="all runs are done once, SIGTERM ends it with 0 in 10 s",
)
def test_a_worker_whose_log_nobody_ever_reads_ends(
    house: House, scale: Scale, measured: Measured, pipe: Pipe
) -> None:
    stuck = house.start("worker", printed=pipe.into)
    house.wait_until_registered(stuck)
    done = work(house, scale.times(200, 5_000))
    seconds = stop(stuck)
    house.check()
    measured(f"{done} runs; stopped in {seconds:.1f} s")


@fault(
    "F83",
    injected="the output of `web`, and of `up`, goes to a pipe that nobody reads",
    expected="runs are done, timeouts hold, pages and verbs answer, SIGTERM ends it with 0 in 10 s",
)
@pytest.mark.parametrize("command", ["web", "up"])
def test_what_serves_goes_on_when_nobody_reads_what_it_prints(
    house: House, scale: Scale, measured: Measured, pipe: Pipe, command: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    stuck = house.start(command, "--bind", address, printed=pipe.into)
    visitor = Visitor(f"http://{address}", create_token(house.connection, ADMIN, "operator", Role.OPERATOR))

    wait_until(visitor.is_answered, 60, "the dashboard answers")
    if command == "web":
        house.worker()
    done = work(house, scale.times(20, 5_000))
    verbs = scale.times(20, 400)
    later = [house.enqueue("note", run_at="2100-01-01") for _ in range(verbs)]
    slowest = 0.0
    for run_id in later:
        began = time.monotonic()
        reply = visitor.post(f"/runs/{run_id}/cancel", headers=JSON)
        assert reply.code == 200, reply
        slowest = max(slowest, time.monotonic() - began)
    house.wait_until_status(later, "cancelled")
    seconds = stop(stuck)
    house.check()
    measured(f"{command}: {done} runs, {verbs} verbs, slowest {slowest:.2f} s; stopped in {seconds:.1f} s")


@fault(
    "F84",
    injected="whoever read the worker's log is gone, or the disk it is written to is full",
    expected="all runs are done once, SIGTERM ends it with 0",
)
@pytest.mark.parametrize("place", ["gone", "full"])
def test_a_log_that_cannot_be_written_stops_no_work(
    house: House, scale: Scale, measured: Measured, place: str
) -> None:
    if place == "full":
        into = os.open("/dev/full", os.O_WRONLY)
    else:
        out, into = os.pipe()
        os.close(out)
    stuck = house.start("worker", printed=into, APP=TALKATIVE)
    os.close(into)
    house.wait_until_registered(stuck)
    done = work(house, scale.times(200, 20_000))
    seconds = stop(stuck)
    house.check()
    measured(f"{place}: {done} runs; stopped in {seconds:.1f} s")
