"""How far claims have come, so that the next one need not begin at the first row.

What was claimed stays in the claim's index until vacuum removes it, and cannot be removed while somebody
holds an old snapshot: a claim from the first row on walks past all of it, further each time. While claims
come back full, the next one begins behind the last run taken of its type and priority, and looks at twice as
many of each as the last one took, or more where other workers hold much. A run can turn up before that: its
enqueue committed late, it was given back, another worker's claim held it for a moment. So once a second a
claim looks from the first row on (less often where that takes long), and one that did not never stands for
an empty queue.
"""

from __future__ import annotations

from collections import Counter
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
# A claim of so few looks at twice as many of each type and priority as it may take: that costs little.
FEW = 32
# A larger one looks at DEPTH times as many of each as the last one took, and at so many more. The more
# workers there are, the more of what comes first is held by others.
DEPTH, DEEPEST = 2, 16
MORE = 8
# Where a claim's rows have these.
JOB_TYPE, PAYLOAD, PRIORITY, RUN_AT = 4, 5, 13, 14
_key, _place = itemgetter(JOB_TYPE, PRIORITY), itemgetter(RUN_AT, 0)


class Places(NamedTuple):
    """Where the rows of each type and priority begin, and how many of each a claim looks at, as
    ``engine.claims`` takes them; empty: from the first on, twice as many as the claim may take."""

    moments: Sequence[str] = ()
    ids: Sequence[int] = ()
    shares: Sequence[int] = ()


WHOLE = Places()
_Key = tuple[str, int]


@dataclass(slots=True)
class Front:
    """The last run taken of each type and priority, and how many, while claims come back full."""

    _reached: dict[_Key, tuple[str, int]] = field(default_factory=dict)
    # By whether a claim goes by age alone: it takes others.
    _shares: dict[bool, dict[_Key, int]] = field(default_factory=lambda: {False: {}, True: {}})
    _whole_due_ns: dict[str, int] = field(default_factory=dict)
    _whole: tuple[Sequence[str], int] | None = None
    _depth: int = DEPTH
    # What the last claim asked for, and how many of each it looked at, when that was not the same for all.
    _asked: Sequence[_Key] = ()
    _looked: dict[_Key, int] = field(default_factory=dict)

    def tries(self, types: Sequence[str], limit: int, *, oldest_first: bool = False) -> Iterator[Places]:
        """Yield where a claim of up to ``limit`` of ``types`` begins: behind what was taken, then at the
        first."""
        keys = [(name, priority) for name in types for priority in range(PRIORITIES)]
        now, self._whole = boottime_ns(), None
        is_due = any(self._whole_due_ns.get(name, 0) <= now for name in types)
        shares = self._shares_of(keys, limit, oldest_first=oldest_first, is_due=is_due)
        self._asked, self._looked = keys, dict(zip(keys, shares, strict=False))
        if not is_due and any(key in self._reached for key in keys):
            places = [self._reached.get(key, FIRST) for key in keys]
            yield Places([moment for moment, _ in places], [run_id for _, run_id in places], shares)
        self._whole = (types, boottime_ns())
        self._looked_whole(*self._whole, took_ns=0)
        yield Places(shares=shares)

    def _shares_of(
        self, keys: Sequence[_Key], limit: int, *, oldest_first: bool, is_due: bool
    ) -> Sequence[int]:
        """Return how many of each are looked at; nothing for the usual number.

        Few of what brought none lately, but for the times when all is looked at anew: others may hold those.
        """
        shares = self._shares[oldest_first]
        if limit <= FEW or not shares:
            return () if self._depth == DEPTH else [self._depth * limit] * len(keys)
        even = self._depth * limit * PRIORITIES // len(keys) + MORE
        least = even if is_due else 0
        return [max(shares.get(key, even), least) for key in keys]

    def _looked_whole(self, types: Sequence[str], began_ns: int, took_ns: int) -> None:
        """Say when ``types`` are due again, whose claim from the first row on took so long."""
        pause_ns = min(max(WHOLE_EVERY_NS, int(took_ns / WHOLE_SHARE)), WHOLE_AT_LAST_NS)
        self._whole_due_ns.update(dict.fromkeys(types, began_ns + pause_ns))

    def took(self, rows: Rows, limit: int, *, oldest_first: bool = False) -> None:
        """A claim of up to ``limit`` brought ``rows`` (the columns of ``engine.claims``).

        One that looked at shares counts as full from half its limit on: others may hold some of what it saw.
        """
        if self._whole is not None:
            types, began_ns = self._whole
            self._looked_whole(types, began_ns, took_ns=boottime_ns() - began_ns)
            self._whole = None
            self._depth = max(DEPTH, self._depth - 1)
        if len(rows) < max(1, limit // 2 if self._looked else limit):
            self.forget()
            return
        reached = self._reached
        for key, place in zip(map(_key, rows), map(_place, rows), strict=True):
            # Moments as text in ISO 8601 and one zone are in the order of time.
            if place > reached.get(key, FIRST):
                reached[key] = place
        if limit > FEW:
            self._keep_shares(Counter(map(_key, rows)), limit, self._shares[oldest_first])

    def look_deeper(self) -> None:
        """A claim brought nothing while runs were due: others held all that it looked at."""
        self._depth = min(2 * self._depth, DEEPEST)

    def forget(self) -> None:
        """Let the next claim begin at the first row, and look at as many of each as it may take."""
        self._reached.clear()
        for shares in self._shares.values():
            shares.clear()

    def _keep_shares(self, counts: Counter[_Key], limit: int, shares: dict[_Key, int]) -> None:
        """Let the next claim look at several times as many of each as came: others may hold as many.

        What gave all that was looked at may have far more that comes first.
        """
        for key in self._asked:
            count, looked = counts[key], self._looked.get(key, limit + 1)
            depth = self._depth
            shares[key] = (min(4 * looked, depth * limit) if count >= looked else depth * count) + MORE
