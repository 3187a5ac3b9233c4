"""How far claims have come, so that the next one need not begin at the first row.

Claimed rows stay in the claim's index until vacuum removes them, and it cannot while anybody holds an old
snapshot: a claim that begins at the first row walks past all of them, further each time. While claims bring
many runs, the next one begins behind the last run taken of its type and priority, and looks at twice as many
of each as the last one took. Where other workers have locked much of that, claims skip locked rows for a
second, and look at little more than they take.

A run can become due before the row at which a claim begins: its enqueue committed late, it was given back,
another worker's claim had locked it. So once a second a claim begins at the first row (less often where that
is slow), and a claim that did not never means that the queue is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database.index_predicates import PRIORITIES
from wakeboard.queue.engine.claims import ClaimedRow
from wakeboard.runtime.loop.channel import Rows

# How often a claim begins at the first row: at most once a second, at least every 15 seconds, and in between
# so that such claims take a tenth of the time.
FIRST_ROW_EVERY_NS, FIRST_ROW_AT_LAST_NS = 1_000_000_000, 15_000_000_000
FIRST_ROW_SHARE = 0.1
BEFORE_ALL = ("-infinity", 0)
# A claim of so few looks at twice as many of each type and priority as it may take, which costs little.
FEW = 32
# A larger one looks at so many times as many of each as were taken, and at a few more. The factor is smaller
# where a claim locks what it looks at.
LOOK_FACTOR, PAST_LOCKS_FACTOR = 2.0, 1.25
LOOK_EXTRA = 8
# How long claims skip locked rows after others had locked what one looked at.
PAST_LOCKS_NS = 1_000_000_000
# Positions in a claim's row.
ID, JOB_TYPE, PAYLOAD, PRIORITY, RUN_AT = map(
    ClaimedRow._fields.index, ("id", "job_type", "payload", "priority", "run_at")
)
_key, _place = itemgetter(JOB_TYPE, PRIORITY), itemgetter(RUN_AT, ID)


class ClaimStart(NamedTuple):
    """Where a claim begins, for each type and priority, and how many rows of each it looks at.

    Empty sequences: at the first row, and the usual number. ``past_locks``: whether the claim locks what it
    looks at and skips what others have locked.
    """

    run_ats: Sequence[str] = ()
    ids: Sequence[int] = ()
    shares: Sequence[int] = ()
    past_locks: bool = False

    @property
    def values(self) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
        """Return the values of the claim's statement."""
        return self.run_ats, self.ids, self.shares


FIRST_ROW = ClaimStart()
_Key = tuple[str, int]


@dataclass(slots=True)
class ClaimCursor:
    """The last run taken of each type and priority, and the fraction of each, while claims bring many."""

    _last_taken: dict[_Key, tuple[str, int]] = field(default_factory=dict)
    # By whether a claim goes by age alone: such a claim takes other runs.
    _fractions: dict[bool, dict[_Key, float]] = field(default_factory=lambda: {False: {}, True: {}})
    # When a claim of each type must begin at the first row again.
    _first_row_due_ns: dict[str, int] = field(default_factory=dict)
    # The types of the claim under way that begins at the first row, and when it was sent.
    _first_row_claim: tuple[Sequence[str], int] | None = None
    _past_locks_until_ns: int = 0
    # What the last claim asked for, and how many rows of each it looked at, when that differs.
    _keys: Sequence[_Key] = ()
    _looked_at: dict[_Key, int] = field(default_factory=dict)

    def starts(self, types: Sequence[str], limit: int, *, oldest_first: bool = False) -> Iterator[ClaimStart]:
        """Yield where a claim of up to ``limit`` of ``types`` begins: behind what was taken, then at the
        first row."""
        keys = [(name, priority) for name in types for priority in range(PRIORITIES)]
        now, self._first_row_claim = boottime_ns(), None
        fractions = self._fractions[oldest_first] if limit > FEW else {}
        is_due = any(self._first_row_due_ns.get(name, 0) <= now for name in types)
        past_locks = bool(fractions) and not is_due and now < self._past_locks_until_ns
        factor = PAST_LOCKS_FACTOR if past_locks else LOOK_FACTOR
        even = PRIORITIES / len(keys)
        # A few of what brought none lately; more at the first row, where others may have locked the first
        # ones.
        least = even if is_due else 0.0
        shares: Sequence[int] = ()
        if fractions:
            shares = [int(factor * limit * max(fractions.get(key, even), least)) + LOOK_EXTRA for key in keys]
        self._keys, self._looked_at = keys, dict(zip(keys, shares, strict=False))
        if not is_due and any(key in self._last_taken for key in keys):
            places = [self._last_taken.get(key, BEFORE_ALL) for key in keys]
            yield ClaimStart(
                [run_at for run_at, _ in places], [run_id for _, run_id in places], shares, past_locks
            )
        self._first_row_claim = (types, boottime_ns())
        self._set_first_row_due(*self._first_row_claim, took_ns=0)
        yield ClaimStart(shares=shares, past_locks=past_locks)

    def _set_first_row_due(self, types: Sequence[str], began_ns: int, took_ns: int) -> None:
        """Set when a claim of ``types`` begins at the first row again, after one that took so long."""
        pause_ns = min(max(FIRST_ROW_EVERY_NS, int(took_ns / FIRST_ROW_SHARE)), FIRST_ROW_AT_LAST_NS)
        self._first_row_due_ns.update(dict.fromkeys(types, began_ns + pause_ns))

    def advance(self, rows: Rows, limit: int, *, oldest_first: bool = False) -> None:
        """Advance behind the ``rows`` of a claim of up to ``limit``.

        A large claim that was not full still counts, because others may have locked the rest. It does not
        when it skipped locked rows, or brought less than half of its limit.
        """
        if self._first_row_claim is not None:
            types, began_ns = self._first_row_claim
            self._set_first_row_due(types, began_ns, took_ns=boottime_ns() - began_ns)
            self._first_row_claim = None
        if len(rows) < (limit if limit <= FEW else limit // 2 if self._looked_at else FEW):
            self.reset()
            return
        if not rows:
            return
        last_taken = self._last_taken
        for key, place in zip(map(_key, rows), map(_place, rows), strict=True):
            # Instants as text in ISO 8601 and one zone sort by time.
            if place > last_taken.get(key, BEFORE_ALL):
                last_taken[key] = place
        if limit > FEW:
            self._set_fractions(Counter(map(_key, rows)), len(rows), limit, self._fractions[oldest_first])
            if len(rows) < limit:
                self.skip_locked()

    def skip_locked(self) -> None:
        """Let claims skip locked rows for a second: others had locked what one looked at."""
        self._past_locks_until_ns = boottime_ns() + PAST_LOCKS_NS

    def reset(self) -> None:
        """Let the next claim begin at the first row, and look at as many of each as it may take."""
        self._last_taken.clear()
        for fractions in self._fractions.values():
            fractions.clear()

    def _set_fractions(
        self, counts: Counter[_Key], taken: int, limit: int, fractions: dict[_Key, float]
    ) -> None:
        """Remember the fraction of each type and priority in what was taken.

        One that gave all rows that were looked at may have far more, so its fraction doubles.
        """
        for key in self._keys:
            count, looked_at = counts[key], self._looked_at.get(key, limit + 1)
            fractions[key] = min(2 * looked_at / limit, 1.0) if count >= looked_at else count / taken
