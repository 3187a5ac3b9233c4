"""A verb at an address of its own: GET shows its confirm page, POST does it.

The move is a function of ``wakeboard``, which checks the role and writes the audit row. This module reads the
reason and the fields, and checks the role before it looks at what was posted. A form that cannot be read is
shown again with what was typed and the sentence that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flask import Blueprint, Response, g, make_response, render_template, request
from werkzeug.exceptions import BadRequest

from wakeboard.core.states import VERBS, Verb
from wakeboard.queue import Answer
from wakeboard.queue.operator import permit
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.live import Arguments, Context
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.not_found import require_existing
from wakeboard_dashboard.web.params import readable
from wakeboard_dashboard.web.responses import local_path, referring_path, respond, wanted
from wakeboard_dashboard.web.scopes import Scope, declare
from wakeboard_dashboard.web.security import can, require

Act = Callable[..., Answer]
Words = Callable[..., str]


@dataclass(frozen=True, slots=True)
class VerbForm:
    """A verb and its confirm page; the parameters of ``add_verb``."""

    verb: Verb
    act: Act
    question: Words
    back: Words
    template: str | None
    context: Callable[..., Context] | None
    next_path: Callable[[Answer], str] | None
    keeps_form: bool
    fields: Sequence[str] | None


def add_verb(
    blueprint: Blueprint,
    path: str,
    action: str,
    act: Act,
    *,
    question: Words,
    back: Words,
    template: str | None = None,
    context: Callable[..., Context] | None = None,
    next_path: Callable[[Answer], str] | None = None,
    keeps_form: bool = False,
    fields: Sequence[str] | None = (),
    scope: Scope | None = None,
    former_path: str | None = None,
) -> None:
    """Register ``GET path`` (the confirm page) and ``POST path`` (the verb) of ``action``, a key of VERBS.

    ``act(connection, actor, reason, **path arguments)`` does it. ``question`` and ``back`` take the path
    arguments and return what the confirm page asks and the path to go back to. ``next_path(answer)`` is the
    path of what the verb made.

    ``template`` has further inputs of the confirm page, filled by ``context(**path arguments)``. With
    ``keeps_form`` a form that was refused is shown again, with its texts as ``typed``. ``fields`` are the
    names that ``act`` reads beside the reason; None where it refuses others itself.

    ``scope`` opens both to tokens for some job types. ``former_path`` is an earlier address, which answers
    as ``path`` does: scripts have it.
    """
    form = VerbForm(VERBS[action], act, question, back, template, context, next_path, keeps_form, fields)

    # One rule for both methods: with two, Werkzeug answers 405 where an id is out of range.
    def view(**arguments: int | str) -> Response | str:
        return _act(form, arguments) if request.method == "POST" else _confirm_page(form, arguments)

    endpoint = action.replace(".", "_")
    declare(view, scope)
    for address in filter(None, (path, former_path)):
        blueprint.add_url_rule(address, endpoint, view, methods=["GET", "POST"])


def _confirm_page(form: VerbForm, arguments: Arguments, error: str | None = None) -> str:
    """Return the confirm page; ``error`` says why what was posted was refused."""
    require(form.verb)
    if (target := target_of(form.verb, arguments)) is not None:
        require_existing(*target)
    return render_template(
        "confirm.html",
        verb=form.verb,
        question_text=form.question(**arguments),
        back=local_path(request.values.get("next")) or referring_path() or form.back(**arguments),
        inputs=form.template,
        error=error,
        typed={name: readable(text) for name, text in request.form.items()} if error else {},
        **(form.context(**arguments) if form.context else {}),
    )


def _act(form: VerbForm, arguments: Arguments) -> Response:
    if (refusal := find_refusal(form.verb, arguments)) is not None:
        return respond(refusal, form.back(**arguments))
    reason = read_body().get("reason", "").strip()[:500] or None
    if form.fields is not None:
        refuse_unknown_fields(*form.fields)
    is_shown_again = form.keeps_form and wanted() == "page" and not request.is_json
    try:
        with writing() as connection:
            answer = form.act(connection, g.actor, reason, **arguments)
    except (BadRequest, FilterError) as error:
        sentence = error.description if isinstance(error, BadRequest) else str(error)
        if not is_shown_again or not sentence:
            raise
        return make_response(_confirm_page(form, arguments, sentence), 400)
    if answer.result == "invalid" and is_shown_again:
        return make_response(_confirm_page(form, arguments, answer.message), 400)
    ahead = form.next_path(answer) if form.next_path and answer.ok else None
    return respond(answer, referring_path() or form.back(**arguments), ahead=ahead)


def find_refusal(verb: Verb, arguments: Arguments) -> Answer | None:
    """Return the refusal, which is audited, where the actor's role does not cover ``verb``, else None."""
    if can(verb):
        return None
    target = target_of(verb, arguments) or ("page", request.path)
    with writing() as connection:
        return permit(connection, g.actor, verb.action, *target)


def target_of(verb: Verb, arguments: Arguments) -> tuple[str, int | str] | None:
    """Return (noun, id or name) of the thing that the path's ``arguments`` name, None where they name none.

    It is the target that the audit log has of ``verb``.
    """
    if "run_id" in arguments:
        return "run", arguments["run_id"]
    # A new run: what the path names is a button of the example shop.
    if verb.noun == "run":
        return None
    return next(((verb.noun, given) for given in arguments.values()), None)


def read_body() -> Mapping[str, str]:
    """Return the fields of the current POST, from a form or a flat JSON object; values are text.

    Raises BadRequest with a sentence when the JSON is not an object.
    """
    if not request.is_json:
        return request.form
    body = request.get_json(silent=True)
    if not isinstance(body, dict):
        raise BadRequest('The body must be a JSON object such as {"reason": "CRM is back"}.')
    return {readable(name): readable(str(value)) for name, value in body.items() if value is not None}


def refuse_unknown_fields(*fields: str) -> None:
    """Answer 400 where the JSON of this POST has a field that is neither the reason nor one of ``fields``.

    Who misspells a pace or an end would else get the act without it. A form may bring more: where to go next.
    """
    body = request.get_json(silent=True) if request.is_json else None
    allowed = (*fields, "reason")
    for name in body if isinstance(body, dict) else ():
        if name not in allowed:
            raise BadRequest(
                f"There is no field “{readable(name)[:60]}”; allowed: {', '.join(allowed)}. Nothing was done."
            )
