"""What ended a while ago, remembered between requests: what is newer is asked for.

Failed attempts, or runs that succeeded after failures. Of each the moment and a number are kept, sixteen
bytes: that of its group, or that of its run. Knows no request.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from sqlalchemy import Connection

from wakeboard.reporting.activity_report.faults import UNKNOWN
from wakeboard.reporting.hourly_rollups import BEGINNING, HOUR, SETTLED, floored
from wakeboard_dashboard.queries import errors, removed
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.failures import read

# As with hours: this long after it ended an attempt has been written down, and a replica has caught up.
SETTLES = SETTLED - HOUR
# What has settled meanwhile is remembered too, so often.
PACE = timedelta(minutes=5)
# Then all is asked again: whoever could not reach the database writes down late what ended long ago.
HOLDS = timedelta(minutes=10)
# Fewer are counted as quickly by the database.
WORTH = 1_000
MOST_KEPT = 6
_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts or runs, oldest first: when each ended, as ``stamp`` says it, and its number."""

    times: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.times)

    def __add__(self, newer: Attempts) -> Attempts:
        return Attempts(self.times + newer.times, self.numbers + newer.numbers)

    def part(self, begin: int, end: int | None = None) -> Attempts:
        """Return those at the places from ``begin`` up to ``end``."""
        return Attempts(self.times[begin:end], self.numbers[begin:end])

    def before(self, moment: datetime) -> int:
        """Return how many ended before ``moment``."""
        return bisect_left(self.times, stamp(moment))


def stamp(moment: datetime) -> int:
    """Return ``moment`` as PostgreSQL counts it: in microseconds since BEGINNING."""
    return (moment - BEGINNING) // _LEAST


def moment_of(found: int) -> datetime:
    """Return the moment that ``stamp`` says so."""
    return BEGINNING + found * _LEAST


class Older:
    """Attempts that are remembered, and when those of each group ended, oldest first."""

    def __init__(self, attempts: Attempts) -> None:
        self.attempts = attempts

    @cached_property
    def times_of(self) -> dict[int, array[int]]:
        """When the attempts of each group ended."""
        found: dict[int, array[int]] = {}
        for number, time in zip(self.attempts.numbers, self.attempts.times, strict=True):
            if number not in found:
                found[number] = array("q")
            found[number].append(time)
        return found


