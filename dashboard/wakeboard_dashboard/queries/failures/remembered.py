"""Failures by group where they are many: attempts come from memory and are counted here.

The answers are those of ``errors``, which is asked where nothing is remembered of a window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Connection, text

from wakeboard.core.states import Status
from wakeboard_dashboard.queries import errors
from wakeboard_dashboard.queries import groups as kept_groups
from wakeboard_dashboard.queries.errors import MOST_GROUPS, NO_STEPS, Found, Group, Window
from wakeboard_dashboard.queries.failures import read
from wakeboard_dashboard.queries.failures.lately import Lately, Newest, moment_of, stamp
from wakeboard_dashboard.queries.failures.named import Names, Words
from wakeboard_dashboard.queries.failures.recovered import Recovered
from wakeboard_dashboard.queries.failures.runs import Runs

_MUTED = text("SELECT id FROM wakeboard.error_groups WHERE muted_until > now()")


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process remembers of failures."""

    lately: Lately = field(default_factory=Lately)
    names: Names = field(default_factory=Names)
    runs: Runs = field(default_factory=Runs)
    recovered: Recovered = field(default_factory=Recovered)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The attempts of a window, and by the numbers of groups runs that fail now, and words."""

    window: Window
    attempts: Newest
    failed: Mapping[int, int]
    dead: Mapping[int, int]
    words: Mapping[int, Words]


class Tried(NamedTuple):
    """Groups by their attempts alone, and what tells the steps of groups."""

    found: Found
    steps: Callable[[Sequence[Group]], list[Sequence[int]]]


def groups(memory: Memory, connection: Connection, window: Window, now: datetime) -> Found:
    """Return the groups in full, muted or not, at most MOST_GROUPS; ``now``: the database's clock."""
    found = every(memory, connection, window, now, apart=False)
    return replace(found, heard=errors.in_full(connection, found.heard))


def every(
    memory: Memory,
    connection: Connection,
    window: Window,
    now: datetime,
    *,
    most: int | None = MOST_GROUPS,
    apart: bool = True,
) -> Found:
    """Return what ``errors.every`` does; ``now``: the database's clock."""
    counted = _counted(memory, connection, window, now)
    if counted is None:
        found = errors.every(connection, window, most=most, apart=apart)
        memory.lately.note(window, sum(group.count + group.failed + group.dead for group in found.heard))
        return found
    numbers = {*counted.attempts.counts, *counted.failed, *counted.dead}
    muted = numbers & set(connection.execute(_MUTED).scalars()) if apart else set()
    heard = numbers - muted
    return Found(
        _groups(counted, _first(counted, heard, most)),
        _groups(counted, _first(counted, muted, most)),
        len(heard),
        is_cut=counted.attempts.total >= errors.CAP,
        are_runs_cut=_most_runs(counted) >= errors.RUNS_CAP,
        types=memory.names.types(counted.words, numbers),
    )


def tried(memory: Memory, connection: Connection, window: Window, now: datetime) -> Tried | None:
    """Return what ``errors.tried`` does; None where nothing is remembered."""
    counted = _counted(memory, connection, window, now, with_runs=False)
    if counted is None:
        return None
    counts = counted.attempts.counts
    groups = _groups(counted, _with_ties(counts, counts, errors.MOST_GROUPS), with_steps=False)
    found = Found(groups, is_cut=counted.attempts.total >= errors.CAP)
    return Tried(found, partial(_steps, counted))


def trend(
    memory: Memory, connection: Connection, window: Window, begun: Sequence[datetime], now: datetime
) -> list[int]:
    """Return what ``groups.trend`` does for a ``window`` of one group; ``now``: the database's clock."""
    assert window.number is not None
    attempts = memory.lately.newest(connection, window, now)
    if attempts is None:
        found = kept_groups.trend(connection, window.number, window.since, window.until, begun)
        memory.lately.note(window, sum(found))
        return found
    times = attempts.times_of([window.number])[window.number]
    return _by_step(times, [stamp(start) for start in begun]) if times else [0] * len(begun)


