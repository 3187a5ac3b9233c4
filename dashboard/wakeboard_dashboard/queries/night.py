"""One window of time and all that the page of a night and its twin show of it.

Failures are listed by group: which are new, what became of their runs, and an example of each. Each statement
is sent once, when its result is first read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from sqlalchemy import Connection

from wakeboard.reporting.activity_report import TimeWindow, fires, type_activity
from wakeboard.reporting.activity_report.baselines import Baseline, find_baselines
from wakeboard.reporting.activity_report.failures import (
    MAX_SHOWN,
    FailedAttempts,
    FailedRunStates,
    FailingRuns,
    FailureKey,
    LostAttempt,
    RecoveredRun,
    failure_key,
    find_failed_attempts,
    find_known_failures,
    find_lost_attempts,
    find_recovered_runs,
)
from wakeboard.reporting.activity_report.type_activity import BusyTime, RunningType, SlowRun, TypeAttempts
from wakeboard.reporting.activity_report.verdict import NightNumbers
from wakeboard.reporting.activity_report.worker_gaps import WorkerGap, find_worker_gaps
from wakeboard.reporting.filters.values import Moment
from wakeboard_dashboard.queries import audit, error_groups, errors
from wakeboard_dashboard.queries.errors import FailureGroup, FailureWindow, RankedGroups
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.queries.query_string import Filters

NONE_FAILS = FailingRuns()


@dataclass(frozen=True)
class Failures:
    """The groups of a window, the ``new`` ones first, then those of which most attempts failed.

    ``shown`` are the first MAX_SHOWN of ``count``, with their rows of error_groups. ``is_cut``: counting
    stopped at ``errors.CAP``.
    """

    shown: list[FailureGroup] = field(default_factory=list)
    count: int = 0
    new: int = 0
    is_cut: bool = False

    @property
    def numbers(self) -> list[int]:
        """The numbers of the groups that are shown."""
        return [group.number for group in self.shown if group.number is not None]


def rank_failures(
    connection: Connection,
    ranked_groups: RankedGroups,
    since: datetime,
    earlier_failures: Callable[[], Collection[tuple[str, str]]],
) -> Failures:
    """Return ``ranked_groups`` in the order of the page, the new ones first.

    They are ``errors.list_most_attempted`` of a window that began at ``since``. ``earlier_failures``
    returns each code and type that had failed before and has no row of error_groups.
    """
    if not ranked_groups.unmuted:
        return Failures()

    def rank(group: FailureGroup) -> tuple[int, str, str, float]:
        return -group.count, group.code, group.job_type, math.inf if group.number is None else group.number

    ranked = sorted(ranked_groups.unmuted, key=rank)
    numbers = [group.number for group in ranked if group.number is not None]
    rows = error_groups.read_new_groups(connection, numbers, since, numbers[:MAX_SHOWN])

    def is_new(group: FailureGroup) -> bool:
        if group.number is not None:
            if group.number not in rows:
                return False
            row = rows[group.number]
            if row is not None and row.first_seen_at < since:
                return False
        return (group.code, group.job_type) not in earlier_failures()

    new = [is_new(group) for group in ranked]
    new_first = sorted(zip(new, ranked, strict=True), key=lambda each: not each[0])[:MAX_SHOWN]
    shown = [replace(group, row=rows.get(group.number or 0)) for _, group in new_first]
    return Failures(shown, len(ranked), sum(new), ranked_groups.is_cut)


def add_details(
    connection: Connection, groups: Sequence[FailureGroup], failing: Mapping[FailureKey, FailingRuns]
) -> list[FailureGroup]:
    """Return the groups, each with its newest message and how many of the window's runs fail with it now."""
    return [
        replace(
            group,
            message=message,
            **failing.get(failure_key(group.number, group.code, group.job_type), NONE_FAILS)._asdict(),
        )
        for group, message in zip(groups, errors.read_messages(connection, groups), strict=True)
    ]


