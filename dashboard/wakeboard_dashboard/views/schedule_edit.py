"""The form of a schedule for admins: what was typed stays until it is right, and nobody's edit is lost.

Posting with ``preview`` shows the next fires of what was typed and saves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from flask import Blueprint, Response, abort, g, jsonify, make_response, render_template, request
from sqlalchemy import Connection, RowMapping, literal_column, select

from wakeboard.core.states import VERBS
from wakeboard.core.text.redaction import redact
from wakeboard.database.tables import job_definitions
from wakeboard.queue import Answer, definitions
from wakeboard_dashboard.pages.verbs import add_verb, read_body, refuse_unknown_fields
from wakeboard_dashboard.queries import schedules
from wakeboard_dashboard.text import schedule as words
from wakeboard_dashboard.text import schedule_form as form
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, database, reading, writing
from wakeboard_dashboard.web.not_found import missing
from wakeboard_dashboard.web.responses import local_path, respond, wanted
from wakeboard_dashboard.web.security import require

blueprint = Blueprint("schedule_edit", __name__)

PATH = "/schedules"
ONE = f"{PATH}/<name>"
EDIT = VERBS["schedule.edit"]


def require_definition(connection: Connection, name: str) -> RowMapping:
    """Return the definition ``name`` with the version that an edit guards. Answers 404 when there is none."""
    statement = select(job_definitions, literal_column(definitions.VERSION).label("version"))
    definition = connection.execute(statement.where(job_definitions.c.name == name)).mappings().one_or_none()
    if definition is None:
        abort(404, missing("schedule", name))
    return definition


@blueprint.route(f"{ONE}/edit", methods=["GET", "POST"], endpoint="schedule_edit")
def edit(name: str) -> Response:
    """Show the form, or save what was typed into it."""
    require(EDIT)
    if request.method == "GET":
        params.refuse_unknown({"next": params.TEXT, "reason": params.TEXT})
        definition = require_definition(reading(), name)
        return _form_page(
            definition, form.texts_of(definition) | {"reason": request.args.get("reason", "")[:500]}
        )
    refuse_unknown_fields(*form.FIELDS, "version")
    definition, texts = require_definition(reading(), name), read_texts()
    values, errors = form.read(texts, definition)
    if "preview" in texts and wanted() == "page":
        return _form_page(definition, texts, errors, seen=texts.get("version"), is_preview=True)
    if wanted() == "page" and texts.get("version", definition["version"]) != definition["version"]:
        return _form_page(definition, texts, sentence=definitions.CHANGED.format(name), code=409)
    if errors:
        return _invalid(definition, texts, errors)
    reason = texts.get("reason", "").strip()[:500] or None
    with writing() as connection:
        answer = definitions.edit(
            connection, name, values, g.actor, reason, version=texts.get("version") or None
        )
    if answer.result in ("forbidden", "invalid") and wanted() == "page":
        return _conflict_page(name, texts, answer)
    return respond(answer, f"{PATH}/{name}")


def read_texts() -> dict[str, str]:
    """Return what was sent: a form's texts, or a JSON object whose payload may be an object of its own."""
    texts = dict(read_body())
    body = request.get_json(silent=True) if request.is_json else None
    if isinstance(body, dict):
        if isinstance(body.get("payload"), dict):
            texts["payload"] = json.dumps(body["payload"])
        # Null is "as the type says", or "by hand only".
        texts |= {key: "" for key, value in body.items() if value is None}
    return texts


def _invalid(definition: RowMapping, texts: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    if wanted() == "page":
        return _form_page(definition, texts, errors, seen=texts.get("version"), code=400)
    message = " ".join(errors.values())
    response = jsonify({"id": definition["name"], "status": None, "changed": False, "message": message,
                        "errors": errors})  # fmt: skip
    response.status_code = 400
    return response


def _conflict_page(name: str, texts: Mapping[str, str], answer: Answer) -> Response:
    """Show the form again, beside what the schedule says now: saving once more replaces that."""
    # The request's own transaction began before the other edit was committed.
    with database().primary.connect() as connection:
        definition = require_definition(connection, name)
    return _form_page(definition, texts, sentence=answer.message, code=answer.http_status)


def _form_page(
    definition: RowMapping,
    texts: Mapping[str, str],
    errors: Mapping[str, str] | None = None,
    *,
    seen: str | None = None,
    is_preview: bool = False,
    sentence: str | None = None,
    code: int = 200,
) -> Response:
    """Return the form with ``texts`` in it; ``seen`` is the version that the person began with."""
    before = form.texts_of(definition)
    typed = before | {key: text for key, text in texts.items() if key in before}
    html = render_template(
        "schedule/edit.html",
        definition=definition,
        texts=typed,
        before=before,
        errors=errors or {},
        sentence=sentence,
        version=seen or definition["version"],
        is_preview=is_preview,
        fires=words.preview(typed["schedule"].strip() or None, typed["timezone"].strip(), as_of()),
        words=words,
        form=form,
        reason=texts.get("reason", ""),
        hides=redact(definition["payload"]) != definition["payload"],
        back=local_path(request.values.get("next")) or f"{PATH}/{definition['name']}",
    )
    return make_response(html, code)


def _removal_question(name: str) -> str:
    """Return the question before a removal, which says what becomes of the runs that wait."""
    definition = require_definition(reading(), name)
    behind = definitions.describe_removal(
        definition["job_type"], schedules.count_waiting(reading(), definition["id"])
    )
    question = f"Remove schedule {name}? It fires no more; its runs and their history stay. {behind}"
    return question.rstrip()


add_verb(
    blueprint,
    f"{ONE}/remove",
    "schedule.remove",
    lambda connection, actor, reason, name: definitions.remove(connection, name, actor, reason),
    question=_removal_question,
    back=lambda name: PATH,
)
