"""The statements of one round of claims, as scripts for a channel: what a plan asks for, in what order.

Unlimited and limited types take turns; what may be claimed ahead comes last. Whatever a statement brought is
the worker's, also when a later one is refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from worker.duties.presence import BUSY, IDLE
from worker.loop.channel import Rows, Script, Statement, StatementFailed, array
from worker.loop.claims import Plan, size_of
from worker.loop.front import Front
from worker.loop.held import Holdings, boottime_ns
from worker.transitions.engine.claims import (
    FORGOTTEN,
    HELD_BY_ME,
    LOCK_LIMIT,
    TYPES_WITH_WORK,
    claim,
    claim_limited,
)
from worker.transitions.engine.endings import RELEASE

WINDOW = 64
# Leases run from the claim, and a round asks for one limited type after the other: over a slow link, what it
# has is handed over after this share of a lease.
PATIENCE = 0.1


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one round of claims brought: the rows are ours even when a later statement was refused.

    ``sent_ns``: when the first claim that brought something was sent, from which all their leases count.
    """

    rows: Rows
    is_full: bool
    failure: StatementFailed | None = None
    sent_ns: int = 0


@dataclass(slots=True)
class _Round:
    """One round under way: who claims, and what it has so far."""

    me: bytes
    lease_seconds: float
    front: Front
    rows: Rows = field(default_factory=list)
    is_full: bool = False
    failure: StatementFailed | None = None
    sent_ns: int = 0

    @property
    def lease(self) -> bytes:
        """The lease in seconds, as a value of a statement."""
        return repr(self.lease_seconds).encode()

    @property
    def is_late(self) -> bool:
        """Whether what it has waited for so long that nothing more should be asked for."""
        return self.sent_ns > 0 and boottime_ns() - self.sent_ns > self.lease_seconds * PATIENCE * 1e9

    def took(self, rows: Rows, sent_ns: int) -> None:
        """A claim sent at ``sent_ns`` brought ``rows``."""
        if rows:
            self.rows = self.rows + rows
            self.sent_ns = self.sent_ns or sent_ns


# A part of a round: yields statements, and returns whether there may be more where its rows came from.
_Turn = Generator[Statement, Rows, bool]


def claim_script(
    plan: Plan, worker_id: str, lease_seconds: float, front: Front, *, announce: bool | None
) -> Script:
    """Return the script of one round of claims; its value is a Claimed.

    ``announce``: True publishes the worker as idle before claiming once more, False takes that back.
    """
    round_ = _Round(worker_id.encode(), lease_seconds, front)
    if announce is not None:
        yield (IDLE if announce else BUSY), (round_.me,)
    # In turns: a backlog of either kind leaves the other every second round.
    turns = (_unlimited, _limited_types) if plan.round % 2 else (_limited_types, _unlimited)
    for turn in turns:
        wanted = plan.limit - len(round_.rows)
        if wanted > 0 and not round_.is_late:
            yield from _tried(round_, turn(plan, size_of(wanted), round_))
    may_be_more = round_.is_full and round_.failure is None and not round_.is_late
    if may_be_more and (ahead := plan.ahead_beside(round_.rows)):
        yield from _tried(round_, _unlimited(replace(plan, types=plan.quick), size_of(ahead), round_))
    # A round that was cut short has not asked for everything: the next one follows at once.
    return Claimed(round_.rows, round_.is_full or round_.is_late, round_.failure, round_.sent_ns)


def _tried(round_: _Round, turn: _Turn) -> Generator[Statement, Rows, None]:
    """Take a turn; one that is refused leaves the round what it has."""
    try:
        is_full = yield from turn
    except StatementFailed as refused:
        round_.failure = refused
    else:
        round_.is_full = round_.is_full or is_full


def _unlimited(plan: Plan, limit: int, round_: _Round) -> _Turn:
    """Claim from the types without a limit, a window of them at a time until one has something."""
    names: Sequence[str] = plan.types
    if len(names) > WINDOW:
        found: Rows = yield TYPES_WITH_WORK, ()
        names = sorted({name for (name,) in found} & set(names))
    statement = claim(limit, oldest_first=plan.oldest_first)
    for some in windows(names, plan.round):
        for places in round_.front.tries(some):
            sent_ns = boottime_ns()
            values = (array(some), round_.me, round_.lease, array(places.moments), array(places.ids))
            rows: Rows = yield statement, values
            round_.took(rows, sent_ns)
            round_.front.took(rows, is_full=len(rows) >= limit)
            if rows:
                # Before where a claim began there may be more, however few it brought.
                return len(rows) >= limit or bool(places.ids)
    return False


def windows(names: Sequence[str], round_: int) -> Iterator[Sequence[str]]:
    """Yield ``names`` 64 at a time, others first each round: a claim's cost grows with the types it asks."""
    start = (round_ * WINDOW) % len(names) if len(names) > WINDOW else 0
    turned = [*names[start:], *names[:start]]
    for place in range(0, len(turned), WINDOW):
        yield turned[place : place + WINDOW]


def _limited_types(plan: Plan, limit: int, round_: _Round) -> _Turn:
    """Claim from the types with a limit, one after the other; what is claimed is ours whatever follows."""
    brought = 0
    for name in plan.limited:
        if brought >= limit or round_.is_late:
            break
        sent_ns = boottime_ns()
        statement = claim_limited(size_of(limit - brought), oldest_first=plan.oldest_first)
        try:
            rows: Rows = yield from _limited(name, statement, round_)
        except StatementFailed:
            if not brought:
                raise
            break
        round_.took(rows, sent_ns)
        brought += len(rows)
    return brought >= limit


def _limited(name: str, statement: str, round_: _Round) -> Script:
    """Claim from a type that may run only so often at once: count and claim under the type's lock."""
    yield "BEGIN", ()
    try:
        locked: Rows = yield LOCK_LIMIT, (name.encode(),)
        rows: Rows = []
        if locked:
            rows = yield statement, (name.encode(), round_.me, round_.lease, b"%d" % locked[0][0])
        yield "COMMIT", ()
    except StatementFailed:
        yield "ROLLBACK", ()
        raise
    return rows


def busy_script(worker_id: str) -> Script:
    """Return the script that takes back the word that the worker is idle."""
    yield BUSY, (worker_id.encode(),)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a look after a connection error found; attempts are a run and its epoch each.

    ``given_back``: how many claims went back whose answer never came. ``forgotten``: attempts of ours that
    the database does not know of, which is back at an earlier state.
    """

    given_back: int
    forgotten: Rows


def recovery_script(worker_id: str, holdings: Holdings) -> Script:
    """Return the script that compares what we hold with what is locked by us; its value is a Recovered."""
    held = holdings.attempts()
    forgotten: Rows = []
    if held:
        forgotten = yield FORGOTTEN, (array(i for i, _ in held), array(e for _, e in held))
    me = worker_id.encode()
    rows: Rows = yield HELD_BY_ME, (me,)
    unknown = holdings.unknown(rows)
    if unknown:
        zeros = array(0.0 for _ in unknown)
        none = array(None for _ in unknown)
        values = (array(i for i, _ in unknown), array(e for _, e in unknown), zeros, zeros, none, none)
        yield RELEASE, (me, *values, array(False for _ in unknown))
    return Recovered(len(unknown), forgotten)
