"""When people get a message: (state of a rule, whether it fires, now) → next state and notice. Pure.

There is one law: at most one message of a rule in a window, whatever it is about. People believe the last
message; once the window has passed and it is no longer true, they get another. So a flapping rule costs one
message a window, an alarm that ended within its window costs nothing more, and nobody keeps an old alarm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from wakeboard.core.time.clock_skew import was_ahead

State = Literal["quiet", "firing"]
Notice = Literal["firing", "recovered", "reminder"]


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of a rule. ``told``: what the last message said; ``turns``: the changes since then."""

    state: State = "quiet"
    told: State = "quiet"
    turns: int = 0
    fired_at: datetime | None = None
    recovered_at: datetime | None = None
    sent_at: datetime | None = None
    silenced_until: datetime | None = None


# The columns of AlertRule, of the table ``r``.
COLUMNS = """
r.id, r.name, r.kind, r.settings, r.found, r.created_at, r.state, r.told, r.turns, r.fired_at, r.recovered_at,
r.sent_at, r.silenced_until, now() AS now,
(SELECT i.id FROM wakeboard.installation AS i ORDER BY i.created_at LIMIT 1) AS installation
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule(RuleState):
    """A row of ``alert_rules``; ``now`` is the database's clock, ``installation`` the id of the database."""

    id: int
    name: str
    kind: str
    settings: dict[str, Any]
    found: dict[str, Any] | None
    created_at: datetime
    now: datetime
    installation: str | None


def next_state(
    state: RuleState,
    now: datetime,
    *,
    firing: bool,
    has_new_names: bool = False,
    window_seconds: float,
    remind_seconds: float,
    can_tell: bool = True,
) -> tuple[RuleState, Notice | None]:
    """Return the state of a rule after a check, and what people get a message about, if anything.

    ``has_new_names``: it still fires, and for something that the last message did not name.
    ``remind_seconds`` of 0 reminds never. ``can_tell`` is false while there is no channel.
    """
    after = state
    if firing and state.state == "quiet":
        after = replace(state, state="firing", turns=state.turns + 1, fired_at=now)
    elif not firing and state.state == "firing":
        after = replace(state, state="quiet", turns=state.turns + 1, recovered_at=now)
    if not can_tell or (after.silenced_until is not None and after.silenced_until > now):
        return after, None
    if after.sent_at is not None and was_ahead(after.sent_at, now):
        # Nobody knows when that was: long ago.
        after = replace(after, sent_at=now - timedelta(seconds=max(window_seconds, remind_seconds)))
    if after.sent_at is not None and now - after.sent_at < timedelta(seconds=window_seconds):
        return after, None
    notice = _find_notice(after, now, has_new_names, remind_seconds)
    if notice is None:
        return after, None
    return replace(after, told=after.state, sent_at=now, turns=0), notice


def _find_notice(
    state: RuleState, now: datetime, has_new_names: bool, remind_seconds: float
) -> Notice | None:
    if state.state != state.told:
        return "firing" if state.state == "firing" else "recovered"
    if state.state == "quiet" or state.sent_at is None:
        return None
    is_time = 0 < remind_seconds <= (now - state.sent_at).total_seconds()
    return "reminder" if is_time or has_new_names else None
