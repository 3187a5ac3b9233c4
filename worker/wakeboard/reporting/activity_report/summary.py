"""The summary of a time window that is over: its numbers, its sentence, and a few lines of each section.

Texts and links are made here, so that mail and webhook have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from wakeboard.core.time.durations import format_duration
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.baselines import find_baselines
from wakeboard.reporting.activity_report.failures import (
    UNKNOWN_CODE,
    FailureKind,
    LostAttempt,
    RecoveredRun,
    find_failure_kinds,
    find_lost_attempts,
    find_recovered_runs,
)
from wakeboard.reporting.activity_report.fires import (
    MissedFires,
    ScheduleFires,
    find_fires,
    find_missed_fires,
)
from wakeboard.reporting.activity_report.type_activity import (
    SlowRun,
    TypeAttempts,
    find_attempts,
    find_running,
    find_slow_runs,
)
from wakeboard.reporting.activity_report.verdict import NightNumbers, number, plural, verdict
from wakeboard.reporting.activity_report.worker_gaps import WorkerGap, find_worker_gaps
from wakeboard.reporting.ids_by_time import ID_SLACK, find_last_id_before

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# The lines of a section.
MAX_LINES = 5
REASONS = {
    "misfire": "later than the grace allows",
    "overlap": "the run before had not ended, or a later fire took its place",
    "capped": "too many were due at once",
    "paused": "the schedule was paused",
}
MAX_ACTS = 50

_ACTS = """
SELECT id, at, actor, action, target_type, target_id, result FROM wakeboard.audit_log
WHERE id > CAST(%(first)s AS bigint) AND id <= CAST(%(last)s AS bigint) AND at >= %(since)s AND at < %(until)s
ORDER BY id DESC LIMIT %(most)s
"""


class Act(NamedTuple):
    """A row of the audit log: who did what to which thing, and how it ended."""

    id: int
    at: datetime
    actor: str
    action: str
    target_type: str | None
    target_id: str | None
    result: str


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A line of a section: its text, and the path of its page."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Section:
    """The first lines of one kind, and how many ``more`` there are at ``path``."""

    name: str
    title: str
    lines: tuple[ReportLine, ...]
    more: int
    path: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report says. ``stuck_now`` counts the runs that are stuck now; ``numbers.stuck`` is 0."""

    numbers: NightNumbers
    good: bool
    strong: str
    rest: str
    stuck_now: int
    sections: tuple[Section, ...]

    @property
    def sentence(self) -> str:
        """The sentence at the top of the page."""
        return f"{self.strong} {self.rest}"


def summarize(connection: Connection, window: TimeWindow, zone: tzinfo) -> Summary:
    """Return the summary of ``window``, which is over; times in texts are of ``zone``."""
    attempts = find_attempts(connection, window, find_baselines(connection, window.since))
    kinds, failed = find_failure_kinds(connection, window)
    recovered, recovered_count = find_recovered_runs(connection, window)
    lost, lost_count = find_lost_attempts(connection, failed)
    gaps = find_worker_gaps(connection, window)
    missed = find_missed_fires(connection, window)
    fires = find_fires(connection, window)
    acts = find_acts(connection, window)
    numbers = NightNumbers(
        attempts=sum(each.attempts for each in attempts),
        types=len(attempts),
        failed=sum(each.failed for each in attempts),
        new=sum(kind.is_new for kind in kinds),
        recovered=recovered_count,
        waiting=failed.states.waiting,
        dead=failed.states.dead,
        missed=missed.fires,
        missed_is_cut=missed.is_cut,
        late=fires.late,
        overlapping=fires.overlapping,
        slow=sum(each.slow for each in attempts),
        taken_over=lost_count,
        acts=len(acts),
        unmanned_seconds=sum(gap.seconds for gap in gaps),
    )
    slow = sorted((each for each in attempts if each.slow), key=lambda each: -each.slow)
    examples = find_slow_runs(connection, window, slow[:MAX_LINES])
    slowest = {run.job_type: run for run in reversed(examples)}
    page = f"/night?{window.query}"
    sections = (
        _section(
            "new", "Failed for the first time",
            [_failure_line(kind, window) for kind in kinds if kind.is_new], page, "failed",
        ),
        _section("failed", "Failed", [_failure_line(kind, window) for kind in kinds], page),
        _section(
            "recovered", "Succeeded only after retries",
            map(_recovered_line, recovered), page, count=recovered_count,
        ),
        _section("unmanned", "No worker", [_gap_line(gap, zone) for gap in gaps], page, "missed"),
        _section("missed", "Missed runs", map(_missed_line, missed.worst), page, count=missed.lines),
        _section("late", "Started late", map(_late_line, fires.latest), page),
        _section("overlapping", "Overlapping", map(_overlap_line, fires.most_overlapping), page),
        _section(
            "slow", "Slower than usual",
            [_slow_line(each, slowest.get(each.job_type)) for each in slow], page,
        ),
        _section("lost", "Stuck and taken over", map(_lost_line, lost), page, count=lost_count),
        _section("ran", "What ran", map(_attempts_line, attempts), page),
        _section("acts", "Who did what", [_act_line(act, zone, window) for act in acts], page),
    )  # fmt: skip
    good, strong, rest = verdict(numbers, is_over=True)
    stuck = sum(each.stuck for each in find_running(connection))
    return Summary(numbers, good, strong, rest, stuck, tuple(each for each in sections if each.lines))


