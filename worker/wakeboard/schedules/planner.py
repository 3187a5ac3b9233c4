"""What is due: a definition as its row says it → the instants to settle, and which of them fire. Pure.

    due = find_due(row)
    decision = sort_fires(due.instants, row["now"], misfire="one", grace_seconds=60, overlap="skip")

An edit never takes away what was due before it: the row brings the stretches of its earlier rules along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any

from wakeboard.core.time.clock_skew import was_ahead
from wakeboard.core.time.cron import Cron

CATCH_UP_CAP = 100
# An every-minute schedule after two and a half days; what is older is told as one missed fire.
LOOK_BACK = 3600
NEVER = "This schedule never fires again: no such date comes."

Missed = tuple[datetime, str, datetime | None]


@dataclass(slots=True)
class DueDefinition:
    """What one definition has to settle.

    instants: due, ascending, each once.
    paused: due before a pause, and not fired before it.
    untold: (first, until) of stretches too long to tell fire by fire: from `first` to before `until`.
    first: the first fire of the rule that holds now, due or not, None when there is none.
    following: the next fire that is not due, None when there is none.
    error: a sentence when the definition cannot fire any more, else None.
    """

    instants: list[datetime] = field(default_factory=list)
    paused: list[datetime] = field(default_factory=list)
    untold: list[tuple[datetime, datetime]] = field(default_factory=list)
    first: datetime | None = None
    following: datetime | None = None
    error: str | None = None


@dataclass(slots=True)
class Decision:
    """What becomes of the due instants of one definition."""

    fire: list[datetime] = field(default_factory=list)
    missed: list[tuple[datetime, str]] = field(default_factory=list)
    waits: bool = False


def find_due(row: Mapping[str, Any]) -> DueDefinition:
    """Collect what a definition has to settle.

    row: the columns of `schedule.DUE`; `now` is the database's.
    A rule that cannot be read is told in `error`, never raised.
    """
    due = DueDefinition()
    for stretch in row["unsettled"] or ():
        _add_stretch(due, stretch)
    if row["enabled"] and row["schedule"] is not None:
        try:
            _add_present(due, row)
        except (ValueError, OverflowError) as wrong:
            due.error, due.first, due.following = str(wrong)[:500], None, None
    due.instants = sorted(set(due.instants))
    due.paused = sorted(set(due.paused) - set(due.instants))
    return due


def _add_present(due: DueDefinition, row: Mapping[str, Any]) -> None:
    """Add what is due by the rule that holds now."""
    cron, now = read(row["schedule"]), row["now"]
    settled_at = settled_by(row)
    due.following = cron.next_fire(row["timezone"], max(now, settled_at))
    due.first = row["next_fire_at"] or cron.next_fire(row["timezone"], settled_at)
    due.error = None if due.following else NEVER
    due.instants += _between(due, cron, row["timezone"], row["next_fire_at"], settled_at, now)


def settled_by(row: Mapping[str, Any]) -> datetime:
    """Return until when a definition's fires are settled: until now where the clock was ahead of that."""
    at: datetime = row["settled_at"]
    return row["now"] if was_ahead(at, row["now"]) else at


def comes_too_late(row: Mapping[str, Any]) -> bool:
    """Return whether a definition's next fire lies beyond the one that its rule gives from now on.

    row: as of ``find_due``. The clock was ahead when that was set. False where the rule cannot be read.
    """
    try:
        due = read(row["schedule"]).next_fire(row["timezone"], max(row["now"], settled_by(row)))
    except (ValueError, OverflowError):
        return False
    return due is not None and row["next_fire_at"] > due


def _add_stretch(due: DueDefinition, stretch: Mapping[str, Any]) -> None:
    """Add what was due by an earlier rule; one that cannot be read could never have fired."""
    try:
        first, after, until = (
            None if stretch[name] is None else datetime.fromisoformat(stretch[name]).astimezone(UTC)
            for name in ("first", "after", "until")
        )
        if after is None or until is None:
            return
        instants = _between(due, read(stretch["schedule"]), stretch["timezone"], first, after, until)
    except (ValueError, OverflowError, TypeError, KeyError):
        return
    (due.instants if stretch.get("fires") else due.paused).extend(instants)


def _between(
    due: DueDefinition, cron: Cron, timezone: str, first: datetime | None, after: datetime, until: datetime
) -> list[datetime]:
    """Return the instants from `first`, or else after `after`, to `until`, the latest LOOK_BACK at most."""
    known = [] if first is None else [first]
    later = (fire.at for fire in cron.fires(timezone, after if first is None else first))
    found = list(
        takewhile(
            lambda at: at <= until, islice((at for part in (known, later) for at in part), LOOK_BACK + 1)
        )
    )
    if len(found) <= LOOK_BACK:
        return found
    latest = _latest(cron, timezone, until)
    due.untold.append((found[0], latest[0]))
    return latest


def _latest(cron: Cron, timezone: str, until: datetime) -> list[datetime]:
    """Return the latest LOOK_BACK instants up to `until`, of a schedule that is known to have so many."""
    span = timedelta(hours=4)
    while True:
        fires = (fire.at for fire in cron.fires(timezone, until - span))
        found = list(takewhile(lambda at: at <= until, fires))
        if len(found) >= LOOK_BACK:
            return found[-LOOK_BACK:]
        span *= 2


@lru_cache(maxsize=2000)
def read(schedule: str) -> Cron:
    """Return a schedule's text read, the same object for the same text. Raises CronError."""
    return Cron.parse(schedule)


def sort_fires(
    due: Sequence[datetime],
    now: datetime,
    *,
    misfire: str,
    grace_seconds: int,
    overlap: str,
    is_under_way: bool,
    waited: tuple[datetime, datetime] | None = None,
    cap: int = CATCH_UP_CAP,
) -> Decision:
    """Decide for each due instant (ascending, at or before ``now``) whether it fires.

    First the misfire rule: late by at most the grace, it counts; of the later ones count the latest (one),
    the latest ``cap`` (all) or none. Then the overlap rule: 'allow' lets all that count through; 'skip' and
    'wait' make one run at a time, for the latest that counts, so a punctual fire wins over a late one. While
    a run is under way 'skip' makes none and 'wait' settles nothing yet.

    waited: from when to when the last run was under way. With 'wait' the instants in between are as late as
    the time since its end: they waited for it, nobody missed them.
    """
    if overlap == "wait" and is_under_way:
        return Decision(waits=bool(due))
    limit = now - timedelta(seconds=grace_seconds)
    pause = waited if overlap == "wait" else None
    late = [fire for fire in due if _ready(fire, pause) < limit]
    kept = {"one": late[-1:], "all": late[-cap:], "none": []}[misfire]
    reason = "capped" if misfire == "all" else "misfire"
    missed = [(fire, reason) for fire in late[: len(late) - len(kept)]]
    counting = [*kept, *due[len(late) :]]
    room = len(counting) if overlap == "allow" else 0 if is_under_way else 1
    lost = counting[: max(0, len(counting) - room)]
    return Decision(counting[len(lost) :], missed + [(fire, "overlap") for fire in lost])


def _ready(fire: datetime, waited: tuple[datetime, datetime] | None) -> datetime:
    return waited[1] if waited is not None and waited[0] <= fire <= waited[1] else fire
