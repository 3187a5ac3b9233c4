"""A verb on all runs that a filter matches: the preview that counts them, and the operation that moves them.

``wakeboard_dashboard.views.bulk`` has the addresses. When an operation begins, the filter is read once more,
and only runs that are still as the preview counted them are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from flask import Response, abort, g, jsonify, render_template, request

from wakeboard.bulk import matching, rules
from wakeboard.bulk.matching import Preview
from wakeboard.bulk.start import ConfirmedOperation, check_confirmation, start
from wakeboard.core.states import VERBS
from wakeboard_dashboard.pages import verbs
from wakeboard_dashboard.pages.bulk_confirmation import (
    read_also,
    read_confirmed_preview,
    read_filters,
    read_options,
)
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.text import operations as words
from wakeboard_dashboard.web import responses, security
from wakeboard_dashboard.web.connection import as_of, reading, writing
from wakeboard_dashboard.web.params import readable

LONGEST_REASON = 500
# Fields of a POST: how runs are moved and how many the preview counted. The rest of FIELDS names the runs, or
# is of a preview that is sent back as it came.
HOW = ("also", "confirm", "per_minute", "stop_above_percent", "canary", "as_of", "counted", "highest")
FIELDS = ("run", "filter", *HOW, "verb", "is_all", "states", "types", "examples", "left")


@dataclass(frozen=True, slots=True)
class BulkBody:
    """The body of a POST: run ids as they were sent, and all other fields by name."""

    runs: Iterable[object]
    fields: Mapping[str, object]

    @property
    def reason(self) -> str | None:
        """The reason, which goes to the audit log."""
        return str(self.fields.get("reason") or "").strip()[:LONGEST_REASON] or None


def read_body() -> BulkBody:
    """Return the body of a form, or of JSON such as ``{"run": [1, 2]}``. Aborts with 400 and a sentence."""
    if not request.is_json:
        return BulkBody(request.form.getlist("run"), request.form)
    body = request.get_json(silent=True)
    is_filter = isinstance(body, dict) and isinstance(body.get("filter"), str)
    if not isinstance(body, dict) or not (is_filter or isinstance(body.get("run"), list)):
        abort(
            400,
            'The body must be a JSON object such as {"run": [48210, 48209], "reason": "CRM is back"}'
            ' or {"filter": "status=dead&type=mail", "confirm": 1214}.',
        )
    verbs.refuse_unknown_fields(*FIELDS)
    fields = {name: readable(value) if isinstance(value, str) else value for name, value in body.items()}
    return BulkBody(body.get("run") or [], fields)


def is_by_filter(chosen: Iterable[object], text: str | None = None) -> bool:
    """Whether a filter, of the address or the query string ``text``, names the runs, and none was chosen.

    Raises FilterError. Aborts with 400 where both name runs: one of them would be left out.
    """
    is_filtered, is_chosen = bool(read_filters(text or None)), any(True for _ in chosen)
    if is_filtered and is_chosen:
        abort(400, "Runs and a filter are given: say which runs by one of them. Nothing was changed.")
    return is_filtered


def preview_filter(verb: str, filters: Filters, also: Sequence[str]) -> Preview:
    """Return what ``verb`` would do now to all the runs of ``filters``."""
    return matching.preview(_psycopg_connection(), verb, filters, as_of(), also)


def preview_runs(verb: str, ids: Sequence[int]) -> Preview:
    """Return what ``verb`` would do now to the chosen runs ``ids``; none is left out for caution."""
    reading()
    return matching.preview_of(_psycopg_connection(), verb, ids, as_of(), rules.INCLUDABLE)


def list_cautions(verb: str, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Return (count, sentence) for the chosen runs ``ids`` that a filter would leave out for caution."""
    reading()
    preview = matching.preview_of(_psycopg_connection(), verb, ids, as_of())
    return [(each.runs, words.CAREFUL[each.why]) for each in preview.skipped if each.why in rules.INCLUDABLE]


