"""Verbs on a selection of runs: the moves of one run, each with an audit row of its own, and one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, g, jsonify, render_template, request

from wakeboard.bulk import rules
from wakeboard.bulk.start import check_confirmation
from wakeboard.core.answer import Result
from wakeboard.core.states import VERBS
from wakeboard.queue import Answer, selection
from wakeboard_dashboard.pages import bulk_by_filter, verbs
from wakeboard_dashboard.pages.bulk_confirmation import read_options
from wakeboard_dashboard.text import operations as words
from wakeboard_dashboard.text.formats import number, plural
from wakeboard_dashboard.web import responses, security
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.params import LARGEST_PAGE, identifier

blueprint = Blueprint("bulk", __name__)

# As many as a page can show; more take an operation.
MOST = LARGEST_PAGE
DONE = {"retry": "due now", "cancel": "cancelled", "again": "enqueued again"}
# By result: why runs were left as they are.
LEFT = {
    "already": "already so",
    "forbidden": "in a state that does not allow it",
    "locked": "locked by another transaction",
    "missing": "not there any more",
    "denied": "not allowed for your role",
}


@blueprint.get("/runs/bulk/<verb>")
def show_preview(verb: str) -> str:
    """Show what would be done to which runs: those chosen, or all that the filter matches."""
    action = VERBS[f"run.{_check_verb(verb)}"]
    security.require(action)
    if bulk_by_filter.is_by_filter(request.args.getlist("run")):
        return bulk_by_filter.render_preview(verb)
    ids = _ids(request.args.getlist("run"))
    return render_template(
        "confirm.html",
        verb=action,
        question_text=words.ASKS[verb].format(runs=plural(len(ids), "run")),
        back=responses.local_path(request.args.get("next")) or responses.referring_path() or "/runs",
        inputs="runs/_selected.html",
        ids=ids,
        preview=bulk_by_filter.preview_runs(verb, ids),
        careful=bulk_by_filter.list_cautions(verb, ids),
        words=words,
        watched=verb in rules.WATCHED,
        is_typed=len(ids) > rules.TYPED_ABOVE,
        error=None,
        typed={},
    )


@blueprint.get("/runs/bulk/<verb>.json")
def show_preview_json(verb: str) -> Response:
    """Return what ``show_preview`` shows."""
    security.require(VERBS[f"run.{_check_verb(verb)}"])
    if bulk_by_filter.is_by_filter(request.args.getlist("run")):
        return bulk_by_filter.render_preview_json(verb)
    ids = _ids(request.args.getlist("run"))
    return jsonify(bulk_by_filter.preview_body(bulk_by_filter.preview_runs(verb, ids)))


@blueprint.post("/runs/bulk/<verb>")
def act(verb: str) -> Response:
    """Do ``verb`` to each run of the selection and say how many it changed and why not the others.

    With a pace or a canary, or on all that a filter matches, an operation is begun instead. Where the number
    has to be typed it is asked for first.
    """
    action = f"run.{_check_verb(verb)}"
    if (refusal := verbs.find_refusal(VERBS[action], {})) is not None:
        return responses.respond(refusal, "/runs")
    body = bulk_by_filter.read_body()
    if bulk_by_filter.is_by_filter(body.runs, str(body.fields.get("filter") or "")):
        return bulk_by_filter.begin(verb, body.fields)
    ids = _ids(body.runs)
    confirm = body.fields.get("confirm")
    if sentence := check_confirmation(len(ids), None if confirm is None else str(confirm)):
        return _redirect_to_preview(verb, ids, body.reason, sentence)
    if read_options(body.fields).is_any_set:
        return bulk_by_filter.begin_on_runs(verb, ids, body.fields)
    with writing() as connection:
        answers = selection.act_on_each(connection, action, ids, g.actor, body.reason)
    summary = summarize(verb, answers)
    if responses.wanted() != "json":
        # Who is told to try again need not look for the runs: those that were moved are “already so”.
        is_over = all(answer.result != "locked" for answer in answers)
        return responses.respond(summary, responses.referring_path() or "/runs", clear_selection=is_over)
    counts = Counter(answer.result for answer in answers)
    details = {
        "done": counts["done"],
        "asked": counts["asked"],
        "skipped": sum(not answer.changed for answer in answers),
        "locked": counts["locked"],
        "items": [{"run": run_id, **answer.body()} for run_id, answer in zip(ids, answers, strict=True)],
    }
    response = jsonify({**summary.body(), "id": ids, **details})
    response.status_code = summary.http_status
    return response


def _redirect_to_preview(verb: str, ids: list[int], reason: str | None, sentence: str) -> Response:
    """Lead a page's own button to where the number is typed; refuse everybody else with ``sentence``."""
    if responses.wanted() != "htmx":
        abort(400, sentence)
    query = urlencode({"run": ids} | ({"reason": reason} if reason else {}), doseq=True)
    return Response(headers={"HX-Redirect": f"/runs/bulk/{verb}?{query}"})


def summarize(verb: str, answers: list[Answer]) -> Answer:
    """Return one answer for many: ``2 runs cancelled, 1 asked to stop. 1 left: in a state that …``."""
    counts: Counter[str] = Counter(answer.result for answer in answers)
    parts = [f"{plural(counts['done'], 'run')} {DONE[verb]}"] if counts["done"] else []
    parts += [f"{plural(counts['asked'], 'run')} asked to stop"] if counts["asked"] else []
    if waiting := sum(answer.is_held for answer in answers):
        parts.append(f"{number(waiting)} of a paused type: it waits until somebody resumes that")
    left = [f"{count} {LEFT[result]}" for result, count in counts.items() if result in LEFT]
    sentence = ", ".join(parts) or "Nothing was changed"
    if left:
        others = (answer.message for answer in answers if not answer.changed and answer.result != "locked")
        why = " ".join(filter(None, [next(others, None), selection.describe_locked(answers)]))
        sentence += f". Left as they are: {', '.join(left)}. {why}"
    # The best that happened to any of them is what happened to the selection.
    order: tuple[Result, ...] = ("done", "asked", "already", "forbidden", "locked", "denied", "missing")
    result = next(each for each in order if counts[each])
    return Answer("selection", None, result, sentence if sentence.endswith(".") else f"{sentence}.")


def _check_verb(verb: str) -> str:
    """Return ``verb``. Aborts with 404 where there is no such verb for many runs."""
    if verb not in DONE:
        abort(404, f"There is no verb “{verb[:50]}” for many runs; there are {', '.join(DONE)}.")
    return verb


def _ids(given: Iterable[object]) -> list[int]:
    """Return the ids in ``given``, each once. Aborts with 400 and a sentence."""
    try:
        ids = list(dict.fromkeys(identifier(str(each)) for each in given))
    except ValueError:
        abort(400, "A run id is a whole number such as 48210. Nothing was changed.")
    if not ids:
        abort(400, "No run is selected: check the boxes of the runs first.")
    if len(ids) > MOST:
        abort(400, f"{len(ids)} runs are selected; at most {MOST} go in one step. Nothing was changed.")
    return ids
