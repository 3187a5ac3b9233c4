"""The overview: one sentence on how things are, the numbers behind it, what needs a person, what is next.

The bar of every page shows one of its numbers.
"""

from __future__ import annotations

from dataclasses import replace

from flask import Blueprint, Response, g, render_template

from wakeboard.core.rule_types import KINDS
from wakeboard.core.text.redaction import redact
from wakeboard.reporting.hourly_rollups import HOUR
from wakeboard_dashboard.charts.spreads import Column, Spread, spread
from wakeboard_dashboard.pages import attention
from wakeboard_dashboard.pages.fragments import respond
from wakeboard_dashboard.pages.live import FRAGMENTS, Context, Json, add_page
from wakeboard_dashboard.queries import overview, throughput
from wakeboard_dashboard.queries.throughput import WINDOWS, ChartWindow, WindowBar, Work
from wakeboard_dashboard.text.verdict import capped, leaving_in_words, slots_in_words, verdict
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.security import is_poll

blueprint = Blueprint("overview", __name__)

FIELDS = {"window": params.one_of(tuple(WINDOWS))}
USUAL = "24h"
# More of them are one line: what else needs a person would be out of sight below.
MOST_PAUSES = 5


def find_tiles() -> Context:
    """Return the numbers of the tiles, the sentence above them, and the window that the page is about."""
    filters = params.from_request(FIELDS)
    if not is_poll():
        # Page and twin show these as well.
        attention.read_by_type()
    now = attention.read_state()
    return {
        "counts": now.counts,
        "rising": now.rising,
        "attention": attention.store_count(now.count),
        "verdict": verdict(now.counts, now.rising, now.firing, as_of()),
        "capped": capped,
        "slots": slots_in_words(now.counts),
        "filters": filters,
        "window": _window(),
        "windows": WINDOWS.values(),
        "usual": USUAL,
    }


@blueprint.get(f"{FRAGMENTS}/shell/attention")
def attention_count() -> Response:
    """Return the count of what needs a person, which the bar of every page polls."""
    params.refuse_unknown()
    return respond(
        lambda: render_template(
            "_attention.html", attention=attention.store_count(attention.read_state().count)
        )
    )


def _window() -> ChartWindow:
    return WINDOWS[params.from_request(FIELDS).get("window", USUAL)]


def _bars() -> list[WindowBar]:
    """Return what ended in each step of the window; asked once in a request."""
    if "ended" not in g:
        window = _window()
        words = "%a %H:%M" if window.step * window.count > HOUR else "%H:%M"
        g.ended = [
            replace(bar, label=bar.start_at.astimezone(g.zone).strftime(words))
            for bar in throughput.read_bars(reading(), as_of(), window)
        ]
    bars: list[WindowBar] = g.ended
    return bars


def find_ended() -> Context:
    """Return what ended in the window: bars and their sums."""
    bars = _bars()
    return {
        "window": _window(),
        "bars": bars,
        "good": sum(bar.good for bar in bars),
        "bad": sum(bar.bad for bar in bars),
    }


def find_pace() -> Context:
    """Return how long what ended in the window ran and waited."""
    bars = _bars()
    return {
        "window": _window(),
        "bars": bars,
        "spreads": {
            "run": spread(bars, [bar.run_times for bar in bars]),
            "wait": spread(bars, [bar.waits for bar in bars]),
        },
    }


def find_works() -> Context:
    """Return the busiest and the slowest types of the window."""
    busiest, slowest = throughput.rank_types(throughput.sum_work(reading(), _bars()))
    return {"window": _window(), "busiest": busiest, "slowest": slowest}


def find_troubles() -> Context:
    """Return what needs a person: runs by type and state, missed fires, open effects, alerts, pauses."""
    troubles = attention.read_by_type().lines
    now = attention.read_state()
    return {
        "troubles": troubles,
        "overlong": now.overlong,
        "rising": now.rising,
        "pauses": overview.list_pauses(reading()),
        "most_pauses": MOST_PAUSES,
        "alerts": now.alerts,
        "kinds": KINDS,
        "counts": now.counts,
        "leaving": leaving_in_words(now.counts),
        "capped": capped,
    }


