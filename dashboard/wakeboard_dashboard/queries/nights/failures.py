"""What failed in a night, by group: which of it is new, what became of its runs, and an example of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from wakeboard.reporting.activity_report.faults import MOST_SHOWN, FailingRuns, Mark, mark_of
from wakeboard_dashboard.queries import errors, groups
from wakeboard_dashboard.queries.errors import FailureGroups, Group

NONE_FAILS = FailingRuns()


@dataclass(frozen=True)
class Failures:
    """The groups of a window, the ``new`` ones first, then those of which most attempts failed.

    ``shown`` are the first MOST_SHOWN of ``count``, with their rows of error_groups. ``is_cut``: counting
    stopped at ``errors.CAP``.
    """

    shown: list[Group] = field(default_factory=list)
    count: int = 0
    new: int = 0
    is_cut: bool = False

    @property
    def numbers(self) -> list[int]:
        """The numbers of the groups that are shown."""
        return [group.number for group in self.shown if group.number is not None]


def told(
    connection: Connection,
    found: FailureGroups,
    since: datetime,
    known: Callable[[], Collection[tuple[str, str]]],
) -> Failures:
    """Return what is told of the groups that ``errors.tried`` found of a window that began at ``since``.

    ``known`` returns each code and type that had failed before, of which no group was kept.
    """
    if not found.heard:
        return Failures()

    def rank(group: Group) -> tuple[int, str, str, float]:
        return -group.count, group.code, group.job_type, math.inf if group.number is None else group.number

    ranked = sorted(found.heard, key=rank)
    numbers = [group.number for group in ranked if group.number is not None]
    kept = groups.unseen_before(connection, numbers, since, numbers[:MOST_SHOWN])

    def is_new(group: Group) -> bool:
        if group.number is not None:
            if group.number not in kept:
                return False
            of_group = kept[group.number]
            if of_group is not None and of_group.first_seen_at < since:
                return False
        return (group.code, group.job_type) not in known()

    new = [is_new(group) for group in ranked]
    told = sorted(zip(new, ranked, strict=True), key=lambda each: not each[0])[:MOST_SHOWN]
    shown = [replace(group, kept=kept.get(group.number or 0)) for _, group in told]
    return Failures(shown, len(ranked), sum(new), found.is_cut)


def in_full(
    connection: Connection, found: Sequence[Group], failing: Mapping[Mark, FailingRuns]
) -> list[Group]:
    """Return the groups, each with its newest message and how many of the window's runs fail with it now."""
    return [
        replace(
            group,
            message=message,
            **failing.get(mark_of(group.number, group.code, group.job_type), NONE_FAILS)._asdict(),
        )
        for group, message in zip(found, errors.messages_of(connection, found), strict=True)
    ]
