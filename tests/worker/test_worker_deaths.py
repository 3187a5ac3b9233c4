"""What a run's death is called, what it costs, and that it costs nobody else: real workers, real deaths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.factories import Connection, attempts, row
from tests.support.processes import ROOT, Wakeboard, wait_until
from tests.support.workers.worker_processes import (
    a_worker,
    counts,
    insert,
    insert_many,
    wait_until_all,
    wait_until_status,
)
from wakeboard.database import db

DEATHS = {
    "exit": "exited",
    "exit with an error": "exited",
    "segfault": "signal_SIGSEGV",
    "abort": "signal_SIGABRT",
    "bus error": "signal_SIGBUS",
    "kill": "killed",
}
APPETITES = ("little by little", "in another process", "in one piece")


@pytest.fixture(scope="module")
def shared(shared_database: str) -> Iterator[Connection]:
    """A connection to the module's database."""
    with db.connect(shared_database, name="wakeboard test") as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(shared_database: str, shared: Connection) -> Iterator[Wakeboard]:
    """One worker for the module: whatever dies, it must not."""
    with a_worker(shared_database, ready=shared, APP="tests.support.workers.apps.deaths") as started:
        yield started
        assert started.process.poll() is None, "the worker itself died"


def codes(connection: Connection, run_id: int) -> list[tuple[str, str]]:
    """Return outcome and code of each attempt of a run."""
    return [(one["outcome"], one["error_code"]) for one in attempts(connection, run_id)]


@pytest.mark.parametrize(("way", "code"), DEATHS.items())
def test_a_death_has_a_code_of_its_own_and_is_never_a_loop(
    worker: Wakeboard, shared: Connection, way: str, code: str
) -> None:
    neighbours = insert_many(shared, "neighbour", 10)
    run_id = insert(shared, "die", {"way": way})
    neighbours += insert_many(shared, "neighbour", 10)
    wait_until_status(shared, run_id, "dead")
    assert codes(shared, run_id) == [("failed", code)] * 2
    assert row(shared, run_id)["error_code"] == code
    wait_until_all(shared, neighbours, "succeeded")
    assert all(len(attempts(shared, each)) == 1 for each in neighbours), "a neighbour paid for it"


@pytest.mark.parametrize("way", APPETITES)
def test_a_run_that_holds_more_than_its_type_may_is_stopped(
    worker: Wakeboard, shared: Connection, way: str
) -> None:
    run_id = insert(shared, "hungry", {"way": way})
    wait_until_status(shared, run_id, "dead", seconds=30)
    assert codes(shared, run_id) == [("failed", "memory_limit")] * 2
    assert "memory" in row(shared, run_id)["last_error"]
    after = insert(shared, "neighbour")
    wait_until_status(shared, after, "succeeded")


def test_a_run_that_holds_less_than_its_type_may_is_left_alone(worker: Wakeboard, shared: Connection) -> None:
    ids = [insert(shared, "modest") for _ in range(4)]
    wait_until_all(shared, ids, "succeeded", 30)
    assert counts(shared, ids) == {"succeeded": 4}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 64 MB that a process can be put into; skips where this machine permits none."""
    line = next(
        (one for one in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in one), None
    )
    if line is not None:
        parent = Path("/sys/fs/cgroup/memory") / line.rpartition(":")[2].lstrip("/")
        limit, swap = "memory.limit_in_bytes", "memory.swappiness"
    else:
        parent, limit, swap = Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"
    group = parent / f"wakeboard-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(64 * 2**20))
    except OSError as refused:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"This machine lets nobody make a memory group here: {refused}")
    with suppress(OSError):
        (group / swap).write_text("0")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), 10, "the group is empty")
    group.rmdir()


def test_a_run_killed_by_the_kernel_for_lack_of_memory_says_so_and_is_never_a_loop(
    worker: Wakeboard, shared: Connection, small_group: Path
) -> None:
    neighbours = insert_many(shared, "neighbour", 20)
    run_id = insert(shared, "die", {"way": "out of memory", "group": str(small_group)})
    found = wait_until_status(shared, run_id, "dead", seconds=30)
    assert codes(shared, run_id) == [("failed", "out_of_memory")] * 2
    assert "the kernel had run out of memory" in found["last_error"]
    wait_until_all(shared, neighbours, "succeeded")
    assert psutil.Process(worker.pid).is_running()


def test_every_code_of_a_death_is_explained_to_those_who_write_handlers() -> None:
    page = (ROOT / "docs" / "handlers.md").read_text()
    for code in {*DEATHS.values(), "memory_limit", "out_of_memory", "crashed", "descriptors_closed"}:
        shown = "signal_<NAME>" if code.startswith("signal_") else code
        assert f"`{shown}`" in page, f"docs/handlers.md does not explain {shown}"