@dataclass(frozen=True)
class Night:
    """All that is shown of one window. Each property sends its statement once."""

    connection: Connection
    window: TimeWindow
    now: datetime

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """The median duration of each type in the days before the window."""
        return find_baselines(self.connection, self.window.since)

    @cached_property
    def attempts_by_type(self) -> list[TypeAttempts]:
        """The attempts that ended, by type, types with failures first."""
        return type_activity.find_attempts(self.connection, self.window, self.baselines)

    @cached_property
    def running(self) -> list[RunningType]:
        """The runs that run now, by type; none of a window that is over or has not begun."""
        is_now = self.window.since <= self.now < self.window.until
        return type_activity.find_running(self.connection) if is_now else []

    @cached_property
    def slow(self) -> list[TypeAttempts]:
        """The types of which attempts took over three times their median, most of them first."""
        return sorted((each for each in self.attempts_by_type if each.slow), key=lambda each: -each.slow)

    @cached_property
    def slow_runs(self) -> dict[str, list[SlowRun]]:
        """The slowest runs of the first types of ``slow``, by type."""
        by_type: dict[str, list[SlowRun]] = {}
        for run in type_activity.find_slow_runs(
            self.connection, self.window, self.slow[: type_activity.MAX_SLOW_TYPES]
        ):
            by_type.setdefault(run.job_type, []).append(run)
        return by_type

    @cached_property
    def failure_window(self) -> FailureWindow:
        """The window as ``queries.errors`` takes it."""
        return FailureWindow(self.window.since, self.window.until)

    @cached_property
    def failures(self) -> Failures:
        """The failed attempts by code and type."""
        ranked_groups = errors.list_most_attempted(self.connection, self.failure_window)
        return rank_failures(
            self.connection, ranked_groups, self.window.since, lambda: self.earlier_failures[0]
        )

    @cached_property
    def shown_failures(self) -> list[FailureGroup]:
        """Those that are shown, in full."""
        return add_details(self.connection, self.failures.shown, self.failed.failing)

    @cached_property
    def trends(self) -> list[Sequence[int]]:
        """The failed attempts of each group that is shown by the steps of the window."""
        return errors.count_steps(self.connection, self.failure_window, self.failures.shown)

    @cached_property
    def failed(self) -> FailedAttempts:
        """The attempts that failed, by run, and the states of those runs now."""
        return find_failed_attempts(self.connection, self.window, self.failures.numbers)

    @property
    def failed_run_states(self) -> FailedRunStates:
        """The states now of the runs that failed."""
        return self.failed.states

    @cached_property
    def earlier_failures(self) -> tuple[set[tuple[str, str]], bool]:
        """The kinds of failure from before the window, and whether only the newest were read."""
        return find_known_failures(self.connection, self.window)

    @cached_property
    def recovered_runs(self) -> tuple[list[RecoveredRun], int]:
        """The runs that succeeded only after failures, and how many there are."""
        return find_recovered_runs(self.connection, self.window)

    @cached_property
    def lost_attempts(self) -> tuple[list[LostAttempt], int]:
        """The attempts whose runs were taken over, and how many there are."""
        return find_lost_attempts(self.connection, self.failed)

    @cached_property
    def missed(self) -> fires.MissedFireCounts:
        """The fires that were missed."""
        return fires.find_missed_fires(self.connection, self.window)

    @cached_property
    def schedule_fires(self) -> fires.Fires:
        """The fires that made runs, and how these began."""
        return fires.find_fires(self.connection, self.window)

    @cached_property
    def unmanned(self) -> list[WorkerGap]:
        """The stretches without a live worker."""
        return find_worker_gaps(self.connection, self.window)

    @cached_property
    def audit_entries(self) -> Rows:
        """The audit rows of the window, newest first."""
        moments = {name: Moment(getattr(self.window, name)) for name in ("since", "until")}
        filters = Filters(moments, limit=MAX_SHOWN)
        return audit.list_entries(self.connection, filters, self.now, sees_secrets=False)[0]

    @cached_property
    def under_way(self) -> dict[str, tuple[datetime, int]]:
        """When the longest running run of each type began, and how many run."""
        return {each.job_type: (each.first_at, each.runs) for each in self.running}

    @cached_property
    def lane_types(self) -> list[str]:
        """The types of the timeline: those with failures, then the busiest."""
        busiest = sorted(self.attempts_by_type, key=lambda each: (-each.failed, -each.seconds, each.job_type))
        return list(dict.fromkeys([*(each.job_type for each in busiest), *self.under_way]))[
            : type_activity.MAX_LANES
        ]

    @cached_property
    def busy(self) -> dict[str, BusyTime]:
        """When each of ``lane_types`` was busy."""
        return type_activity.find_busy_times(self.connection, self.window, self.lane_types)

    @cached_property
    def numbers(self) -> NightNumbers:
        """The numbers of the sentence and the tiles."""
        return NightNumbers(
            attempts=sum(each.attempts for each in self.attempts_by_type),
            types=len(self.attempts_by_type),
            failed=sum(each.failed for each in self.attempts_by_type),
            new=self.failures.new,
            recovered=self.recovered_runs[1],
            waiting=self.failed_run_states.waiting,
            dead=self.failed_run_states.dead,
            missed=self.missed.fires,
            missed_is_cut=self.missed.is_cut,
            late=self.schedule_fires.late,
            overlapping=self.schedule_fires.overlapping,
            slow=sum(each.slow for each in self.attempts_by_type),
            taken_over=self.lost_attempts[1],
            stuck=sum(each.stuck for each in self.running),
            running=sum(each.runs for each in self.running),
            acts=len(self.audit_entries.items),
            unmanned_seconds=sum(each.seconds for each in self.unmanned),
        )
