"""What the regions of pages looked like a moment ago, in memory that all processes of the dashboard share.

A place for each view: the tag of its text, and when it was last looked at. A view may have one of a few; when
others have them all, that which was looked at longest ago goes. Who writes takes no lock; a place that is
read while somebody writes it does not match its own sum, and counts as empty. No database, no text.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from hashlib import blake2s

SETS, CHOICE = 128, 8
# By the clock that all processes of a machine share, in seconds: when somebody last asked what is new, found
# that a person had acted, and that runs had come or gone; the last act, and what stands for the runs.
_HEAD = struct.Struct("<dddqq")
_HEAD_BYTES = 64
# The view, when the look began, how long its answer holds, its tag, what it is true of, the same in the
# zone of who asked.
_VIEW = struct.Struct("<16sdd24s40s32s")
_SUM_BYTES = 8
# Who looks again, since when: not a part of the sum.
_TURN = struct.Struct("<d")
_PLACE_BYTES = _VIEW.size + _SUM_BYTES + _TURN.size
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class View:
    """A region as it was when a look at it began ``looked_at``; that is good for ``holds_seconds``."""

    key: bytes
    looked_at: float
    holds_seconds: float
    tag: str
    as_of: str
    clock: str


@dataclass(frozen=True, slots=True)
class News:
    """When somebody last asked what is new, and found an act of a person, or other runs than before."""

    asked_at: float
    acted_at: float
    moved_at: float
    act: int
    runs: int


def shared_memory() -> mmap.mmap:
    """Return memory for a board, shared by all processes that are forked from this one."""
    return mmap.mmap(-1, _HEAD_BYTES + SETS * CHOICE * _PLACE_BYTES)


class Board:
    """The views and the news in one ``memory``."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @property
    def news(self) -> News:
        """What was found by whoever asked last."""
        return News(*_HEAD.unpack_from(self._memory))

    def tell(self, news: News) -> None:
        """Note what was found just now."""
        _HEAD.pack_into(self._memory, 0, news.asked_at, news.acted_at, news.moved_at, news.act, news.runs)

    def view(self, key: bytes) -> View | None:
        """Return the view, None when it is not there."""
        start = self._held_at(key)
        return None if start is None else self._read(start)

    def keep(self, view: View) -> None:
        """Note a view; its texts are cut where there is no room."""
        texts = (view.tag.encode(), view.as_of.encode(), view.clock.encode())
        held = _VIEW.pack(view.key, view.looked_at, view.holds_seconds, *texts)
        start = self._place(view.key)
        self._memory[start : start + len(held) + _SUM_BYTES] = held + _sum(held)

    def take_turn(self, key: bytes, now: float, patience_seconds: float) -> bool:
        """Return whether it is the caller's turn to look again: nobody else's for ``patience_seconds``."""
        if self.is_turn_taken(key, now, patience_seconds):
            return False
        _TURN.pack_into(self._memory, self._turn(key), now)
        return True

    def is_turn_taken(self, key: bytes, now: float, patience_seconds: float) -> bool:
        """Return whether somebody began to look less than ``patience_seconds`` ago."""
        (since,) = _TURN.unpack_from(self._memory, self._turn(key))
        return bool(0 <= now - since < patience_seconds)

    def _turn(self, key: bytes) -> int:
        return self._place(key) + _VIEW.size + _SUM_BYTES

    def _place(self, key: bytes) -> int:
        """Return where the view is, or may be kept: a place that is empty, or was looked at longest ago."""
        held_at = self._held_at(key)
        return min(_choice(key), key=self._looked_at) if held_at is None else held_at

    def _held_at(self, key: bytes) -> int | None:
        for start in _choice(key):
            if self._memory[start : start + _KEY_BYTES] == key:
                return start
        return None

    def _looked_at(self, start: int) -> float:
        view = self._read(start)
        return 0.0 if view is None else view.looked_at

    def _read(self, start: int) -> View | None:
        held = self._memory[start : start + _VIEW.size + _SUM_BYTES]
        if _sum(held[: _VIEW.size]) != held[_VIEW.size :]:
            return None
        key, looked_at, holds, tag, as_of, clock = _VIEW.unpack_from(held)
        return View(key, looked_at, holds, _text(tag), _text(as_of), _text(clock))


def _choice(key: bytes) -> range:
    """Return where the places begin that a view may have."""
    first = _HEAD_BYTES + int.from_bytes(key[:4], "little") % SETS * CHOICE * _PLACE_BYTES
    return range(first, first + CHOICE * _PLACE_BYTES, _PLACE_BYTES)


def _sum(held: bytes) -> bytes:
    return blake2s(held, digest_size=_SUM_BYTES).digest()


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("utf-8", "replace")
