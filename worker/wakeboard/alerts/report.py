"""The daily report as a message: the summary of ``reporting.activity_report`` as a mail and as JSON.

Like every message it carries names and counts, never a payload, the text of an error or a person's reason.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, date, datetime, tzinfo
from zoneinfo import ZoneInfo

from psycopg import Connection

from wakeboard.alerts.finding import short_name
from wakeboard.alerts.messages import VERSION, MessageText, Origin
from wakeboard.alerts.report_schedule import (
    DROPPED_AFTER,
    LATE_AFTER,
    DailyReport,
    ReportPlan,
    ReportTimes,
    plan_report,
)
from wakeboard.alerts.rule_state import AlertRule
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import KINDS
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.summary import Section, Summary, summarize
from wakeboard.reporting.activity_report.verdict import NightNumbers, number, plural

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


def times_of(rule: AlertRule, settings: Settings) -> ReportTimes:
    """Return the times of a rule by the site's time zone."""
    values = KINDS[rule.kind].values(rule.settings)
    return ReportTimes(int(values["at"]), int(values["since"]), ZoneInfo(settings.timezone))


def plan_rule(rule: AlertRule, settings: Settings) -> ReportPlan:
    """Return which report of ``rule`` is due. The rule is enabled since its ``recovered_at``."""
    last_day = (rule.found or {}).get("day")
    return plan_report(
        times_of(rule, settings),
        rule.now,
        last_day=date.fromisoformat(last_day) if last_day else None,
        enabled_at=rule.recovered_at or rule.created_at,
    )


def describe_plan(plan: ReportPlan, settings: Settings) -> str:
    """Return what the rule's line on the page says."""
    zone = ZoneInfo(settings.timezone)
    sentence = "Due now." if plan.due else f"The next one: {_clock(plan.next.due_at, zone)}."
    if plan.left_out is None:
        return sentence
    hours = int(DROPPED_AFTER.total_seconds() // 3600)
    missed = _clock(plan.left_out.due_at, zone)
    return f"{sentence} That of {missed} was left out: nobody could send it within {hours} h."


def write_report(
    connection: Connection,
    settings: Settings,
    rule: AlertRule,
    report: DailyReport,
    origin: Origin,
    cause: str,
) -> MessageText:
    """Return the message of ``report``, which ``rule`` wants; ``cause`` is ``report`` or ``test``.

    Reads the tables, each statement within STATEMENT_TIMEOUT. Raises psycopg.Error.
    """
    zone, now = ZoneInfo(settings.timezone), rule.now
    window = TimeWindow(report.since_at, report.due_at)
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", (STATEMENT_TIMEOUT,))
        night = summarize(connection, window, zone)
    head = note = ""
    if cause == "test":
        head = "Test: "
        note = "This is a test: somebody asked for a report now. What it says is true."
    elif now - report.due_at > LATE_AFTER:
        head = "Late: "
        note = (
            f"Late: this report was due at {_clock(report.due_at, zone)} and was written at "
            f"{_clock(now, zone)}. Nobody who could send it was at work, or the rule was silenced or moved."
        )
    day = f"{report.due_at.astimezone(zone):%a %-d %b}"
    return MessageText.redacted(
        f"{origin.prefix}{head}Report of {day}: {night.strong}",
        {
            "version": VERSION,
            "rule": rule.name,
            "kind": rule.kind,
            "title": KINDS[rule.kind].title,
            "cause": cause,
            "state": "quiet",
            "sentence": night.sentence,
            "well": night.good,
            "is_late": head == "Late: ",
            "since": window.since.isoformat(),
            "until": window.until.isoformat(),
            "numbers": asdict(night.numbers) | {"stuck_now": night.stuck_now},
            "sections": [_item(section, origin) for section in night.sections],
            "at": now.astimezone(UTC).isoformat(),
            "environment": origin.environment,
            "installation": origin.installation,
            "link": origin.link(f"/night?{window.query}"),
            "text": _text(rule.name, note, night, window, zone, origin),
        },
    )


def _text(rule: str, note: str, night: Summary, window: TimeWindow, zone: tzinfo, origin: Origin) -> str:
    since, until = (moment.astimezone(zone) for moment in (window.since, window.until))
    page, alerts = _address(f"/night?{window.query}", origin), _address("/alerts", origin)
    stuck = (
        f"Stuck right now: {plural(night.stuck_now, 'run')}, whose lease ended and that nobody took back.\n"
        f"{_address('/leases', origin)}"
    )
    parts = [
        note,
        night.sentence,
        f"{since:%a %-d %b %H:%M} to {until:%a %-d %b %H:%M %Z}\n{page}",
        stuck if night.stuck_now else "",
        _numbers(night.numbers),
        *(_section(section, origin) for section in night.sections),
        f"Wakeboard, rule {short_name(rule)}\nAnother time, silence, or no report: {alerts}",
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


def _section(section: Section, origin: Origin) -> str:
    lines = [f"- {line.text}\n  {_address(line.path, origin)}" for line in section.lines]
    more = [f"- {number(section.more)} more: {_address(section.path, origin)}"] if section.more > 0 else []
    return "\n".join([f"{section.title}:", *lines, *more])


def _item(section: Section, origin: Origin) -> dict[str, object]:
    return {
        "name": section.name,
        "title": section.title,
        "items": [{"text": line.text, "link": _address(line.path, origin)} for line in section.lines],
        "more": max(section.more, 0),
        "link": _address(section.path, origin),
    }


def _address(path: str, origin: Origin) -> str:
    """Return the link to ``path``, or ``path`` when no setting says where the pages are."""
    return origin.link(path) or path


def _clock(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%a %-d %b %H:%M %Z}"
