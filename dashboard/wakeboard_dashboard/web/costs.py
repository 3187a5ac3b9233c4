"""What the dashboard itself costs: how long its pages take, in memory that its processes share.

Each process has a place of its own in memory that the first one made; in it a cell for each page and each
five minutes of the last hour. So every process can tell of all of them, and nothing grows. No database here.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

PLACES = 8
MOST_PAGES = 320
STEP_SECONDS = 300
CELLS = 12
BUCKETS = 40
# The kernel counts a process's start from its own, which moves a little when the clock is set.
SAME_SECONDS = 5
# A bucket is a quarter wider than the one before: 1 ms, 1.26 ms … 8.2 s and more.
LIMITS_MS = tuple(2 ** (place / 3) for place in range(BUCKETS))

# pid, its start as the kernel knows it, and by the clock; what it serves now, database connections in use;
# answers and errors since; the fingerprint of the names of pages.
_HEAD = struct.Struct("<IddIIQQI")
_HEAD_BYTES = 64
# Which five minutes, answers, refused, failed, statements; milliseconds: all, in the database, the slowest.
_CELL = struct.Struct(f"<5I3d{BUCKETS}I96s")
_STEP = struct.Struct("<I")
# Then a byte for each page that says whether its cells are in use: what nobody has used takes no memory.
_CELLS_AT = _HEAD_BYTES + MOST_PAGES
_PAGE_BYTES = CELLS * _CELL.size
_PLACE_BYTES = _CELLS_AT + MOST_PAGES * _PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Spent:
    """What one request cost: its answer's code, seconds, those in the database, statements, its address."""

    status: int
    seconds: float
    database_seconds: float
    statements: int
    address: str


