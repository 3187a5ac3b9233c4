"""Which fires of a schedule are due, and which of them become runs. Pure.

    due = find_due(definition)
    decision = sort_fires(due.fires, definition.now, misfire="one", grace_seconds=60, overlap="skip", …)

An edit never takes away what was due before it: a definition carries the stretches of its earlier rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple

from wakeboard.core.time.clock_skew import was_ahead
from wakeboard.core.time.cron import Cron

CATCH_UP_CAP = 100
# Two and a half days of an every-minute schedule; the fires before are recorded as one missed fire.
LOOK_BACK = 3600
NEVER = "This schedule never fires again: no such date comes."


class ScheduledDefinition(NamedTuple):
    """What the fires of a definition depend on; ``now`` is the database's.

    ``unsettled``: the stretches of time in which earlier rules held and that are not settled yet.
    """

    id: int
    name: str
    job_type: str
    schedule: str | None
    timezone: str
    enabled: bool
    misfire: str
    grace_seconds: int
    overlap: str
    next_fire_at: datetime | None
    settled_at: datetime
    unsettled: Sequence[Mapping[str, Any]] | None
    now: datetime


class MissedFire(NamedTuple):
    """A fire that made no run, and why; with ``until`` all fires from ``at`` to before it."""

    at: datetime
    reason: str
    until: datetime | None = None


@dataclass(slots=True)
class DueFires:
    """What one definition has to settle.

    fires: due, ascending, each once.
    paused: due before a pause, and not fired before it.
    long_stretches: (first, until) of stretches with too many fires to list: from `first` to before `until`.
    first: the first fire of the rule that holds now, due or not, None when there is none.
    next_fire: the first fire that is not due, None when there is none.
    error: a sentence when the definition cannot fire any more, else None.
    """

    fires: list[datetime] = field(default_factory=list)
    paused: list[datetime] = field(default_factory=list)
    long_stretches: list[tuple[datetime, datetime]] = field(default_factory=list)
    first: datetime | None = None
    next_fire: datetime | None = None
    error: str | None = None


@dataclass(slots=True)
class Decision:
    """What becomes of the due fires of one definition; ``is_waiting``: nothing is settled yet."""

    fires: list[datetime] = field(default_factory=list)
    missed: list[MissedFire] = field(default_factory=list)
    is_waiting: bool = False


def find_due(definition: ScheduledDefinition) -> DueFires:
    """Return what a definition has to settle. A rule that cannot be read is reported in `error`."""
    due = DueFires()
    for stretch in definition.unsettled or ():
        _add_stretch(due, stretch)
    if definition.enabled and definition.schedule is not None:
        try:
            _add_present(due, definition, parse(definition.schedule))
        except (ValueError, OverflowError) as wrong:
            due.error, due.first, due.next_fire = str(wrong)[:500], None, None
    due.fires = sorted(set(due.fires))
    due.paused = sorted(set(due.paused) - set(due.fires))
    return due


def _add_present(due: DueFires, definition: ScheduledDefinition, cron: Cron) -> None:
    """Add what is due by the rule that holds now."""
    timezone, first, now = definition.timezone, definition.next_fire_at, definition.now
    settled_until = _settled_until(definition.settled_at, now)
    due.next_fire = cron.next_fire(timezone, max(now, settled_until))
    due.first = first or cron.next_fire(timezone, settled_until)
    due.error = None if due.next_fire else NEVER
    due.fires += _fires_between(due, cron, timezone, first, settled_until, now)


def _settled_until(settled_at: datetime, now: datetime) -> datetime:
    """Return until when fires are settled: until now where the clock was ahead when that was written."""
    return now if was_ahead(settled_at, now) else settled_at


def is_too_late(
    schedule: str, timezone: str, next_fire_at: datetime, settled_at: datetime, now: datetime
) -> bool:
    """Return whether a definition's next fire lies beyond the one that its rule gives from now on.

    Then the clock was ahead when it was set. False where the rule cannot be read.
    """
    try:
        fire = parse(schedule).next_fire(timezone, max(now, _settled_until(settled_at, now)))
    except (ValueError, OverflowError):
        return False
    return fire is not None and next_fire_at > fire


def _add_stretch(due: DueFires, stretch: Mapping[str, Any]) -> None:
    """Add what was due by an earlier rule; one that cannot be read could never have fired."""
    try:
        first, after, until = (
            None if stretch[name] is None else datetime.fromisoformat(stretch[name]).astimezone(UTC)
            for name in ("first", "after", "until")
        )
        if after is None or until is None:
            return
        fires = _fires_between(due, parse(stretch["schedule"]), stretch["timezone"], first, after, until)
    except (ValueError, OverflowError, TypeError, KeyError):
        return
    (due.fires if stretch.get("fires") else due.paused).extend(fires)


def _fires_between(
    due: DueFires, cron: Cron, timezone: str, first: datetime | None, after: datetime, until: datetime
) -> list[datetime]:
    """Return the fires from `first`, or else after `after`, to `until`, the latest LOOK_BACK at most."""
    known = [] if first is None else [first]
    later = (fire.at for fire in cron.fires(timezone, first or after))
    fires = list(takewhile(lambda at: at <= until, islice(chain(known, later), LOOK_BACK + 1)))
    if len(fires) <= LOOK_BACK:
        return fires
    latest = _latest(cron, timezone, until)
    due.long_stretches.append((fires[0], latest[0]))
    return latest


def _latest(cron: Cron, timezone: str, until: datetime) -> list[datetime]:
    """Return the latest LOOK_BACK fires up to `until`, of a schedule that is known to have so many."""
    span = timedelta(hours=4)
    while True:
        later = (fire.at for fire in cron.fires(timezone, until - span))
        fires = list(takewhile(lambda at: at <= until, later))
        if len(fires) >= LOOK_BACK:
            return fires[-LOOK_BACK:]
        span *= 2


@lru_cache(maxsize=2000)
def parse(schedule: str) -> Cron:
    """Return a schedule's text parsed, the same object for the same text. Raises CronError."""
    return Cron.parse(schedule)


