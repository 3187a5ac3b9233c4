"""Memory of processes, a limit for it, and the kernel's kills for lack of it. Reads /proc; kills nothing.

A process holds its private pages, its shared memory and what of both is swapped out. Mapped files and address
space that was only reserved do not count. Elsewhere than on Linux every result is 0.
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
_MAX_PROCESSES = 4096
# The kernel's counters of kills for lack of memory: of the machine, then of our control group.
_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_SAMPLE_SECONDS = 1.0
# The kernel refuses at once what lies this far beyond the limit: a burst may be over between two checks.
_REFUSED_FACTOR, _REFUSED_MB = 2, 256


def process_bytes(pid: int | str = "self") -> int:
    """Return the bytes that process `pid` holds, pages shared with its fork server included.

    0 when the process is gone.
    """
    return _sum(_HELD, f"/proc/{pid}/status")


def tree_bytes(pid: int, limit: int) -> int:
    """Return the bytes that process `pid` and all its descendants hold together.

    Beyond `limit` what they share is counted once, and the part of it that processes outside share, such as
    the handlers' modules, not at all. That takes the kernel tens of milliseconds on a busy machine.
    """
    tree = [pid, *descendants(pid, _MAX_PROCESSES)]
    held = sum(map(process_bytes, tree))
    if held <= limit or len(tree) == 1:
        return held
    return sum(_sum(_SHARE, f"/proc/{each}/smaps_rollup") or process_bytes(each) for each in tree)


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of process `pid` and all its descendants; shared pages count in each."""
    total = 0
    for each in (pid, *descendants(pid, _MAX_PROCESSES)):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return total


def _sum(pattern: re.Pattern[bytes], path: str) -> int:
    with contextlib.suppress(OSError):
        return 1024 * sum(map(int, pattern.findall(Path(path).read_bytes())))
    return 0


@contextlib.contextmanager
def bursts_refused(megabytes: int) -> Iterator[None]:
    """Limit the private memory of this process to twice `megabytes` and 256 MB beyond what it has now.

    An allocation beyond that raises MemoryError in the block.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_bytes() + (_REFUSED_FACTOR * megabytes + _REFUSED_MB) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_bytes() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[5]) * _PAGE_BYTES
    return 0


class OomKills:
    """The kernel's recent kills for lack of memory."""

    def __init__(self) -> None:
        self._counter = next((path for path in _COUNTERS if self._read(path) is not None), None)
        self._samples: deque[int] = deque([self._count()], maxlen=2)
        self._sampled_at = monotonic()

    def sample(self) -> None:
        """Take a sample of the counter once a second; to be called several times a second."""
        if monotonic() - self._sampled_at >= _SAMPLE_SECONDS:
            self._sampled_at = monotonic()
            self._samples.append(self._count())

    def has_recent(self) -> bool:
        """Return whether the kernel has killed within the last one to two seconds."""
        return self._count() > self._samples[0]

    def _count(self) -> int:
        return (self._read(self._counter) if self._counter else None) or 0

    @staticmethod
    def _read(path: str) -> int | None:
        with contextlib.suppress(OSError):
            if match := _KILLS.search(Path(path).read_bytes()):
                return int(match[1])
        return None
