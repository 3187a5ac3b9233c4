"""The operator's moves on alert rules: silence one for a while, edit its numbers. Each writes its audit row.

What a rule finds and tells is written by ``wakeboard.alerts.evaluation`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import KINDS, RuleType
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import Connection, Row, _row, act

LONGEST_SILENCE_SECONDS = 30 * 86_400
ENABLED = "enabled"
SWITCH = {"1": True, "true": True, "0": False, "false": False}

BY_ID = """
SELECT id, name, kind, settings, enabled, state, silenced_until, silenced_until > now() AS is_silenced
FROM wakeboard.alert_rules WHERE id = %(id)s FOR UPDATE
"""
ID_OF = "SELECT id FROM wakeboard.alert_rules WHERE name = %(name)s"
SILENCE = """
UPDATE wakeboard.alert_rules SET updated_at = now(),
    silenced_until = CASE WHEN %(seconds)s > 0 THEN now() + make_interval(secs => %(seconds)s) END
WHERE id = %(id)s
RETURNING to_char(silenced_until, 'YYYY-MM-DD HH24:MI "UTC"') AS until, silenced_until
"""
# Who switches a rule off knows how it stands: it begins anew when it is switched on again. A report
# tells of no morning before that.
EDIT = """
UPDATE wakeboard.alert_rules SET settings = %(settings)s::jsonb, enabled = %(enabled)s, updated_at = now(),
    checked_at = NULL,
    recovered_at = CASE WHEN %(is_begun)s THEN now() ELSE recovered_at END,
    state = CASE WHEN %(enabled)s THEN state ELSE 'quiet' END,
    told = CASE WHEN %(enabled)s THEN told ELSE 'quiet' END,
    turns = CASE WHEN %(enabled)s THEN turns ELSE 0 END
WHERE id = %(id)s
"""


def rule_id(connection: Connection, name: str) -> int | None:
    """Return the id of the rule called ``name``, None when there is none."""
    row = _row(connection, ID_OF, {"name": name})
    return None if row is None else int(row["id"])


def silence(
    connection: Connection, rule_id: int, seconds: float, actor: Actor, reason: str | None = None
) -> Answer:
    """Send nothing about a rule for ``seconds``, up to 30 days; 0 ends the silence. It is still looked at."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_ID, {"id": rule_id})
        if row is None:
            return missing(rule_id), None, None
        if not 0 <= seconds <= LONGEST_SILENCE_SECONDS:
            message = f"A silence of {format_duration(seconds)} is not allowed; allowed: 0 to 30 days."
            return Answer(rule_id, state_of(row), "invalid", message), None, None
        if seconds == 0 and not row["is_silenced"]:
            message = f"“{_title(row)}” is not silenced."
            return Answer(rule_id, state_of(row), "already", message), None, None
        after = _row(connection, SILENCE, {"id": rule_id, "seconds": float(seconds)}) or {}
        until = after.get("until")
        words = f"is silenced until {until}" if until else "may send messages again"
        answer = Answer(rule_id, "silenced" if until else row["state"], "done", f"“{_title(row)}” {words}.")
        return answer, _shown(row, "silenced_until"), _shown(after, "silenced_until")

    return act(connection, actor, "alert.silence", ("alert", rule_id), reason, move)


def _title(rule: Row) -> str:
    """Return what pages and messages call the rule."""
    return KINDS[rule["kind"]].title


def edit(
    connection: Connection,
    rule_id: int,
    given: Mapping[str, str],
    actor: Actor,
    reason: str | None = None,
) -> Answer:
    """Change the numbers of a rule as people write them, and ``enabled`` (1 or 0); others stay."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_ID, {"id": rule_id})
        if row is None:
            return missing(rule_id), None, None
        kind = KINDS[row["kind"]]
        before = {ENABLED: row["enabled"], **kind.values(row["settings"])}
        try:
            after = before | _read(kind, given)
        except ValueError as wrong:
            return Answer(rule_id, state_of(row), "invalid", str(wrong)), None, None
        if after == before:
            message = f"“{_title(row)}” is unchanged."
            return Answer(rule_id, state_of(row), "already", message), before, None
        settings = {name: value for name, value in after.items() if name != ENABLED}
        values = {
            "id": rule_id,
            "enabled": after[ENABLED],
            "settings": json.dumps(settings),
            "is_begun": kind.is_report and after[ENABLED] and not before[ENABLED],
        }
        connection.execute(EDIT, values)
        status = state_of({**row, ENABLED: after[ENABLED]})
        return Answer(rule_id, status, "done", f"“{_title(row)}” was changed."), before, after

    return act(connection, actor, "alert.edit", ("alert", rule_id), reason, move)


def _read(kind: RuleType, given: Mapping[str, str]) -> dict[str, Any]:
    known = {each.name: each for each in kind.settings}
    found: dict[str, Any] = {}
    for name, text in given.items():
        if name == ENABLED:
            if text.lower() not in SWITCH:
                raise ValueError(f"enabled is “{text[:40]}”; allowed: 1 or 0.")
            found[ENABLED] = SWITCH[text.lower()]
        elif name in known:
            found[name] = known[name].read(text)
        else:
            raise ValueError(
                f"“{name[:60]}” is not a setting of this rule; allowed: enabled, {', '.join(known)}."
            )
    return found


def state_of(row: Mapping[str, Any]) -> str:
    """Return ``off``, ``silenced``, ``firing`` or ``quiet``; a report that is on is ``on``."""
    if not row["enabled"]:
        return "off"
    if row["is_silenced"]:
        return "silenced"
    return "on" if row["kind"] in KINDS and KINDS[row["kind"]].is_report else str(row["state"])


def missing(rule_id: int) -> Answer:
    """Return the answer about a rule that does not exist."""
    return Answer(rule_id, None, "missing", f"There is no alert rule {rule_id}; it may have been removed.")


def _shown(row: Mapping[str, Any], name: str) -> Row:
    moment = row.get(name)
    return {name: None if moment is None else moment.isoformat()}


__all__ = ["edit", "missing", "rule_id", "silence", "state_of"]
