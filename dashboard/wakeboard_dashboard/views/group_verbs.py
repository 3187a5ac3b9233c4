"""The verbs of one error group: mute it, unmute it, retry the runs that it fails."""

from __future__ import annotations

import psycopg
from flask import Blueprint, Response, abort, g, render_template, request

from wakeboard.core.states import FAILING, VERBS, Status
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard.queue import error_groups as moves
from wakeboard_dashboard.pages import bulk_by_filter, failures
from wakeboard_dashboard.pages.verbs import add_verb, read_body, refuse_unknown_fields
from wakeboard_dashboard.queries import error_groups
from wakeboard_dashboard.views.alerts import silence_seconds
from wakeboard_dashboard.views.error_group import ONE, capped, require_group
from wakeboard_dashboard.web import params, responses
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.security import require

blueprint = Blueprint("group_verbs", __name__)

MUTES = (
    ("1h", "an hour"),
    ("morning", "until eight in the morning"),
    ("1d", "a day"),
    ("7d", "a week"),
    ("30d", "30 days"),
)


def _mute(connection: psycopg.Connection, actor: Actor, reason: str | None, fingerprint: str) -> Answer:
    try:
        seconds = _seconds(read_body().get("for", "").strip(), read_body().get("until", "").strip())
    except ValueError as error:
        abort(400, str(error))
    return moves.mute(connection, fingerprint, seconds, actor, reason)


def _seconds(lasts: str, until: str) -> float:
    """Return how long a mute lasts, in seconds: ``for`` is a duration or ``morning``, ``until`` a time.

    Raises ValueError with a sentence unless exactly one is given and can be read.
    """
    if bool(lasts) == bool(until):
        raise ValueError(
            "A mute has an end: give for (such as 8h, 7d or morning) or until (a time such as "
            f"2026-11-21T08:30Z); allowed: {moves.ALLOWED}."
        )
    now = as_of().astimezone(g.zone)
    if lasts:
        return silence_seconds(lasts, now)
    try:
        moment = params.moment(until, g.zone).absolute
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError(f"until is “{until[:40]}”; it must be a time such as 2026-11-21T08:30Z.")
    return (moment - now).total_seconds()


def _title(fingerprint: str) -> str:
    kept = require_group(fingerprint)
    return f"{kept.error_code} of {kept.job_type}"


add_verb(
    blueprint,
    f"{ONE}/mute",
    "error.mute",
    _mute,
    question=lambda fingerprint: (
        f"Mute {_title(fingerprint)}? Alerts of failures and dead runs leave it out until then. It is still "
        "counted and shown, apart from the others; its runs go on as before."
    ),
    back=lambda fingerprint: f"/errors/{fingerprint}",
    template="errors/_mute.html",
    context=lambda fingerprint: {"mutes": MUTES, "group": require_group(fingerprint)},
    fields=("for", "until"),
)
add_verb(
    blueprint,
    f"{ONE}/unmute",
    "error.unmute",
    lambda connection, actor, reason, fingerprint: moves.unmute(connection, fingerprint, actor, reason),
    question=lambda fingerprint: f"Unmute {_title(fingerprint)}? Alerts count it again from now on.",
    back=lambda fingerprint: f"/errors/{fingerprint}",
)


@blueprint.route(f"{ONE}/retry", methods=["GET", "POST"])
def retry(fingerprint: str) -> Response | str:
    """Lead a person to the preview of a retry of the group's failing runs; begin it for a program."""
    verb = VERBS["error.retry"]
    require(verb)
    kept = require_group(fingerprint)
    if request.method == "GET":
        standing = error_groups.count_runs(reading(), kept.id, FAILING)
        dead, failed = (standing[status.value] for status in (Status.DEAD, Status.FAILED))
        question = (
            f"Retry the runs of {_title(fingerprint)} that fail now, {capped(dead)} dead and "
            f"{capped(failed)} waiting for their next try? You see them before anything is done."
        )
        back = f"/errors/{fingerprint}"
        return render_template(
            "confirm.html", verb=verb, question_text=question, back=back, inputs=None, error=None, typed={}
        )
    if responses.wanted() == "json":
        refuse_unknown_fields(*bulk_by_filter.HOW)
        return bulk_by_filter.begin("retry", {**read_body(), "filter": failures.retry_query(fingerprint)})
    leads = failures.retry_link(fingerprint)
    if responses.wanted() == "page":
        return responses.see_other(leads)
    # htmx's way of going to another page.
    return Response(headers={"HX-Redirect": leads})
