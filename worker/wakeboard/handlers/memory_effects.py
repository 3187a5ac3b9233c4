"""Effects where there is no table: of the in-process pool and of ``run_now``. They end with the process.

An effect has the same three states as in the table: done, live and unconfirmed. Safe between threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

# How many keys of scope="global" a process remembers; the oldest effect that is done goes first.
PROCESS_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """An effect that ``attempt`` of ``run_id`` started. ``is_live``: its function is running now."""

    run_id: int
    attempt: int
    started_at: datetime
    is_live: bool = True
    is_done: bool = False
    result_text: str | None = None

    @property
    def result(self) -> Any:
        """The result, decoded anew each time."""
        return None if self.result_text is None else json.loads(self.result_text)


class MemoryEffectStore:
    """Effects by key: of one run and its retries, or of the whole process."""

    def __init__(self, limit: int | None = None) -> None:
        """``limit``: how many keys are kept (None: all)."""
        self.limit = limit
        self.lock = Lock()
        self.entries: dict[str, MemoryEntry] = {}


class MemoryEffect:
    """The effect ``key`` of a store, as one attempt sees it; the methods of ``effects.TableEffect``."""

    def __init__(self, store: MemoryEffectStore, scope: str, key: str, run_id: int, attempt: int) -> None:
        self._store = store
        self.scope = scope
        self._key = key
        self._run_id, self._attempt = run_id, attempt
        self._entry: MemoryEntry | None = None

    def start(self) -> bool:
        """Start the effect; False when it was started before."""
        return self._start_over(None)

    def find(self) -> MemoryEntry | None:
        """Return how the effect stands, None when it was never started."""
        with self._store.lock:
            self._entry = self._store.entries.get(self._key)
        return self._entry

    def check_lease(self) -> None:
        """Without a table an attempt cannot lose its run."""

    def take_over(self) -> bool:
        """Start the effect that ``find`` returned once more; False when another attempt was faster."""
        return self._start_over(self._entry)

    def finish(self, result_text: str | None) -> None:
        """Record that the effect happened."""
        entries, limit = self._store.entries, self._store.limit
        with self._store.lock:
            entries[self._key] = replace(
                entries[self._key], is_live=False, is_done=True, result_text=result_text
            )
            while limit is not None and len(entries) > limit:
                oldest = next((key for key, entry in entries.items() if entry.is_done), None)
                if oldest is None:
                    break
                del entries[oldest]

    def remove(self, _error: Exception) -> None:
        """Record that the effect did not happen."""
        with self._store.lock:
            self._store.entries.pop(self._key, None)

    def release(self) -> None:
        """Leave the effect unconfirmed."""
        with self._store.lock:
            entries = self._store.entries
            entries[self._key] = replace(entries[self._key], is_live=False)

    def _start_over(self, entry: MemoryEntry | None) -> bool:
        with self._store.lock:
            if self._store.entries.get(self._key) is not entry:
                return False
            now = datetime.now(UTC)
            self._store.entries[self._key] = MemoryEntry(self._run_id, self._attempt, now)
            return True
