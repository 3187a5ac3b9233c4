"""Handlers whose start and end a test decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import wait_until
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import JOB_TYPES, job
from wakeboard.queue.handler_connection import close_thread_connection

PATIENCE_SECONDS = 30.0


@pytest.fixture
def registry() -> Iterator[None]:
    """Only what the test registers, and afterwards nothing of it."""
    kept = dict(JOB_TYPES)
    JOB_TYPES.clear()
    yield
    JOB_TYPES.clear()
    JOB_TYPES.update(kept)


@pytest.fixture
def gate(registry: None) -> Iterator[Gate]:
    """Job type "gate": waits until the test opens it, and heeds nothing."""
    made = Gate()
    job("gate")(made)
    yield made
    made.is_open.set()


@pytest.fixture
def table(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`enqueue(None, …)` writes to the test's database, from this thread too."""
    close_thread_connection()
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    yield
    close_thread_connection()


class Gate:
    """A handler that waits until the test opens the gate, and remembers who came."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.is_open = threading.Event()
        self._lock = threading.Lock()
        self.inside = self.most_inside = 0

    def __call__(self, ctx: Context) -> Any:
        """Wait without heeding anything."""
        with self._lock:
            self.came.append(ctx.payload.get("n"))
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        assert self.is_open.wait(PATIENCE_SECONDS)
        with self._lock:
            self.inside -= 1
        return ctx.payload.get("n")

    def until_inside(self, count: int) -> None:
        """Wait until so many handlers stand at the gate."""
        wait_until(lambda: self.inside == count, PATIENCE_SECONDS, f"{count} handlers inside")


def heedful(ctx: Context) -> None:
    """Run until somebody says stop."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        ctx.check()
        time.sleep(0.001)
    raise AssertionError("nobody ever said stop")
