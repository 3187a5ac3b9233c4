"""A child that ends in order does what its libraries have left for the end, within a bound, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers.child_processes import Nursery, assign, lives
from wakeboard.core import hooks
from wakeboard.runtime.processes.protocol import AttemptEnd, ChildExit, Notice

APP = "tests.support.workers.apps.exit_hooks"
LAST = ["hook", "async hook True", "atexit of the import"]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which everything arrives."""
    monkeypatch.setenv("SHIPPED", str(tmp_path / "shipped"))
    return tmp_path / "shipped"


@pytest.fixture
def start(shipped: Path) -> Iterator[Callable[..., Nursery]]:
    """Starts a nursery of one slot, which ends with the test."""
    started: list[Nursery] = []

    def begin(**settings: Any) -> Nursery:
        started.append(Nursery(1, app=APP, **settings).start())
        return started[-1]

    yield begin
    for each in started:
        each.stop()


def lines(shipped: Path) -> list[str]:
    return shipped.read_text().splitlines()


def end(nursery: Nursery, seconds: float = 5.0) -> None:
    """End the children as a worker does that stops."""
    pid = nursery.pid()
    nursery.children.end_idle_and_wait(seconds)
    assert not lives(pid)


@pytest.mark.parametrize("how", ["capture", "keep"])
@pytest.mark.parametrize("fail", [False, True])
def test_nothing_is_lost_that_a_library_sends_from_a_thread_or_at_exit(
    start: Callable[..., Nursery], shipped: Path, how: str, fail: bool
) -> None:
    nursery = start()
    for _ in range(3):
        [finished] = nursery.run(assign("capture", {"how": how, "events": 5, "fail": fail}))
        assert finished.answer.kind == ("raised" if fail else "returned")
        if how == "capture":
            nursery.wait_for(ChildExit)
    nursery.children.end_idle_and_wait(5)
    sent = [line for line in lines(shipped) if line.startswith("event")]
    assert len(sent) == len(set(sent)) == 15


def test_nothing_is_lost_when_a_run_is_stopped(start: Callable[..., Nursery], shipped: Path) -> None:
    nursery = start()
    nursery.begin(assign("capture", {"how": "capture", "events": 8, "wait": True}))
    nursery.wait_until(lambda: shipped.exists() and "captured" in lines(shipped))
    nursery.children.terminate(0)
    nursery.wait_for(ChildExit)
    assert nursery.wait_for(AttemptEnd).answer.kind == "cancelled"
    assert len([line for line in lines(shipped) if line.startswith("event")]) == 8


def test_nothing_is_lost_when_a_process_has_had_its_share_of_runs(
    start: Callable[..., Nursery], shipped: Path
) -> None:
    nursery = start(recycle_runs=1)
    nursery.run(assign("capture", {"how": "keep", "events": 3}))
    nursery.wait_for(ChildExit)
    assert len([line for line in lines(shipped) if line.startswith("event")]) == 3


def test_the_end_is_pythons_own_in_its_order_and_hooks_come_first(
    start: Callable[..., Nursery], shipped: Path
) -> None:
    nursery = start()
    nursery.run(assign("remember_loop"), assign("register"), assign("log"), assign("use_pool"))
    died = nursery.wait_for(ChildExit)
    assert died.is_clean
    assert lines(shipped) == [*LAST[:2], "pooled", "atexit of a run", LAST[2], "logged"]
    assert not [event for event in nursery.events if isinstance(event, Notice)]


def test_an_idle_process_ends_in_order_too(start: Callable[..., Nursery], shipped: Path) -> None:
    nursery = start()
    nursery.run(assign("nothing"))
    end(nursery)
    assert lines(shipped) == LAST


def test_what_comes_when_a_process_has_been_let_go_comes_back_unstarted(
    start: Callable[..., Nursery], shipped: Path
) -> None:
    nursery = start()
    nursery.run(assign("nothing"))
    nursery.children.end_idle()
    late = assign("nothing")
    died = nursery.die(late)
    assert (died.is_clean, died.unstarted) == (True, [late])
    assert nursery.run(late)[0].answer.kind == "returned"


def test_a_process_with_a_run_is_not_let_go(start: Callable[..., Nursery], shipped: Path) -> None:
    nursery = start()
    nursery.begin(assign("capture", {"how": "keep", "events": 1, "wait": True}))
    began = time.monotonic()
    nursery.children.end_idle_and_wait(30)
    assert time.monotonic() - began < 10
    assert lives(nursery.pid())


def test_a_killed_process_does_nothing_more(start: Callable[..., Nursery], shipped: Path) -> None:
    nursery = start()
    nursery.run(assign("nothing"))
    nursery.children.kill(0)
    assert not nursery.wait_for(ChildExit).is_clean
    assert not shipped.exists()


def test_a_thread_of_a_run_that_returned_is_waited_for_after_the_answer(
    start: Callable[..., Nursery], shipped: Path
) -> None:
    nursery = start()
    [finished] = nursery.run(assign("leave_thread", {"seconds": 0.5}))
    assert finished.answer.kind == "returned"
    assert "thread" not in lines(shipped), "the answer waits for nothing"
    nursery.wait_for(ChildExit)
    assert "thread" in lines(shipped)


@pytest.mark.parametrize("daemon", [False, True])
def test_the_answer_of_a_failed_run_comes_when_none_of_its_threads_is_at_work(
    start: Callable[..., Nursery], shipped: Path, daemon: bool
) -> None:
    nursery = start(child_exit_seconds=0.5)
    child = nursery.pid() if nursery.run(assign("nothing")) else 0
    [finished] = nursery.run(assign("leave_thread", {"seconds": 60, "fail": True, "daemon": daemon}))
    assert finished.answer.error_code == "ValueError"
    assert not lives(child)


@pytest.mark.parametrize("does", ["hangs", "hangs in C"])
def test_an_end_that_takes_too_long_is_cut_and_told(
    start: Callable[..., Nursery], shipped: Path, does: str
) -> None:
    nursery = start(child_exit_seconds=0.3)
    nursery.run(assign("set_hook", {"does": does}))
    began = time.monotonic()
    end(nursery, 10)
    assert time.monotonic() - began < 5
    assert lines(shipped) == ["hook"]
    assert "WAKEBOARD_CHILD_EXIT_SECONDS" in nursery.wait_for(Notice).message


@pytest.mark.parametrize(
    ("does", "said"), [("fails", "ValueError: the hook's own"), ("exits", "SystemExit: 3")]
)
def test_a_hook_that_fails_is_told_and_keeps_the_others_from_nothing(
    start: Callable[..., Nursery], shipped: Path, does: str, said: str
) -> None:
    nursery = start()
    nursery.run(assign("set_hook", {"does": does}))
    end(nursery)
    assert lines(shipped) == LAST
    assert said in nursery.wait_for(Notice).message


def test_without_time_for_it_nothing_is_done_at_the_end(start: Callable[..., Nursery], shipped: Path) -> None:
    nursery = start(child_exit_seconds=0)
    nursery.run(assign("nothing"))
    end(nursery)
    assert not shipped.exists()


def test_a_hook_is_what_can_be_called_without_arguments_and_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hooks, "ON_CHILD_EXIT", [])

    def goodbye(name: str = "all") -> str:
        return name

    assert hooks.on_child_exit(goodbye) is goodbye
    hooks.on_child_exit(goodbye)
    assert [goodbye] == hooks.ON_CHILD_EXIT
    with pytest.raises(TypeError, match="without arguments"):
        hooks.on_child_exit(lambda name: name)  # type: ignore[arg-type, misc]
