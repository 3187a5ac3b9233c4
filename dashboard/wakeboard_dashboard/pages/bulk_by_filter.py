"""A verb on all the runs that a filter matches: what it would do, counted, and the operation that does it.

``wakeboard_dashboard.views.bulk`` has the addresses. The runs that an operation is bound to are found by the
filter once more as it begins, and only those that still are what was counted are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from flask import Response, abort, g, jsonify, render_template, request

from wakeboard.bulk import matching, rules
from wakeboard.bulk.matching import Preview
from wakeboard.bulk.start import ConfirmedOperation, start, unconfirmed
from wakeboard.core.states import VERBS
from wakeboard_dashboard.pages import verbs
from wakeboard_dashboard.pages.bulk_confirmation import also_of, filters_of, options_of, seen_of
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.text import operations as words
from wakeboard_dashboard.web import responses, security
from wakeboard_dashboard.web.connection import as_of, reading, writing
from wakeboard_dashboard.web.params import readable

LONGEST_REASON = 500
# What a POST may say of how runs are moved, and how many somebody saw; of which ones; the rest is of a
# preview that is sent back as it came.
HOW = ("also", "confirm", "per_minute", "stop_above_percent", "canary", "as_of", "counted", "highest")
FIELDS = ("run", "filter", *HOW, "verb", "is_all", "states", "types", "examples", "left")


@dataclass(frozen=True, slots=True)
class Body:
    """What a POST says: ids of runs as given, and everything else by name."""

    runs: Iterable[Any]
    fields: Mapping[str, Any]

    @property
    def reason(self) -> str | None:
        """The reason, which goes to the audit log."""
        return str(self.fields.get("reason") or "").strip()[:LONGEST_REASON] or None


def body() -> Body:
    """Return what a form or JSON such as ``{"run": [1, 2]}`` says. Aborts with 400 and a sentence."""
    if not request.is_json:
        return Body(request.form.getlist("run"), request.form)
    given = request.get_json(silent=True)
    is_filter = isinstance(given, dict) and isinstance(given.get("filter"), str)
    if not isinstance(given, dict) or not (is_filter or isinstance(given.get("run"), list)):
        abort(
            400,
            'The body must be a JSON object such as {"run": [48210, 48209], "reason": "CRM is back"}'
            ' or {"filter": "status=dead&type=mail", "confirm": 1214}.',
        )
    verbs.refuse_unread(*FIELDS)
    said = {name: readable(value) if isinstance(value, str) else value for name, value in given.items()}
    return Body(given.get("run") or [], said)


def is_asked_instead(chosen: Iterable[Any], text: str | None = None) -> bool:
    """Whether a filter, of the address or the query string ``text``, says which runs, and none was chosen.

    Raises FilterError. Aborts with 400 where both are given: one of them would be left out.
    """
    is_filtered, is_chosen = bool(filters_of(text or None)), any(True for _ in chosen)
    if is_filtered and is_chosen:
        abort(400, "Runs and a filter are given: say which runs by one of them. Nothing was changed.")
    return is_filtered


def look(verb: str, filters: Filters, also: Sequence[str]) -> Preview:
    """Return what ``verb`` would do now to all the runs of ``filters``."""
    return matching.preview(_driver(), verb, filters, as_of(), also)


def preview_of(verb: str, ids: Sequence[int]) -> Preview:
    """Return what ``verb`` would do now to the runs ``ids``: whoever chose them wants every one of them."""
    reading()
    return matching.preview_of(_driver(), verb, ids, as_of(), rules.ALSO)


def careful_of(verb: str, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Return (how many, why to think twice) of the chosen runs ``ids`` that a filter would have left."""
    reading()
    found = matching.preview_of(_driver(), verb, ids, as_of())
    return [(each.runs, words.CAREFUL[each.why]) for each in found.left if each.why in rules.ALSO]


