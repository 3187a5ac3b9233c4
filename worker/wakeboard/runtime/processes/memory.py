"""What processes hold in memory, and whether the kernel has run out of it. Reads /proc; kills nobody.

Held is what nobody else could use instead: private pages, shared memory and what of both is swapped out.
Mapped files and address space that was only reserved cost nothing and do not count. Elsewhere than on Linux
nothing is known and every answer is 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from wakeboard.core.process.process_tree import descendants

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HELD = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
_SHARE = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB", re.MULTILINE)
_MOST_PROCESSES = 4096
# The kernel counts in one of these what it killed for lack of memory: the machine's, then our group's.
_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_LOOK_SECONDS = 1.0
# The kernel refuses at once what lies this far beyond the limit: a burst may be over between two looks.
_REFUSED_FACTOR, _REFUSED_MB = 2, 256


def held_bytes(pid: int | str = "self") -> int:
    """Bytes that process `pid` holds; pages it still shares with the process it was forked from included.

    0 when it is gone.
    """
    return _sum(_HELD, f"/proc/{pid}/status")


def family_bytes(pid: int, limit: int) -> int:
    """Bytes that process `pid` and all its descendants hold together.

    Beyond `limit` what they share is counted once, and the part of it that processes outside share, such as
    the handlers' modules, not at all. That takes the kernel tens of milliseconds to say on a busy machine.
    """
    family = [pid, *descendants(pid, _MOST_PROCESSES)]
    held = sum(map(held_bytes, family))
    if held <= limit or len(family) == 1:
        return held
    return sum(_sum(_SHARE, f"/proc/{each}/smaps_rollup") or held_bytes(each) for each in family)


def resident_bytes(pid: int) -> int:
    """Bytes that process `pid` and all its descendants have in memory; what they share counts in each."""
    total = 0
    for each in (pid, *descendants(pid, _MOST_PROCESSES)):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return total


def _sum(pattern: re.Pattern[bytes], path: str) -> int:
    with contextlib.suppress(OSError):
        return 1024 * sum(map(int, pattern.findall(Path(path).read_bytes())))
    return 0


@contextlib.contextmanager
def bursts_refused(megabytes: int) -> Iterator[None]:
    """While the block lasts, this process cannot have more private memory than twice `megabytes` and 256 MB
    beyond what it has now: what asks for it gets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    more = (_REFUSED_FACTOR * megabytes + _REFUSED_MB) * 1024 * 1024
    wanted = _private_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_bytes() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[5]) * _PAGE_BYTES
    return 0


class Shortage:
    """Whether the kernel has lately killed for lack of memory."""

    def __init__(self) -> None:
        self._counter = next((path for path in _COUNTERS if self._count(path) is not None), None)
        self._seen: deque[int] = deque([self._now()], maxlen=2)
        self._looked_at = monotonic()

    def look(self) -> None:
        """Remember how often it has killed by now; to be called several times a second."""
        if monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = monotonic()
            self._seen.append(self._now())

    def has_struck(self) -> bool:
        """Whether it has killed since the look before the last: within the last one to two seconds."""
        return self._now() > self._seen[0]

    def _now(self) -> int:
        return (self._count(self._counter) if self._counter else None) or 0

    @staticmethod
    def _count(path: str) -> int | None:
        with contextlib.suppress(OSError):
            if found := _KILLS.search(Path(path).read_bytes()):
                return int(found[1])
        return None