def find_fires() -> Context:
    """Return the next fires."""
    return {"fires": overview.list_next_fires(reading())}


def overview_twin(context: Context) -> Json:
    """Return ``/overview.json``: every number of the page."""
    counts, rise, said = context["counts"], context["rising"], context["verdict"]
    past = {**find_ended(), **find_pace(), **find_works()}
    return {
        "well": said.is_good,
        "sentence": f"{said.strong} {said.rest}",
        "dead": counts.dead,
        "stuck": counts.stuck,
        "held_by_silent_workers": counts.silent,
        "failed": counts.failed,
        "rising": {
            "firing": rise.firing,
            "failed_attempts_1h": rise.value,
            "limit": rise.limit,
            "sentence": rise.sentence,
        },
        "missed_fires": counts.missed,
        "schedules_missed": counts.schedules_missed,
        "schedules_that_cannot_fire": counts.unfireable,
        "unconfirmed_effects": counts.unconfirmed,
        "paused_types": counts.paused,
        "running": counts.running,
        "running_on_leaving_workers": counts.finishing,
        "slots": counts.slots,
        "workers": counts.workers,
        "claiming_slots": counts.claiming_slots,
        "claiming_workers": counts.claiming,
        "draining_workers": counts.draining,
        "stopping_workers": counts.stopping,
        "queued": counts.queued,
        "oldest_due_at": counts.oldest_due_at,
        "window": context["window"].name,
        "since_at": past["bars"][0].start_at,
        "step_seconds": context["window"].step.total_seconds(),
        "succeeded_attempts": past["good"],
        "failed_attempts": past["bad"],
        "bars": [_bar(*each) for each in zip(past["bars"], *_columns(past["spreads"]), strict=True)],
        "run_time": _spread(past["spreads"]["run"]),
        "wait_time": _spread(past["spreads"]["wait"]),
        "busiest": [_work(*each) for each in past["busiest"]],
        "slowest": [_work(*each) for each in past["slowest"]],
        "attention": [
            {"state": line.state, "job_type": line.job_type, "runs": line.count, "since_at": line.since_at}
            for line in attention.read_by_type().lines
        ],
        "overlong": [
            {
                "job_type": each.job_type,
                "runs": each.count,
                "since_at": each.since_at,
                "median_seconds": each.pace.median,
                "p95_seconds": each.pace.p95,
            }
            for each in attention.read_state().overlong
        ],
        "next": [dict(row) | {"error": redact(row["error"])} for row in overview.list_next_fires(reading())],
    }


def _columns(spreads: dict[str, Spread]) -> tuple[list[Column], list[Column]]:
    return list(spreads["run"].columns), list(spreads["wait"].columns)


def _bar(bar: WindowBar, run: Column, wait: Column) -> Json:
    return {
        "start_at": bar.start_at,
        "succeeded": bar.good,
        "failed": bar.bad,
        "run_time": _percentiles(run),
        "wait_time": _percentiles(wait),
    }


def _percentiles(of: Column | Spread) -> Json:
    return {"attempts": of.count, "p50_seconds": of.p50, "p95_seconds": of.p95, "p99_seconds": of.p99}


def _spread(of: Spread) -> Json:
    return {**_percentiles(of), "longest_seconds": of.longest}


def _work(job_type: str, work: Work) -> Json:
    return {
        "job_type": job_type,
        "attempts": work.attempts,
        "failed": work.failed,
        "seconds": work.seconds,
        "average_seconds": work.average_seconds,
        "longest_seconds": work.longest_seconds,
    }


add_page(
    blueprint,
    "/",
    "overview/page.html",
    find_tiles,
    twin=overview_twin,
    fragments={
        "tiles": "overview/_tiles.html",
        "succeeded": ("overview/_succeeded.html", find_ended),
        "done": ("overview/_done.html", find_ended),
        "pace": ("overview/_pace.html", find_pace),
        "types": ("overview/_types.html", find_works),
        "attention": ("overview/_attention.html", find_troubles),
        "fires": ("overview/_fires.html", find_fires),
    },
    fields=FIELDS,
)
