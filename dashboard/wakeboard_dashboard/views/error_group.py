"""One error group: what it is, when and where it was met, the runs it has hit."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NoReturn

from flask import Blueprint, abort, g, request

from wakeboard.core.errors.error_groups import format_fingerprint, parse_fingerprint
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages import failures
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import error_groups, errors, runs
from wakeboard_dashboard.queries.error_groups import ErrorGroupRow
from wakeboard_dashboard.queries.errors import FailureWindow
from wakeboard_dashboard.queries.runs import Payloads
from wakeboard_dashboard.text.changes import redact_row
from wakeboard_dashboard.text.formats import number
from wakeboard_dashboard.views import errors as errors_page
from wakeboard_dashboard.views import runs as runs_page
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("error_group", __name__)

ONE = "/errors/<group:fingerprint>"
DEFAULT_WINDOW = timedelta(days=7)
# Up to here the hours of a window are told apart unless somebody asks for days, and may be at all.
HOURS_BY_THEMSELVES = timedelta(days=2)
MOST_HOURS = timedelta(days=14)
STEPS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
FIELDS = {
    "status": params.STATUS,
    "since": params.MOMENT,
    "until": params.MOMENT,
    "by": params.one_of(list(STEPS)),
}
# Fewer than a list has: below it, and on a phone below that, stand the workers and the trace.
MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class TrendBar:
    """One bar of the trend: an hour or a day of the operator's zone."""

    start_at: datetime
    label: str
    total: int

    @property
    def bad(self) -> int:
        """All of them are failures."""
        return self.total


def find_group(fingerprint: str) -> Context:
    """Return one group, and a failure of the window in full; the parts of the page ask for themselves."""
    filters, kept = params.from_request(FIELDS), _shown(fingerprint)
    newest = errors.list_newest_attempts(reading(), FailureWindow(*_span(filters), number=kept.id))
    sample = next((row for row in newest if row["traceback"]), newest[0] if newest else None)
    return {
        "filters": filters,
        "path": f"/errors/{fingerprint}",
        "group": kept,
        "is_muted": kept.is_muted(as_of()),
        "newest": newest,
        "sample": sample,
        "trace": failures.trace(sample),
    }


def find_facts(fingerprint: str) -> Context:
    """Return what the group is and how it stands."""
    filters, kept = params.from_request(FIELDS), _shown(fingerprint)
    return {
        "group": kept,
        "state": kept.state(as_of()),
        "is_muted": kept.is_muted(as_of()),
        "badges": failures.BADGES,
        "meanings": dict(failures.MEANINGS),
        "standing": _standing(kept),
        "kin": error_groups.list_same_failures(reading(), kept),
        "last": error_groups.find_last_failure(reading(), kept.id),
        "schedules": error_groups.count_by_schedule(reading(), kept.id, *_span(filters)),
        "schedules_cap": error_groups.SCHEDULES_CAP,
        "first_is_kept": error_groups.has_run(reading(), kept.first_run_id),
        "runs_link": _runs_of(kept, filters).link("/runs"),
        "retry_link": failures.retry_link(fingerprint),
        "cancel_link": failures.cancel_link(fingerprint),
    }


def find_trend(fingerprint: str) -> Context:
    """Return the failures of the window by hour or day."""
    filters, kept = params.from_request(FIELDS), _shown(fingerprint)
    since, until = _span(filters)
    step = _step(filters, until - since)
    steps = trend(kept, since, until, step)
    return {
        "filters": filters,
        "path": f"/errors/{fingerprint}",
        "step": step,
        "steps": steps,
        "total": sum(each.total for each in steps),
        "cap": error_groups.CAP,
        "may_be_hours": until - since <= MOST_HOURS,
        "ages": errors_page.AGES,
    }


def find_group_runs(fingerprint: str) -> Context:
    """Return the page of runs whose last failure was of this group."""
    filters, kept = params.from_request(FIELDS), _shown(fingerprint)
    wanted = _runs_of(kept, filters)
    found = runs.search(reading(), wanted, as_of(), sees_payloads=False)
    payloads = Payloads.SHORT if request.path.endswith(".csv") else Payloads.NONE
    return {
        "filters": filters,
        "path": f"/errors/{fingerprint}",
        "standing": _standing(kept),
        "rows": runs.list_runs(reading(), found, wanted, payloads=payloads),
        "row_verb": runs_page.row_verb,
        "key_verb": runs_page.key_verb,
    }


def find_group_workers(fingerprint: str) -> Context:
    """Return on which workers it failed in the window, and who muted it."""
    filters, kept = params.from_request(FIELDS), _shown(fingerprint)
    workers = error_groups.count_by_worker(reading(), kept.id, *_span(filters))
    return {
        "workers": workers,
        "workers_cap": error_groups.WORKERS_CAP,
        "is_workers_cut": bool(workers) and workers[0]["counted"] >= error_groups.WORKERS_CAP,
        "acts": error_groups.list_mutes(reading(), fingerprint),
    }


def require_group(fingerprint: str) -> ErrorGroupRow:
    """Return the group of ``fingerprint``; a page says so where there is none."""
    found = error_groups.find_group(reading(), parse_fingerprint(fingerprint))
    if found is None:
        _unknown(fingerprint)
    return found


def _unknown(fingerprint: str) -> NoReturn:
    abort(404, f"There is no error group {fingerprint}; retention may have removed it.")


