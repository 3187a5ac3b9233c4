"""Errors: what fails, by group, over a window of time, muted groups apart; and one code with a sample trace.

The page of one group is ``error_group``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from flask import Blueprint, g

from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.charts.sparks import trend
from wakeboard_dashboard.pages import failures
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import error_groups, errors, runs
from wakeboard_dashboard.queries.error_groups import ErrorGroupRow
from wakeboard_dashboard.queries.errors import FailureGroup, FailureWindow, RankedGroups
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("errors", __name__)

DEFAULT_WINDOW = timedelta(hours=24)
LONGEST_WINDOW = timedelta(days=92)
# Values as the canonical query string writes them.
AGES = (("1h", "1 hour"), ("1d", "24 hours"), ("7d", "7 days"), ("30d", "30 days"))
COLUMNS = [
    "fingerprint", "state", "error_code", "job_type", "count", "failed", "dead", "first_seen_at",
    "last_seen_at", "template", "frame", "muted_until", "message",
]  # fmt: skip
SPAN = ("since", "until")
WINDOW_FIELDS = {"type": params.TEXT, "since": params.MOMENT, "until": params.MOMENT}
FIELDS = {"error": params.TEXT, "state": params.one_of(error_groups.STATES, many=True), **WINDOW_FIELDS}


@dataclass(frozen=True, slots=True)
class FailureBar:
    """One bar of a chart of failures."""

    label: str
    total: int

    @property
    def bad(self) -> int:
        """All of them are failures."""
        return self.total


def window(filters: params.Filters, code: str | None = None) -> FailureWindow:
    """Return the window that ``filters`` ask for: the last 24 hours unless they say otherwise.

    Raises FilterError when it is empty or too long to count.
    """
    since, until = span(filters, DEFAULT_WINDOW)
    return FailureWindow(since, until, code or filters.get("error"), filters.get("type"))


def span(filters: params.Filters, usual: timedelta) -> tuple[datetime, datetime]:
    """Return (since, until) that ``filters`` ask for, ``usual`` long unless they say otherwise.

    Raises FilterError when it is empty or too long to count.
    """
    now = as_of()
    # Attempts that end within this very microsecond belong to the page too.
    until = filters.get("until").at(now) if filters.get("until") else now + timedelta(seconds=1)
    since = filters.get("since").at(now) if filters.get("since") else until - usual
    if not since < until:
        raise FilterError("“since” is not before “until”: nothing can have failed in between.")
    if until - since > LONGEST_WINDOW:
        raise FilterError(f"The window is longer than {LONGEST_WINDOW.days} days; give a later “since”.")
    return since, until


def find_choices() -> Context:
    """Return what narrows the list of groups; the list asks for itself."""
    filters = params.from_request(FIELDS)
    return {"filters": filters, **_around("/errors"), "meanings": failures.MEANINGS}


def _around(path: str) -> Context:
    """Return what the filters of the list at ``path`` offer."""
    states = [(state, word) for state, (_, word) in failures.BADGES.items()]
    return {"types": runs.list_type_names(reading()), "ages": AGES, "path": path, "states": states}


def find_groups() -> Context:
    """Return the groups of the window that the address asks for, the muted ones apart."""
    filters = params.from_request(FIELDS)
    asked = window(filters)
    states = filters.get("state")
    # How a group stands is known of what is kept of it: then all are looked at.
    most = None if states else errors.MOST_GROUPS
    found = errors.list_groups(reading(), asked, most=most)
    heard, muted, count = found.unmuted, [*found.muted, *_silent(found.muted, asked)], found.count
    if states:
        now = as_of()
        heard, muted = (
            [
                group
                for group in errors.add_group_rows(reading(), part)
                if failures.state(group, now) in states
            ]
            for part in (heard, muted)
        )
        count = len(heard)
    shown, apart = heard[: errors.MOST_GROUPS], muted[: errors.MOST_GROUPS]
    whole = errors.add_details(reading(), [*shown, *apart])
    shown, apart = whole[: len(shown)], whole[len(shown) :]
    return {
        "groups": shown,
        "more": max(0, count - errors.MOST_GROUPS),
        "muted": apart,
        **_shared(filters, asked, found, whole),
    }


def _shared(
    filters: params.Filters, asked: FailureWindow, found: RankedGroups, shown: Sequence[FailureGroup]
) -> Context:
    """Return what every list of groups shows a group with."""
    now, also_in = as_of(), _also_in(found, shown)

    def badge_of(group: FailureGroup) -> tuple[str, str] | None:
        stands = failures.state(group, now)
        return failures.BADGES[stands] if stands else None

    def met_in(group: FailureGroup) -> tuple[int, str] | None:
        others = also_in.get(group.number or 0)
        return (len(others), failures.met_in(others)) if others else None

    return {
        "capped": found.is_cut,
        "cap": errors.CAP,
        "runs_capped": found.are_runs_cut,
        "runs_cap": errors.RUNS_CAP,
        "of_each_state": asked.code is None,
        "also_in": also_in,
        "trend": trend,
        "key": failures.key,
        "badge_of": badge_of,
        "runs_link": failures.runs_link,
        "link": failures.link,
        "met_in": met_in,
        # The page of a group or code looks at the same window, if the address names one.
        "span": urlencode({name: filters.texts[name] for name in SPAN if name in filters.texts}, safe=":"),
    }


def _muted(asked: FailureWindow) -> list[ErrorGroupRow]:
    """Return the muted groups that the page is about, whether or not they failed in the window."""
    return [
        kept
        for kept in error_groups.list_muted(reading())
        if asked.code in (None, kept.error_code) and asked.job_type in (None, kept.job_type)
    ]


def _silent(met: Iterable[FailureGroup], asked: FailureWindow) -> list[FailureGroup]:
    """Return the muted groups without a failure in the window."""
    seen = {group.number for group in met}
    return [
        FailureGroup(each.error_code, each.job_type, each.id, each)
        for each in _muted(asked)
        if each.id not in seen
    ]


def _also_in(found: RankedGroups, shown: Iterable[FailureGroup]) -> dict[int, tuple[str, ...]]:
    """Return the other types in which the same failure was met in the window, by the shown group's number."""
    types = error_groups.list_types_by_failure(reading(), found.numbers)
    return {
        group.row.id: _without(types.get(group.row.failure_key, ()), group.row.job_type)
        for group in shown
        if group.row is not None
    }


