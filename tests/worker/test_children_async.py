"""All async runs of a child share one event loop, and none finds anything of another one in it."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.workers.child_processes import Nursery, assign, nursery, returned
from wakeboard.core.outcome import AttemptResult
from wakeboard.runtime.processes.protocol import AttemptEnd, ChildExit

APP = "tests.support.workers.apps.async_handlers"

__all__ = ["nursery"]


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


@pytest.fixture
def port() -> Iterator[int]:
    """A server that says what it hears."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_client_that_a_module_keeps_works_in_every_run(nursery: Nursery, port: int) -> None:
    found = [returned(nursery, "client", {"port": port}) for _ in range(5)]
    assert found == [["ping\n", nursery.pid()]] * 5


@pytest.mark.parametrize("before", ["tasks_left", "plain_run", "in_thread", "plain_loop"])
@pytest.mark.parametrize("close", [False, True])
def test_plain_handlers_get_an_event_loop_after_whatever_ran_before(
    nursery: Nursery, before: str, close: bool
) -> None:
    returned(nursery, before, {"close": close})
    for _ in range(2):
        assert returned(nursery, "plain_loop", {"close": close}) == ["worked", nursery.pid()]
    returned(nursery, before, {"close": close})


def test_tasks_that_a_run_left_have_ended_before_its_answer(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    pid = returned(nursery, "leaves_tasks", {"file": str(file)})
    assert file.read_text() == "ended\n" * 3
    assert returned(nursery, "tasks_left") == [1, [True] * 4, pid]


def test_a_generator_that_a_run_left_in_the_middle_is_closed(nursery: Nursery, tmp_path: Path) -> None:
    returned(nursery, "leaves_generator", {"file": str(tmp_path / "notes")})
    assert (tmp_path / "notes").read_text() == "closed\n"


def test_a_loop_that_was_closed_is_replaced(nursery: Nursery) -> None:
    pid = returned(nursery, "breaks_loop", {"how": "closes"})
    returned(nursery, "closes_loop")
    assert returned(nursery, "tasks_left") == [1, [], pid]


def test_a_loop_that_was_stopped_fails_its_run_and_works_for_the_next_one(nursery: Nursery) -> None:
    stopped, after = nursery.run(assign("breaks_loop", {"how": "stops"}), assign("tasks_left"))
    assert stopped.answer.error_code == "RuntimeError"
    assert json.loads(after.answer.result or "") == [1, [], nursery.pid()]


def test_a_loop_whose_descriptors_a_run_closed_is_replaced(nursery: Nursery) -> None:
    nursery.run(assign("breaks_loop", {"how": "descriptors"}))
    pid = nursery.pid()
    assert returned(nursery, "tasks_left") == [1, [], pid]


def test_threads_of_a_run_cost_no_child(nursery: Nursery) -> None:
    found = [returned(nursery, "in_thread") for _ in range(5)]
    assert found == [["asyncio", nursery.pid()]] * 5


@pytest.mark.parametrize("task", [False, True])
@pytest.mark.parametrize(("status", "code"), [(0, None), (3, "exit_3")])
def test_an_exit_within_a_coroutine_ends_the_run_with_its_status(
    nursery: Nursery, task: bool, status: int, code: str | None
) -> None:
    left, after = nursery.run(
        assign("leaves_as_program", {"status": status, "task": task}), assign("tasks_left")
    )
    assert left.answer.error_code == code
    assert left.answer.output_tail is None, "and asyncio tells nothing of it"
    assert json.loads(after.answer.result or "") == [1, [], nursery.pid()]


def stopped(nursery: Nursery, how: str, file: Path) -> AttemptResult:
    """How a run answers that is told to stop in the state `how`."""
    nursery.begin(assign("stopped", {"how": how, "file": str(file)}))
    wait_until(file.exists, 20, "the run has begun")
    if how == "waits":
        state = Path(f"/proc/{nursery.pid()}/wchan")
        wait_until(lambda: "poll" in state.read_text() or not state.read_text().strip("0"), 20)
    nursery.children.terminate(0)
    answer = nursery.wait_for(AttemptEnd).answer
    assert nursery.wait_for(ChildExit).running is None
    return answer


@pytest.mark.parametrize("how", ["waits", "spins", "group", "background", "callback"])
def test_a_stop_reaches_a_coroutine_wherever_it_is_and_lets_it_tidy(
    nursery: Nursery, tmp_path: Path, how: str
) -> None:
    answer = stopped(nursery, how, tmp_path / "notes")
    assert (answer.kind, answer.error_code) == ("cancelled", "cancelled")
    assert (tmp_path / "notes").read_text() == "begun\ntidied\n"


def test_a_coroutine_may_finish_although_it_was_told_to_stop(nursery: Nursery, tmp_path: Path) -> None:
    assert stopped(nursery, "stubborn", tmp_path / "notes").result == '"finished anyway"'


def test_a_stop_does_not_wait_for_a_thread(nursery: Nursery, tmp_path: Path) -> None:
    nursery.begin(assign("in_endless_thread", {"file": str(tmp_path / "notes")}))
    wait_until((tmp_path / "notes").exists, 20, "the run has begun")
    nursery.children.terminate(0)
    assert nursery.wait_for(AttemptEnd).answer.kind == "cancelled"


def test_a_process_that_a_coroutine_forks_leaves_the_loop_alone(nursery: Nursery, port: int) -> None:
    returned(nursery, "client", {"port": port})
    assert returned(nursery, "forks") == nursery.pid()
    assert returned(nursery, "client", {"port": port}) == ["ping\n", nursery.pid()]
    assert os.getpid() != nursery.pid()
