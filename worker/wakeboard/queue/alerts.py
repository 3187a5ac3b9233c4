"""The operator's moves on alert rules: silence one for a while, edit its numbers. Each writes its audit row.

What a rule finds and tells is written by ``wakeboard.alerts.evaluation`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import KINDS, RuleType
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

LONGEST_SILENCE_SECONDS = 30 * 86_400
ENABLED = "enabled"
ENABLED_WORDS = {"1": True, "true": True, "0": False, "false": False}

BY_ID = """
SELECT kind, settings, enabled, state, silenced_until, silenced_until > now() AS is_silenced
FROM wakeboard.alert_rules WHERE id = %(id)s FOR UPDATE
"""
ID_OF = "SELECT id FROM wakeboard.alert_rules WHERE name = %(name)s"
SILENCE = """
UPDATE wakeboard.alert_rules SET updated_at = now(),
    silenced_until = CASE WHEN %(seconds)s > 0 THEN now() + make_interval(secs => %(seconds)s) END
WHERE id = %(id)s
RETURNING to_char(silenced_until, 'YYYY-MM-DD HH24:MI "UTC"') AS until, silenced_until
"""
# A rule that is switched off forgets its state: it begins anew when it is switched on again. A report leaves
# out the mornings before that.
EDIT = """
UPDATE wakeboard.alert_rules SET settings = %(settings)s::jsonb, enabled = %(enabled)s, updated_at = now(),
    checked_at = NULL,
    recovered_at = CASE WHEN %(is_report_enabled)s THEN now() ELSE recovered_at END,
    state = CASE WHEN %(enabled)s THEN state ELSE 'quiet' END,
    told = CASE WHEN %(enabled)s THEN told ELSE 'quiet' END,
    turns = CASE WHEN %(enabled)s THEN turns ELSE 0 END
WHERE id = %(id)s
"""


class RuleRow(NamedTuple):
    """A rule as its row says it."""

    kind: str
    settings: dict[str, Any]
    enabled: bool
    state: str
    silenced_until: datetime | None
    is_silenced: bool | None

    @property
    def type(self) -> RuleType:
        """What the rule watches."""
        return KINDS[self.kind]

    @property
    def title(self) -> str:
        """What pages and messages call the rule."""
        return self.type.title

    @property
    def status(self) -> str:
        """How the rule stands, as ``state_of`` says."""
        return state_of(self._asdict())


def find_rule_id(connection: Connection, name: str) -> int | None:
    """Return the id of the rule called ``name``, None when there is none."""
    row = connection.execute(ID_OF, {"name": name}).fetchone()
    return None if row is None else int(row[0])


def silence(
    connection: Connection, rule_id: int, seconds: float, actor: Actor, reason: str | None = None
) -> Answer:
    """Send nothing about a rule for ``seconds``, up to 30 days; 0 ends the silence. It is still looked at."""

    def move() -> Transition:
        row = read_one(connection, BY_ID, RuleRow, {"id": rule_id})
        if row is None:
            return Transition(missing(rule_id))
        if not 0 <= seconds <= LONGEST_SILENCE_SECONDS:
            message = f"A silence of {format_duration(seconds)} is not allowed; allowed: 0 to 30 days."
            return Transition(Answer(rule_id, row.status, "invalid", message))
        if seconds == 0 and not row.is_silenced:
            message = f"“{row.title}” is not silenced."
            return Transition(Answer(rule_id, row.status, "already", message))
        values = {"id": rule_id, "seconds": float(seconds)}
        until, silenced_until = connection.execute(SILENCE, values).fetchone() or (None, None)
        words = f"is silenced until {until}" if until else "may send messages again"
        answer = Answer(rule_id, "silenced" if until else row.state, "done", f"“{row.title}” {words}.")
        return Transition(
            answer,
            {"silenced_until": row.silenced_until and row.silenced_until.isoformat()},
            {"silenced_until": silenced_until and silenced_until.isoformat()},
        )

    return act(connection, actor, "alert.silence", ("alert", rule_id), reason, move)


def edit(
    connection: Connection,
    rule_id: int,
    given: Mapping[str, str],
    actor: Actor,
    reason: str | None = None,
) -> Answer:
    """Change the numbers of a rule as people write them, and ``enabled`` (1 or 0); others stay."""

    def move() -> Transition:
        row = read_one(connection, BY_ID, RuleRow, {"id": rule_id})
        if row is None:
            return Transition(missing(rule_id))
        before: dict[str, Any] = {ENABLED: row.enabled, **row.type.values(row.settings)}
        try:
            after = before | _parse(row.type, given)
        except ValueError as wrong:
            return Transition(Answer(rule_id, row.status, "invalid", str(wrong)))
        if after == before:
            message = f"“{row.title}” is unchanged."
            return Transition(Answer(rule_id, row.status, "already", message), before)
        is_enabled = after[ENABLED]
        values = {
            "id": rule_id,
            "enabled": is_enabled,
            "settings": json.dumps({name: value for name, value in after.items() if name != ENABLED}),
            "is_report_enabled": row.type.is_report and is_enabled and not row.enabled,
        }
        connection.execute(EDIT, values)
        status = row._replace(enabled=is_enabled).status
        return Transition(Answer(rule_id, status, "done", f"“{row.title}” was changed."), before, after)

    return act(connection, actor, "alert.edit", ("alert", rule_id), reason, move)


def _parse(kind: RuleType, given: Mapping[str, str]) -> dict[str, float]:
    """Return the values of the settings ``given`` as text. Raises ValueError with a sentence."""
    settings = {setting.name: setting for setting in kind.settings}
    values: dict[str, float] = {}
    for name, text in given.items():
        if name == ENABLED:
            if text.lower() not in ENABLED_WORDS:
                raise ValueError(f"enabled is “{text[:40]}”; allowed: 1 or 0.")
            values[ENABLED] = ENABLED_WORDS[text.lower()]
        elif name in settings:
            values[name] = settings[name].read(text)
        else:
            raise ValueError(
                f"“{name[:60]}” is not a setting of this rule; allowed: enabled, {', '.join(settings)}."
            )
    return values


def state_of(rule: Mapping[str, Any]) -> str:
    """Return ``off``, ``silenced``, ``firing`` or ``quiet``; a report that is on is ``on``."""
    if not rule["enabled"]:
        return "off"
    if rule["is_silenced"]:
        return "silenced"
    return "on" if rule["kind"] in KINDS and KINDS[rule["kind"]].is_report else str(rule["state"])


def missing(rule_id: int) -> Answer:
    """Return the answer about a rule that does not exist."""
    return Answer(rule_id, None, "missing", f"There is no alert rule {rule_id}; it may have been removed.")
