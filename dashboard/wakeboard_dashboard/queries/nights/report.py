"""One window of time and everything that is found about it, for the page of a night and its twin.

Each question is asked of the database once, when somebody first wants its answer; what is told of a window
that cannot change any more is kept from one request to the next. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from typing import TypeVar, cast

from sqlalchemy import Connection, text

from wakeboard.reporting.activity_report import Ask, Row, faults, fires, minutes
from wakeboard.reporting.activity_report import missed as missed_fires
from wakeboard.reporting.activity_report.minutes import Minutes, Ran
from wakeboard.reporting.activity_report.unmanned import Unmanned, unmanned
from wakeboard.reporting.activity_report.usual import Usual, medians, usual_until
from wakeboard.reporting.hourly_rollups import HOUR, SETTLED
from wakeboard_dashboard.charts import gantt
from wakeboard_dashboard.queries import audit, errors, removed
from wakeboard_dashboard.queries.errors import Group, Window
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.queries.nights import failures, hours
from wakeboard_dashboard.queries.nights.failures import Failures
from wakeboard_dashboard.queries.nights.hours import KeptMinutes
from wakeboard_dashboard.queries.settled import Settled
from wakeboard_dashboard.text import night as words
from wakeboard_dashboard.web import params

Answer = TypeVar("Answer")
# As with hours: this long after it ended an attempt has been written down, and a replica has caught up.
SETTLES = SETTLED - HOUR

# Making one of the questions costs as much Python as asking it; they are some twenty.
_statement = cache(text)


@dataclass(frozen=True)
class Night:
    """Everything that was found about one window; each question is asked of the database once."""

    connection: Connection
    window: Window
    now: datetime
    settled: Settled = field(default_factory=Settled)
    kept_minutes: KeptMinutes = field(default_factory=KeptMinutes)

    def _once(
        self, question: Hashable, ask: Callable[[], Answer], *, up_to: datetime | None = None
    ) -> Answer:
        """Return what ``ask`` finds; once, when the window or what is before ``up_to`` is settled."""
        if not self._is_settled(up_to or self.window.until):
            return ask()
        return self.settled.get((up_to or self.window, question), ask)

    def _of_minutes(
        self, question: Hashable, ask: Callable[[], Answer], *, up_to: datetime | None = None
    ) -> Answer:
        """Return what ``_once`` does, of minutes that retention may be removing what ``ask`` finds now."""
        stay = hours.stay(self.window, self.now)
        return self._once(question, ask, up_to=up_to) if stay else ask()

    def _of_runs(self, question: Hashable, ask: Callable[[], Answer]) -> Answer:
        """Return what ``ask`` finds, when it is settled once for as long as retention removes no run."""
        if not self._is_settled(self.window.until):
            return ask()
        if self.window.since + removed.STAY > self.now:
            return self._once(question, ask)
        return self.settled.get((self.window, question), ask, self._removed)

    def _is_settled(self, moment: datetime) -> bool:
        """Whether nothing more can end before ``moment``."""
        return moment + SETTLES < self.now

    @cached_property
    def _removed(self) -> removed.Mark:
        """What tells that retention has removed no run since an answer was found."""
        return removed.mark(self.connection, self.now)

    @cached_property
    def ask(self) -> Ask:
        """How the shared questions of a night are asked here."""
        return lambda sql, values: cast(
            list[Row], self.connection.execute(_statement(sql), dict(values)).mappings().all()
        )

    @cached_property
    def usual(self) -> dict[str, Usual]:
        """What was usual before."""
        since = self.window.since
        before = usual_until(since)
        return self._of_minutes("usual", lambda: medians(self.ask, since), up_to=before)

    @cached_property
    def parts(self) -> list[Minutes]:
        """What the minutes of the window say."""
        return hours.minutes_of(self.ask, self.window, self.usual, self.now, self.kept_minutes)

    @cached_property
    def ran(self) -> list[Ran]:
        """What ended, by type, those with failures first."""
        return self._of_minutes("ran", lambda: minutes.ran(self.parts, self.usual))

    @cached_property
    def running(self) -> list[Row]:
        """What runs now, when the window is not over and has begun."""
        under_way = self.window.since <= self.now < self.window.until
        return minutes.running(self.ask) if under_way else []

    @cached_property
    def slow(self) -> list[Ran]:
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
    def failures(self) -> Failures:
        """The failed attempts by code and type."""
        found = self._of_runs("tried", lambda: errors.tried(self.connection, self.window))
        return failures.told(self.connection, found, self.window.since, lambda: self.known[0])

    @cached_property
    def shown_failures(self) -> list[Group]:
        """Those that are shown, in full."""
        return failures.in_full(self.connection, self.failures.shown, self._standing[1])

    @cached_property
    def trends(self) -> list[Sequence[int]]:
        """The failed attempts of each group that is shown by the steps of the window."""
        groups = self.failures.shown
        # Which group comes first changes with what becomes of the runs, the steps do not.
        groups = sorted(groups, key=lambda group: (group.code, group.job_type, group.number or 0))
        names = [(group.code, group.job_type, group.number) for group in groups]
        steps = self._of_runs(
            ("trends", *names), lambda: errors.steps_of(self.connection, self.window, groups)
        )
        of_group = dict(zip(names, steps, strict=True))
        return [of_group[group.code, group.job_type, group.number] for group in self.failures.shown]

    @cached_property
    def failed(self) -> faults.Failed:
        """The attempts that failed, by run, and how those stood when they were asked for."""
        groups = self.failures.numbers
        return self._of_runs("failed", lambda: faults.failed(self.ask, self.window, groups))

    @cached_property
    def _standing(self) -> tuple[faults.Fates, Mapping[faults.Mark, faults.Failing]]:
        """What became of the runs that failed, and which of them fail now, by mark."""
        if self._is_settled(self.window.until):
            return faults.fates_now(self.ask, self.failed, self.failures.numbers)
        return self.failed.fates, self.failed.failing

    @property
    def fates(self) -> faults.Fates:
        """What became of the runs that failed."""
        return self._standing[0]

    @cached_property
    def known(self) -> tuple[set[tuple[str, str]], bool]:
        """The kinds of failure from before the window, and whether only the newest were read."""
        return self._once("known", lambda: faults.known(self.ask, self.window), up_to=self.window.since)

    @cached_property
    def recovered(self) -> tuple[list[Row], int]:
        """The runs that succeeded only after failures, and how many there are."""
        return self._of_runs("recovered", lambda: faults.recovered(self.ask, self.window))

    @cached_property
    def lost(self) -> tuple[list[Row], int]:
        """The attempts whose run was taken over, and how many there are."""
        return faults.lost(self.ask, self.failed)

    @cached_property
    def missed(self) -> missed_fires.AllMissed:
        """The fires that were missed."""
        return missed_fires.missed(self.ask, self.window)

    @cached_property
    def fired(self) -> fires.Fires:
        """How the fires began for which runs were made."""
        return fires.fired(self.ask, self.window)

    @cached_property
    def unmanned(self) -> list[Unmanned]:
        """The stretches in which no worker was there."""
        return unmanned(self.ask, self.window)

    @cached_property
    def acts(self) -> Rows:
        """What people did, newest first."""
        moments = {name: params.Moment(getattr(self.window, name)) for name in ("since", "until")}
        filters = params.Filters(moments, limit=faults.MOST_SHOWN)
        return audit.page(self.connection, filters, self.now, sees_secrets=False)[0]

    @cached_property
    def lanes(self) -> list[gantt.Lane]:
        """The types with failures, then the busiest, on a line of time."""
        under_way = {row["job_type"]: (row["first_at"], row["runs"]) for row in self.running}
        busiest = sorted(self.ran, key=lambda each: (-each.failed, -each.seconds, each.job_type))
        types = list(dict.fromkeys([*(each.job_type for each in busiest), *under_way]))[: minutes.LANES]

        def drawn() -> list[gantt.Lane]:
            step = minutes.slice_length(self.window)
            parts = minutes.drawn(self.ask, self.parts, self.usual, step, types)
            busy = minutes.busy(parts, self.window.since, types)
            return gantt.lanes(self.window, types, busy, under_way, self.now)

        # Nothing is under way in a window that is over.
        return self._of_minutes(tuple(types), drawn)

    @cached_property
    def numbers(self) -> words.Numbers:
        """What the sentence and the tiles say."""
        return words.Numbers(
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
