"""Last night on one page: what ran and how it went, what is worth a look, and who did what meanwhile."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta, tzinfo
from zoneinfo import ZoneInfo

from flask import Blueprint, current_app, g

from wakeboard.reporting.activity_report import TimeWindow, baselines, fires, type_activity
from wakeboard.reporting.activity_report.failures import CAP, MAX_SHOWN, RecoveredRun
from wakeboard.reporting.activity_report.type_activity import TypeAttempts
from wakeboard.reporting.filters.values import FilterError
from wakeboard.reporting.hourly_rollups import STATISTICS_DAYS
from wakeboard_dashboard.charts import gantt
from wakeboard_dashboard.pages import failures
from wakeboard_dashboard.pages.form_errors import with_times_form
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import errors
from wakeboard_dashboard.queries.night import Night
from wakeboard_dashboard.text import night as words
from wakeboard_dashboard.text.formats import duration
from wakeboard_dashboard.text.schedule import OVERLAPS, REASONS
from wakeboard_dashboard.views import audit as audit_page
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("night", __name__)

PATH = "/night"
FIELDS = {"since": params.MOMENT, "until": params.MOMENT}
MOST_TYPES = 50
COUNTED = ("job_type", "attempts", "succeeded", "failed", "lost", "slow", "seconds", "slowest_seconds")
COLUMNS = [*COUNTED, "median_seconds"]


def site_zone() -> tzinfo:
    """Return the zone that nights are reckoned in: the server's, whatever zone a reader has chosen."""
    return ZoneInfo(current_app.config["SETTINGS"].timezone)


def read_window(filters: params.Filters) -> TimeWindow:
    """Return the window that ``filters`` ask for: last night unless they say otherwise.

    With ``since`` alone it ends now, with ``until`` alone it is as long as a night. Raises FilterError when
    it is empty or too long to count.
    """
    now = as_of()
    since = filters.get("since").at(now) if filters.get("since") else None
    until = filters.get("until").at(now) if filters.get("until") else None
    if since is None and until is None:
        return words.last_night(now, site_zone())
    until = until or max(now, since) if since else until
    assert until is not None
    since = since or until - words.NIGHT
    if since > until or (since == until and filters.get("until")):
        raise FilterError("“since” is not before “until”: nothing can have run in between.")
    if until - since > words.LONGEST:
        raise FilterError(
            f"The window is longer than {duration(words.LONGEST.total_seconds())}; "
            "give a later “since” or an earlier “until”."
        )
    return words.whole_minutes(since, max(until, since + words.MINUTE))


def find_night() -> Context:
    """Return everything about the window that the address asks for."""
    filters = params.from_request(FIELDS)
    found = Night(reading(), read_window(filters), as_of())
    window, is_over = found.window, found.window.until <= as_of()
    good, sentence, rest = words.verdict(found.numbers, is_over=is_over)
    return {
        "night": found,
        "window": window,
        "span": window.query,
        "is_over": is_over,
        "is_default": not filters,
        "filters": filters,
        "good": good,
        "sentence": sentence,
        "rest": rest,
        "numbers": found.numbers,
        "earlier": link(words.shift_window(window, -1, site_zone())),
        "later": link(words.shift_window(window, 1, site_zone())) if is_over else None,
        "lanes": gantt.lanes(window, found.lane_types, found.busy, found.under_way, found.now),
        "ticks": gantt.ticks(window),
        "words": format_window(window),
        "is_empty": is_empty(found),
        "is_forgotten": window.until < as_of() - timedelta(days=STATISTICS_DAYS),
        "site_zone": site_zone(),
        "key": failures.key,
        "runs_link": failures.runs_link,
        "error_link": failures.link,
        "describe_row": audit_page.describe_row,
        "reasons": REASONS,
        "overlaps": OVERLAPS,
        "bounds": BOUNDS,
    }


def format_window(window: TimeWindow) -> str:
    """Return ``Fri 20 Nov 18:00 to Sat 21 Nov 08:00 CET``, in the reader's zone."""
    since, until = (moment.astimezone(g.zone) for moment in (window.since, window.until))
    return f"{since:%a %-d %b %H:%M} to {until:%a %-d %b %H:%M %Z}"


def is_empty(found: Night) -> bool:
    """Return whether there is nothing at all to show."""
    happened = (
        found.attempts_by_type,
        found.running,
        found.missed.fires,
        found.audit_entries.items,
        found.failures.count,
        found.unmanned,
    )
    return not any(happened) and not fires.has_fires(found.connection, found.window)


BOUNDS = {
    "types": MOST_TYPES,
    "lanes": type_activity.MAX_LANES,
    "failures": errors.CAP,
    "known": CAP,
    "shown": MAX_SHOWN,
    "late_seconds": fires.LATE.total_seconds(),
    "days": baselines.PERIOD.days,
    "slower": baselines.SLOW_FACTOR,
    "fewest": baselines.MIN_RUNS,
    "least_seconds": baselines.SLOW_SECONDS,
    "few": type_activity.EXAMPLE_RUNS,
    "kept_days": STATISTICS_DAYS,
}


def link(window: TimeWindow) -> str:
    """Return the address of this page for ``window``."""
    return f"{PATH}?{window.query}"


def ran_item(each: TypeAttempts) -> Json:
    """Return a type of ``ran`` as the twin and the CSV give it."""
    return {name: getattr(each, name) for name in COUNTED} | {
        "median_seconds": each.baseline.seconds if each.baseline else None
    }


def lane_item(lane: gantt.TypeLane) -> Json:
    """Return a lane as the twin gives it: its stretches without their places on the drawing."""
    names = ("first_at", "last_at", "attempts", "failed")
    return {
        "job_type": lane.job_type,
        "running": lane.running.attempts if lane.running else 0,
        "stretches": [{name: getattr(bar, name) for name in names} for bar in lane.bars],
    }


def recovered_item(run: RecoveredRun) -> Json:
    """Return a run that recovered as the twin gives it."""
    return {name: value for name, value in run._asdict().items() if name != "total"}


def night_twin(context: Context) -> Json:
    """Return ``/night.json``: every number of the page; ``items`` are what ran, by type."""
    found: Night = context["night"]
    return {
        "since": found.window.since,
        "until": found.window.until,
        "well": context["good"],
        "sentence": f"{context['sentence']} {context['rest']}",
        **asdict(found.numbers),
        "items": [ran_item(each) for each in found.attempts_by_type],
        "next": None,
        "timeline": [lane_item(lane) for lane in context["lanes"]],
        "failures": [
            failures.item(group) | {"buckets": buckets, "is_new": place < found.failures.new}
            for place, (group, buckets) in enumerate(zip(found.shown_failures, found.trends, strict=True))
        ],
        "failed_runs": asdict(found.failed_run_states),
        "recovered_runs": [recovered_item(run) for run in found.recovered_runs[0]],
        "unmanned": [each._asdict() for each in found.unmanned],
        "missed_fires": [each._asdict() for each in found.missed.worst],
        "fires": [each._asdict() for each in found.schedule_fires.worst],
        "slow_runs": [run._asdict() for runs in found.slow_runs.values() for run in runs],
        "taken_over_runs": [attempt._asdict() for attempt in found.lost_attempts[0]],
        "audit": [audit_page.item(row) for row in found.audit_entries.items],
    }


add_page(
    blueprint,
    PATH,
    "night/page.html",
    with_times_form(
        find_night,
        PATH,
        "What happened",
        keeps=(),
        instead=(("Last 24 hours", f"{PATH}?since=24h"), ("Last night", PATH)),
    ),
    twin=night_twin,
    columns=COLUMNS,
    fields=None,
)
