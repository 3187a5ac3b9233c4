"""One round of claims: who claims, what it has so far, and what it hands over."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wakeboard.queue.engine.claims import LOCK_LIMIT
from wakeboard.queue.engine.unbegun import listing
from wakeboard.runtime.loop.channel import Asked, Rows, Script, Statement, StatementFailed, Together, array
from wakeboard.runtime.loop.claim_cursor import Front
from wakeboard.runtime.loop.in_flight import boottime_ns
from wakeboard.runtime.loop.turnover import Ends

# Leases run from the claim, and a round asks for one limited type after the other: over a slow link, what it
# has is handed over after this share of a lease.
PATIENCE = 0.1

# A part of a round: yields statements, and returns whether there may be more where its rows came from.
Turn = Generator[Asked, Any, bool]


@dataclass(frozen=True, slots=True)
class Refused:
    """A run whose claim the database refuses, with its sentence; ``is_set_aside``: its row says so too."""

    run_id: int
    job_type: str
    why: str
    is_set_aside: bool


@dataclass(frozen=True, slots=True)
class Claimed:
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
    refused: Sequence[Refused] = ()
    is_contended: bool = False
    listed: frozenset[str] = frozenset()


@dataclass(slots=True)
class Round:
    """One round under way: who claims, which runs it passes by, and what it has so far.

    ``is_proof``: a look found nothing, and the round only shows that claims can be made.
    """

    me: bytes
    lease_seconds: float
    front: Front
    passed_by: Sequence[int] = ()
    listed: frozenset[str] = frozenset()
    is_proof: bool = False
    rows: Rows = field(default_factory=list)
    is_full: bool = False
    has_more: bool | None = None
    failure: StatementFailed | None = None
    sent_ns: int = 0
    refused: list[Refused] = field(default_factory=list)
    ends: Ends | None = None
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
    def result(self) -> Claimed:
        """What it hands over. One cut short has not asked for everything: the next one follows at once."""
        is_full = self.is_full or self.is_late
        return Claimed(
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
