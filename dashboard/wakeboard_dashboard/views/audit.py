"""Views of the audit log: who did what, why, and what came of it. Rows never change: only news are live."""

from __future__ import annotations

from datetime import datetime
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlencode

from flask import Blueprint, Response, abort, current_app, g, redirect, request
from sqlalchemy import RowMapping

from wakeboard.core.states import VERBS, Role
from wakeboard.database.tables import audit_log
from wakeboard.reporting.filters.audit import FIELDS, RESULTS, SOURCES, UNDONE
from wakeboard.reporting.filters.search import WINDOW
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.form_errors import with_times_form
from wakeboard_dashboard.pages.live import FRAGMENTS, Context, Json, add_page, rows_twin
from wakeboard_dashboard.queries import audit
from wakeboard_dashboard.text import targets
from wakeboard_dashboard.text.changes import describe_all_changes, describe_changes, redact_row
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("audit", __name__)

PATH = "/audit"
AGES = (("1h", "the last hour"), ("24h", "the last 24 hours"), ("7d", "the last 7 days"), ("30d", "30 days"))
# What people do that is no verb of a page.
WORDS = {
    "login": "Sign in",
    "login.password": "Sign in by password",
    "login.link": "Login link",
    "logout": "Sign out",
    "logout.everywhere": "Sign out everywhere",
    "cross_site": "Act from another site",
    "export": "Export",
    "out_of_scope": "Act outside a token's types",
    "database.restore": "Restore the database",
    "database.fence": "Fence the database",
}
COLUMNS = [column.name for column in audit_log.c]
# Whether there is such a page: the same things stand in many rows, and in each poll and page again.
_SERVED = "wakeboard_audit_served"
MOST_LINKS = 1000


def find_audit_rows() -> Context:
    """Return the rows of the page, what there is to choose, and the address that says what came after."""
    filters = params.from_request(FIELDS)
    query = filters.query
    rows, goes_on = audit.list_entries(reading(), filters, as_of(), sees_secrets=_sees_secrets())
    newest = audit.find_newest_id(reading())
    return {
        "filters": filters,
        "rows": rows,
        "goes_on": goes_on,
        "window": WINDOW,
        "address": f"{FRAGMENTS}{PATH}/news?{query}{'&' if query else ''}after={newest}",
        "choices": _choices(),
        "between": {name: _typed(filters.get(name)) for name in ("since", "until")},
        # A page has fifty lines of a few people.
        "log_of_actor": cache(lambda name: filters.link(PATH, who=name, cursor=None)),
        "describe_row": describe_row,
    }


@blueprint.get(f"{PATH}/find")
def redirect_from_form() -> Response:
    """Send the operator from the controls to the address that means them.

    ``was.since`` is what the filter was before, ``shown.since`` how the control for a time showed that: a
    time that was typed wins over an age that is chosen (``in``), and what nobody touched stays as it was.
    """
    pairs = {name: request.args.get(name, "") for name in FIELDS}
    for name in ("since", "until"):
        if pairs[name] == request.args.get(f"shown.{name}", ""):
            was = request.args.get(f"was.{name}", "")
            pairs[name] = request.args.get("in", was) if name == "since" else was
    query = urlencode({name: text for name, text in pairs.items() if text}, quote_via=quote, safe=":,")
    abort(redirect(f"{PATH}?{query}" if query else PATH, 303))


def _choices() -> Json:
    """Return what the controls offer, each as (value, words); the twin shows none of it."""
    if request.path.endswith((".json", ".csv")):
        return {}
    refused = (",".join(UNDONE), "refused, in any way")
    return _in_the_log() | {
        "result": [("done", "done"), refused, *((each, each) for each in RESULTS[1:])],
        "source": [(source, source) for source in SOURCES],
        "since": AGES,
    }


def _in_the_log() -> Json:
    """Return the choices that the database has to be asked for."""
    return {
        "who": [(name, name) for name in audit.list_actors(reading())],
        "what": [(action, _named(action)) for action in audit.list_actions(reading())],
        "kind": [(kind, kind) for kind in audit.list_target_types(reading())],
        "target": audit.list_targets(reading()),
    }


def _named(action: str) -> str:
    """Return an action for people who choose: its own name, and the word on its button."""
    word = VERBS[action].label if action in VERBS else WORDS.get(action)
    return f"{word} ({action})" if word else action


def _typed(moment: params.Moment | None) -> str:
    """Return a time as its control takes it: in the reader's zone, without saying so."""
    if moment is None:
        return ""
    there: datetime = moment.at(as_of()).astimezone(g.zone)
    return there.strftime("%Y-%m-%dT%H:%M")


def find_news() -> Context:
    """Return how many rows came after the newest that the page knew of."""
    arguments = request.args.copy()
    arguments.poplist("cursor")
    after = arguments.poplist("after")
    filters = params.read_filters(arguments, FIELDS, is_form=True)
    if not after:
        return {"filters": filters, "new": 0}
    try:
        known = 0 if after[0] == "0" else params.identifier(after[0])
    except ValueError as error:
        raise FilterError("“after” must be the id of an audit row.") from error
    return {
        "filters": filters,
        "new": audit.count_newer(reading(), filters, as_of(), known, sees_secrets=_sees_secrets()),
    }


def _sees_secrets() -> bool:
    """Whether a search may find a reason by the secret in it: as with payloads, viewers may not."""
    return bool(g.actor.role.covers(Role.OPERATOR))


class AuditRowText(NamedTuple):
    """A row in words: what was done, what it changed, what came of it; its thing's page, and log.

    ``whole`` is all that it changed, where ``changed`` leaves something out.
    """

    word: str
    changed: tuple[str, ...]
    whole: tuple[str, ...]
    meaning: str
    is_undone: bool
    link: str | None
    log: str


def describe_row(row: RowMapping) -> AuditRowText:
    """Return what a line says of ``row``."""
    return AuditRowText(
        action_label(row),
        describe_changes(row["before"], row["after"]),
        describe_all_changes(row["before"], row["after"]),
        targets.RESULTS.get(row["result"], ""),
        row["result"] in UNDONE,
        _link_of(row),
        targets.log_of(row["target_type"], row["target_id"]),
    )


def action_label(row: RowMapping) -> str:
    """Return what was done, in a word or two."""
    action = str(row["action"])
    if action == "schedule.edit" and row["before"] is None and row["after"] and row["result"] == "done":
        return "Add"
    return VERBS[action].label if action in VERBS else WORDS.get(action, action)


def _link_of(row: RowMapping) -> str | None:
    """Return the page of the thing that an audit row is about, None when it has none."""
    is_served = current_app.extensions.get(_SERVED)
    if is_served is None:
        addresses = current_app.url_map.bind("")
        is_served = lru_cache(MOST_LINKS)(lambda path: addresses.test(path, "GET"))
        current_app.extensions[_SERVED] = is_served
    return targets.page_of(row, is_served)


def item(row: RowMapping) -> Json:
    """Return an audit row as the twin gives it, secrets hidden."""
    return redact_row(row)


add_page(
    blueprint,
    PATH,
    "audit/page.html",
    with_times_form(find_audit_rows, PATH, "Audit", keeps=tuple(FIELDS), instead=(("At any time", PATH),)),
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"news": ("audit/_news.html", find_news)},
    fields=None,
)
