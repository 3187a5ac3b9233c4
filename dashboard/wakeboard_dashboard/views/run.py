"""One run: how it stands and why, what was tried, what came of it, what people did to it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from flask import Blueprint, abort, g, request
from sqlalchemy import RowMapping

from wakeboard.core import parent_run
from wakeboard.core.leases import NAMES, STATES, takeover
from wakeboard.core.retry import Backoff
from wakeboard.core.states import CLAIMABLE, VERBS, Status, Verb, is_allowed
from wakeboard.core.text.redaction import redact
from wakeboard.database.tables import job_attempts, job_runs
from wakeboard.reporting.diagnosis.wait_reasons import Reason, explain_wait
from wakeboard_dashboard.charts.lanes import lanes
from wakeboard_dashboard.charts.tree import tree
from wakeboard_dashboard.pages.live import FRAGMENTS, Context, Json, add_page
from wakeboard_dashboard.queries import audit, leases
from wakeboard_dashboard.queries import run as query
from wakeboard_dashboard.queries.types import read_usual_paces
from wakeboard_dashboard.text.attempt import describe_followups
from wakeboard_dashboard.text.changes import redact_row
from wakeboard_dashboard.text.formats import pretty, visible
from wakeboard_dashboard.text.progress import Progress, progress
from wakeboard_dashboard.text.ticket import commands, markdown
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.not_found import missing
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("run", __name__)

PATH = "/runs/<id:run_id>"
VERB_NAMES = ("run.retry", "run.cancel", "run.again")
# A payload is shown as JSON beside its tree up to so many characters; more of it has a page of its own.
LONGEST_JSON = 4_000
# The newest attempts are shown with all they said; of the others a link leads there.
MOST_WHOLE = 5


def _require_run(run_id: int) -> RowMapping:
    """Return the run that this request is about, read once; its payload where the whole page is asked for."""
    if "run" not in g:
        g.run = query.find_run(reading(), run_id, payload=not request.path.startswith(FRAGMENTS))
    if g.run is None:
        abort(404, missing("run", run_id))
    run: RowMapping = g.run
    return run


def _attempts_of(run_id: int) -> list[RowMapping]:
    """Return the ended attempts of this request's run, newest first, read once."""
    if "attempts" not in g:
        g.attempts = query.list_attempts(reading(), run_id)
    attempts: list[RowMapping] = g.attempts
    return attempts


def _waiting(run: RowMapping) -> tuple[dict[str, int], list[Reason]]:
    """Return what this request's run waits for, read once; nothing when it does not wait."""
    if "waiting" not in g:
        g.waiting = explain_wait(reading(), run["id"]) if Status(run["status"]) in CLAIMABLE else ({}, [])
    waits: tuple[dict[str, int], list[Reason]] = g.waiting
    return waits


def find_run(run_id: int) -> Context:
    """Return the run, why it stands as it does, and what may be done with it."""
    run = _require_run(run_id)
    obstacles, reasons = _waiting(run)
    is_stuck = bool(run["is_stuck"])
    is_running = run["status"] == Status.RUNNING
    lease = leases.find_lease(reading(), run_id) if is_running else None
    usual = read_usual_paces(reading(), as_of(), [run["job_type"]]) if is_running else {}
    pace = usual.get(run["job_type"])
    return {
        "run": run,
        "usual": pace,
        "is_overlong": bool(pace and not is_stuck and pace.is_overlong(run["started_at"], as_of())),
        "is_stuck": is_stuck,
        "lease": lease,
        "lease_state": None if lease is None else STATES[lease["rank"]],
        "takeover": None if lease is None else takeover(NAMES[lease["rank"]], lease["takers"]),
        # Of a run that nobody is heard to work at no end is promised.
        "progress": progress(run, None if lease is None or is_stuck else lease["renewed_at"]),
        "is_spent": run["failures"] >= run["most_attempts"],
        "obstacles": obstacles,
        "reasons": reasons,
        "rule": describe(run["backoff"]),
        "verbs_here": _verbs_of(run),
        "why_not": why_not(run, as_of()),
        "waits": Status(run["status"]) in CLAIMABLE,
        **_payload_shown(run["payload"]),
    }


