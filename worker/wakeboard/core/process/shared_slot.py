"""The memory that a slot's child and the supervisor share: the current run, its deadline, requests to stop,
progress, and answers not yet sent.

One region per slot: eight-byte words (aligned, so each store is whole) and a journal of answers. The memory
survives the child's death by SIGKILL. Nothing here waits or makes a system call once the region is mapped.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from dataclasses import dataclass

_RUN_ID, _EPOCH, _STARTED, _DEADLINE = 0, 1, 2, 3
_CANCEL_RUN, _CANCEL_EPOCH, _STOP_RUN, _STOP_EPOCH = 4, 5, 6, 7
_DONE, _TOTAL, _JOURNAL_LENGTH, _MEMORY_BEFORE = 8, 9, 10, 11
_REVOKED = 12
_WORDS = 4096
REGION_BYTES = 256 * 1024
JOURNAL_BYTES = REGION_BYTES - _WORDS
LARGEST_PROGRESS = 2**62
NO_RUN, ANY_RUN = 0, -1

_CLOCK: int = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def boottime_ns() -> int:
    """Return nanoseconds since boot, suspended time included.

    CLOCK_BOOTTIME on Linux, the monotonic clock elsewhere.
    """
    return time.clock_gettime_ns(_CLOCK)


def create_memory(name: str, size: int = 0) -> int:
    """Return a descriptor of `size` bytes of anonymous shared memory."""
    if sys.platform == "linux":
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def create_shared_slots(slots: int) -> int:
    """Return a descriptor of the shared memory for `slots` slots."""
    return create_memory("wakeboard-slots", slots * REGION_BYTES)


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that a child is executing. `started_ns`: on the clock of `boottime_ns`."""

    run_id: int
    lease_epoch: int
    started_ns: int


class SharedSlot:
    """One slot's region. The child and the supervisor each map it."""

    __slots__ = ("_bytes", "_map", "_words")

    def __init__(self, fd: int, slot: int) -> None:
        """Map slot number `slot` (from 0) of the memory behind `fd`; the caller may close `fd` afterwards."""
        self._map = mmap.mmap(fd, REGION_BYTES, offset=slot * REGION_BYTES)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[:_WORDS].cast("q")

    def start_run(self, run_id: int, lease_epoch: int, started_ns: int, deadline_ns: int) -> None:
        """Child: a run starts. The time is stored last, so a reader never sees half a start."""
        words = self._words
        words[_STARTED] = 0
        words[_RUN_ID] = run_id
        words[_EPOCH] = lease_epoch
        words[_DEADLINE] = deadline_ns
        words[_DONE] = words[_TOTAL] = words[_MEMORY_BEFORE] = 0
        words[_STARTED] = started_ns

    def end_run(self) -> None:
        """Child: nothing runs; the answer is in the journal. Supervisor: the same for a dead child."""
        self._words[_STARTED] = 0

    def current_run(self) -> CurrentRun | None:
        """Return the current run, or None. A start that changes while it is read counts as no start yet."""
        words = self._words
        started_ns = words[_STARTED]
        current = CurrentRun(words[_RUN_ID], words[_EPOCH], started_ns)
        return current if started_ns and words[_STARTED] == started_ns else None

    def deadline_ns(self) -> int:
        """Return the current run's deadline, 0 before the first run."""
        return self._words[_DEADLINE]

    def request_cancel(self, run_id: int, lease_epoch: int) -> None:
        """Supervisor: this run should stop itself at its next `check()`."""
        self._words[_CANCEL_RUN] = 0
        self._words[_CANCEL_EPOCH] = lease_epoch
        self._words[_CANCEL_RUN] = run_id

    def is_cancel_requested(self, run_id: int, lease_epoch: int) -> bool:
        """Return whether exactly this run was requested to stop."""
        return self._words[_CANCEL_RUN] == run_id and self._words[_CANCEL_EPOCH] == lease_epoch

    def set_stop_target(self, run_id: int, lease_epoch: int = 0) -> None:
        """Supervisor: the next SIGTERM is meant for this run, for ANY_RUN or for NO_RUN.

        So a late signal stops no other run, and a service manager's signal to every process stops none.
        """
        self._words[_STOP_RUN] = 0
        self._words[_STOP_EPOCH] = lease_epoch
        self._words[_STOP_RUN] = run_id

    def is_stop_target(self, run: tuple[int, int] | None) -> bool:
        """Child: return whether a SIGTERM that came is meant for `run` (run id, lease epoch)."""
        run_id = self._words[_STOP_RUN]
        return run_id == ANY_RUN or (run_id, self._words[_STOP_EPOCH]) == run

    def set_revoked_count(self, count: int) -> None:
        """Supervisor: the first `count` assignments sent to this child may not start any more."""
        self._words[_REVOKED] = count

    def revoked_count(self) -> int:
        """Child: return how many assignments, counted from its first, may not start any more."""
        return self._words[_REVOKED]

    def set_progress(self, done: int, total: int) -> None:
        """Child: `done` of `total`, both 0 … LARGEST_PROGRESS."""
        self._words[_TOTAL] = total
        self._words[_DONE] = done

    def progress(self) -> tuple[int, int]:
        """Return (done, total); (0, 0) when the run reported none."""
        return self._words[_DONE], self._words[_TOTAL]

    def set_memory_before(self, held_bytes: int) -> None:
        """Child: the memory of this process, in bytes, before the handler of the current run starts."""
        self._words[_MEMORY_BEFORE] = held_bytes

    def memory_before(self) -> int:
        """Return the child's bytes before the current run; 0 while unknown."""
        return self._words[_MEMORY_BEFORE]

    def append_answer(self, frame: bytes) -> bool:
        """Child: keep an answer in the journal until it is sent; False when the journal is full."""
        start = self._words[_JOURNAL_LENGTH]
        end = start + len(frame)
        if end > JOURNAL_BYTES:
            return False
        self._map[_WORDS + start : _WORDS + end] = frame
        self._words[_JOURNAL_LENGTH] = end
        return True

    def journal(self) -> bytes:
        """Return the answers not yet sent, as the frames that were appended."""
        length = min(max(self._words[_JOURNAL_LENGTH], 0), JOURNAL_BYTES)
        return bytes(self._bytes[_WORDS : _WORDS + length])

    def clear_journal(self) -> None:
        """Empty the journal: its answers were sent, or were read after the child's death."""
        self._words[_JOURNAL_LENGTH] = 0

    def close(self) -> None:
        """Unmap the region."""
        self._words.release()
        self._bytes.release()
        self._map.close()
