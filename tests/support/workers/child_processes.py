"""Real children for a test, with the loop a supervisor would have around them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.processes import SOURCES
from wakeboard.core.outcome import PLAIN
from wakeboard.core.process.assignment import Assignment
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.protocol import AppTypes, AttemptEnd, ChildExit, Event, SuccessBatch

APP = "tests.support.workers.apps.misbehaving"
_ids = itertools.count(2**31)
_Event = TypeVar("_Event")


def assign(
    job_type: str, payload: Any = None, *, timeout: float = 60.0, text: str | None = None
) -> Assignment:
    """One run of `job_type`; `text` is a payload that is sent as it stands."""
    body = json.dumps({} if payload is None else payload) if text is None else text
    return Assignment(
        next(_ids), 7, 3, job_type, body, "a key", 5, "2026-03-29T02:30:00+00:00", None, timeout, None, "w1"
    )


class Nursery:
    """`Children` and their selector; every wait is for a condition and ends with an error after `patience`
    seconds."""

    def __init__(self, slots: int = 2, *, app: str = APP, patience: float = 20.0, **settings: Any) -> None:
        self.children = Children(slots, app=app, environment={"PYTHONPATH": SOURCES}, **settings)
        self.events: list[Event] = []
        self._patience = patience
        self._selector = selectors.DefaultSelector()
        self.children.register(self._selector)

    def start(self) -> Nursery:
        """Start the fork server and wait until it is ready."""
        self.children.start()
        self.wait_for(AppTypes)
        return self

    def stop(self) -> None:
        """Stop everything and close this loop."""
        self.children.kill_all()
        self._selector.close()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Run the loop until `condition()` is true."""
        end = time.monotonic() + self._patience
        while not condition():
            assert time.monotonic() < end, f"waited in vain; so far: {self.events[-5:]}"
            self._selector.select(0.02)
            self.events += one_by_one(self.children.collect())

    def wait_for(self, kind: type[_Event]) -> _Event:
        """The next event of `kind`, taken out of `events`."""
        self.wait_until(lambda: any(isinstance(event, kind) for event in self.events))
        found = next(event for event in self.events if isinstance(event, kind))
        self.events.remove(found)
        return found

    def run(self, *assignments: Assignment, slot: int = 0) -> list[AttemptEnd]:
        """Send the assignments and wait until each is answered."""
        self.children.send(slot, assignments)
        return [self.wait_for(AttemptEnd) for _ in assignments]

    def begin(self, *assignments: Assignment, slot: int = 0) -> None:
        """Send the assignments and wait until the first has started; its handler may begin a moment later."""
        self.children.send(slot, assignments)
        first = assignments[0].run_id
        self.wait_until(lambda: (now := self.children.current(slot)) is not None and now.run_id == first)

    def die(self, *assignments: Assignment, slot: int = 0) -> ChildExit:
        """Send the assignments and wait for the child's death."""
        self.children.send(slot, assignments)
        return self.wait_for(ChildExit)

    def pid(self, slot: int = 0) -> int:
        """The process id of the slot's child."""
        self.wait_until(lambda: self.children.pid(slot))
        pid = self.children.pid(slot)
        assert pid is not None
        return pid


@pytest.fixture
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """One slot with the handlers of the test module's APP, ready."""
    made = Nursery(1, app=request.module.APP).start()
    yield made
    made.stop()


def returned(nursery: Nursery, job_type: str, payload: Any = None) -> Any:
    """Return what a run returns, read."""
    [finished] = nursery.run(assign(job_type, payload))
    assert finished.answer.kind == "returned", finished.answer
    return json.loads(finished.answer.result or "null")


def one_by_one(events: list[Event]) -> Iterator[Event]:
    """The same events, a AttemptEnd for each attempt that returned."""
    for event in events:
        if isinstance(event, SuccessBatch):
            for assignment, started_ns, finished_ns in event.attempts:
                yield AttemptEnd(event.slot, assignment, PLAIN["returned"], started_ns, finished_ns)
        else:
            yield event


def lives(pid: int) -> bool:
    """True for a process that is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those of `pids` that still live after at most `seconds`."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if lives(pid)]) and time.monotonic() < end:
        time.sleep(0.005)
    return left


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, zombies included."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    unseen = [pid]
    while unseen:
        below = parents.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def open_files() -> dict[str, str]:
    """What each descriptor of this process leads to, those of forgotten objects apart."""
    gc.collect()
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[entry.name] = str(entry.readlink())
    return found
