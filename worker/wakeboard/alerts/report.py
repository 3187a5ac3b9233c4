"""The report of a night as a message: asked by ``reporting.activity_report``, set as a mail and as JSON.

Like every message it carries names and counts, never a payload, the text of an error or a person's reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import psycopg

from wakeboard.alerts.finding import name_of
from wakeboard.alerts.messages import VERSION, MessageText, Place
from wakeboard.alerts.report_schedule import LATE, LATEST, Clocks, Morning, ReportPlan, plan
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import KINDS
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.summary import Section, Summary, summarize
from wakeboard.reporting.activity_report.verdict import NightNumbers, number, plural

Connection = psycopg.Connection[Any]
STATEMENT_TIMEOUT = "10s"
LABELS = (
    ("attempts", "Attempts ended"),
    ("failed", "Attempts failed"),
    ("new", "Kinds of failure for the first time"),
    ("dead", "Runs that gave up"),
    ("waiting", "Runs waiting to be tried again"),
    ("recovered", "Runs that succeeded only after retries"),
    ("missed", "Missed runs"),
    ("late", "Fires started late"),
    ("overlapping", "Fires beside the run before"),
    ("slow", "Attempts slower than usual"),
    ("taken_over", "Runs taken over"),
    ("acts", "Acts of people"),
)


def clocks_of(row: Mapping[str, Any], zone: tzinfo) -> Clocks:
    """Return the times of the rule of ``row`` (of alert_rules)."""
    values = KINDS[row["kind"]].values(row["settings"])
    return Clocks(int(values["at"]), int(values["since"]), zone)


def plan_of(row: Mapping[str, Any], settings: Settings) -> ReportPlan:
    """Return what the rule of ``row`` has to do at ``row["now"]``. A rule is on since ``recovered_at``."""
    told = (row["found"] or {}).get("day")
    return plan(
        clocks_of(row, ZoneInfo(settings.timezone)),
        row["now"],
        told=date.fromisoformat(told) if told else None,
        since=row["recovered_at"] or row["created_at"],
    )


def said(found: ReportPlan, settings: Settings) -> str:
    """Return what the rule's line on the page says."""
    zone = ZoneInfo(settings.timezone)
    coming = "Due now." if found.due else f"The next one: {_clock(found.next.due_at, zone)}."
    if found.left_out is None:
        return coming
    hours = int(LATEST.total_seconds() // 3600)
    missed = _clock(found.left_out.due_at, zone)
    return f"{coming} That of {missed} was left out: nobody could send it within {hours} h."


def letter(
    connection: Connection,
    settings: Settings,
    row: Mapping[str, Any],
    morning: Morning,
    place: Place,
    cause: str,
) -> MessageText:
    """Return the report of ``morning`` by the rule of ``row``; ``cause`` is ``report`` or ``test``.

    Asks the tables, each question within STATEMENT_TIMEOUT. Raises psycopg.Error.
    """
    zone, now = ZoneInfo(settings.timezone), row["now"]
    window = TimeWindow(morning.since_at, morning.due_at)
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", (STATEMENT_TIMEOUT,))
        found = summarize(connection, window, zone)
    is_late = cause == "report" and now - morning.due_at > LATE
    first = _first(cause, is_late, morning, now, zone)
    link = f"/night?{window.query}"
    return MessageText.of(
        _subject(found, morning, zone, place, cause, is_late),
        {
            "version": VERSION,
            "rule": row["name"],
            "kind": row["kind"],
            "title": KINDS[row["kind"]].title,
            "cause": cause,
            "state": "quiet",
            "sentence": found.sentence,
            "well": found.good,
            "is_late": is_late,
            "since": window.since.isoformat(),
            "until": window.until.isoformat(),
            "numbers": asdict(found.numbers) | {"stuck_now": found.stuck_now},
            "sections": [_item(section, place) for section in found.sections],
            "at": now.astimezone(UTC).isoformat(),
            "environment": place.environment,
            "installation": place.installation,
            "link": place.link(link),
            "text": _text(row["name"], first, found, window, zone, place),
        },
    )


def _subject(found: Summary, morning: Morning, zone: tzinfo, place: Place, cause: str, is_late: bool) -> str:
    name = f"[{name_of(place.environment)}] " if place.environment else ""
    head = "Test: " if cause == "test" else "Late: " if is_late else ""
    day = f"{morning.due_at.astimezone(zone):%a %-d %b}"
    return f"{name}{head}Report of {day}: {found.strong}"


def _first(cause: str, is_late: bool, morning: Morning, now: datetime, zone: tzinfo) -> str:
    if cause == "test":
        return "This is a test: somebody asked for a report now. What it says is true."
    if is_late:
        return (
            f"Late: this report was due at {_clock(morning.due_at, zone)} and was written at "
            f"{_clock(now, zone)}. Nobody who could send it was at work, or the rule was silenced or moved."
        )
    return ""


def _text(rule: str, first: str, found: Summary, window: TimeWindow, zone: tzinfo, place: Place) -> str:
    since, until = (moment.astimezone(zone) for moment in (window.since, window.until))
    page = _address(f"/night?{window.query}", place)
    stuck = (
        f"Stuck right now: {plural(found.stuck_now, 'run')}, whose lease ended and that nobody took back.\n"
        f"{_address('/leases', place)}"
    )
    parts = [
        first,
        found.sentence,
        f"{since:%a %-d %b %H:%M} to {until:%a %-d %b %H:%M %Z}\n{page}",
        stuck if found.stuck_now else "",
        _numbers(found.numbers),
        *(_section(section, place) for section in found.sections),
        f"Wakeboard, rule {name_of(rule)}\nAnother time, silence, or no report: {_address('/alerts', place)}",
    ]
    return "\n\n".join(part for part in parts if part)


def _numbers(numbers: NightNumbers) -> str:
    counted, more = asdict(numbers), {"attempts": f" of {plural(numbers.types, 'type')}"}
    if numbers.missed_is_cut:
        more["missed"] = " or more"
    width = max(len(label) for _, label in LABELS)
    return "\n".join(
        f"{label.ljust(width)}  {number(counted[name])}{more.get(name, '')}" for name, label in LABELS
    )


def _section(section: Section, place: Place) -> str:
    lines = [f"- {line.text}\n  {_address(line.path, place)}" for line in section.lines]
    more = [f"- {number(section.more)} more: {_address(section.path, place)}"] if section.more > 0 else []
    return "\n".join([f"{section.title}:", *lines, *more])


def _item(section: Section, place: Place) -> dict[str, Any]:
    return {
        "name": section.name,
        "title": section.title,
        "items": [{"text": line.text, "link": _address(line.path, place)} for line in section.lines],
        "more": max(section.more, 0),
        "link": _address(section.path, place),
    }


def _address(path: str, place: Place) -> str:
    """Return the link; the path alone while nobody said where the pages are."""
    return place.link(path) or path


def _clock(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%a %-d %b %H:%M %Z}"