def ask(verb: str) -> str:
    """Return the page that says what would happen to how many, and asks."""
    filters, also = filters_of(), also_of(request.args.get("also"))
    found = look(verb, filters, also)
    states = ",".join(found.states)
    return render_template(
        "operations/preview.html",
        verb=VERBS[f"run.{verb}"],
        preview=found,
        filters=filters,
        line=filters.line,
        also=also,
        words=words,
        link=filters.link("/runs", status=states or None),
        back=filters.link("/runs"),
        address=f"/runs/bulk/{verb}",
        is_typed=found.moves > rules.TYPED_ABOVE,
        watched=verb in rules.WATCHED,
        most=rules.MOST_RUNS,
        with_also=lambda name: filters.link(f"/runs/bulk/{verb}", also=_toggled(also, name)),
        takeable=rules.ALSO,
    )


def ask_json(verb: str) -> Response:
    """Return the preview as JSON; its as_of, counted, highest and filter can be sent back as they are."""
    filters, also = filters_of(), also_of(request.args.get("also"))
    found = look(verb, filters, also)
    return jsonify({**body_of(found), "filter": filters.query, "also": ",".join(also)})


def body_of(found: Preview) -> dict[str, Any]:
    """Return a preview as JSON gives it."""
    return {
        "as_of": as_of(),
        "verb": found.verb,
        "counted": found.moves,
        "highest": found.highest,
        "is_all": found.matched.is_all,
        "states": found.states,
        "types": found.types,
        "examples": list(found.examples),
        "left": [
            {
                "why": each.why,
                "status": each.status,
                "runs": each.runs,
                "more": each.more,
                "examples": list(each.examples),
            }
            for each in found.left
        ],
    }


def begin(verb: str, given: Mapping[str, Any]) -> Response:
    """Begin an operation on all that the filter matches; the number has to be typed where it is large."""
    # Before anything is looked for: whether a filter matches would tell viewers what is hidden from them.
    security.require(VERBS[f"run.{verb}"])
    text = given.get("filter")
    filters = filters_of(str(text) if text else None)
    also = also_of(str(given.get("also") or request.args.get("also") or ""))
    seen = seen_of(given, _now())
    if seen is None:
        found = look(verb, filters, also)
        moment, counted, ids = as_of(), found.moves, found.matched.ids
    else:
        ids = matching.matching(_driver(), verb, filters, seen.as_of, seen.highest).ids
        moment, counted = seen.as_of, seen.counted
    options = options_of(given)
    wanted = ConfirmedOperation(
        verb, filters.query, moment, counted, also,
        options.per_minute, options.stop_above_percent, options.canary,
    )  # fmt: skip
    return _begin(wanted, ids, given, filters.link(f"/runs/bulk/{verb}", also=",".join(also) or None))


def begin_on(verb: str, ids: Sequence[int], given: Mapping[str, Any]) -> Response:
    """Begin an operation on chosen runs, because it shall go slowly or by a canary."""
    found, options = preview_of(verb, ids), options_of(given)
    wanted = ConfirmedOperation(
        verb, "", as_of(), found.moves, rules.ALSO,
        options.per_minute, options.stop_above_percent, options.canary,
    )  # fmt: skip
    return _begin(wanted, ids, given, "/runs", is_typed=False)


def _begin(
    wanted: ConfirmedOperation,
    ids: Sequence[int],
    given: Mapping[str, Any],
    back: str,
    *,
    is_typed: bool = True,
) -> Response:
    if wanted.counted == 0:
        abort(409, "No run that matches can be moved by this verb now. Nothing was changed.")
    confirm = None if given.get("confirm") is None else str(given["confirm"])
    if is_typed and (wrong := unconfirmed(wanted.counted, confirm)):
        abort(400, wrong)
    with writing() as connection:
        answer = start(connection, wanted, ids, g.actor, Body((), given).reason)
    return responses.respond(answer, f"/operations/{answer.id}" if answer.ok else back)


def _toggled(also: Sequence[str], name: str) -> str | None:
    kept = [each for each in also if each != name] + ([] if name in also else [name])
    return ",".join(kept) or None


def _now() -> Any:
    reading()
    return as_of()


def _driver() -> psycopg.Connection[Any]:
    """Return psycopg's side of this request's reading transaction."""
    driver = reading().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver
