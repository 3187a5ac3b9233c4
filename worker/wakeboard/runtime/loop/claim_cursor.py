"""How far claims have come, so that the next one need not begin at the first row.

What was claimed stays in the claim's index until vacuum removes it, and cannot be removed while somebody
holds an old snapshot: a claim from the first row on walks past all of it, further each time. While claims
bring many, the next one begins behind the last run taken of its type and priority, and looks at twice as
many of each as the last one took. Where other workers hold much of that, claims pass by what is locked for a
second, and look at little more than they take.

A run can turn up before where a claim begins: its enqueue committed late, it was given back, another worker's
claim held it for a moment. So once a second a claim looks from the first row on (less often where that takes
long), and one that did not never stands for an empty queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from wakeboard.queue.engine.claims import PRIORITIES
from wakeboard.runtime.loop.channel import Rows
from wakeboard.core.process.shared_slot import boottime_ns

WHOLE_EVERY_NS, WHOLE_AT_LAST_NS = 1_000_000_000, 15_000_000_000
# Claims from the first row on may take this share of the time.
WHOLE_SHARE = 0.1
FIRST = ("-infinity", 0)
# A claim of so few looks at twice as many of each type and priority as it may take: that costs little.
FEW = 32
# A larger one looks at so many times as many of each as came, and at so many more; at fewer where it locks
# what it looks at.
TIMES, TIMES_PAST_LOCKS = 2.0, 1.25
MORE = 8
# How long claims pass by what is locked after others held what one looked at.
PAST_LOCKS_NS = 1_000_000_000
# Where a claim's rows have these.
JOB_TYPE, PAYLOAD, PRIORITY, RUN_AT = 4, 5, 13, 14
_key, _place = itemgetter(JOB_TYPE, PRIORITY), itemgetter(RUN_AT, 0)


class Places(NamedTuple):
    """Where the rows of each type and priority begin, and how many of each a claim looks at, as
    ``engine.claims`` takes them; empty: from the first on, and the usual number. ``past_locks``: whether it
    locks what it looks at, and passes by what others hold."""

    moments: Sequence[str] = ()
    ids: Sequence[int] = ()
    shares: Sequence[int] = ()
    past_locks: bool = False

    @property
    def values(self) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
        """Return what the statement takes."""
        return self.moments, self.ids, self.shares


WHOLE = Places()
_Key = tuple[str, int]


@dataclass(slots=True)
class ClaimCursor:
    """The last run taken of each type and priority, and the part that each had, while claims bring many."""

    _reached: dict[_Key, tuple[str, int]] = field(default_factory=dict)
    # By whether a claim goes by age alone: it takes others.
    _parts: dict[bool, dict[_Key, float]] = field(default_factory=lambda: {False: {}, True: {}})
    _whole_due_ns: dict[str, int] = field(default_factory=dict)
    _whole: tuple[Sequence[str], int] | None = None
    _past_locks_until_ns: int = 0
    # What the last claim asked for, and how many of each it looked at, when that was not the same for all.
    _asked: Sequence[_Key] = ()
    _looked: dict[_Key, int] = field(default_factory=dict)

    def tries(self, types: Sequence[str], limit: int, *, oldest_first: bool = False) -> Iterator[Places]:
        """Yield where a claim of up to ``limit`` of ``types`` begins: behind what was taken, then at the
        first."""
        keys = [(name, priority) for name in types for priority in range(PRIORITIES)]
        now, self._whole = boottime_ns(), None
        parts = self._parts[oldest_first] if limit > FEW else {}
        is_due = any(self._whole_due_ns.get(name, 0) <= now for name in types)
        past_locks = bool(parts) and not is_due and now < self._past_locks_until_ns
        times = TIMES_PAST_LOCKS if past_locks else TIMES
        even = PRIORITIES / len(keys)
        # Few of what brought none lately, but where all is looked at anew: others may hold the first ones.
        least = even if is_due else 0.0
        shares: Sequence[int] = ()
        if parts:
            shares = [int(times * limit * max(parts.get(key, even), least)) + MORE for key in keys]
        self._asked, self._looked = keys, dict(zip(keys, shares, strict=False))
        if not is_due and any(key in self._reached for key in keys):
            places = [self._reached.get(key, FIRST) for key in keys]
            yield Places(
                [moment for moment, _ in places], [run_id for _, run_id in places], shares, past_locks
            )
        self._whole = (types, boottime_ns())
        self._looked_whole(*self._whole, took_ns=0)
        yield Places(shares=shares, past_locks=past_locks)

    def _looked_whole(self, types: Sequence[str], began_ns: int, took_ns: int) -> None:
        """Say when ``types`` are due again, whose claim from the first row on took so long."""
        pause_ns = min(max(WHOLE_EVERY_NS, int(took_ns / WHOLE_SHARE)), WHOLE_AT_LAST_NS)
        self._whole_due_ns.update(dict.fromkeys(types, began_ns + pause_ns))

    def took(self, rows: Rows, limit: int, *, oldest_first: bool = False) -> None:
        """A claim of up to ``limit`` brought ``rows`` (the columns of ``engine.claims``).

        A large one that was not full still lets the next begin behind it: others may hold the rest of what it
        looked at. Not where it looked past that, or brought less than half of its shares.
        """
        if self._whole is not None:
            types, began_ns = self._whole
            self._looked_whole(types, began_ns, took_ns=boottime_ns() - began_ns)
            self._whole = None
        if len(rows) < (limit if limit <= FEW else limit // 2 if self._looked else FEW):
            self.forget()
            return
        if not rows:
            return
        reached = self._reached
        for key, place in zip(map(_key, rows), map(_place, rows), strict=True):
            # Moments as text in ISO 8601 and one zone are in the order of time.
            if place > reached.get(key, FIRST):
                reached[key] = place
        if limit > FEW:
            self._keep_parts(Counter(map(_key, rows)), len(rows), limit, self._parts[oldest_first])
            if len(rows) < limit:
                self.found_past_locks()

    def found_past_locks(self) -> None:
        """Others held what a claim looked at: pass by what is locked, for a while."""
        self._past_locks_until_ns = boottime_ns() + PAST_LOCKS_NS

    def forget(self) -> None:
        """Let the next claim begin at the first row, and look at as many of each as it may take."""
        self._reached.clear()
        for parts in self._parts.values():
            parts.clear()

    def _keep_parts(self, counts: Counter[_Key], taken: int, limit: int, parts: dict[_Key, float]) -> None:
        """Remember the part that each had of what was taken.

        What gave all that was looked at may have far more that comes first.
        """
        for key in self._asked:
            count, looked = counts[key], self._looked.get(key, limit + 1)
            parts[key] = min(2 * looked / limit, 1.0) if count >= looked else count / taken