def render_preview(verb: str) -> str:
    """Return the page that says what would happen to how many runs, and asks for the confirmation."""
    filters, also = read_filters(), read_also(request.args.get("also"))
    preview = preview_filter(verb, filters, also)
    states = ",".join(preview.states)
    return render_template(
        "operations/preview.html",
        verb=VERBS[f"run.{verb}"],
        preview=preview,
        filters=filters,
        line=filters.line,
        also=also,
        words=words,
        link=filters.link("/runs", status=states or None),
        back=filters.link("/runs"),
        address=f"/runs/bulk/{verb}",
        is_typed=preview.moves > rules.TYPED_ABOVE,
        watched=verb in rules.WATCHED,
        most=rules.MOST_RUNS,
        with_also=lambda name: filters.link(f"/runs/bulk/{verb}", also=_toggled(also, name)),
        takeable=rules.INCLUDABLE,
    )


def render_preview_json(verb: str) -> Response:
    """Return the preview as JSON; its as_of, counted, highest and filter can be sent back as they are."""
    filters, also = read_filters(), read_also(request.args.get("also"))
    preview = preview_filter(verb, filters, also)
    return jsonify({**preview_body(preview), "filter": filters.query, "also": ",".join(also)})


def preview_body(preview: Preview) -> dict[str, object]:
    """Return a preview as JSON gives it."""
    return {
        "as_of": as_of(),
        "verb": preview.verb,
        "counted": preview.moves,
        "highest": preview.highest,
        "is_all": preview.matched.is_all,
        "states": preview.states,
        "types": preview.types,
        "examples": list(preview.examples),
        "left": [
            {
                "why": each.why,
                "status": each.status,
                "runs": each.runs,
                "more": each.has_more,
                "examples": list(each.examples),
            }
            for each in preview.skipped
        ],
    }


def begin(verb: str, given: Mapping[str, object]) -> Response:
    """Begin an operation on all runs that the filter matches; a large number of them has to be typed."""
    # Before any query: whether a filter matches would tell viewers what is hidden from them.
    security.require(VERBS[f"run.{verb}"])
    text = given.get("filter")
    filters = read_filters(str(text) if text else None)
    also = read_also(str(given.get("also") or request.args.get("also") or ""))
    confirmed = read_confirmed_preview(given, as_of())
    if confirmed is None:
        preview = preview_filter(verb, filters, also)
        counted_at, counted, ids = as_of(), preview.moves, preview.matched.ids
    else:
        ids = matching.matching(_psycopg_connection(), verb, filters, confirmed.as_of, confirmed.highest).ids
        counted_at, counted = confirmed.as_of, confirmed.counted
    options = read_options(given)
    operation = ConfirmedOperation(
        verb, filters.query, counted_at, counted, also,
        options.per_minute, options.stop_above_percent, options.canary,
    )  # fmt: skip
    return _start(operation, ids, given, filters.link(f"/runs/bulk/{verb}", also=",".join(also) or None))


def begin_on_runs(verb: str, ids: Sequence[int], given: Mapping[str, object]) -> Response:
    """Begin an operation on chosen runs that has a pace, a canary or a limit of failures."""
    preview, options = preview_runs(verb, ids), read_options(given)
    operation = ConfirmedOperation(
        verb, "", as_of(), preview.moves, rules.INCLUDABLE,
        options.per_minute, options.stop_above_percent, options.canary,
    )  # fmt: skip
    return _start(operation, ids, given, "/runs", is_typed=False)


def _start(
    operation: ConfirmedOperation,
    ids: Sequence[int],
    given: Mapping[str, object],
    back: str,
    *,
    is_typed: bool = True,
) -> Response:
    if operation.counted == 0:
        abort(409, "No run that matches can be moved by this verb now. Nothing was changed.")
    confirm = None if given.get("confirm") is None else str(given["confirm"])
    if is_typed and (sentence := check_confirmation(operation.counted, confirm)):
        abort(400, sentence)
    with writing() as connection:
        answer = start(connection, operation, ids, g.actor, BulkBody((), given).reason)
    return responses.respond(answer, f"/operations/{answer.id}" if answer.ok else back)


def _toggled(also: Sequence[str], name: str) -> str | None:
    names = [each for each in also if each != name] + ([] if name in also else [name])
    return ",".join(names) or None


def _psycopg_connection() -> psycopg.Connection:
    """Return the psycopg connection of this request's reading transaction."""
    connection = reading().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection
