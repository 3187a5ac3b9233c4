"""What a process keeps from one request to the next of what cannot change any more, for an hour at most.

After a long outage attempts are written into the past, so what was settled may change all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar, cast

from flask import current_app

from wakeboard_dashboard.web.connection import as_of
from wakeboard_dashboard.web.replica import late_seconds

LIFETIME = timedelta(hours=1)
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is kept, and the moment of the database's clock at which it was empty."""

    begun_at: datetime
    found: object

    def lives(self, now: datetime) -> bool:
        return timedelta() <= now - self.begun_at < LIFETIME


def kept(name: str, make: Callable[[], Kept]) -> Kept:
    """Return what is kept under ``name``, of ``make()`` at first and LIFETIME later; a passing one for who
    reads a late replica.

    Such a replica may not have all that ended a while ago yet: it would leave holes for those who read later.
    """
    now = as_of()
    if late_seconds() is not None:
        return make()
    memory = current_app.extensions.get(name)
    if not isinstance(memory, _Memory) or not memory.lives(now):
        memory = current_app.extensions[name] = _Memory(now, make())
    return cast(Kept, memory.found)
