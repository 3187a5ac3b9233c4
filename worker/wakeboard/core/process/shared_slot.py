"""The page of memory that a slot's child and the supervisor share: what runs, until when, what was asked,
what is not yet sent.

One region per slot: eight-byte words (aligned, so each store is whole) and the journal of answers that the
child has not sent yet. It survives the child's death by SIGKILL. Nothing here may wait or make a system call
after the mapping is made.
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
_DONE, _TOTAL, _JOURNAL_LENGTH, _HELD_BEFORE = 8, 9, 10, 11
_TAKEN_BACK = 12
_WORDS = 4096
REGION_BYTES = 256 * 1024
JOURNAL_BYTES = REGION_BYTES - _WORDS
LARGEST = 2**62
NOTHING, ANYTHING = 0, -1

_CLOCK: int = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included (CLOCK_BOOTTIME; the monotonic clock where there is
    none)."""
    return time.clock_gettime_ns(_CLOCK)


def create_memory(name: str, size: int = 0) -> int:
    """Descriptor of `size` bytes of anonymous shared memory, a file without a name."""
    if sys.platform == "linux":
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def create_pages(slots: int) -> int:
    """Descriptor of the shared memory for `slots` slots."""
    return create_memory("wakeboard-slots", slots * REGION_BYTES)


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that a child has started and not ended. `started_ns` on the clock of `boottime_ns`."""

    run_id: int
    lease_epoch: int
    started_ns: int


class SlotPage:
    """One slot's region, seen from either side."""

    __slots__ = ("_bytes", "_map", "_words")

    def __init__(self, fd: int, slot: int) -> None:
        """Map slot number `slot` (from 0) of the memory behind `fd`; the descriptor may be closed
        afterwards."""
        self._map = mmap.mmap(fd, REGION_BYTES, offset=slot * REGION_BYTES)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[:_WORDS].cast("q")

    def begin(self, run_id: int, lease_epoch: int, started_ns: int, deadline_ns: int) -> None:
        """Child: a run starts. The time is stored last, so a reader never sees half a start."""
        words = self._words
        words[_STARTED] = 0
        words[_RUN_ID] = run_id
        words[_EPOCH] = lease_epoch
        words[_DEADLINE] = deadline_ns
        words[_DONE] = words[_TOTAL] = words[_HELD_BEFORE] = 0
        words[_STARTED] = started_ns

    def end(self) -> None:
        """Child: its answer is in the journal; nothing runs. Supervisor: the same for a child that died."""
        self._words[_STARTED] = 0

    def started(self) -> StartedRun | None:
        """What runs now, or None. A start that changes while it is read counts as not there yet."""
        words = self._words
        started_ns = words[_STARTED]
        found = StartedRun(words[_RUN_ID], words[_EPOCH], started_ns)
        return found if started_ns and words[_STARTED] == started_ns else None

    def deadline_ns(self) -> int:
        """The running run's deadline, 0 before the first."""
        return self._words[_DEADLINE]

    def ask_cancel(self, run_id: int, lease_epoch: int) -> None:
        """Supervisor: this run should stop itself at its next `check()`."""
        self._words[_CANCEL_RUN] = 0
        self._words[_CANCEL_EPOCH] = lease_epoch
        self._words[_CANCEL_RUN] = run_id

    def cancel_asked(self, run_id: int, lease_epoch: int) -> bool:
        """True when exactly this run was asked to stop."""
        return self._words[_CANCEL_RUN] == run_id and self._words[_CANCEL_EPOCH] == lease_epoch

    def aim(self, run_id: int, lease_epoch: int = 0) -> None:
        """Supervisor: whom the next SIGTERM is meant for: a run, ANYTHING or NOTHING.

        So a late signal hits no bystander, and one that a service manager sends to every process hits nobody.
        """
        self._words[_STOP_RUN] = 0
        self._words[_STOP_EPOCH] = lease_epoch
        self._words[_STOP_RUN] = run_id

    def hits(self, current: tuple[int, int] | None) -> bool:
        """Child: whether a SIGTERM that came is meant for `current` (run id, epoch)."""
        run_id = self._words[_STOP_RUN]
        return run_id == ANYTHING or (run_id, self._words[_STOP_EPOCH]) == current

    def take_back(self, count: int) -> None:
        """Supervisor: of the first ``count`` assignments that this child was sent none may begin any more."""
        self._words[_TAKEN_BACK] = count

    def taken_back(self) -> int:
        """Child: of how many assignments, counted from its first, none may begin any more."""
        return self._words[_TAKEN_BACK]

    def set_progress(self, done: int, total: int) -> None:
        """Child: `done` of `total`, both 0 … LARGEST."""
        self._words[_TOTAL] = total
        self._words[_DONE] = done

    def progress(self) -> tuple[int, int]:
        """(done, total); (0, 0) when the run reported none."""
        return self._words[_DONE], self._words[_TOTAL]

    def set_held_before(self, held_bytes: int) -> None:
        """Child: what this process holds in memory before the handler of the running run begins."""
        self._words[_HELD_BEFORE] = held_bytes

    def held_before(self) -> int:
        """Bytes that the child held before the running run; 0 while that is not known."""
        return self._words[_HELD_BEFORE]

    def journal_append(self, frame: bytes) -> bool:
        """Child: keep an answer until it is sent; False when the journal is full."""
        start = self._words[_JOURNAL_LENGTH]
        end = start + len(frame)
        if end > JOURNAL_BYTES:
            return False
        self._map[_WORDS + start : _WORDS + end] = frame
        self._words[_JOURNAL_LENGTH] = end
        return True

    def journal(self) -> bytes:
        """The answers not yet sent, as the frames that were appended."""
        length = min(max(self._words[_JOURNAL_LENGTH], 0), JOURNAL_BYTES)
        return bytes(self._bytes[_WORDS : _WORDS + length])

    def journal_clear(self) -> None:
        """The answers are sent, or were read after the child's death."""
        self._words[_JOURNAL_LENGTH] = 0

    def close(self) -> None:
        """Give the mapping back."""
        self._words.release()
        self._bytes.release()
        self._map.close()