def _verbs_of(run: RowMapping) -> list[Verb]:
    return [VERBS[name] for name in VERB_NAMES if is_allowed(VERBS[name], Status(run["status"]))]


def _payload_shown(payload: Any) -> Context:
    """Return a payload as its tree, and as JSON when it is short; a fragment has none."""
    if payload is None:
        return {"tree": None, "json": None}
    grown = tree(payload)
    json_text = None if grown.is_cut else pretty(redact(payload))
    return {"tree": grown, "json": json_text if json_text and len(json_text) <= LONGEST_JSON else None}


def find_attempts(run_id: int) -> Context:
    """Return what was tried, newest first, and what the running attempt prints."""
    run, ended = _require_run(run_id), _attempts_of(run_id)
    is_running = run["status"] == Status.RUNNING
    return {
        "run": run,
        "ended": ended,
        "after": describe_followups(ended, run),
        "lanes": lanes(ended, run if is_running else None, as_of()),
        "output": query.read_output(reading(), run_id, run["lease_epoch"]) if is_running else None,
        "most": query.MOST_SHOWN,
        "most_whole": MOST_WHOLE,
    }


def find_relatives(run_id: int) -> Context:
    """Return what the run did once, where it came from, what came of it, and how to share it."""
    run, address = _require_run(run_id), f"{request.host_url}runs/{run_id}"
    sentences = [reason.say() for reason in _waiting(run)[1]]
    return {
        "run": run,
        "effects": query.list_effects(reading(), run_id),
        **_lineage(run),
        "most": query.MOST_SHOWN,
        "markdown": markdown(run, _attempts_of(run_id), sentences, address),
        "commands": commands(run, address, [verb.name for verb in _verbs_of(run)]),
    }


def _lineage(run: RowMapping) -> Context:
    """Return what stands around a run and came of it, as far as the asker may see runs of these types."""
    types = g.actor.job_types
    around, made = query.find_neighbours(reading(), run), query.list_children(reading(), run["id"], types)
    if types is not None:
        around = {place: row for place, row in around.items() if row["job_type"] in types}
    shown = made[: query.MOST_SHOWN]
    return {
        "around": around,
        "is_made": run["origin_run_id"]
        and run["enqueued_by"] == parent_run.enqueuer_name(run["origin_run_id"]),
        "again": [row for row in shown if row["is_again"]],
        "made": [row for row in shown if not row["is_again"]],
        "is_more_made": len(made) > len(shown),
    }


def find_audit(run_id: int) -> Context:
    """Return what people asked of this run."""
    _require_run(run_id)
    return {"rows": audit.list_entries_of(reading(), "run", str(run_id), most=query.MOST_SHOWN)}


def describe(backoff: str) -> str:
    """Return a retry rule in words; one that this version cannot read is shown as it stands there."""
    try:
        return Backoff.parse(backoff).describe()
    except ValueError:
        return visible(backoff)


def why_not(run: RowMapping, now: datetime) -> dict[str, str]:
    """Return, by verb, why a verb that the state allows would change nothing now."""
    reasons = {}
    if Status(run["status"]) in CLAIMABLE and run["run_at"] <= now:
        reasons["retry"] = "It is due already"
    if run["cancel_requested_at"] and run["status"] == Status.RUNNING:
        reasons["cancel"] = "It was already asked to stop"
    return reasons


