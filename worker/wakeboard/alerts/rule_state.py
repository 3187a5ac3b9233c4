"""When people are told: (what a rule remembers, what was found, now) → what it remembers next. Pure.

One law: at most one message of a rule per window, whatever it is about. People believe what they were last
told; when the window has passed and that is no longer so, they are told. So a flapping rule costs one message
a window, a short scare that ended within the window costs nothing more, and nobody is left with an old fear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from wakeboard.core.time.clock_skew import was_ahead

State = Literal["quiet", "firing"]
News = Literal["firing", "recovered", "reminder"]


@dataclass(frozen=True, slots=True)
class RuleMemory:
    """What a rule remembers. ``told``: what people believe; ``turns``: the changes since the last message."""

    state: State = "quiet"
    told: State = "quiet"
    turns: int = 0
    fired_at: datetime | None = None
    recovered_at: datetime | None = None
    sent_at: datetime | None = None
    silenced_until: datetime | None = None


def judge(
    memory: RuleMemory,
    now: datetime,
    *,
    firing: bool,
    is_news: bool = False,
    window_seconds: float,
    remind_seconds: float,
    can_tell: bool = True,
) -> tuple[RuleMemory, News | None]:
    """Return what the rule remembers after a look, and what to tell people, if anything.

    ``is_news``: it still fires, and for something that the last message did not name. ``remind_seconds`` of 0
    reminds never. ``can_tell`` is false while there is no channel.
    """
    after = _moved(memory, "firing" if firing else "quiet", now)
    if not can_tell or (after.silenced_until is not None and after.silenced_until > now):
        return after, None
    if after.sent_at is not None and was_ahead(after.sent_at, now):
        # Nobody knows when that was: long ago.
        after = replace(after, sent_at=now - timedelta(seconds=max(window_seconds, remind_seconds)))
    if after.sent_at is not None and now - after.sent_at < timedelta(seconds=window_seconds):
        return after, None
    news = _news(after, now, is_news, remind_seconds)
    if news is None:
        return after, None
    return replace(after, told=after.state, sent_at=now, turns=0), news


def _moved(memory: RuleMemory, state: State, now: datetime) -> RuleMemory:
    if memory.state == state:
        return memory
    at = {"fired_at": now} if state == "firing" else {"recovered_at": now}
    return replace(memory, state=state, turns=memory.turns + 1, **at)  # type: ignore[arg-type]


def _news(memory: RuleMemory, now: datetime, is_news: bool, remind_seconds: float) -> News | None:
    if memory.state != memory.told:
        return "firing" if memory.state == "firing" else "recovered"
    if memory.state == "quiet" or memory.sent_at is None:
        return None
    is_time = 0 < remind_seconds <= (now - memory.sent_at).total_seconds()
    return "reminder" if is_time or is_news else None