def _counted(
    memory: Memory, connection: Connection, window: Window, now: datetime, *, with_runs: bool = True
) -> _Counted | None:
    """Return what is counted, runs that fail now only ``with_runs``; None where nothing is remembered."""
    attempts = memory.lately.newest(connection, window, now)
    if attempts is None:
        return None
    failed, dead = _failing(connection, window) if with_runs else ({}, {})
    numbers = {*attempts.counts, *failed, *dead}
    words = None if None in numbers else memory.names.of(connection, numbers)
    if words is None:
        memory.lately.forget(window, now)
        return None
    return _Counted(window, attempts, failed, dead, words)


def _failing(connection: Connection, window: Window) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many runs of each group will be tried again, and how many are dead; None is no group."""
    statement = read.failing(
        cap=errors.RUNS_CAP, code=window.code is not None, job_type=window.job_type is not None
    )
    rows = connection.execute(statement, {"code": window.code, "job_type": window.job_type})
    found = {status: dict(zip(numbers or (), counts or (), strict=True)) for status, numbers, counts in rows}
    return found.get(Status.FAILED.value, {}), found.get(Status.DEAD.value, {})


def _most_runs(counted: _Counted) -> int:
    """Return how many runs are counted where RUNS_CAP is the most: of one code, else of a state."""
    failed, dead = sum(counted.failed.values()), sum(counted.dead.values())
    return max(failed, dead) if counted.window.code is None else failed + dead


def _with_ties(counts: Mapping[int, int], numbers: Collection[int], most: int) -> list[int]:
    """Return the ``most`` numbers with the highest counts, and those with as many as the last of them."""
    if len(numbers) <= most:
        return list(numbers)
    least = sorted([counts.get(number, 0) for number in numbers], reverse=True)[most - 1]
    return [number for number in numbers if counts.get(number, 0) >= least]


def _first(counted: _Counted, numbers: Collection[int], most: int | None) -> list[int]:
    """Return the groups ``numbers`` in the order of ``errors``, the first ``most`` of them."""
    counts, failed, dead, words = counted.attempts.counts, counted.failed, counted.dead, counted.words

    def rank(number: int) -> tuple[int, int, str, str, int]:
        failing = failed.get(number, 0) + dead.get(number, 0)
        return -counts.get(number, 0), -failing, words[number].code, words[number].job_type, number

    return sorted(numbers if most is None else _with_ties(counts, numbers, most), key=rank)[:most]


def _groups(counted: _Counted, numbers: Sequence[int], *, with_steps: bool = True) -> list[Group]:
    """Return the groups ``numbers`` with all that is counted of them."""
    starts = [stamp(start) for start in counted.window.starts]
    return [
        Group(
            counted.words[number].code,
            counted.words[number].job_type,
            number,
            None,
            len(times),
            counted.failed.get(number, 0),
            counted.dead.get(number, 0),
            moment_of(times[0]) if times else None,
            moment_of(times[-1]) if times else None,
            buckets=_buckets(times, starts) if with_steps else NO_STEPS,
        )
        for number, times in counted.attempts.times_of(numbers).items()
    ]


def _steps(counted: _Counted, groups: Sequence[Group]) -> list[Sequence[int]]:
    """Return the buckets of the groups, each of which has a number."""
    starts = [stamp(start) for start in counted.window.starts]
    numbers = [group.number for group in groups if group.number is not None]
    return [_buckets(times, starts) for times in counted.attempts.times_of(numbers).values()]


def _buckets(times: Sequence[int], starts: Sequence[int]) -> tuple[int, ...]:
    """Return how many of ``times``, oldest first, are in each of the steps of a window."""
    counts = _by_step(times, starts) if times else ()
    return (*counts, *NO_STEPS[len(counts) :])


def _by_step(times: Sequence[int], starts: Sequence[int]) -> list[int]:
    """Return how many of ``times``, oldest first, are in each of the steps that begin at ``starts``.

    The first step has what is before it as well, as in PostgreSQL.
    """
    begins = [bisect_left(times, start) if start > times[0] else 0 for start in starts[1:]]
    return [end - begin for begin, end in pairwise([0, *begins, len(times)])]