def sort_fires(
    due: Sequence[datetime],
    now: datetime,
    *,
    misfire: str,
    grace_seconds: int,
    overlap: str,
    is_under_way: bool,
    last_run: tuple[datetime, datetime] | None = None,
    cap: int = CATCH_UP_CAP,
) -> Decision:
    """Decide for each due fire (ascending, at or before ``now``) whether it becomes a run.

    First the misfire rule: a fire that is late by at most the grace counts; of the later ones count the
    latest (one), the latest ``cap`` (all) or none. Then the overlap rule: 'allow' lets all that count
    through; 'skip' and 'wait' make one run at a time, for the latest that counts, so a punctual fire wins
    over a late one. While a run is under way 'skip' makes none and 'wait' settles nothing yet.

    last_run: from when to when the last run was under way. With 'wait' a fire in between is as late as the
    time since its end: it waited for that run.
    """
    if overlap == "wait" and is_under_way:
        return Decision(is_waiting=bool(due))
    latest_punctual = now - timedelta(seconds=grace_seconds)
    wait = last_run if overlap == "wait" else None
    late = [fire for fire in due if _earliest_start(fire, wait) < latest_punctual]
    made_up = {"one": late[-1:], "all": late[-cap:], "none": []}[misfire]
    missed = [MissedFire(fire, misfire_reason(misfire)) for fire in late[: len(late) - len(made_up)]]
    counting = [*made_up, *due[len(late) :]]
    room = len(counting) if overlap == "allow" else 0 if is_under_way else 1
    overlapping = counting[: max(0, len(counting) - room)]
    missed += [MissedFire(fire, "overlap") for fire in overlapping]
    return Decision(counting[len(overlapping) :], missed)


def misfire_reason(misfire: str) -> str:
    """Return why late fires are missed by the rule ``misfire``."""
    return "capped" if misfire == "all" else "misfire"


def _earliest_start(fire: datetime, wait: tuple[datetime, datetime] | None) -> datetime:
    return wait[1] if wait is not None and wait[0] <= fire <= wait[1] else fire