@dataclass(slots=True)
class Page:
    """What one page cost in the last hour, over all processes; milliseconds."""

    name: str
    answers: int = 0
    refused: int = 0
    failed: int = 0
    statements: int = 0
    all_ms: float = 0.0
    database_ms: float = 0.0
    slowest_ms: float = 0.0
    slowest_address: str = ""
    slowest_pid: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def percentile(self, part: float) -> float | None:
        """Return the milliseconds that ``part`` of the answers did not exceed, as a limit that holds."""
        left = part * self.answers
        for limit, count in zip(LIMITS_MS, self.buckets, strict=True):
            left -= count
            if self.answers and left <= 0:
                return min(limit, self.slowest_ms)
        return self.slowest_ms if self.answers else None


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the dashboard on this host; ``answers``, ``failed`` since ``started_at`` (epoch)."""

    pid: int
    started_at: float
    busy: int
    connections: int
    answers: int
    failed: int
    memory_bytes: int
    is_this: bool


def shared_memory() -> mmap.mmap:
    """Return memory for PLACES processes, shared by all that are forked from this one."""
    return mmap.mmap(-1, PLACES * _PLACE_BYTES)


class Costs:
    """What all processes remember, and this one's place in it; until ``share`` it is this process's alone."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names`` are the pages, in an order that all processes have; the last one takes what is none."""
        self._names = [*names[: MOST_PAGES - 1], names[-1]] if len(names) > MOST_PAGES else list(names)
        self._index = {name: place for place, name in enumerate(self._names)}
        self._fingerprint = zlib.crc32("\n".join(self._names).encode())
        self._lock = threading.Lock()
        self._places = 1
        self._memory = mmap.mmap(-1, _PLACE_BYTES)
        self._begin(0)

    def share(self, memory: mmap.mmap, number: int) -> None:
        """Move into ``memory`` of ``shared_memory``; ``number`` is another one in each process."""
        with self._lock:
            self._memory, self._places = memory, PLACES
            order = [(number + step) % PLACES for step in range(PLACES)]
            free = [place for place in order if self._living(place) is None]
            self._begin((free or order)[0])

    def _begin(self, place: int) -> None:
        """Take ``place``, whoever had it."""
        self._start = place * _PLACE_BYTES
        self._memory[self._start : self._start + _CELLS_AT] = bytes(_CELLS_AT)
        self._pid, self._born = os.getpid(), psutil.Process().create_time()
        self._began, self._busy, self._connections, self._answers, self._failed = time.time(), 0, 0, 0, 0
        self._write_head()

    def _write_head(self) -> None:
        numbers = (self._busy, self._connections, self._answers, self._failed, self._fingerprint)
        _HEAD.pack_into(self._memory, self._start, self._pid, self._born, self._began, *numbers)

    def begin(self) -> None:
        """Count a request that is being served."""
        with self._lock:
            self._busy += 1
            self._write_head()

    def end(self, name: str, spent: Spent, connections: int = 0) -> None:
        """Count a request to the page ``name`` that was answered."""
        number = self._index.get(name, len(self._names) - 1)
        step = int(time.time()) // STEP_SECONDS
        with self._lock:
            cell = self._cells_of(number) + step % CELLS * _CELL.size
            self._busy -= 1
            self._answers += 1
            self._failed += spent.status >= 500
            self._connections = connections
            self._write_head()
            _CELL.pack_into(self._memory, cell, *self._added(cell, step, spent))

    def _cells_of(self, number: int) -> int:
        """Return where the cells of a page begin; empty when this process has not used them before."""
        use, at = self._start + _HEAD_BYTES + number, self._start + _CELLS_AT + number * _PAGE_BYTES
        if not self._memory[use]:
            self._memory[at : at + _PAGE_BYTES] = bytes(_PAGE_BYTES)
            self._memory[use] = True
        return at

    def _added(self, cell: int, step: int, spent: Spent) -> list[object]:
        """Return the values of the cell at ``cell`` with one more answer in it."""
        old = _CELL.unpack_from(self._memory, cell)
        if old[0] != step:
            old = (step, *[0] * 4, *[0.0] * 3, *[0] * BUCKETS, b"")
        _, answers, refused, failed, statements, all_ms, database_ms, slowest, *buckets, address = old
        took = spent.seconds * 1000
        buckets[next((place for place, limit in enumerate(LIMITS_MS) if took <= limit), BUCKETS - 1)] += 1
        if took > slowest:
            slowest, address = took, spent.address.encode("utf-8", "replace")[:96]
        return [
            step, answers + 1, refused + (400 <= spent.status < 500), failed + (spent.status >= 500),
            statements + spent.statements, all_ms + took, database_ms + spent.database_seconds * 1000,
            slowest, *buckets, address,
        ]  # fmt: skip

    def processes(self) -> list[Process]:
        """Return the processes that live, this one first."""
        found = [each for place in range(self._places) if (each := self._living(place))]
        return sorted(found, key=lambda each: (not each.is_this, each.started_at))

    def pages(self) -> list[Page]:
        """Return what each page cost in the last hour in the processes that live, the dearest first."""
        oldest = int(time.time()) // STEP_SECONDS - CELLS + 1
        pages: dict[int, Page] = {}
        for place in range(self._places):
            living = self._living(place)
            if living is not None:
                for number, cell in self._cells(place, oldest):
                    _add(pages.setdefault(number, Page(self._names[number])), cell, living.pid)
        return sorted(pages.values(), key=lambda page: -page.all_ms)

    def _cells(self, place: int, oldest: int) -> Iterator[tuple[int, tuple[object, ...]]]:
        """Yield (page, values) of the cells of the last hour."""
        start = place * _PLACE_BYTES
        in_use = self._memory[start + _HEAD_BYTES : start + _HEAD_BYTES + len(self._names)]
        for number in (number for number, is_used in enumerate(in_use) if is_used):
            first = start + _CELLS_AT + number * _PAGE_BYTES
            for at in range(first, first + _PAGE_BYTES, _CELL.size):
                if _STEP.unpack_from(self._memory, at)[0] >= oldest:
                    yield number, _CELL.unpack_from(self._memory, at)

    def _living(self, place: int) -> Process | None:
        """Return the process that has ``place``, None when it is gone or is of another version."""
        head = _HEAD.unpack_from(self._memory, place * _PLACE_BYTES)
        pid, born, began, busy, connections, answers, failed, fingerprint = head
        if not pid or fingerprint != self._fingerprint:
            return None
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - born) > SAME_SECONDS:
                return None
            memory = int(process.memory_info().rss)
        except psutil.Error:
            return None
        return Process(pid, began, busy, connections, answers, failed, memory, pid == os.getpid())


def _add(page: Page, cell: tuple[object, ...], pid: int) -> None:
    numbers: list[float] = [each for each in cell if isinstance(each, int | float)]
    page.answers += int(numbers[1])
    page.refused += int(numbers[2])
    page.failed += int(numbers[3])
    page.statements += int(numbers[4])
    page.all_ms += numbers[5]
    page.database_ms += numbers[6]
    if numbers[7] > page.slowest_ms and isinstance(cell[-1], bytes):
        page.slowest_ms, page.slowest_pid = numbers[7], pid
        page.slowest_address = cell[-1].rstrip(b"\0").decode("utf-8", "replace")
    page.buckets = [old + int(new) for old, new in zip(page.buckets, numbers[8:], strict=True)]
