"""The ledger of effects where there is no table: in the in-process pool and inline. Gone with the process.

Keeps the same three answers as the table (done, being made, unconfirmed) and is safe between threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Literal

from wakeboard.core.process.exits import is_success

# What scope="global" remembers per process; the oldest effect that is done goes first.
PROCESS_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """One effect: 'making' while its function runs, 'unconfirmed' when that was cut short, then 'done'."""

    state: Literal["making", "unconfirmed", "done"]
    run_id: int
    attempt: int
    started_at: datetime
    result: Any = None


class MemoryEffectStore:
    """Effects by key: of one run and its retries, or of the whole process."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: how many keys are kept (None: all)."""
        self._limit = limit
        self._kept: OrderedDict[str, MemoryEffect] = OrderedDict()
        self._lock = Lock()

    def take(self, key: str, run_id: int, attempt: int) -> MemoryEffect | None:
        """Return what is known of `key`. Unless done or being made, it is now this attempt's to make."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or found.state == "unconfirmed":
                self._kept[key] = MemoryEffect("making", run_id, attempt, datetime.now(UTC))
            return found

    def put(self, key: str, effect: MemoryEffect) -> None:
        """Store what became of `key`."""
        with self._lock:
            self._kept[key] = effect
            while self._limit is not None and len(self._kept) > self._limit:
                oldest = next((name for name, each in self._kept.items() if each.state == "done"), None)
                if oldest is None:
                    break
                del self._kept[oldest]

    def done(self, key: str, run_id: int, attempt: int, result: Any) -> None:
        """The effect happened, with `result`."""
        self.put(key, MemoryEffect("done", run_id, attempt, datetime.now(UTC), result))

    @contextmanager
    def making(self, key: str, run_id: int, attempt: int) -> Iterator[None]:
        """The block makes the effect. An ordinary exception: it did not happen; ``sys.exit(0)``: it did; cut
        short (by MemoryError too): nobody knows."""
        started_at = datetime.now(UTC)
        try:
            yield
        except BaseException as error:
            if is_success(error):
                self.done(key, run_id, attempt, None)
            elif isinstance(error, Exception) and not isinstance(error, MemoryError):
                with self._lock:
                    self._kept.pop(key, None)
            else:
                self.put(key, MemoryEffect("unconfirmed", run_id, attempt, started_at))
            raise

    @contextmanager
    def as_it_was(self, key: str, before: MemoryEffect) -> Iterator[None]:
        """The block only looks: when it fails, nothing is known that was not known before."""
        try:
            yield
        except BaseException:
            self.put(key, before)
            raise
