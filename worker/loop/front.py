"""How far claims have come, so that the next one need not begin at the first row.

What was claimed stays in the claim's index until vacuum removes it, and cannot be removed while somebody
holds an old snapshot: a claim from the first row on walks past all of it, further each time. While claims
come back full, the next one begins behind the last run taken of its type and priority. A run can turn up
before that: its enqueue committed late, it was given back, another worker's claim held it for a moment. So
once a second a claim looks from the first row on (less often where that takes long), and one that did not
never stands for an empty queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from worker.loop.channel import Rows
from worker.loop.held import boottime_ns
from worker.transitions.engine.claims import PRIORITIES

WHOLE_EVERY_NS, WHOLE_AT_LAST_NS = 1_000_000_000, 15_000_000_000
# Claims from the first row on may take this share of the time.
WHOLE_SHARE = 0.1
FIRST = ("-infinity", 0)
# Where a claim's rows have these.
JOB_TYPE, PAYLOAD, PRIORITY, RUN_AT = 4, 5, 13, 14
_key, _place = itemgetter(JOB_TYPE, PRIORITY), itemgetter(RUN_AT, 0)


class Places(NamedTuple):
    """Where the probes of a claim begin, as ``engine.claims`` takes them; empty: each at its first row."""

    moments: Sequence[str] = ()
    ids: Sequence[int] = ()


WHOLE = Places()


@dataclass(slots=True)
class Front:
    """The last run taken of each type and priority, while claims come back full."""

    _reached: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _whole_due_ns: dict[str, int] = field(default_factory=dict)
    _whole: tuple[Sequence[str], int] | None = None

    def tries(self, types: Sequence[str]) -> Iterator[Places]:
        """Yield where a claim of ``types`` begins: behind what was taken, then at the first."""
        keys = [(name, priority) for name in types for priority in range(PRIORITIES)]
        now, self._whole = boottime_ns(), None
        is_due = any(self._whole_due_ns.get(name, 0) <= now for name in types)
        if not is_due and any(key in self._reached for key in keys):
            places = [self._reached.get(key, FIRST) for key in keys]
            yield Places([moment for moment, _ in places], [run_id for _, run_id in places])
        self._whole = (types, boottime_ns())
        self._looked_whole(*self._whole, took_ns=0)
        yield WHOLE

    def _looked_whole(self, types: Sequence[str], began_ns: int, took_ns: int) -> None:
        """Say when ``types`` are due again, whose claim from the first row on took so long."""
        pause_ns = min(max(WHOLE_EVERY_NS, int(took_ns / WHOLE_SHARE)), WHOLE_AT_LAST_NS)
        self._whole_due_ns.update(dict.fromkeys(types, began_ns + pause_ns))

    def took(self, rows: Rows, *, is_full: bool) -> None:
        """A claim brought ``rows`` (the columns of ``engine.claims``): all that it asked for, or fewer."""
        if self._whole is not None:
            types, began_ns = self._whole
            self._looked_whole(types, began_ns, took_ns=boottime_ns() - began_ns)
            self._whole = None
        if not is_full:
            self._reached.clear()
            return
        reached = self._reached
        for key, place in zip(map(_key, rows), map(_place, rows), strict=True):
            # Moments as text in ISO 8601 and one zone are in the order of time.
            if place > reached.get(key, FIRST):
                reached[key] = place
