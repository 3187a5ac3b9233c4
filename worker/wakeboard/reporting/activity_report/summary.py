"""A night that is over, in short: its numbers, its sentence and the worst few of each kind. Reads only.

The words and links are made here, so that mail and webhook say the same; how they are set is the letter's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from wakeboard.core.time.durations import format_duration
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow, faults, fires, minutes
from wakeboard.reporting.activity_report import missed as missed_fires
from wakeboard.reporting.activity_report.kinds import FailureKind, failed_kinds
from wakeboard.reporting.activity_report.unmanned import UnmannedStretch, unmanned
from wakeboard.reporting.activity_report.usual import medians
from wakeboard.reporting.activity_report.words import NightNumbers, number, plural, verdict
from wakeboard.reporting.ids_by_time import LastBefore, last_before

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

FEW = 5
REASONS = {
    "misfire": "later than the grace allows",
    "overlap": "the run before had not ended, or a later fire took its place",
    "capped": "too many were due at once",
    "paused": "the schedule was paused",
}
MOST_ACTS = 50
# A row of the audit log has the time when its transaction began and gets its id later: ids may run ahead by
# this much.
SLACK = timedelta(minutes=10)

_LAST_BEFORE = last_before("audit_log", "at", "%(moment)s")
_ACTS = """
SELECT id, at, actor, action, target_type, target_id, result FROM wakeboard.audit_log
WHERE id > CAST(%(first)s AS bigint) AND id <= CAST(%(last)s AS bigint) AND at >= %(since)s AND at < %(until)s
ORDER BY id DESC LIMIT %(most)s
"""


class Act(NamedTuple):
    """Who did what to which thing, and how it ended."""

    id: int
    at: datetime
    actor: str
    action: str
    target_type: str | None
    target_id: str | None
    result: str


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One of the worst: what it is, and the path of its page."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Section:
    """The worst few of one kind, and how many more there are at ``path``."""

    name: str
    title: str
    lines: tuple[ReportLine, ...]
    more: int
    path: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report says. ``stuck_now`` is of the moment of writing: the page tells it of the present."""

    numbers: NightNumbers
    good: bool
    strong: str
    rest: str
    stuck_now: int
    sections: tuple[Section, ...]

    @property
    def sentence(self) -> str:
        """What is at the top of the page too."""
        return f"{self.strong} {self.rest}"


def summary(connection: Connection, window: TimeWindow, zone: tzinfo) -> Summary:
    """Return what is to be told of ``window``, which is over; times in words are of ``zone``."""
    usually = medians(connection, window.since)
    ran = minutes.ran(connection, window, usually)
    kinds, failed = failed_kinds(connection, window)
    recovered, of_recovered = faults.recovered(connection, window)
    lost, of_lost = faults.lost(connection, failed)
    gone = unmanned(connection, window)
    missed, fired, done = (
        missed_fires.missed(connection, window),
        fires.fired(connection, window),
        acts(connection, window),
    )
    numbers = NightNumbers(
        attempts=sum(each.attempts for each in ran),
        types=len(ran),
        failed=sum(each.failed for each in ran),
        new=sum(kind.is_new for kind in kinds),
        recovered=of_recovered,
        waiting=failed.fates.waiting,
        dead=failed.fates.dead,
        missed=missed.fires,
        missed_is_cut=missed.is_cut,
        late=fired.late,
        overlapping=fired.beside,
        slow=sum(each.slow for each in ran),
        taken_over=of_lost,
        acts=len(done),
        unmanned_seconds=sum(each.seconds for each in gone),
    )
    slow = sorted((each for each in ran if each.slow), key=lambda each: -each.slow)
    new = [kind for kind in kinds if kind.is_new]
    page = f"/night?{window.query}"
    sections = (
        _section("new", "Failed for the first time", [_kind(each, window) for each in new], page, "failed"),
        _section("failed", "Failed", [_kind(each, window) for each in kinds], page),
        _section(
            "recovered", "Succeeded only after retries", map(_recovered, recovered), page, count=of_recovered
        ),
        _section("unmanned", "No worker", [_unmanned(each, zone) for each in gone], page, "missed"),
        _section("missed", "Missed runs", map(_missed, missed.worst), page, count=missed.lines),
        _section("late", "Started late", map(_late, fired.latest), page),
        _section("overlapping", "Overlapping", map(_beside, fired.most_beside), page),
        _section("slow", "Slower than usual", _slow(connection, window, slow), page),
        _section("lost", "Stuck and taken over", map(_lost, lost), page, count=of_lost),
        _section("ran", "What ran", [_ran(each) for each in ran], page),
        _section("acts", "Who did what", [_act(act, zone, window) for act in done], page),
    )
    good, strong, rest = verdict(numbers, is_over=True)
    stuck = sum(each.stuck for each in minutes.running(connection))
    return Summary(numbers, good, strong, rest, stuck, tuple(each for each in sections if each.lines))


