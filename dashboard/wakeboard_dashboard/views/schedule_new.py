"""The form of a new schedule for admins: as that of an edit, but for its name and its type.

Posting with ``preview`` shows the fires of what was typed and creates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, current_app, g, jsonify, make_response, render_template, request

from wakeboard.queue import Answer, definitions
from wakeboard.queue.definitions import Definition, DefinitionError
from wakeboard.queue.manual_enqueue import suggest_names
from wakeboard_dashboard.pages.verbs import refuse_unknown_fields
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.text import schedule as words
from wakeboard_dashboard.text import schedule_form as form
from wakeboard_dashboard.views.schedule_edit import EDIT, PATH, read_texts
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading, writing
from wakeboard_dashboard.web.not_found import is_there, missing
from wakeboard_dashboard.web.responses import local_path, respond, wanted
from wakeboard_dashboard.web.security import require

blueprint = Blueprint("schedule_new", __name__)

# No schedule has a name with a plus.
NEW = f"{PATH}/+new"
FIELDS = ("name", "job_type", "new_type", *(name for name in form.FIELDS if name != "enabled"))


@blueprint.route(NEW, methods=["GET", "POST"], endpoint="schedule_new")
def new() -> Response:
    """Show the form, or create the schedule that was typed into it."""
    require(EDIT)
    if request.method == "GET":
        params.refuse_unknown({"next": params.TEXT, "reason": params.TEXT, "type": params.TEXT})
        return _form_page(
            {"job_type": request.args.get("type", ""), "reason": request.args.get("reason", "")}
        )
    refuse_unknown_fields(*FIELDS)
    texts = read_texts()
    values, errors = form.read_new(texts)
    errors |= _unknown_type(texts, errors)
    if "preview" in texts and wanted() == "page":
        return _form_page(texts, errors, is_preview=True)
    if errors:
        return _invalid(texts, errors)
    reason = texts.get("reason", "").strip()[:500] or None
    try:
        with writing() as connection:
            answer = definitions.create(connection, Definition(**values), g.actor, reason)
    except DefinitionError as error:
        return _invalid(texts, {}, str(error))
    if answer.result == "forbidden" and wanted() == "page":
        return _form_page(texts, {"name": answer.message}, code=409)
    return respond(answer, f"{PATH}/{answer.id}")


def _unknown_type(texts: Mapping[str, str], errors: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with a type that nobody has registered, unless that is said to be right."""
    name = texts.get("job_type", "").strip()
    if "job_type" in errors or texts.get("new_type") in ("1", "True") or is_there(reading(), "type", name):
        return {}
    hint = suggest_names(name, runs.list_type_names(reading()))
    mend = "If one will, check “No worker has it yet” (new_type)."
    return {"job_type": f"{missing('type', name)}{hint} {mend}"}


def _invalid(texts: Mapping[str, str], errors: Mapping[str, str], sentence: str | None = None) -> Response:
    if wanted() == "page":
        return _form_page(texts, errors, sentence=sentence, code=400)
    message = " ".join(filter(None, [*errors.values(), sentence]))
    answer = Answer(texts.get("name", "")[:100], None, "invalid", f"{message} Nothing was created.")
    response = jsonify(answer.body() | {"errors": dict(errors)})
    response.status_code = answer.http_status
    return response


def _form_page(
    texts: Mapping[str, str],
    errors: Mapping[str, str] | None = None,
    *,
    is_preview: bool = False,
    sentence: str | None = None,
    code: int = 200,
) -> Response:
    """Return the form with ``texts`` in it, where they say anything."""
    before = form.texts_of_new(current_app.config["SETTINGS"].timezone)
    typed = before | {key: text for key, text in texts.items() if key in before}
    html = render_template(
        "schedule/new.html",
        texts=typed,
        before=before,
        errors=errors or {},
        sentence=sentence,
        is_preview=is_preview,
        fires=words.preview(typed["schedule"].strip() or None, typed["timezone"].strip(), as_of()),
        words=words,
        types=runs.list_type_names(reading()),
        reason=texts.get("reason", "")[:500],
        hides=False,
        back=local_path(request.values.get("next")) or PATH,
    )
    return make_response(html, code)
