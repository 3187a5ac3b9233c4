"""The overview: one sentence on how things are, the numbers behind it, what needs a person, what is next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flask import Blueprint, current_app, g

from dashboard import params
from dashboard.connection import as_of, reading
from dashboard.formats import duration, number, plural
from dashboard.live import add_page
from dashboard.queries import alerts, overview
from worker.alerts.kinds import KINDS

blueprint = Blueprint("overview", __name__)

# Without a worker for this long while schedules are enabled, nothing will run: the same rule as /statusz.
SILENCE_SECONDS = 180


def find() -> dict[str, Any]:
    """Return the numbers of the tiles and the sentence above them."""
    params.from_request()
    counts = overview.counts(reading())
    good, sentence, rest = verdict(counts)
    return {"counts": counts, "good": good, "sentence": sentence, "rest": rest, "capped": capped}


def find_hours() -> dict[str, Any]:
    """Return the bars of the last 24 hours, and their sums."""
    closed = current_app.extensions.setdefault("wakeboard_closed_hours", {})
    bars = [
        replace(hour, label=hour.start_at.astimezone(g.zone).strftime("%a %H:%M"))
        for hour in overview.hours(reading(), as_of(), closed)
    ]
    return {"bars": bars, "good": sum(bar.good for bar in bars), "bad": sum(bar.bad for bar in bars)}


def find_troubles() -> dict[str, Any]:
    """Return what needs a person: runs by type and state, missed fires, open effects, alerts, pauses."""
    return {
        "troubles": overview.troubles(reading()),
        "paused": overview.paused_types(reading()),
        "alerts": alerts.firing(reading()),
        "kinds": KINDS,
        "counts": overview.counts(reading()),
        "capped": capped,
    }


def find_fires() -> dict[str, Any]:
    """Return the next fires."""
    return {"fires": overview.next_fires(reading())}


def capped(count: int) -> str:
    """Return a count as text; one that was stopped at the cap says so: ``10 000+``."""
    return number(overview.CAP) + "+" if count > overview.CAP else number(count)


def verdict(counts: overview.Counts) -> tuple[bool, str, str]:
    """Return (whether all is well, the strong words, the rest of the sentence)."""
    if counts.workers == 0:
        return _without_workers(counts)
    wrong = [
        f"{capped(count)} {words}"
        for count, words in (
            (counts.stuck, "stuck"),
            (counts.dead, "dead"),
            (counts.missed, "missed fires" if counts.missed != 1 else "missed fire"),
            (counts.unconfirmed, "unconfirmed effects" if counts.unconfirmed != 1 else "unconfirmed effect"),
        )
        if count
    ]
    busy = f"{capped(counts.running)} of {plural(counts.slots, 'slot')} busy"
    if wrong:
        need = "needs" if counts.attention == 1 else "need"
        return False, ", ".join(wrong), f"{need} a decision. {busy}."
    if counts.failed:
        return (
            True,
            "Nothing needs you.",
            f"{plural(counts.failed, 'run')} failed and will be tried again. {busy}.",
        )
    return True, "All is well.", f"{busy}."


def _without_workers(counts: overview.Counts) -> tuple[bool, str, str]:
    """Word the case in which nothing runs at all."""
    waiting = f"{capped(counts.queued)} queued." if counts.queued else "Nothing is queued."
    if counts.worker_seen_at is None:
        return (
            False,
            "No worker has ever run here.",
            f"{waiting} Start one: wakeboard worker, or wakeboard up.",
        )
    silent = (as_of() - counts.worker_seen_at).total_seconds()
    if counts.schedules == 0 and counts.queued == 0:
        return True, "No worker is running", "and nothing waits for one."
    if counts.schedules and silent < SILENCE_SECONDS:
        return (
            True,
            "No worker is running",
            f"right now; the last one was here {duration(silent)} ago. {waiting}",
        )
    return (
        False,
        "No worker is running.",
        f"{waiting} Start one: wakeboard worker, or a crontab line with wakeboard tick.",
    )


def twin(context: dict[str, Any]) -> dict[str, Any]:
    """Return ``/overview.json``: every number of the page."""
    counts, sums = context["counts"], find_hours()
    return {
        "well": context["good"],
        "sentence": f"{context['sentence']} {context['rest']}",
        "queued": counts.queued,
        "running": counts.running,
        "failed": counts.failed,
        "dead": counts.dead,
        "stuck": counts.stuck,
        "missed_fires": counts.missed,
        "unconfirmed_effects": counts.unconfirmed,
        "oldest_due_at": counts.oldest_due_at,
        "slots": counts.slots,
        "workers": counts.workers,
        "succeeded_24h": sums["good"],
        "failed_24h": sums["bad"],
        "hours": [
            {"start_at": bar.start_at, "succeeded": bar.good, "failed": bar.bad} for bar in sums["bars"]
        ],
        "attention": [
            {"state": line.state, "job_type": line.job_type, "runs": line.count, "since_at": line.since_at}
            for line in overview.troubles(reading())
        ],
        "next": [dict(row) for row in overview.next_fires(reading())],
    }


add_page(
    blueprint,
    "/",
    "overview/page.html",
    find,
    twin=twin,
    fragments={
        "tiles": "overview/_tiles.html",
        "succeeded": ("overview/_succeeded.html", find_hours),
        "done": ("overview/_done.html", find_hours),
        "attention": ("overview/_attention.html", find_troubles),
        "fires": ("overview/_fires.html", find_fires),
    },
)
