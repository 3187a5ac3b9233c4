"""An operator's verb as three answers of one address: GET asks, POST does, and each asker gets its own shape.

A form that cannot be read is shown again with what was typed, and the sentence beside it. The write is a
function of ``worker``, which also checks the role and writes the audit row; this module finds the reason and
the way back, and asks for the role before it looks at what was posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, g, make_response, render_template, request
from werkzeug.exceptions import BadRequest

from wakeboard.core.states import VERBS, Verb
from wakeboard.queue import Answer
from wakeboard.queue.operator import permit
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.not_found import require_existing
from wakeboard_dashboard.web.params import readable
from wakeboard_dashboard.web.responses import came_from, local_path, respond, wanted
from wakeboard_dashboard.web.scopes import Scope, declare
from wakeboard_dashboard.web.security import can, require

Act = Callable[..., Answer]
Words = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Action:
    """A verb on a page: what it does, what its confirm page says, where to go back to.

    ``act(connection, actor, reason, **path arguments)`` returns an Answer; ``says`` and ``back`` take the
    path arguments. ``takes`` names the fields that it reads beside the reason, None where it says itself
    which those are. ``fields`` is a template with further inputs, filled from ``ask(**path arguments)`` and
    from ``typed``, the texts of a form that was refused: with ``keeps`` the form is shown again with them.
    ``then(answer)`` is the path of what a verb made.
    """

    verb: Verb
    act: Act
    says: Words
    back: Words
    fields: str | None = None
    ask: Callable[..., Mapping[str, Any]] | None = None
    then: Callable[[Answer], str] | None = None
    keeps: bool = False
    takes: Sequence[str] | None = ()


def add_verb(
    blueprint: Blueprint,
    path: str,
    action: str,
    act: Act,
    *,
    says: Words,
    back: Words,
    fields: str | None = None,
    ask: Callable[..., Mapping[str, Any]] | None = None,
    then: Callable[[Answer], str] | None = None,
    keeps: bool = False,
    takes: Sequence[str] | None = (),
    scope: Scope | None = None,
    former_path: str | None = None,
) -> None:
    """Register ``GET path`` (the confirm page) and ``POST path`` (the verb) of ``action``, a key of VERBS.

    ``scope`` opens both to tokens for some job types. ``former_path`` is an earlier address: scripts have it,
    so it answers as ``path`` does.
    """
    described = Action(VERBS[action], act, says, back, fields, ask, then, keeps, takes)
    name = action.replace(".", "_")

    # One rule for both methods: with two, Werkzeug answers 405 where an id is out of range.
    def answer(**arguments: Any) -> Response | str:
        return _do(described, arguments) if request.method == "POST" else _ask(described, arguments)

    view = declare(answer, scope)
    for address in filter(None, (path, former_path)):
        blueprint.add_url_rule(address, name, view, methods=["GET", "POST"])


def _ask(action: Action, arguments: dict[str, Any], wrong: str | None = None) -> str:
    """Return the page that asks; ``wrong`` is why what was posted was refused."""
    require(action.verb)
    if (target := target_of(action.verb, arguments)) is not None:
        require_existing(*target)
    back = action.back(**arguments)
    return render_template(
        "confirm.html",
        verb=action.verb,
        says=action.says(**arguments),
        back=local_path(request.values.get("next")) or came_from() or back,
        fields=action.fields,
        wrong=wrong,
        typed={name: readable(text) for name, text in request.form.items()} if wrong else {},
        **(action.ask(**arguments) if action.ask else {}),
    )


def _do(action: Action, arguments: dict[str, Any]) -> Response:
    if (refusal := refusal_of(action.verb, arguments)) is not None:
        return respond(refusal, action.back(**arguments))
    reason = body().get("reason", "").strip()[:500] or None
    if action.takes is not None:
        refuse_unread(*action.takes)
    is_form = action.keeps and wanted() == "page" and not request.is_json
    try:
        with writing() as connection:
            answer = action.act(connection, g.actor, reason, **arguments)
    except (BadRequest, FilterError) as refused:
        sentence = refused.description if isinstance(refused, BadRequest) else str(refused)
        if not is_form or not sentence:
            raise
        return make_response(_ask(action, arguments, sentence), 400)
    if answer.result == "invalid" and is_form:
        return make_response(_ask(action, arguments, answer.message), 400)
    ahead = action.then(answer) if action.then and answer.ok else None
    return respond(answer, came_from() or action.back(**arguments), ahead=ahead)


def refusal_of(verb: Verb, arguments: Mapping[str, Any]) -> Answer | None:
    """Return the refusal, which is audited, where the actor's role does not cover ``verb``, else None."""
    if can(verb):
        return None
    target = target_of(verb, arguments) or ("page", request.path)
    with writing() as connection:
        return permit(connection, g.actor, verb.action, *target)


def target_of(verb: Verb, arguments: Mapping[str, Any]) -> tuple[str, int | str] | None:
    """Return (noun, id or name) of the thing that the path's ``arguments`` name, None where they name none.

    It is the target that the audit log has of ``verb``.
    """
    if "run_id" in arguments:
        return "run", arguments["run_id"]
    # A new run: what the path names is a button of the example shop.
    if verb.noun == "run":
        return None
    return next(((verb.noun, given) for given in arguments.values()), None)


def body() -> Mapping[str, str]:
    """Return the fields of the current POST, from a form or a flat JSON object; values are text.

    Raises BadRequest with a sentence when the JSON is not an object.
    """
    if not request.is_json:
        return request.form
    found = request.get_json(silent=True)
    if not isinstance(found, dict):
        raise BadRequest('The body must be a JSON object such as {"reason": "CRM is back"}.')
    return {readable(name): readable(str(value)) for name, value in found.items() if value is not None}


def refuse_unread(*fields: str) -> None:
    """Answer 400 where the JSON of this POST has a field that is neither the reason nor one of ``fields``.

    Who misspells a pace or an end would else get the act without it. A form may bring more: where to go next.
    """
    found = request.get_json(silent=True) if request.is_json else None
    allowed = (*fields, "reason")
    for name in found if isinstance(found, dict) else ():
        if name not in allowed:
            raise BadRequest(
                f"There is no field “{readable(name)[:60]}”; allowed: {', '.join(allowed)}. Nothing was done."
            )