def _shown(fingerprint: str) -> ErrorGroupRow:
    """Return the group that this request is about, read once."""
    if "error_group" not in g:
        g.error_group = require_group(fingerprint)
    found: ErrorGroupRow = g.error_group
    return found


def _standing(kept: ErrorGroupRow) -> dict[str, int]:
    """Return how many runs of this request's group are in each state, counted once."""
    if "runs_of_group" not in g:
        g.runs_of_group = error_groups.count_runs(reading(), kept.id)
    found: dict[str, int] = g.runs_of_group
    return found


def _span(filters: params.Filters) -> tuple[datetime, datetime]:
    return errors_page.span(filters, DEFAULT_WINDOW)


def _runs_of(kept: ErrorGroupRow, filters: params.Filters) -> params.Filters:
    """Return what asks for the runs whose last failure was of this group, in the state that is asked for."""
    asked = {"group": kept.id} | ({"status": filters.get("status")} if filters.get("status") else {})
    texts = {"group": kept.fingerprint} | {
        name: filters.texts[name] for name in ("status",) if name in filters.texts
    }
    limit = filters.limit if "limit" in request.args or request.path.endswith(".csv") else MOST_ROWS
    return params.Filters(asked, texts, filters.cursor_text, limit)


def _step(filters: params.Filters, length: timedelta) -> str:
    """Return 'hour' or 'day'. Raises FilterError for more hours than anybody can tell apart."""
    wanted = filters.get("by") or ("hour" if length <= HOURS_BY_THEMSELVES else "day")
    if wanted == "hour" and length > MOST_HOURS:
        raise FilterError(
            f"By the hour the window is at most {MOST_HOURS.days} days; take by=day, or a later “since”."
        )
    return str(wanted)


def starts(since: datetime, until: datetime, step: str, zone: tzinfo) -> list[datetime]:
    """Return when each hour or day of ``zone`` between two moments began; a day may have 23 or 25 hours."""
    local = since.astimezone(zone).replace(minute=0, second=0, microsecond=0)
    if step == "day":
        local = local.replace(hour=0, fold=0)
        days = range((until.astimezone(zone).date() - local.date()).days + 1)
        found = [(local + timedelta(days=day)).astimezone(UTC) for day in days]
    else:
        first = local.astimezone(UTC)
        found = [first + hour * STEPS["hour"] for hour in range(int((until - first) / STEPS["hour"]) + 1)]
    return [start_at for start_at in found if start_at < until]


def trend(kept: ErrorGroupRow, since: datetime, until: datetime, step: str) -> list[TrendBar]:
    """Return the failures of each hour or day of the operator's zone, from that of ``since`` on."""
    begun = starts(since, until, step, g.zone)
    counted = error_groups.count_steps(reading(), kept.id, since, until, begun)
    form = "%a %H:%M" if step == "hour" else "%a %-d %b"
    return [
        TrendBar(start_at, start_at.astimezone(g.zone).strftime(form), count)
        for start_at, count in zip(begun, counted, strict=True)
    ]


def capped(count: int, cap: int = error_groups.RUNS_CAP) -> str:
    """Return a number of runs, or what else has another ``cap``, ``10 000+`` where counting stopped."""
    return f"{number(count)}{'+' if count >= cap else ''}"


def group_twin(context: Context) -> Json:
    """Return ``/errors/<group>.json``: the group, its trend, workers, runs and newest failures."""
    kept: ErrorGroupRow = context["group"]
    queries = (find_facts, find_trend, find_group_runs, find_group_workers)
    context = ChainMap(dict(context), *(dict(query(kept.fingerprint)) for query in queries))
    last = context["last"]
    return {
        "error_group": kept.id,
        "error_code": kept.error_code,
        "job_type": kept.job_type,
        **failures.kept_item(kept),
        "last_run_id": last and last["run_id"],
        "runs": context["standing"],
        "runs_capped": any(count >= error_groups.RUNS_CAP for count in context["standing"].values()),
        "schedules": [
            {"name": row["name"], "definition_id": row["definition_id"], "runs": row["runs"]}
            for row in context["schedules"]
        ],
        "schedules_capped": any(row["counted"] >= error_groups.SCHEDULES_CAP for row in context["schedules"]),
        "also_in": [{"job_type": each.job_type, "fingerprint": each.fingerprint} for each in context["kin"]],
        "by": context["step"],
        "count": context["total"],
        "trend": [{"start_at": each.start_at, "count": each.total} for each in context["steps"]],
        "workers": [
            {name: row[name] for name in ("worker_id", "name", "failures", "last_at")}
            for row in context["workers"]
        ],
        "workers_capped": context["is_workers_cut"],
        "newest": failures.newest_items(context["newest"]),
        "audit": [redact_row(row) for row in context["acts"]],
        **context["rows"].twin(runs_page.item),
    }


add_page(
    blueprint,
    ONE,
    "errors/group.html",
    find_group,
    twin=group_twin,
    columns=runs_page.COLUMNS,
    fragments={
        "facts": ("errors/_facts.html", find_facts),
        "trend": ("errors/_trend.html", find_trend),
        "runs": ("errors/_runs.html", find_group_runs),
        "workers": ("errors/_workers.html", find_group_workers),
    },
    fields=FIELDS,
)
blueprint.add_app_template_filter(format_fingerprint, "fingerprint")
blueprint.add_app_template_filter(capped, "capped")