def _section(
    name: str, title: str, lines: Iterable[ReportLine], page: str, anchor: str = "", count: int | None = None
) -> Section:
    found = list(lines)
    more = (len(found) if count is None else count) - min(len(found), FEW)
    return Section(name, title, tuple(found[:FEW]), more, f"{page}#{anchor or name}")


def _type(name: str) -> str:
    return f"/runs?{urlencode({'type': name})}"


def _kind(kind: FailureKind, window: TimeWindow) -> ReportLine:
    dead = f", {plural(kind.dead, 'run')} dead now" if kind.dead else ""
    path = f"/errors/{kind.fingerprint or quote(kind.code)}?{window.query}"
    return ReportLine(f"{number(kind.failures)} × {_short(kind.code)} of {_short(kind.job_type)}{dead}", path)


def _recovered(run: faults.Recovered) -> ReportLine:
    code = _short(run.error_code or faults.UNKNOWN)
    failed = plural(run.failures, "failure")
    return ReportLine(f"run {run.id} of {_short(run.job_type)} after {failed} ({code})", f"/runs/{run.id}")


def _unmanned(each: UnmannedStretch, zone: tzinfo) -> ReportLine:
    since, until = (f"{at.astimezone(zone):%a %H:%M}" for at in (each.since_at, each.until_at))
    return ReportLine(f"{since} to {until}, {format_duration(each.seconds)}", "/workers")


def _missed(each: missed_fires.MissedFires) -> ReportLine:
    count = f"{number(each.fires)}{'+' if each.is_many else ''}"
    return ReportLine(
        f"{count} × {_short(each.name)}: {REASONS.get(each.reason, each.reason)}", _schedule(each.name)
    )


def _late(each: fires.ScheduleFires) -> ReportLine:
    worst = format_duration(each.late_seconds or 0)
    text = f"{_short(each.name)}: {number(each.late)} of {number(each.fires)}, the worst by {worst}"
    return ReportLine(text, f"/runs/{each.late_run_id}")


def _beside(each: fires.ScheduleFires) -> ReportLine:
    text = f"{_short(each.name)}: {number(each.beside)} of {number(each.fires)} beside the run before"
    return ReportLine(text, f"/runs/{each.beside_run_id}")


def _slow(
    connection: Connection, window: TimeWindow, slow: Sequence[minutes.TypeAttempts]
) -> list[ReportLine]:
    slowest = {run.job_type: run for run in reversed(minutes.slow_runs(connection, window, slow[:FEW]))}
    return [_slow_line(each, slowest.get(each.job_type)) for each in slow]


def _slow_line(each: minutes.TypeAttempts, run: minutes.SlowRun | None) -> ReportLine:
    assert each.usual is not None, "what is slow is so against what is usual"
    text = (
        f"{_short(each.job_type)}: {number(each.slow)} of {number(each.succeeded)}, the slowest "
        f"{format_duration(each.slowest_seconds)}, usually {format_duration(each.usual.seconds)}"
    )
    return ReportLine(text, f"/runs/{run.id}" if run else _type(each.job_type))


def _lost(attempt: faults.Lost) -> ReportLine:
    now = f", {attempt.status} now" if attempt.status else ""
    run_id, worker = attempt.run_id, _short(attempt.worker_name)
    return ReportLine(
        f"run {run_id} of {_short(attempt.job_type)}, taken from {worker}{now}", f"/runs/{run_id}"
    )


def _ran(each: minutes.TypeAttempts) -> ReportLine:
    failed = f", {number(each.failed)} failed" if each.failed else ""
    return ReportLine(
        f"{_short(each.job_type)}: {plural(each.attempts, 'attempt')}{failed}", _type(each.job_type)
    )


def acts(connection: Connection, window: TimeWindow) -> list[Act]:
    """Return what was done in ``window``, newest first, at most MOST_ACTS."""
    first, last = (
        read_all(connection, _LAST_BEFORE, LastBefore, {"moment": moment})[0].low
        for moment in (window.since - SLACK, window.until + SLACK)
    )
    values = {"first": first, "last": last, "since": window.since, "until": window.until, "most": MOST_ACTS}
    return read_all(connection, _ACTS, Act, values)


def _act(act: Act, zone: tzinfo, window: TimeWindow) -> ReportLine:
    of = f" of {act.target_type} {_short(act.target_id or '')}".rstrip() if act.target_type else ""
    result = "" if act.result == "done" else f" ({act.result})"
    text = f"{act.at.astimezone(zone):%H:%M} {_short(act.actor)}: {_short(act.action)}{of}{result}"
    return ReportLine(text, f"/audit?{window.query}#audit-{act.id}")


def _schedule(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


def _short(text: object) -> str:
    """Return a foreign name as one short line."""
    line = "".join(c if c.isprintable() else "·" for c in str(text))
    return line if len(line) <= 60 else f"{line[:59]}…"


__all__ = ["ReportLine", "Section", "Summary", "summary"]
