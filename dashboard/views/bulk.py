"""Verbs on a selection of runs: the same moves as on one, each with its own audit row, one answer for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from flask import Blueprint, Response, abort, g, jsonify, render_template, request

from dashboard import answers, security
from dashboard.connection import writing
from dashboard.formats import plural
from dashboard.params import LARGEST_PAGE, identifier
from worker import transitions
from worker.states import VERBS
from worker.transitions import Answer
from worker.transitions.answer import Result

blueprint = Blueprint("bulk", __name__)

# As many as a page can show; more is an operation of its own, not a request.
MOST = LARGEST_PAGE
MOVES: dict[str, Callable[..., Answer]] = {
    "retry": transitions.retry_now,
    "cancel": transitions.cancel,
    "again": transitions.run_again,
}
DONE = {"retry": "due now", "cancel": "cancelled", "again": "enqueued again"}
SAYS = {
    "retry": "Retry {runs}? They become due now; dead and cancelled ones start afresh.",
    "cancel": "Cancel {runs}? What waits will not run; what runs is asked to stop.",
    "again": "Run {runs} again? Each ended run gets a new run with the same payload.",
}
# What is said of the runs left as they were, by what the single answers were.
LEFT = {
    "already": "already so",
    "forbidden": "in a state that does not allow it",
    "missing": "not there any more",
    "denied": "not allowed for your role",
}


@blueprint.get("/runs/bulk/<verb>")
def ask(verb: str) -> str:
    """Show what would be done to which runs; the way without a script."""
    action = VERBS[f"run.{_known(verb)}"]
    security.require(action)
    ids = _ids(request.args.getlist("run"))
    return render_template(
        "confirm.html",
        verb=action,
        says=SAYS[verb].format(runs=plural(len(ids), "run")),
        back=answers.local_path(request.args.get("next")) or answers.came_from() or "/runs",
        fields="runs/_selected.html",
        ids=ids,
    )


@blueprint.post("/runs/bulk/<verb>")
def act(verb: str) -> Response:
    """Do ``verb`` to each run of the selection and say how many it changed and why not the others."""
    move, (given, reason) = MOVES[_known(verb)], _asked()
    ids = _ids(given)
    with writing() as connection:
        found = [move(connection, run_id, g.actor, reason) for run_id in ids]
    whole = summed(verb, found)
    if answers.wanted() != "json":
        return answers.respond(whole, answers.came_from() or "/runs", clear_selection=True)
    counts = Counter(answer.result for answer in found)
    body = {
        "done": counts["done"],
        "asked": counts["asked"],
        "skipped": sum(not answer.changed for answer in found),
        "items": [{"run": run_id, **answer.body()} for run_id, answer in zip(ids, found, strict=True)],
    }
    response = jsonify({**whole.body(), "id": ids, **body})
    response.status_code = whole.http_status
    return response


def summed(verb: str, found: list[Answer]) -> Answer:
    """Return one answer for many: ``2 runs cancelled, 1 asked to stop. 1 left: in a state that …``."""
    counts: Counter[str] = Counter(answer.result for answer in found)
    parts = [f"{plural(counts['done'], 'run')} {DONE[verb]}"] if counts["done"] else []
    parts += [f"{plural(counts['asked'], 'run')} asked to stop"] if counts["asked"] else []
    left = [f"{count} {LEFT[result]}" for result, count in counts.items() if result in LEFT]
    sentence = ", ".join(parts) or "Nothing was changed"
    if left:
        example = next(answer.message for answer in found if not answer.changed)
        sentence += f". Left as they are: {', '.join(left)}. {example}"
    # The best that happened to any of them is what happened to the selection.
    order: tuple[Result, ...] = ("done", "asked", "already", "forbidden", "denied", "missing")
    result = next(each for each in order if counts[each])
    return Answer("selection", None, result, sentence if sentence.endswith(".") else f"{sentence}.")


def _known(verb: str) -> str:
    if verb not in MOVES:
        abort(404, f"There is no verb “{verb[:50]}” for many runs; there are {', '.join(MOVES)}.")
    return verb


def _asked() -> tuple[Iterable[Any], str | None]:
    """Return (run ids as given, reason) of a form or of JSON such as ``{"run": [1, 2]}``."""
    if not request.is_json:
        return request.form.getlist("run"), request.form.get("reason", "").strip()[:500] or None
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or not isinstance(body.get("run"), list):
        abort(400, 'The body must be a JSON object such as {"run": [48210, 48209], "reason": "CRM is back"}.')
    return body["run"], str(body.get("reason") or "").strip()[:500] or None


def _ids(given: Iterable[Any]) -> list[int]:
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
