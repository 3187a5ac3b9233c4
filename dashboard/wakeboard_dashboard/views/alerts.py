"""Views of alerts: how each rule stands, what was told and how it was taken; silence, edit, test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta

import psycopg
from flask import Blueprint, abort, current_app, g, request
from sqlalchemy import RowMapping

from wakeboard.alerts import test_message
from wakeboard.alerts.channels import Channels, host_of
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import KINDS, RuleType
from wakeboard.core.states import Role
from wakeboard.core.text.redaction import redact
from wakeboard.core.time.durations import parse_duration
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard.queue import alerts as moves
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import alerts as query
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("alerts", __name__)

PATH = "/alerts"
ONE = f"{PATH}/<id:rule_id>"
RULE_COLUMNS = (
    "id", "name", "kind", "state", "enabled", "settings", "found", "fired_at", "recovered_at", "sent_at",
    "checked_at", "silenced_until", "turns",
)  # fmt: skip
# By state: the colour of the badge; its word is the state's own.
COLOURS = {
    "firing": "failed",
    "quiet": "succeeded",
    "on": "succeeded",
    "silenced": "paused",
    "off": "cancelled",
}
SILENCES = (
    ("1h", "one hour"),
    ("8h", "eight hours"),
    ("1d", "a day"),
    ("7d", "a week"),
    ("morning", "until eight in the morning"),
    ("0", "not any more: end the silence"),
)
MORNING = time(8)
# What a rule that was never looked at, or not with success, has found.
NOTHING = {"sentence": "", "error": None, "unit": "", "value": 0, "limit": 0}


def find_alerts() -> Context:
    """Return the rules, the channels and the last messages."""
    filters = params.from_request()
    rules = query.list_rules(reading())
    return {
        "filters": filters,
        "rules": rules,
        "states": {rule["id"]: moves.state_of(dict(rule)) for rule in rules},
        "findings": {rule["id"]: NOTHING | (rule["found"] or {}) for rule in rules},
        "kinds": KINDS,
        "colours": COLOURS,
        "channels": _channels(),
        "tested": _tested(rules),
        "switch": _switch(),
        "how": test_message.HOW,
        "messages": query.list_latest_messages(reading()),
        "status_of": status_of,
    }


def _tested(rules: Sequence[RowMapping]) -> int | None:
    """Return the rule whose test a channel's button sends: one that watches, if there is one."""
    ids = [rule["id"] for rule in sorted(rules, key=lambda rule: KINDS[rule["kind"]].is_report)]
    return ids[0] if ids else None


def _settings() -> Settings:
    settings = current_app.config["SETTINGS"]
    assert isinstance(settings, Settings)
    return settings


def _channels() -> dict[str, str]:
    """Return where messages go, by channel; viewers learn that there is one, not its address."""
    targets = Channels(_settings()).targets()
    if g.actor.role.covers(Role.OPERATOR):
        return targets
    return dict.fromkeys(targets, "configured")


def _switch() -> Json:
    """Return how the dead man's switch stands; ``host`` is None when there is none."""
    url = _settings().heartbeat_url
    return {"host": host_of(url) if url else None, **query.read_ping(reading())}


def status_of(message: RowMapping) -> tuple[str, str]:
    """Return (colour, word) of how a message fares."""
    if message["sent_at"] is not None:
        return "succeeded", "sent"
    if message["gave_up_at"] is not None:
        return "failed", "not sent"
    if message["error"] is not None:
        return "failed", "will be tried again"
    return ("running", "on its way") if message["tries"] else ("queued", "waiting")


def alerts_twin(context: Context) -> Json:
    """Return the page's JSON body: rules as items, messages, channels and the switch beside them."""
    items = [
        {**redact({name: rule[name] for name in RULE_COLUMNS}), "status": context["states"][rule["id"]]}
        for rule in context["rules"]
    ]
    return {
        "items": items,
        "next": None,
        "channels": context["channels"],
        "heartbeat": redact(context["switch"]),
        "messages": [redact(dict(message)) for message in context["messages"]],
    }


