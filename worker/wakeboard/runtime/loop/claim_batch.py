"""One claim of a batch of runs: its statements as a script for a channel, in order, and what they brought.

Unlimited and limited types take turns; what may be claimed ahead comes last. Whatever a statement brought is
the worker's, also when a later one is refused.

A rule that somebody put on the table may forbid that a run is started. It forbids nothing to the others, so
what the batch would have taken is read, and claimed in halves until the run is found that is refused alone.
That one is set aside: it is due again after a minute, then two, up to an hour, with ``claim_refused`` and the
database's sentence on its row. No attempt of it has begun, and none is counted. Where the rule refuses even
that, this process passes the run by for a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wakeboard.database.poison_rows import Parts, is_refusal, reason
from wakeboard.queue.engine.claims import (
    BUSY,
    CLAIM_THESE,
    FORGOTTEN,
    HELD_BY_ME,
    IDLE,
    LOCK_LIMIT,
    SET_ASIDE,
    TYPES_WITH_WORK,
    candidates,
    claim,
    claim_limited,
)
from wakeboard.queue.engine.endings import RELEASE
from wakeboard.queue.engine.unbegun import listing
from wakeboard.runtime.loop.channel import (
    Asked,
    Rows,
    Script,
    Statement,
    StatementFailed,
    Together,
    array,
    numbers,
)
from wakeboard.runtime.loop.claim_cursor import WHOLE, ClaimCursor
from wakeboard.runtime.loop.claim_planner import MOST_HELD, ClaimPlan, size_of
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.deferred_results import ResultsWithClaim

WINDOW = 64
# What others hold may hide what is due: a look past it takes a few, and the next claim follows at once.
PAST_LOCKS = 8
# So many refused runs at most are looked for in one round: each costs some statements.
MOST_REFUSED = 25
# Leases run from the claim, and a round asks for one limited type after the other: over a slow link, what it
# has is handed over after this share of a lease.
PATIENCE = 0.1

# A part of a round: yields statements, and returns whether there may be more where its rows came from.
Turn = Generator[Asked, Any, bool]


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A run whose claim the database refuses, with its sentence; ``is_set_aside``: its row says so too."""

    run_id: int
    job_type: str
    why: str
    is_set_aside: bool


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What one round of claims brought: the rows are ours even when a later statement was refused.

    ``sent_ns``: when the first claim that brought something was sent, from which all their leases count.
    ``has_more``: whether types without a limit brought anything, so that they may have more (None: they were
    not asked). ``is_contended``: a type with a limit could not be asked just now. ``listed``: of which types
    the claims listed what has not begun.
    """

    rows: Rows
    is_full: bool
    has_more: bool | None = None
    failure: StatementFailed | None = None
    sent_ns: int = 0
    refused: Sequence[RefusedClaim] = ()
    is_contended: bool = False
    listed: frozenset[str] = frozenset()


@dataclass(slots=True)
class ClaimBatch:
    """One round under way: who claims, which runs it passes by, and what it has so far.

    ``is_proof``: a look found nothing, and the round only shows that claims can be made.
    """

    me: bytes
    lease_seconds: float
    front: ClaimCursor
    passed_by: Sequence[int] = ()
    listed: frozenset[str] = frozenset()
    is_proof: bool = False
    rows: Rows = field(default_factory=list)
    is_full: bool = False
    has_more: bool | None = None
    failure: StatementFailed | None = None
    sent_ns: int = 0
    refused: list[RefusedClaim] = field(default_factory=list)
    ends: ResultsWithClaim | None = None
    is_contended: bool = False

    @property
    def lease(self) -> bytes:
        """The lease in seconds, as a value of a statement."""
        return repr(self.lease_seconds).encode()

    @property
    def is_late(self) -> bool:
        """Whether what it has waited for so long that nothing more should be asked for."""
        return self.sent_ns > 0 and boottime_ns() - self.sent_ns > self.lease_seconds * PATIENCE * 1e9

    @property
    def result(self) -> ClaimResult:
        """What it hands over. One cut short has not asked for everything: the next one follows at once."""
        is_full = self.is_full or self.is_late
        return ClaimResult(
            self.rows, is_full, self.has_more, self.failure, self.sent_ns, self.refused, self.is_contended,
            self.listed,
        )  # fmt: skip

    def listing(self, claim: Statement, job_types: Collection[str]) -> Statement:
        """Return a claim of ``job_types`` that also lists what has not begun, of types that need it."""
        if self.listed.isdisjoint(job_types):
            return claim
        text, values = claim
        return listing(text, len(values) + 1), (*values, array(sorted(self.listed.intersection(job_types))))

    def under_limit(self, job_type: str, claim: Statement) -> Script:
        """Claim from a type that may run only so often at once: count and claim under the type's lock.

        What has ended is written in the transaction of the first such claim.
        """
        statements = (LOCK_LIMIT, (job_type.encode(),)), self.listing(claim, [job_type])
        if self.ends is None:
            answers = yield Together(statements)
        else:
            ends, self.ends = self.ends, None
            answers = yield from ends.before(*statements)
        (((limit, _),), rows) = answers
        # Somebody else claims at this moment, or the type was paused just now.
        self.is_contended = self.is_contended or not limit
        return rows

    def took(self, rows: Rows, sent_ns: int) -> None:
        """A claim sent at ``sent_ns`` brought ``rows``."""
        if rows:
            self.rows = self.rows + rows
            self.sent_ns = self.sent_ns or sent_ns


def claim_script(
    plan: ClaimPlan,
    worker_id: str,
    lease_seconds: float,
    front: ClaimCursor,
    *,
    announce: bool | None,
    passed_by: Sequence[int] = (),
    ends: ResultsWithClaim | None = None,
    is_proof: bool = False,
) -> Script:
    """Return the script of one round of claims; its value is a ClaimResult.

    ``announce``: True publishes the worker as idle before claiming once more, False takes that back.
    ``passed_by``: runs whose claim the database refuses, and which could not be set aside. ``ends``: what has
    ended of types with a limit and is written with their claims. ``is_proof``: a look found nothing to claim.
    """
    round_ = ClaimBatch(
        worker_id.encode(), lease_seconds, front, passed_by, plan.listed, is_proof, ends=ends
    )  # fmt: skip
    if announce is not None:
        yield (IDLE if announce else BUSY), (round_.me,)
    # In turns: a backlog of either kind leaves the other every second round, or every eighth where the other
    # had nothing of late.
    turns = (_unlimited, _limited_types) if plan.unlimited_first else (_limited_types, _unlimited)
    # Whether types without a limit brought all that they were asked for: a limited type says nothing of them.
    has_backlog = False
    for turn in turns:
        wanted = plan.limit - len(round_.rows)
        if wanted > 0 and not round_.is_late:
            is_full = yield from _tried(round_, turn(plan, size_of(wanted), round_))
            has_backlog = has_backlog or (is_full and turn is _unlimited)
    may_be_more = has_backlog and round_.failure is None and not round_.is_late
    if may_be_more and (ahead := plan.ahead_beside(round_.rows)):
        yield from _tried(round_, _unlimited(replace(plan, types=plan.quick), size_of(ahead), round_))
    if round_.ends is not None:
        yield from round_.ends.before()
    return round_.result


def _tried(round_: ClaimBatch, turn: Turn) -> Turn:
    """Take a turn, and return what it does; one that is refused leaves the round what it has."""
    try:
        is_full = yield from turn
    except StatementFailed as refused:
        round_.failure = refused
        return False
    round_.is_full = round_.is_full or is_full
    return is_full


def _unlimited(plan: ClaimPlan, limit: int, round_: ClaimBatch) -> Turn:
    """Claim from the types without a limit, a window of them at a time until one has something."""
    names: Sequence[str] = plan.types
    if len(names) > WINDOW:
        found: Rows = yield TYPES_WITH_WORK, ()
        names = sorted({name for (name,) in found} & set(names))
    for some in windows(names, plan.round):
        # A statement for all would come to runs that are passed by, and be refused for them.
        turn = _apart if round_.passed_by else _together
        is_full = yield from turn(plan, some, limit, round_)
        if is_full is not None:
            round_.has_more = True
            return is_full
    round_.has_more = False
    return False


def _together(
    plan: ClaimPlan, names: Sequence[str], limit: int, round_: ClaimBatch
) -> Generator[Asked, Any, bool | None]:
    """Claim from ``names`` by one statement; returns as a turn does, None where they have nothing."""
    values = (array(names), round_.me, round_.lease)
    try:
        for places in round_.front.tries(names, limit, oldest_first=plan.oldest_first):
            sent_ns = boottime_ns()
            statement = claim(limit, oldest_first=plan.oldest_first, past_locks=places.past_locks)
            rows: Rows = yield round_.listing((statement, (*values, *map(array, places.values))), names)
            round_.took(rows, sent_ns)
            round_.front.took(rows, limit, oldest_first=plan.oldest_first)
            if rows:
                # There may be more before where it began or behind what it looked at, however few came.
                return len(rows) >= limit or places != WHOLE
        if round_.is_proof:
            # The look saw what others have locked, too.
            return None
        sent_ns = boottime_ns()
        statement = claim(min(limit, PAST_LOCKS), past_locks=True)
        rows = yield round_.listing((statement, (*values, *map(array, WHOLE.values))), names)
        round_.took(rows, sent_ns)
        if rows:
            round_.front.found_past_locks()
        return True if rows else None
    except StatementFailed as refused:
        if not is_refusal(refused):
            raise
        round_.front.forget()
    return (yield from _apart(plan, names, limit, round_))


def _apart(
    plan: ClaimPlan, names: Sequence[str], limit: int, round_: ClaimBatch
) -> Generator[Asked, Any, bool | None]:
    """Claim from ``names`` in parts; returns as a turn does, None where other types are to be asked."""
    before = len(round_.rows)
    is_full = yield from _claim_apart(plan, names, limit, round_, is_limited=False)
    return is_full if is_full or len(round_.rows) > before else None


def _claim_apart(
    plan: ClaimPlan, names: Sequence[str], limit: int, round_: ClaimBatch, *, is_limited: bool
) -> Turn:
    """Claim up to ``limit`` runs of ``names`` in parts, and set aside what the database refuses alone.

    is_limited: ``names`` is one type that may run only so often at once.
    """
    passed_by = [*round_.passed_by, *(one.run_id for one in round_.refused)]
    statement = candidates(limit, oldest_first=plan.oldest_first)
    runs: Rows = yield statement, (array(names), numbers(passed_by), b"t" if is_limited else b"f")
    known, before = len(round_.refused), len(round_.rows)
    parts = Parts(runs)
    for part in parts:
        if round_.is_late or len(round_.refused) >= MOST_REFUSED:
            break
        ids = numbers([run_id for run_id, _ in part])
        these = CLAIM_THESE, (ids, round_.me, round_.lease, names[0].encode() if is_limited else None)
        sent_ns = boottime_ns()
        try:
            if is_limited:
                rows: Rows = yield from round_.under_limit(names[0], these)
            else:
                rows = yield round_.listing(these, names)
        except StatementFailed as failure:
            if not parts.halve(part, failure):
                ((run_id, job_type),) = part
                is_set_aside = yield from _set_aside(run_id, reason(failure))
                round_.refused.append(RefusedClaim(run_id, job_type, reason(failure), is_set_aside))
        else:
            round_.took(rows, sent_ns)
    # What is left of runs that a limit or somebody's lock keeps is no reason to ask again at once.
    is_full = len(runs) >= limit and len(round_.rows) > before
    return is_full or len(round_.refused) > known


def _set_aside(run_id: int, why: str) -> Turn:
    """Set a run aside; return whether the rule let its row say so."""
    sentence = f"The database refuses to let it start: {why}. It is tried again later."
    try:
        moved: Rows = yield SET_ASIDE, (b"%d" % run_id, sentence.encode())
    except StatementFailed as refused:
        if not is_refusal(refused):
            raise
        return False
    return bool(moved)


def windows(names: Sequence[str], round_: int) -> Iterator[Sequence[str]]:
    """Yield ``names`` 64 at a time, others first each round: a claim's cost grows with the types it asks."""
    start = (round_ * WINDOW) % len(names) if len(names) > WINDOW else 0
    turned = [*names[start:], *names[:start]]
    for place in range(0, len(turned), WINDOW):
        yield turned[place : place + WINDOW]