def find_acts(connection: Connection, window: TimeWindow) -> list[Act]:
    """Return what people did in ``window``, newest first, at most MAX_ACTS."""
    values = {
        "first": find_last_id_before(connection, "audit_log", "at", window.since - ID_SLACK),
        "last": find_last_id_before(connection, "audit_log", "at", window.until + ID_SLACK),
        "since": window.since,
        "until": window.until,
        "most": MAX_ACTS,
    }
    return read_all(connection, _ACTS, Act, values)


def _section(
    name: str, title: str, lines: Iterable[ReportLine], page: str, anchor: str = "", count: int | None = None
) -> Section:
    """Return the section of ``lines``; ``count``: how many there are, if not all of them are in ``lines``."""
    every = tuple(lines)
    more = (len(every) if count is None else count) - min(len(every), MAX_LINES)
    return Section(name, title, every[:MAX_LINES], more, f"{page}#{anchor or name}")


def _failure_line(kind: FailureKind, window: TimeWindow) -> ReportLine:
    dead = f", {plural(kind.dead, 'run')} dead now" if kind.dead else ""
    path = f"/errors/{kind.fingerprint or quote(kind.code)}?{window.query}"
    return ReportLine(f"{number(kind.failures)} × {_short(kind.code)} of {_short(kind.job_type)}{dead}", path)


def _recovered_line(run: RecoveredRun) -> ReportLine:
    code = _short(run.error_code or UNKNOWN_CODE)
    failures = plural(run.failures, "failure")
    return ReportLine(f"run {run.id} of {_short(run.job_type)} after {failures} ({code})", f"/runs/{run.id}")


def _gap_line(gap: WorkerGap, zone: tzinfo) -> ReportLine:
    since, until = (f"{at.astimezone(zone):%a %H:%M}" for at in (gap.since_at, gap.until_at))
    return ReportLine(f"{since} to {until}, {format_duration(gap.seconds)}", "/workers")


def _missed_line(missed: MissedFires) -> ReportLine:
    count = f"{number(missed.fires)}{'+' if missed.is_many else ''}"
    reason = REASONS.get(missed.reason, missed.reason)
    path = f"/schedules/{quote(missed.name, safe='')}"
    return ReportLine(f"{count} × {_short(missed.name)}: {reason}", path)


def _late_line(schedule: ScheduleFires) -> ReportLine:
    worst = format_duration(schedule.late_seconds or 0)
    counts = f"{number(schedule.late)} of {number(schedule.fires)}"
    text = f"{_short(schedule.name)}: {counts}, the worst by {worst}"
    return ReportLine(text, f"/runs/{schedule.late_run_id}")


def _overlap_line(schedule: ScheduleFires) -> ReportLine:
    counts = f"{number(schedule.beside)} of {number(schedule.fires)}"
    text = f"{_short(schedule.name)}: {counts} beside the run before"
    return ReportLine(text, f"/runs/{schedule.beside_run_id}")


def _slow_line(attempts: TypeAttempts, run: SlowRun | None) -> ReportLine:
    assert attempts.baseline is not None, "an attempt is slow by its baseline"
    text = (
        f"{_short(attempts.job_type)}: {number(attempts.slow)} of {number(attempts.succeeded)}, the slowest "
        f"{format_duration(attempts.slowest_seconds)}, usually {format_duration(attempts.baseline.seconds)}"
    )
    return ReportLine(text, f"/runs/{run.id}" if run else _type_path(attempts.job_type))


def _lost_line(attempt: LostAttempt) -> ReportLine:
    now = f", {attempt.status} now" if attempt.status else ""
    worker = _short(attempt.worker_name)
    text = f"run {attempt.run_id} of {_short(attempt.job_type)}, taken from {worker}{now}"
    return ReportLine(text, f"/runs/{attempt.run_id}")


def _attempts_line(attempts: TypeAttempts) -> ReportLine:
    failed = f", {number(attempts.failed)} failed" if attempts.failed else ""
    text = f"{_short(attempts.job_type)}: {plural(attempts.attempts, 'attempt')}{failed}"
    return ReportLine(text, _type_path(attempts.job_type))


def _act_line(act: Act, zone: tzinfo, window: TimeWindow) -> ReportLine:
    of = f" of {act.target_type} {_short(act.target_id or '')}".rstrip() if act.target_type else ""
    result = "" if act.result == "done" else f" ({act.result})"
    text = f"{act.at.astimezone(zone):%H:%M} {_short(act.actor)}: {_short(act.action)}{of}{result}"
    return ReportLine(text, f"/audit?{window.query}#audit-{act.id}")


def _type_path(name: str) -> str:
    return f"/runs?{urlencode({'type': name})}"


def _short(text: object) -> str:
    """Return a name that others chose as one short line of printable characters."""
    line = "".join(c if c.isprintable() else "·" for c in str(text))
    return line if len(line) <= 60 else f"{line[:59]}…"