def run_twin(context: Context) -> Json:
    """Return ``/runs/<id>.json``: the run's columns, its attempts, what came of it, its audit trail; secrets
    hidden."""
    run: RowMapping = context["run"]
    columns = {column.name: run[column.name] for column in job_runs.c}
    kin = _lineage(run)
    return {
        **columns,
        "payload": redact(run["payload"]),
        "last_error": redact(run["last_error"]),
        "definition": run["definition"],
        "stuck": context["is_stuck"],
        "lease": _lease(context),
        "progress": _progress(context["progress"]),
        "usual": _usual(context),
        "waits_for": _waits_for(context),
        "history": _history(run),
        "effects": [_effect(row) for row in query.list_effects(reading(), run["id"])],
        "descendants": [row["id"] for row in kin["again"]],
        "enqueued": [row["id"] for row in kin["made"]],
        "slots": {place: row["id"] for place, row in kin["around"].items() if place != "origin"},
        "audit": [redact_row(row) for row in find_audit(run["id"])["rows"]],
    }


def attempt_item(row: RowMapping) -> Json:
    """Return an attempt as twins give it: the columns of job_attempts, secrets hidden."""
    redacted = {name: redact(row[name]) for name in ("error", "note", "traceback", "output_tail", "result")}
    return {column.name: row[column.name] for column in job_attempts.c} | redacted


def _history(run: RowMapping) -> list[Json]:
    ended = _attempts_of(run["id"])
    followups = describe_followups(ended, run)
    return [attempt_item(row) | {"after": followups[row["lease_epoch"]] or None} for row in ended]


def _effect(row: RowMapping) -> Json:
    return dict(row) | {"result": redact(row["result"])}


def _progress(progress: Progress | None) -> Json | None:
    return None if progress is None else asdict(progress)


def _usual(context: Context) -> Json | None:
    """Return how long runs of its type usually take, None when it does not run or nothing is known."""
    pace = context["usual"]
    if pace is None:
        return None
    times = {"runs": pace.runs, "median_seconds": pace.median, "p95_seconds": pace.p95}
    return {**times, "overlong": context["is_overlong"]}


def _waits_for(context: Context) -> Json | None:
    """Return what a waiting run waits for, counted and in words; None when it does not wait."""
    if not context["reasons"]:
        return None
    return {**context["obstacles"], "reasons": [reason.say() for reason in context["reasons"]]}


def _lease(context: Context) -> Json | None:
    """Return how the lease of a running run stands, None when it does not run."""
    if context["lease"] is None:
        return None
    names = ("worker_seen_at", "renewed_at", "locked_until", "lease_seconds", "takeover_at", "takers")
    found = {name: context["lease"][name] for name in names}
    return {"state": context["lease_state"].name, **found}


def find_payload(run_id: int) -> Context:
    """Return the whole payload as JSON, secrets hidden."""
    run = _require_run(run_id)
    shown = redact(run["payload"])
    return {"run": run, "payload": shown}


def find_attempt(run_id: int, lease_epoch: int) -> Context:
    """Return one ended attempt with all it said."""
    run, attempt = _require_run(run_id), query.find_attempt(reading(), run_id, lease_epoch)
    if attempt is None:
        abort(404, f"Run {run_id} has no ended attempt under the lease epoch {lease_epoch}.")
    return {"run": run, "attempt": attempt}


add_page(
    blueprint,
    f"{PATH}/payload",
    "run/payload.html",
    find_payload,
    twin=lambda context: {"id": context["run"]["id"], "payload": context["payload"]},
    scope=Scope.RUN,
    page_scope=Scope.RUN,
)
add_page(
    blueprint,
    f"{PATH}/attempts/<id:lease_epoch>",
    "run/attempt.html",
    find_attempt,
    twin=lambda context: attempt_item(context["attempt"]),
    scope=Scope.RUN,
    page_scope=Scope.RUN,
)
add_page(
    blueprint,
    PATH,
    "run/page.html",
    find_run,
    twin=run_twin,
    fragments={
        "state": "run/_state.html",
        "facts": "run/_facts.html",
        "attempts": ("run/_attempts.html", find_attempts),
        "relatives": ("run/_relatives.html", find_relatives),
        "audit": ("run/_audit.html", find_audit),
    },
    scope=Scope.RUN,
    page_scope=Scope.RUN,
)
