"""How many browsers each process of the dashboard serves, in memory that all of them share.

A connection stays with the process that accepts it, and whoever looked first took it: of twenty, one process
had seventeen, and the other was idle. A process with more than another one leaves it a moment for that one.
"""

from __future__ import annotations

import mmap
import struct
from time import monotonic

PLACES = 8
NOBODY = 2**32 - 1
# For so long a connection is left for others, in pauses: those may be busy, or gone.
PATIENCE_SECONDS, PAUSE_SECONDS = 0.05, 0.001
_COUNT = struct.Struct("<I")


def shared_memory() -> mmap.mmap:
    """Return memory for the counts of PLACES processes, shared by all that are forked from this one."""
    memory = mmap.mmap(-1, PLACES * _COUNT.size)
    for number in range(PLACES):
        leave(memory, number)
    return memory


def leave(memory: mmap.mmap, number: int) -> None:
    """Note that the process ``number`` is gone."""
    _COUNT.pack_into(memory, number % PLACES * _COUNT.size, NOBODY)


class Share:
    """The share of process ``number`` among those that use ``memory``."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self._memory = memory
        self._number = number
        self._left_since: float | None = None

    def tell(self, connections: int) -> None:
        """Note how many connections this process has."""
        _COUNT.pack_into(self._memory, self._number % PLACES * _COUNT.size, connections)

    def leaves_it(self, connections: int) -> bool:
        """Return whether a new connection is for a process that has fewer than these ``connections``."""
        fewest = min(count for (count,) in _COUNT.iter_unpack(self._memory[:]))
        now = monotonic()
        if fewest >= connections or now - (self._left_since or now) > PATIENCE_SECONDS:
            self._left_since = None
            return False
        self._left_since = self._left_since or now
        return True