def _without(names: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the ``names``, each of which stands there once, but ``name``."""
    if name not in names:
        return tuple(names)
    place = names.index(name)
    return (*names[:place], *names[place + 1 :])


def find_code(code: str) -> Context:
    """Return one code: when it failed, and one failure with its trace; the lists ask for themselves."""
    filters = params.from_request(WINDOW_FIELDS)
    groups, newest = find_groups_of(code)["groups"], find_newest_of(code)["newest"]
    total = [sum(counts) for counts in zip(*(group.buckets for group in groups), strict=True)]
    sample = next((row for row in newest if row["traceback"]), newest[0] if newest else None)
    return {
        "code": code,
        "filters": filters,
        "chart": bars(window(filters, code), total),
        "sample": sample,
        "trace": failures.trace(sample),
        **_around(f"/errors/{quote(code)}"),
    }


def find_groups_of(code: str) -> Context:
    """Return the groups of this request's code, muted or not, counted once."""
    if "groups_of_code" not in g:
        filters = params.from_request(WINDOW_FIELDS)
        asked = window(filters, code)
        found = errors.list_groups(reading(), asked, apart=False)
        shown = errors.add_details(reading(), found.unmuted)
        g.groups_of_code = {
            "groups": shown,
            "more": 0,
            "muted": [],
            **_shared(filters, asked, found, shown),
        }
    context: Context = g.groups_of_code
    return context


def find_newest_of(code: str) -> Context:
    """Return the newest failures with this request's code, read once."""
    if "newest_of_code" not in g:
        asked = window(params.from_request(WINDOW_FIELDS), code)
        g.newest_of_code = {"newest": errors.list_newest_attempts(reading(), asked)}
    context: Context = g.newest_of_code
    return context


def bars(asked: FailureWindow, counts: Sequence[int]) -> list[FailureBar]:
    """Return the bars of a chart over the window; labels are in the operator's zone."""
    form = "%a %H:%M" if asked.bucket < timedelta(days=1) else "%Y-%m-%d"
    starts = [asked.since + step * asked.bucket for step in range(len(counts))]
    return [
        FailureBar(start.astimezone(g.zone).strftime(form), count)
        for start, count in zip(starts, counts, strict=True)
    ]


def errors_twin(_context: Context) -> Json:
    """Return ``/errors.json``: muted groups come last."""
    return _items(find_groups())


def code_twin(context: Context) -> Json:
    """Return ``/errors/<code>.json``: its groups and its newest failures."""
    code = context["code"]
    newest = failures.newest_items(find_newest_of(code)["newest"])
    return {"error_code": code, **_items(find_groups_of(code)), "newest": newest}


def _items(found: Context) -> Json:
    also_in = found["also_in"]
    items = [
        {**failures.item(group), "also_in": also_in.get(group.number, [])}
        for group in [*found["groups"], *found["muted"]]
    ]
    return {"items": items, "next": None, **{name: found[name] for name in ("capped", "runs_capped", "more")}}


add_page(
    blueprint,
    "/errors",
    "errors/page.html",
    find_choices,
    twin=errors_twin,
    columns=COLUMNS,
    fragments={"groups": ("errors/_groups.html", find_groups)},
    fields=FIELDS,
)
add_page(
    blueprint,
    "/errors/<path:code>",
    "errors/code.html",
    find_code,
    twin=code_twin,
    fragments={
        "groups": ("errors/_groups.html", find_groups_of),
        "newest": ("errors/_newest.html", find_newest_of),
    },
    fields=WINDOW_FIELDS,
)
