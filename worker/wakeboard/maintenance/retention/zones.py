"""Where in a table nothing can have expired yet, so that a pass does not walk millions of kept rows again.

Ids grow with time, but not strictly: a run planned a year ahead ends long after its neighbours, one type is
kept for longer than another. So each stretch of ids that was looked at is remembered with the earliest
moment at which looking again can find anything. Pure; lost with the process, then one pass walks everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST = 256


@dataclass(frozen=True, slots=True)
class Zone:
    """The ids after the zone before, up to ``to_id``: how many rows it kept, and when to look again.

    ``due_at`` and ``oldest_at`` (the earliest end of a kept run, None without one) are seconds of the
    database's clock.
    """

    to_id: int
    rows: int
    due_at: float
    oldest_at: float | None = None

    def joined(self, later: Zone) -> Zone:
        """Return this zone and its neighbour ``later`` as one."""
        due_at = min(self.due_at, later.due_at)
        return Zone(later.to_id, self.rows + later.rows, due_at, earliest((self.oldest_at, later.oldest_at)))


def earliest(moments: Iterable[float | None]) -> float | None:
    """Return the smallest of ``moments``, None when there is none."""
    return min((moment for moment in moments if moment is not None), default=None)


class Zones:
    """The zones of one table, from its first id on without gaps; at most MOST, small neighbours joined."""

    def __init__(self) -> None:
        self._zones: list[Zone] = []

    def __len__(self) -> int:
        return len(self._zones)

    @property
    def oldest_at(self) -> float | None:
        """The earliest end of a run that was kept."""
        return earliest(zone.oldest_at for zone in self._zones)

    def forget(self) -> None:
        """Know nothing: the rules have changed."""
        self._zones = []

    def next(self, cursor: int, now: float) -> tuple[int, int | None]:
        """Return behind which id to look from ``cursor`` on, and up to which (None: nobody knows)."""
        for zone in self._zones:
            if zone.to_id <= cursor:
                continue
            if zone.due_at <= now:
                return cursor, zone.to_id
            cursor = zone.to_id
        return cursor, None

    def put(self, from_id: int, zone: Zone) -> None:
        """Remember what was found between ``from_id`` (exclusive) and ``zone.to_id``."""
        before = [known for known in self._zones if known.to_id <= from_id]
        after = [known for known in self._zones if known.to_id > from_id]
        if (before[-1].to_id if before else 0) < from_id:
            # The part of a cut zone that stays; or ids that another process looked at: unknown, so due.
            cut = after[0] if after else Zone(from_id, 0, 0.0)
            before.append(Zone(from_id, cut.rows // 2, cut.due_at, cut.oldest_at))
        self._zones = [*before, zone, *(known for known in after if known.to_id > zone.to_id)]
        if len(self._zones) > MOST:
            self._join_smallest()

    def _join_smallest(self) -> None:
        pairs = zip(self._zones, self._zones[1:], strict=False)
        sizes = [one.rows + two.rows for one, two in pairs]
        at = sizes.index(min(sizes))
        self._zones[at : at + 2] = [self._zones[at].joined(self._zones[at + 1])]