@dataclass(frozen=True)
class Newest:
    """The newest attempts of a window: the ``older`` ones but the first ``left_out``, and ``fresh`` ones."""

    older: Older
    left_out: int
    fresh: Attempts

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.older.attempts) - self.left_out + len(self.fresh)

    def one_by_one(self) -> Attempts:
        """Return all of them, oldest first."""
        return self.older.attempts.part(self.left_out) + self.fresh

    @cached_property
    def _without(self) -> Counter[int]:
        return Counter(self.older.attempts.numbers[: self.left_out])

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many there are of each group."""
        counts = {number: len(times) for number, times in self.older.times_of.items()}
        for number, count in self._without.items():
            counts[number] -= count
            if not counts[number]:
                del counts[number]
        for number, count in Counter(self.fresh.numbers).items():
            counts[number] = counts.get(number, 0) + count
        return counts

    def times_of(self, numbers: Collection[int]) -> dict[int, array[int]]:
        """Return when the attempts of these groups ended, oldest first; of one without any, nothing."""
        known, left_out = self.older.times_of, self._without
        found = {
            number: known[number][left_out[number] :] if number in known else array("q") for number in numbers
        }
        for number, time in zip(self.fresh.numbers, self.fresh.times, strict=True):
            if number in found:
                found[number].append(time)
        return found


def array_of(found: bytes | None) -> array[int]:
    """Return whole numbers of eight bytes, as PostgreSQL sends them, the last one first."""
    numbers = array("q", found or b"")
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers[::-1]


# Reads the newest attempts of a window that ended from a moment on; None where they cannot be told so.
Read = Callable[[Connection, Window, datetime], Attempts | None]


def read_groups(connection: Connection, window: Window, since: datetime) -> Attempts | None:
    """Return those of ``window`` from ``since`` on, with their groups; None when one has none."""
    statement = read.newest(
        cap=errors.CAP,
        code=window.code is not None,
        unknown=window.code == UNKNOWN,
        job_type=window.job_type is not None,
        number=window.number is not None,
    )
    narrowed = {"code": window.code, "job_type": window.job_type, "number": window.number}
    values = {"since": since, "until": window.until} | narrowed
    times, numbers = (array_of(found) for found in connection.execute(statement, values).one())
    return Attempts(times, numbers) if len(times) == len(numbers) else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """All attempts that ended from ``since`` up to ``until``; they are asked again in another ``turn``.

    ``mark`` tells that retention has removed none (``removed``), where somebody had to know. ``is_known``:
    all have numbers, and groups have names; else nothing is kept, and the database counts.
    """

    turn: datetime
    since: datetime
    until: datetime
    mark: removed.Mark | None = None
    older: Older = field(default_factory=lambda: Older(Attempts()))
    is_known: bool = True

    @property
    def count(self) -> int:
        """How many are kept."""
        return len(self.older.attempts)


class Lately:
    """What is remembered of the failed attempts of each code, type and group that somebody looks at."""

    def __init__(self, read: Read = read_groups, most: Callable[[], int] = lambda: errors.CAP) -> None:
        """``read`` asks for attempts; ``most`` says of how many, the newest ones."""
        self._read, self._most = read, most
        self._kept: dict[Hashable, _Kept | None] = {}

    def note(self, window: Window, counted: int) -> None:
        """Remember what ``window`` asks for from the next request on, if so much was counted for it."""
        if counted >= WORTH and _question(window) not in self._kept:
            self._keep(window, None)

    def newest(self, connection: Connection, window: Window, now: datetime) -> Newest | None:
        """Return the newest of ``window``; None where the database counts them itself.

        It does so where they are few, one has no number or no name, or the window ended a while ago.
        """
        if _question(window) not in self._kept or window.until <= now - SETTLES:
            return None
        kept = self._valid(connection, window, now)
        if not kept.is_known:
            return None
        most = self._most()
        fresh = self._read(connection, window, kept.until)
        if fresh is not None and kept.since > window.since and kept.count + len(fresh) < most:
            # It looks further back than anybody did.
            kept = _nothing(connection, window, now)
            fresh = self._read(connection, window, kept.until)
        if fresh is None:
            self.forget(window, now)
            return None
        if settled(now) > kept.until:
            kept, fresh = _settle(kept, fresh, settled(now), most)
        self._keep(window, kept)
        older, fresh = kept.older.attempts, fresh.part(fresh.before(window.since))
        left_out = max(older.before(window.since), kept.count + len(fresh) - most)
        return Newest(kept.older, min(left_out, kept.count), fresh)

    def forget(self, window: Window, now: datetime) -> None:
        """Leave ``window`` to the database until the next turn: one has no number or no name."""
        self._keep(window, _Kept(turn(now), now, now, is_known=False))

    def _valid(self, connection: Connection, window: Window, now: datetime) -> _Kept:
        """Return what is kept and still holds, nothing from the window's beginning on where that is not."""
        kept = self._kept.get(_question(window))
        if kept is None or kept.turn != turn(now):
            return _nothing(connection, window, now)
        stays = max(window.since, kept.since) + removed.STAY > now
        if not kept.is_known or stays or kept.mark == removed.mark(connection, now):
            return kept
        return _nothing(connection, window, now)

    def _keep(self, window: Window, kept: _Kept | None) -> None:
        self._kept.pop(_question(window), None)
        self._kept[_question(window)] = kept
        for oldest in list(self._kept)[:-MOST_KEPT]:
            self._kept.pop(oldest, None)


def _nothing(connection: Connection, window: Window, now: datetime) -> _Kept:
    """Return what is kept of ``window`` before anything is."""
    mark = None if window.since + removed.STAY > now else removed.mark(connection, now)
    return _Kept(turn(now), window.since, window.since, mark)


def _settle(kept: _Kept, fresh: Attempts, until: datetime, most: int) -> tuple[_Kept, Attempts]:
    """Return what is kept with what of ``fresh`` ended before ``until``, the newest; and what is left."""
    more = fresh.before(until)
    whole = kept.older.attempts + fresh
    beyond = len(whole) - most
    if beyond >= 0:
        # There may have been more of the very moment at which it was cut.
        kept = replace(kept, since=moment_of(whole.times[beyond]) + _LEAST)
    older = whole.part(max(beyond, 0), kept.count + more)
    return replace(kept, until=until, older=Older(older)), fresh.part(more)


def _question(window: Window) -> Hashable:
    return window.code, window.job_type, window.number


def turn(now: datetime) -> datetime:
    """Return when the turn began in which what is kept holds."""
    return floored(now, HOLDS)


def settled(now: datetime) -> datetime:
    """Return up to when attempts are remembered."""
    return floored(now - SETTLES, PACE)
