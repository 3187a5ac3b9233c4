"""The types of alert rules: what a rule may watch, its settings and bounds, and who checks it. Pure.

The web process watches what could go wrong because no worker lives; workers watch the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from wakeboard.core.time.durations import format_duration, parse_duration

Watcher = Literal["web", "worker"]
Unit = Literal["count", "times", "seconds", "switch", "clock"]
# The type of the runs that deliver messages; no rule counts them.
JOB_TYPE = "alert"
# The alert that the web process sends from memory, for no rule can be read then.
OUTAGE = "database"


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """One number of a rule. Bounds are inclusive; ``switch`` is 0 or 1, ``seconds`` a duration, ``clock`` a
    time of day in minutes since midnight."""

    name: str
    label: str
    unit: Unit
    default: float
    low: float
    high: float

    def read(self, text: str) -> float:
        """Return the value that a person wrote. Raises ValueError with a sentence: what is allowed."""
        try:
            value = _READERS.get(self.unit, float)(text.strip())
        except ValueError as wrong:
            raise ValueError(f"{self.label} is “{text[:40]}”; allowed: {self.allowed}.") from wrong
        # The bounds first: neither infinity nor NaN can become an int.
        is_within = self.low <= value <= self.high
        if not is_within or (self.unit in ("count", "switch", "clock") and value != int(value)):
            raise ValueError(f"{self.label} is “{text[:40]}”; allowed: {self.allowed}.")
        return value

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        if self.unit == "switch":
            return "1 or 0"
        return f"{self.shown(self.low)} to {self.shown(self.high)}"

    def shown(self, value: float) -> str:
        """Return a value as ``read`` takes it, to the same number."""
        if self.unit == "clock":
            return f"{int(value) // 60:02}:{int(value) % 60:02}"
        plain = f"{value:.10g}"
        words = format_duration(value).replace(" ", "") if self.unit == "seconds" else plain
        return words if self.unit != "seconds" or parse_duration(words) == value else plain


def _minutes(text: str) -> float:
    """Return the minutes since midnight of ``7:30`` or ``07:30``."""
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", text, re.ASCII)
    if match is None:
        raise ValueError
    return 60.0 * int(match[1]) + int(match[2])


_READERS: dict[Unit, Callable[[str], float]] = {"seconds": parse_duration, "clock": _minutes}
LAST_MINUTE = 24 * 60 - 1
# The interval of checks that an idle worker makes as well.
RESTING_SECONDS = 30.0
# The interval of checks whose result only an edit of a schedule changes.
SLOW_SECONDS = 300.0

# Rules of failures can leave out the groups that somebody muted on the page of errors.
MUTED = RuleSetting("muted", "Leave out muted error groups", "switch", 1, 0, 1)
WINDOW = RuleSetting("window_seconds", "At most one message in", "seconds", 900, 60, 86_400)
REMIND = RuleSetting(
    "remind_seconds", "Remind while it lasts, every (0: never)", "seconds", 14_400, 0, 604_800
)
WITHIN = RuleSetting("within_seconds", "Look back", "seconds", 3600, 60, 604_800)


@dataclass(frozen=True, slots=True)
class RuleType:
    """A type of rule: its words, who checks it how often, its own settings.

    ``is_report``: it is sent once a day and never fires (``wakeboard.alerts.report_schedule``).
    ``is_of_others``: it looks for processes that are silent, and would find all of them where the database
    itself was away. ``since``: the filter of its page for the time from which on the failures count.
    """

    name: str
    title: str
    meaning: str
    watcher: Watcher
    page: str
    own: tuple[RuleSetting, ...] = ()
    every_seconds: float = 15.0
    is_report: bool = False
    is_of_others: bool = False
    since: str | None = None

    @property
    def settings(self) -> tuple[RuleSetting, ...]:
        """All settings of a rule of this kind."""
        return self.own if self.is_report else (*self.own, WINDOW, REMIND)

    def values(self, given: Mapping[str, object]) -> dict[str, float]:
        """Return every setting's value: the rule's own where it is within bounds, else the default."""
        return {each.name: _bounded(each, given.get(each.name)) for each in self.settings}


def _bounded(setting: RuleSetting, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return setting.default
    return value if setting.low <= value <= setting.high else setting.default


KINDS: dict[str, RuleType] = {
    kind.name: kind
    for kind in (
        RuleType(
            "no_worker",
            "No worker for waiting work",
            "Due runs of a type that no live worker takes, or schedules that nobody fires.",
            "web",
            "/workers",
            (RuleSetting("waited_seconds", "Due for longer than", "seconds", 120, 10, 86_400),),
            is_of_others=True,
        ),
        RuleType(
            "late_loop",
            "A loop is late",
            "A background duty of a process has missed three rounds: it may have died in a healthy process.",
            "web",
            "/system",
            is_of_others=True,
        ),
        RuleType(
            "queue_age",
            "The queue grows old",
            "The oldest due run of a type that is not paused has waited too long, or the database refuses to "
            "let one start.",
            "web",
            "/runs?status=queued",
            (RuleSetting("waited_seconds", "Waits longer than", "seconds", 600, 10, 604_800),),
        ),
        RuleType(
            "dead_runs",
            "Dead runs",
            "Runs that gave up and wait for a person.",
            "worker",
            "/runs?status=dead",
            (RuleSetting("count", "From this many", "count", 1, 1, 1_000_000), WITHIN, MUTED),
            every_seconds=RESTING_SECONDS,
            since="failed-since",
        ),
        RuleType(
            "failures_rise",
            "Failures rise",
            "Failed attempts of the last hour against the median of the same hour of the seven days before.",
            "worker",
            "/errors",
            (
                RuleSetting("factor", "More than so many times the usual", "times", 3, 1, 1000),
                RuleSetting("count", "And from this many", "count", 10, 1, 1_000_000),
                MUTED,
            ),
            every_seconds=60.0,
            since="since",
        ),
        RuleType(
            "missed_runs",
            "Missed runs",
            "A schedule did not run when it should have.",
            "worker",
            "/schedules",
            (
                WITHIN,
                RuleSetting(
                    "overlaps", "Count those skipped because the last one still ran", "switch", 1, 0, 1
                ),
            ),
            every_seconds=RESTING_SECONDS,
        ),
        RuleType(
            "cannot_fire",
            "Schedules that cannot fire",
            "Enabled schedules of an unknown zone, with a text that cannot be read or never comes, or whose "
            "runs the database refuses.",
            "worker",
            "/schedules?state=unreadable",
            every_seconds=SLOW_SECONDS,
        ),
        RuleType(
            "stuck_leases",
            "Stuck leases",
            "Runs whose lease ended and that nobody has taken back.",
            "worker",
            "/leases",
            (
                RuleSetting("ended_seconds", "Ended for longer than", "seconds", 60, 10, 86_400),
                RuleSetting("count", "From this many", "count", 1, 1, 1_000_000),
            ),
            every_seconds=RESTING_SECONDS,
            is_of_others=True,
        ),
        RuleType(
            "morning_report",
            "Report of the night",
            "Once a day by the site’s clocks: what ran, failed, was missed, late, slow or taken over.",
            "worker",
            "/night",
            (
                RuleSetting("at", "Send it each day at", "clock", 8 * 60, 0, LAST_MINUTE),
                RuleSetting("since", "It tells what was since", "clock", 18 * 60, 0, LAST_MINUTE),
            ),
            is_report=True,
        ),
    )
}


def title_of(kind: str) -> str:
    """Return what messages call a type of rule."""
    if kind == OUTAGE:
        return "The database does not answer"
    return KINDS[kind].title if kind in KINDS else kind
