"""The zone map of a table: in which ids nothing can have expired yet, so that a pass skips them.

Ids grow with time, but not strictly: a run planned a year ahead ends long after its neighbours, one type is
kept for longer than another. So each range of ids that was scanned is remembered with the earliest moment at
which another scan can find anything. Pure. It is lost with the process; the next pass then scans everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_ZONES = 256


@dataclass(frozen=True, slots=True)
class Zone:
    """The ids after the zone before, up to ``to_id``: how many rows were kept, and when to scan again.

    ``due_at`` and ``oldest_at`` (the earliest end of a kept run, None without one) are seconds of the
    database's clock.
    """

    to_id: int
    rows: int
    due_at: float
    oldest_at: float | None = None

    def merge(self, following: Zone) -> Zone:
        """Return this zone and its neighbour ``following`` as one."""
        due_at = min(self.due_at, following.due_at)
        oldest_at = earliest((self.oldest_at, following.oldest_at))
        return Zone(following.to_id, self.rows + following.rows, due_at, oldest_at)


def earliest(moments: Iterable[float | None]) -> float | None:
    """Return the smallest of ``moments``, None when there is none."""
    return min((moment for moment in moments if moment is not None), default=None)


class ZoneMap:
    """The zones of one table, from its first id on without gaps; at most MOST_ZONES, small ones merged."""

    def __init__(self) -> None:
        self._zones: list[Zone] = []

    def __len__(self) -> int:
        return len(self._zones)

    @property
    def oldest_at(self) -> float | None:
        """The earliest end of a run that was kept."""
        return earliest(zone.oldest_at for zone in self._zones)

    def clear(self) -> None:
        """Forget every zone: the policy has changed."""
        self._zones = []

    def next_range(self, cursor: int, now: float) -> tuple[int, int | None]:
        """Return behind which id to scan from ``cursor`` on, and up to which (None: never scanned)."""
        for zone in self._zones:
            if zone.to_id <= cursor:
                continue
            if zone.due_at <= now:
                return cursor, zone.to_id
            cursor = zone.to_id
        return cursor, None

    def put(self, from_id: int, zone: Zone) -> None:
        """Remember what was found between ``from_id`` (exclusive) and ``zone.to_id``."""
        before = [each for each in self._zones if each.to_id <= from_id]
        after = [each for each in self._zones if each.to_id > from_id]
        if (before[-1].to_id if before else 0) < from_id:
            # The part of a cut zone that stays; or ids that another process scanned: unknown, so due.
            cut = after[0] if after else Zone(from_id, 0, 0.0)
            before.append(Zone(from_id, cut.rows // 2, cut.due_at, cut.oldest_at))
        self._zones = [*before, zone, *(each for each in after if each.to_id > zone.to_id)]
        if len(self._zones) > MOST_ZONES:
            self._merge_smallest()

    def _merge_smallest(self) -> None:
        pairs = zip(self._zones, self._zones[1:], strict=False)
        sizes = [zone.rows + following.rows for zone, following in pairs]
        at = sizes.index(min(sizes))
        self._zones[at : at + 2] = [self._zones[at].merge(self._zones[at + 1])]