add_page(
    blueprint,
    PATH,
    "alerts/page.html",
    find_alerts,
    twin=alerts_twin,
    columns=[*RULE_COLUMNS, "status"],
    fragments={
        "channels": "alerts/_channels.html",
        "rules": "alerts/_rules.html",
        "messages": "alerts/_messages.html",
    },
)


def silence_seconds(text: str, now: datetime) -> float:
    """Return the seconds that a silence of ``text`` lasts from ``now``: a duration, or ``morning``.

    The morning is the next one in the zone of ``now``. Raises ValueError with a sentence.
    """
    if text != "morning":
        return parse_duration(text)
    today = datetime.combine(now.date(), MORNING, now.tzinfo)
    morning = today if today > now else datetime.combine(now.date() + timedelta(days=1), MORNING, now.tzinfo)
    # Two times of one zone are taken from each other as its clocks show them: wrong where these are changed.
    return morning.timestamp() - now.timestamp()


def _silence(connection: psycopg.Connection, actor: Actor, reason: str | None, rule_id: int) -> Answer:
    text = read_body().get("for", "").strip() or "1h"
    try:
        seconds = silence_seconds(text, as_of().astimezone(g.zone))
    except ValueError as error:
        abort(400, str(error))
    return moves.silence(connection, rule_id, seconds, actor, reason)


def _edit(connection: psycopg.Connection, actor: Actor, reason: str | None, rule_id: int) -> Answer:
    other_fields = ("reason", "next") if request.is_json else ("reason", "next", "by")
    values = {name: text.strip() for name, text in read_body().items() if name not in other_fields}
    return moves.edit(connection, rule_id, values, actor, reason)


def _test(connection: psycopg.Connection, actor: Actor, reason: str | None, rule_id: int) -> Answer:
    channel = request.args.get("channel") or read_body().get("channel") or None
    return test_message.send_test(connection, _settings(), rule_id, actor, reason, channel=channel)


def _rule(rule_id: int) -> RowMapping:
    rule = query.find_rule(reading(), rule_id)
    if rule is None:
        abort(404, f"There is no alert rule {rule_id}; it may have been removed.")
    return rule


def _ask_edit(rule_id: int) -> Context:
    rule = _rule(rule_id)
    kind: RuleType = KINDS[rule["kind"]]
    values = kind.values(rule["settings"])
    return {"rule": rule, "kind": kind, "values": values, "site_zone": _settings().timezone}


add_verb(
    blueprint,
    f"{ONE}/silence",
    "alert.silence",
    _silence,
    question=lambda rule_id: (
        f"Send nothing about “{_title(rule_id)}” for a while? It is still looked at and shown."
    ),
    back=lambda rule_id: PATH,
    template="alerts/_silence.html",
    context=lambda rule_id: {"silences": SILENCES},
    fields=("for",),
)
add_verb(
    blueprint,
    f"{ONE}/edit",
    "alert.edit",
    _edit,
    question=lambda rule_id: f"{_title(rule_id)}: {KINDS[_rule(rule_id)['kind']].meaning}",
    back=lambda rule_id: PATH,
    template="alerts/_edit.html",
    context=_ask_edit,
    keeps_form=True,
    fields=None,
)
add_verb(
    blueprint,
    f"{ONE}/test",
    "alert.test",
    _test,
    question=lambda rule_id: (
        f"Send a {'real' if _kind(rule_id).is_report else 'test'} message of “{_title(rule_id)}” now, and "
        "show what is answered?"
    ),
    back=lambda rule_id: PATH,
    fields=("channel",),
)


def _title(rule_id: int) -> str:
    return _kind(rule_id).title


def _kind(rule_id: int) -> RuleType:
    return KINDS[_rule(rule_id)["kind"]]
