"""One window of time and everything that is found about it, for the page of a night and its twin.

Each question is asked of the database once, when somebody first wants its answer. Knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import cast

from sqlalchemy import Connection, text

from wakeboard.reporting.activity_report import Ask, Row, TimeWindow, faults, fires, minutes
from wakeboard.reporting.activity_report import missed as missed_fires
from wakeboard.reporting.activity_report.minutes import TypeAttempts
from wakeboard.reporting.activity_report.stretches import BusyTime
from wakeboard.reporting.activity_report.unmanned import UnmannedStretch, unmanned
from wakeboard.reporting.activity_report.usual import Baseline, medians
from wakeboard.reporting.activity_report.words import NightNumbers
from wakeboard.reporting.filters.values import Moment
from wakeboard_dashboard.queries import audit, errors
from wakeboard_dashboard.queries.errors import FailureWindow, Group
from wakeboard_dashboard.queries.filters import Filters
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.queries.nights import failures
from wakeboard_dashboard.queries.nights.failures import Failures

# Making one of the questions costs as much Python as asking it; they are some twenty.
_statement = cache(text)


@dataclass(frozen=True)
class Night:
    """Everything that was found about one window; each question is asked of the database once."""

    connection: Connection
    window: TimeWindow
    now: datetime

    @cached_property
    def ask(self) -> Ask:
        """How the shared questions of a night are asked here."""
        return lambda sql, values: cast(
            list[Row], self.connection.execute(_statement(sql), dict(values)).mappings().all()
        )

    @cached_property
    def usual(self) -> dict[str, Baseline]:
        """What was usual before."""
        return medians(self.ask, self.window.since)

    @cached_property
    def ran(self) -> list[TypeAttempts]:
        """What ended, by type, those with failures first."""
        return minutes.ran(self.ask, self.window, self.usual)

    @cached_property
    def running(self) -> list[Row]:
        """What runs now, when the window is not over and has begun."""
        under_way = self.window.since <= self.now < self.window.until
        return minutes.running(self.ask) if under_way else []

    @cached_property
    def slow(self) -> list[TypeAttempts]:
        """The types of which attempts took over three times their median, most of them first."""
        return sorted((each for each in self.ran if each.slow), key=lambda each: -each.slow)

    @cached_property
    def slow_runs(self) -> dict[str, list[Row]]:
        """The slowest runs of the types that come first in ``slow``, by type."""
        found: dict[str, list[Row]] = {}
        for run in minutes.slow_runs(self.ask, self.window, self.slow[: minutes.SLOW_TYPES]):
            found.setdefault(run["job_type"], []).append(run)
        return found

    @cached_property
    def failure_window(self) -> FailureWindow:
        """The window as the pages of errors ask of it."""
        return FailureWindow(self.window.since, self.window.until)

    @cached_property
    def failures(self) -> Failures:
        """The failed attempts by code and type."""
        found = errors.tried(self.connection, self.failure_window)
        return failures.told(self.connection, found, self.window.since, lambda: self.known[0])

    @cached_property
    def shown_failures(self) -> list[Group]:
        """Those that are shown, in full."""
        return failures.in_full(self.connection, self.failures.shown, self.failed.failing)

    @cached_property
    def trends(self) -> list[Sequence[int]]:
        """The failed attempts of each group that is shown by the steps of the window."""
        return errors.steps_of(self.connection, self.failure_window, self.failures.shown)

    @cached_property
    def failed(self) -> faults.FailedAttempts:
        """The attempts that failed, by run, and how those stood when they were asked for."""
        return faults.failed(self.ask, self.window, self.failures.numbers)

    @property
    def fates(self) -> faults.FailedRunStates:
        """What became of the runs that failed."""
        return self.failed.fates

    @cached_property
    def known(self) -> tuple[set[tuple[str, str]], bool]:
        """The kinds of failure from before the window, and whether only the newest were read."""
        return faults.known(self.ask, self.window)

    @cached_property
    def recovered(self) -> tuple[list[Row], int]:
        """The runs that succeeded only after failures, and how many there are."""
        return faults.recovered(self.ask, self.window)

    @cached_property
    def lost(self) -> tuple[list[Row], int]:
        """The attempts whose run was taken over, and how many there are."""
        return faults.lost(self.ask, self.failed)

    @cached_property
    def missed(self) -> missed_fires.AllMissedFires:
        """The fires that were missed."""
        return missed_fires.missed(self.ask, self.window)

    @cached_property
    def fired(self) -> fires.Fires:
        """How the fires began for which runs were made."""
        return fires.fired(self.ask, self.window)

    @cached_property
    def unmanned(self) -> list[UnmannedStretch]:
        """The stretches in which no worker was there."""
        return unmanned(self.ask, self.window)

    @cached_property
    def acts(self) -> Rows:
        """What people did, newest first."""
        moments = {name: Moment(getattr(self.window, name)) for name in ("since", "until")}
        filters = Filters(moments, limit=faults.MOST_SHOWN)
        return audit.page(self.connection, filters, self.now, sees_secrets=False)[0]

    @cached_property
    def under_way(self) -> dict[str, tuple[datetime, int]]:
        """By type when the longest running run began, and how many run."""
        return {row["job_type"]: (row["first_at"], row["runs"]) for row in self.running}

    @cached_property
    def lane_types(self) -> list[str]:
        """The types that are drawn on a line of time: those with failures, then the busiest."""
        busiest = sorted(self.ran, key=lambda each: (-each.failed, -each.seconds, each.job_type))
        return list(dict.fromkeys([*(each.job_type for each in busiest), *self.under_way]))[: minutes.LANES]

    @cached_property
    def busy(self) -> dict[str, BusyTime]:
        """When each of ``lane_types`` was busy."""
        return minutes.busy(self.ask, self.window, self.lane_types)

    @cached_property
    def numbers(self) -> NightNumbers:
        """What the sentence and the tiles say."""
        return NightNumbers(
            attempts=sum(each.attempts for each in self.ran),
            types=len(self.ran),
            failed=sum(each.failed for each in self.ran),
            new=self.failures.new,
            recovered=self.recovered[1],
            waiting=self.fates.waiting,
            dead=self.fates.dead,
            missed=self.missed.fires,
            missed_is_cut=self.missed.is_cut,
            late=self.fired.late,
            overlapping=self.fired.beside,
            slow=sum(each.slow for each in self.ran),
            taken_over=self.lost[1],
            stuck=sum(row["stuck"] for row in self.running),
            running=sum(row["runs"] for row in self.running),
            acts=len(self.acts.items),
            unmanned_seconds=sum(each.seconds for each in self.unmanned),
        )
