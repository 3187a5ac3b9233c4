"""One batch of claims: its statements, in order, and what they brought.

Types with and without a limit take turns; what is claimed ahead comes last. Whatever a statement brought
belongs to the worker, even when a later one is refused.

The owner of the database may put a rule on the table that forbids a run to start. The other runs of the batch
are not affected: they are read first, and claimed in halves until the run is found that is refused alone.
That run is set aside: it is due again after a minute, then two, up to an hour, with ``claim_refused`` and the
database's sentence in its row. No attempt of it has begun, and none is counted. Where the rule refuses even
that, this process skips the run for a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database.index_predicates import TYPES_WITH_WORK
from wakeboard.database.poison_rows import RowBatches, is_refusal, refusal_reason
from wakeboard.queue.engine.claims import (
    BUSY,
    CLAIM_THESE,
    DELAY_REFUSED,
    IDLE,
    LOCK_LIMIT,
    MISSING_ATTEMPTS,
    RUNS_OF_WORKER,
    candidates,
    claim,
    claim_limited,
)
from wakeboard.queue.engine.endings import RELEASE
from wakeboard.queue.engine.unbegun import claim_and_list
from wakeboard.runtime.loop.channel import (
    Request,
    Rows,
    Script,
    Statement,
    StatementFailed,
    Transaction,
    array,
    numbers,
)
from wakeboard.runtime.loop.claim_cursor import FIRST_ROW, ClaimCursor
from wakeboard.runtime.loop.claim_planner import MOST_IN_FLIGHT, ClaimPlan, size_of
from wakeboard.runtime.loop.deferred_results import ResultsWithClaim
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.worker import Worker

# The most types that one statement claims from.
WINDOW = 64
# Locked rows may hide due ones. A claim that skips locked rows takes a few; the next one follows at once.
PAST_LOCKS = 8
# The most refused runs that one batch looks for: each costs some statements.
MOST_REFUSED = 25
# Leases count from the claim, and a batch asks one limited type after the other. Over a slow link, what it
# has is handed out after this share of a lease.
PATIENCE = 0.1

# A part of a batch: it yields requests, and returns whether there may be more runs where it claimed.
Turn = Generator[Request, Any, bool]
# The same, None when there are none.
MaybeTurn = Generator[Request, Any, bool | None]


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A run whose claim the database refuses, with its sentence; ``is_set_aside``: its row says so too."""

    run_id: int
    job_type: str
    reason: str
    is_set_aside: bool


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What one batch of claims brought. The rows are ours even when a later statement was refused.

    ``sent_ns``: when the first claim that brought rows was sent; all leases count from then.
    ``has_more``: whether types without a limit brought any row, None when they were not asked.
    ``is_contended``: another worker was just claiming from a type with a limit.
    ``listed``: of which types the claims listed the runs as not begun.
    """

    rows: Rows
    is_full: bool
    has_more: bool | None = None
    failure: StatementFailed | None = None
    sent_ns: int = 0
    refused: Sequence[RefusedClaim] = ()
    is_contended: bool = False
    listed: frozenset[str] = frozenset()


class ClaimBatch:
    """One batch of claims under way."""

    def __init__(
        self,
        plan: ClaimPlan,
        worker: Worker,
        cursor: ClaimCursor,
        *,
        results: ResultsWithClaim | None = None,
        skipped: Sequence[int] = (),
        is_probe: bool = False,
    ) -> None:
        """
        Args:
            plan: What to claim.
            worker: Who claims.
            cursor: Where claims begin.
            results: Results of types with a limit, which are written with the claims of these.
            skipped: Ids of runs whose claim the database refuses, and which could not be set aside.
            is_probe: Whether a poll found no work, so the batch only shows that claims can be made.
        """
        self._plan = plan
        self._worker_id = worker.id.encode()
        self._lease_seconds = worker.lease_seconds
        self._lease = repr(worker.lease_seconds).encode()
        self._cursor = cursor
        self._results = results
        self._skipped = skipped
        self._is_probe = is_probe
        self._rows: Rows = []
        self._is_full = self._is_contended = False
        self._has_more: bool | None = None
        self._failure: StatementFailed | None = None
        self._sent_ns = 0
        self._refused: list[RefusedClaim] = []

    def script(self, *, publish_idle: bool | None = None) -> Script:
        """Return the script of the batch; its value is a ClaimResult.

        ``publish_idle``: True publishes the worker as idle before it claims once more, False takes that back.
        """
        plan = self._plan
        if publish_idle is not None:
            yield (IDLE if publish_idle else BUSY), (self._worker_id,)
        # Whether types without a limit brought all that they were asked for.
        has_backlog = False
        # Who comes first alternates: a backlog of one kind leaves every second batch to the other, or every
        # eighth when that had no work lately.
        for is_limited in (False, True) if plan.unlimited_first else (True, False):
            wanted = plan.limit - len(self._rows)
            if wanted <= 0 or self._is_late:
                continue
            if is_limited:
                yield from self._try(self._claim_limited(plan.limited, size_of(wanted)))
            else:
                has_backlog = yield from self._try(self._claim_unlimited(plan.types, size_of(wanted)))
        may_be_more = has_backlog and self._failure is None and not self._is_late
        if may_be_more and (ahead := plan.ahead_beside(self._rows)):
            yield from self._try(self._claim_unlimited(plan.quick, size_of(ahead)))
        if self._results is not None:
            yield from self._results.before()
        # A batch cut short has not asked for everything, so the next one follows at once.
        return ClaimResult(
            self._rows, self._is_full or self._is_late, self._has_more, self._failure, self._sent_ns,
            self._refused, self._is_contended, plan.listed,
        )  # fmt: skip

    @property
    def _is_late(self) -> bool:
        """Whether the first rows have waited for so long that nothing more should be asked for."""
        return self._sent_ns > 0 and boottime_ns() - self._sent_ns > self._lease_seconds * PATIENCE * 1e9

    def _try(self, turn: Turn) -> Turn:
        """Take a turn and return its value. When it is refused, the batch keeps what it has."""
        try:
            is_full = yield from turn
        except StatementFailed as refused:
            self._failure = refused
            return False
        self._is_full = self._is_full or is_full
        return is_full

    def _add(self, rows: Rows, sent_ns: int) -> None:
        """Add the rows of a claim that was sent at ``sent_ns``."""
        if rows:
            self._rows = self._rows + rows
            self._sent_ns = self._sent_ns or sent_ns

    def _with_listing(self, statement: Statement, job_types: Collection[str]) -> Statement:
        """Return a claim of ``job_types`` that also lists the runs of those in ``plan.listed``."""
        if self._plan.listed.isdisjoint(job_types):
            return statement
        text, values = statement
        listed = array(sorted(self._plan.listed.intersection(job_types)))
        return claim_and_list(text, len(values) + 1), (*values, listed)

    # ---- types without a limit ----------------------------------------------------------------------

    def _claim_unlimited(self, names: Sequence[str], limit: int) -> Turn:
        """Claim from types without a limit, a window of them at a time until one has runs."""
        if len(names) > WINDOW:
            rows: Rows = yield TYPES_WITH_WORK, ()
            names = sorted({name for (name,) in rows} & set(names))
        for window in windows(names, self._plan.round):
            # A statement for all would reach skipped runs, and be refused for them.
            claim_window = self._claim_in_parts if self._skipped else self._claim_together
            is_full = yield from claim_window(window, limit)
            if is_full is not None:
                self._has_more = True
                return is_full
        self._has_more = False
        return False

    def _claim_together(self, names: Sequence[str], limit: int) -> MaybeTurn:
        """Claim from ``names`` by one statement."""
        oldest_first = self._plan.oldest_first
        values = (array(names), self._worker_id, self._lease)
        try:
            for start in self._cursor.starts(names, limit, oldest_first=oldest_first):
                sent_ns = boottime_ns()
                text = claim(limit, oldest_first=oldest_first, past_locks=start.past_locks)
                rows: Rows = yield self._with_listing((text, (*values, *map(array, start.values))), names)
                self._add(rows, sent_ns)
                self._cursor.advance(rows, limit, oldest_first=oldest_first)
                if rows:
                    # There may be more before its start, or behind what it looked at, however few came.
                    return len(rows) >= limit or start != FIRST_ROW
            if self._is_probe:
                # The poll saw locked rows, too.
                return None
            sent_ns = boottime_ns()
            text = claim(min(limit, PAST_LOCKS), past_locks=True)
            rows = yield self._with_listing((text, (*values, *map(array, FIRST_ROW.values))), names)
            self._add(rows, sent_ns)
            if rows:
                self._cursor.skip_locked()
            return True if rows else None
        except StatementFailed as refused:
            if not is_refusal(refused):
                raise
            self._cursor.reset()
        return (yield from self._claim_in_parts(names, limit))

    def _claim_in_parts(self, names: Sequence[str], limit: int) -> MaybeTurn:
        """Claim from ``names`` around the runs that the database refuses."""
        before = len(self._rows)
        is_full = yield from self._claim_accepted(names, limit, is_limited=False)
        return is_full if is_full or len(self._rows) > before else None

    # ---- types with a limit -------------------------------------------------------------------------

    def _claim_limited(self, names: Sequence[str], limit: int) -> Turn:
        """Claim from types with a limit, one after the other."""
        oldest_first = self._plan.oldest_first
        before, is_full = len(self._rows), False
        for name in names:
            wanted = max(limit - (len(self._rows) - before), self._plan.limited_ahead.get(name, 0))
            wanted = min(wanted, MOST_IN_FLIGHT - len(self._rows))
            if wanted <= 0 or self._is_late:
                break
            sent_ns = boottime_ns()
            in_parts = self._claim_accepted([name], size_of(wanted), is_limited=True)
            if self._skipped:
                is_full = (yield from in_parts) or is_full
                continue
            try:
                values = (name.encode(), self._worker_id, self._lease)
                text = claim_limited(size_of(wanted), oldest_first=oldest_first)
                rows: Rows = yield from self._claim_under_lock(name, (text, values))
            except StatementFailed as refused:
                if is_refusal(refused):
                    is_full = (yield from in_parts) or is_full
                    continue
                if len(self._rows) == before:
                    raise
                break
            self._add(rows, sent_ns)
        return is_full or len(self._rows) - before >= limit

    def _claim_under_lock(self, job_type: str, statement: Statement) -> Script:
        """Count and claim runs of a type with a limit under the type's lock; the value are the rows.

        The results that wait are written in the transaction of the first such claim.
        """
        statements = (LOCK_LIMIT, (job_type.encode(),)), self._with_listing(statement, [job_type])
        if self._results is None:
            answers = yield Transaction(statements)
        else:
            results, self._results = self._results, None
            answers = yield from results.before(*statements)
        (((limit, _),), rows) = answers
        # Another worker claims at this moment, or the type was paused just now.
        self._is_contended = self._is_contended or not limit
        return rows

    # ---- refused runs -------------------------------------------------------------------------------

    def _claim_accepted(self, names: Sequence[str], limit: int, *, is_limited: bool) -> Turn:
        """Claim up to ``limit`` runs of ``names`` in halves, and set aside those that are refused alone.

        ``is_limited``: ``names`` is one type with a limit.
        """
        skipped = [*self._skipped, *(one.run_id for one in self._refused)]
        text = candidates(limit, oldest_first=self._plan.oldest_first)
        runs: Rows = yield text, (array(names), numbers(skipped), b"t" if is_limited else b"f")
        refused_before, before = len(self._refused), len(self._rows)
        parts = RowBatches(runs)
        for part in parts:
            if self._is_late or len(self._refused) >= MOST_REFUSED:
                break
            ids = numbers([run_id for run_id, _ in part])
            limited_type = names[0].encode() if is_limited else None
            statement = CLAIM_THESE, (ids, self._worker_id, self._lease, limited_type)
            sent_ns = boottime_ns()
            try:
                if is_limited:
                    rows: Rows = yield from self._claim_under_lock(names[0], statement)
                else:
                    rows = yield self._with_listing(statement, names)
            except StatementFailed as failure:
                if not parts.halve(part, failure):
                    ((run_id, job_type),) = part
                    is_set_aside = yield from _set_aside(run_id, refusal_reason(failure))
                    self._refused.append(
                        RefusedClaim(run_id, job_type, refusal_reason(failure), is_set_aside)
                    )
            else:
                self._add(rows, sent_ns)
        # Runs that are left because of a limit or a lock are no reason to claim again at once.
        is_full = len(runs) >= limit and len(self._rows) > before
        return is_full or len(self._refused) > refused_before


def _set_aside(run_id: int, reason_text: str) -> Turn:
    """Set a run aside; return whether the rule let its row say so."""
    sentence = f"The database refuses to let it start: {reason_text}. It is tried again later."
    try:
        moved: Rows = yield DELAY_REFUSED, (b"%d" % run_id, sentence.encode())
    except StatementFailed as refused:
        if not is_refusal(refused):
            raise
        return False
    return bool(moved)


def windows(names: Sequence[str], round_number: int) -> Iterator[Sequence[str]]:
    """Yield ``names`` 64 at a time, others first each round: a claim's cost grows with the types it asks."""
    start = (round_number * WINDOW) % len(names) if len(names) > WINDOW else 0
    rotated = [*names[start:], *names[:start]]
    for place in range(0, len(rotated), WINDOW):
        yield rotated[place : place + WINDOW]