def _limited_types(plan: ClaimPlan, limit: int, round_: ClaimBatch) -> Turn:
    """Claim from the types with a limit, one after the other; what is claimed is ours whatever follows."""
    before, is_full = len(round_.rows), False
    for name in plan.limited:
        wanted = max(limit - (len(round_.rows) - before), plan.limited_ahead.get(name, 0))
        wanted = min(wanted, MOST_HELD - len(round_.rows))
        if wanted <= 0 or round_.is_late:
            break
        sent_ns = boottime_ns()
        apart = _claim_apart(plan, [name], size_of(wanted), round_, is_limited=True)
        if round_.passed_by:
            is_full = (yield from apart) or is_full
            continue
        try:
            values = (name.encode(), round_.me, round_.lease)
            statement = claim_limited(size_of(wanted), oldest_first=plan.oldest_first)
            rows: Rows = yield from round_.under_limit(name, (statement, values))
        except StatementFailed as refused:
            if is_refusal(refused):
                is_full = (yield from apart) or is_full
                continue
            if len(round_.rows) == before:
                raise
            break
        round_.took(rows, sent_ns)
    return is_full or len(round_.rows) - before >= limit


def busy_script(worker_id: str) -> Script:
    """Return the script that takes back the word that the worker is idle."""
    yield BUSY, (worker_id.encode(),)


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What a look after a connection error found; attempts are a run and its epoch each.

    ``given_back``: how many claims went back whose answer never came. ``forgotten``: attempts of ours that
    the database does not know of, which is back at an earlier state. ``refused``: claims that the database
    does not let go back.
    """

    given_back: int
    forgotten: Rows
    refused: Sequence[tuple[int, int]] = ()


def recovery_script(worker_id: str, in_flight: RunsInFlight) -> Script:
    """Return the script that compares what is held with what is locked; its value is a RecoveryResult."""
    forgotten: Rows = []
    if known := in_flight.attempts():
        forgotten = yield FORGOTTEN, (array(i for i, _ in known), array(e for _, e in known))
    me = worker_id.encode()
    rows: Rows = yield HELD_BY_ME, (me,)
    unknown = in_flight.unknown(rows)
    refused: list[tuple[int, int]] = []
    parts = Parts(unknown)
    for part in parts:
        try:
            yield RELEASE, (me, *_never_began(part))
        except StatementFailed as failure:
            if not parts.halve(part, failure):
                refused.append(part[0])
    return RecoveryResult(len(unknown) - len(refused), forgotten, refused)


def _never_began(attempts: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
    """Return the values of a release of ``attempts``, a run and its epoch each, of which nothing is told."""
    zeros, none = array(0.0 for _ in attempts), array(None for _ in attempts)
    ids, epochs = array(i for i, _ in attempts), array(e for _, e in attempts)
    return ids, epochs, zeros, zeros, none, none, array(False for _ in attempts)
