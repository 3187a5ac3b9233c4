"""What handlers fork and start has signals as anywhere else, and ends as anywhere else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.factories import Connection, attempts
from tests.support.processes import wait_until
from tests.support.workers.child_processes import Nursery, assign, returned
from tests.support.workers.worker_processes import a_worker, insert
from wakeboard.runtime.processes.protocol import AppTypes, AttemptEnd, ChildExit, Notice

APP = "tests.support.workers.apps.forking"
# Python itself ignores two; whoever started the tests in the background of a shell, others.
PYTHONS = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
IGNORED = sum(
    1 << (number - 1) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
)
BORN = IGNORED & ~PYTHONS
PLAIN = {"SigIgn": BORN, "SigBlk": 0}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One slot, ready; its child is the same one unless a run ends it."""
    nursery = Nursery(1, app=APP, patience=60).start()
    yield nursery
    nursery.stop()


def test_a_process_that_a_handler_forked_ends_when_it_is_asked_to(nursery: Nursery) -> None:
    assert returned(nursery, "terminate_at_once") == [-signal.SIGTERM] * 20


def test_pools_of_processes_end(nursery: Nursery) -> None:
    assert returned(nursery, "pools", {"pools": 40}) == 40


def test_a_program_hears_a_ctrl_c_and_a_hangup_that_its_handler_sends(nursery: Nursery) -> None:
    assert returned(nursery, "interrupt") == [-signal.SIGINT, -signal.SIGHUP]


def test_programs_find_their_signals_as_they_were_born(nursery: Nursery) -> None:
    seen = returned(nursery, "programs")
    # What Python ignores `execv` takes along.
    assert seen.pop("fork") in (PLAIN, {"SigIgn": BORN | PYTHONS, "SigBlk": 0})
    assert seen == {"import": PLAIN, "run": PLAIN, "hook": PLAIN}


def test_programs_find_their_signals_as_they_were_born_where_children_are_started_afresh() -> None:
    nursery = Nursery(1, app="tests.support.workers.apps.forking_threaded")
    nursery.children.start()
    try:
        nursery.wait_for(Notice)
        nursery.wait_for(AppTypes)
        seen = returned(nursery, "programs")
        assert [seen[where] for where in ("import", "run", "hook")] == [PLAIN] * 3
    finally:
        nursery.stop()


@pytest.mark.parametrize(
    ("how", "status"), [("returns", 0), ("nothing", 0), ("three", 3), ("words", 1), ("error", 1)]
)
def test_a_forked_process_that_leaves_its_handler_ends_with_its_own_status(
    nursery: Nursery, how: str, status: int
) -> None:
    [finished] = nursery.run(assign("forks_that_end", {"how": how}))
    assert finished.answer.result == str(status)
    said = {"words": "said at the end", "error": "ValueError: of the forked process"}.get(how, "")
    assert said in (finished.answer.output_tail or "")


def test_a_forked_process_has_neither_the_workers_signals_nor_its_wire(nursery: Nursery) -> None:
    assert returned(nursery, "fork_shows") == "True True 0"


def test_a_handler_of_ones_own_goes_along_into_the_fork(nursery: Nursery) -> None:
    assert returned(nursery, "own_term") == 42


def test_stops_that_come_to_every_process_of_the_worker_end_none(nursery: Nursery) -> None:
    returned(nursery, "pools", {"pools": 1})
    fork_server = nursery.children._control.process
    assert fork_server is not None
    for pid in (nursery.pid(), fork_server.pid):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    assert returned(nursery, "pools", {"pools": 1}) == 1
    assert not [event for event in nursery.events if isinstance(event, ChildExit | AttemptEnd)]


@pytest.mark.parametrize("ignored", [set(), {signal.SIGHUP}], ids=["cron", "nohup"])
def test_a_command_finds_its_signals_as_its_worker_was_born_with_them(
    database: str, connection: Connection, ignored: set[signal.Signals]
) -> None:
    script = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
    born = BORN | sum(1 << (number - 1) for number in ignored)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        with a_worker(database, ready=connection, ALLOW_COMMANDS=1) as worker:
            for _ in range(2):
                run_id = insert(connection, "command", {"argv": ["/bin/sh", "-c", script]})
                (attempt,) = wait_until(partial(attempts, connection, run_id), 30, "the run ends")
                lines = str(attempt["output_tail"]).splitlines()
                assert [int(line.split()[1], 16) for line in lines] == [0, born], attempt
                # Once more with a fork server that was started afresh.
                worker.family()[0].kill()
                worker.wait_for("starting another")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