def busy_script(worker_id: str) -> Script:
    """Return the script that publishes the worker as busy."""
    yield BUSY, (worker_id.encode(),)


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What a comparison with the database found after a connection error.

    ``given_back``: how many claims were given back whose answer was lost. ``forgotten``: our attempts (run,
    epoch) that the database does not know of, because it is back at an earlier state. ``refused``: claims
    that the database does not let us give back.
    """

    given_back: int
    forgotten: Rows
    refused: Sequence[tuple[int, int]] = ()


def recovery_script(worker_id: str, in_flight: RunsInFlight) -> Script:
    """Return the script that compares the runs in flight with the rows; its value is a RecoveryResult."""
    forgotten: Rows = []
    if attempts := in_flight.attempts():
        forgotten = yield MISSING_ATTEMPTS, (array(i for i, _ in attempts), array(e for _, e in attempts))
    rows: Rows = yield RUNS_OF_WORKER, (worker_id.encode(),)
    unknown = in_flight.unknown(rows)
    refused: list[tuple[int, int]] = []
    parts = RowBatches(unknown)
    for part in parts:
        try:
            yield RELEASE, (worker_id.encode(), *_unstarted_values(part))
        except StatementFailed as failure:
            if not parts.halve(part, failure):
                refused.append(part[0])
    return RecoveryResult(len(unknown) - len(refused), forgotten, refused)


def _unstarted_values(attempts: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
    """Return the values that release ``attempts`` (run, epoch) which have not begun."""
    zeros, none = array(0.0 for _ in attempts), array(None for _ in attempts)
    ids, epochs = array(i for i, _ in attempts), array(e for _, e in attempts)
    return ids, epochs, zeros, zeros, none, none, array(False for _ in attempts)
