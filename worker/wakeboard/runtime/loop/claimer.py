"""The claiming side of the loop: when to ask, whether to be told, and what an empty answer means.

NOTIFY is a hint: after a claim that was not full the worker publishes itself idle, claims once more, and
waits for a notification or the next poll. Once claims come back full it takes that back, because every
enqueue pays for an idle worker.
"""

from __future__ import annotations

import math
from functools import partial
from time import monotonic

from wakeboard.config import log
from wakeboard.database.db import NO_TABLES_STATES
from wakeboard.database.outage_log import MissingTables, RepeatedWarnings
from wakeboard.database.poison_rows import PassedBy
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.loop.channel import Rows, StatementFailed
from wakeboard.runtime.loop.claim_batch import (
    ClaimResult,
    RecoveryResult,
    busy_script,
    claim_script,
    recovery_script,
)
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_state import NEVER, ClaimState
from wakeboard.runtime.loop.claim_planner import MOST_HELD, ClaimPlan, ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.slots import Slots
from wakeboard.runtime.loop.deferred_results import LEAVES_SECONDS, MOST_ALONG, ResultsWithClaim, DeferredResults
from wakeboard.runtime.loop.result_writer import ResultWriter

# Somebody who claims from a type with a limit has its lock for about a millisecond.
CONTENDED_SECONDS = 0.02
OVERDUE_SECONDS = 1.0
REFUSED_PAUSE_SECONDS, NO_TABLES_PAUSE_SECONDS = 0.2, 1.0
# A look that found no work stands for a poll: until this much after the next one is expected, and so long
# after the last claim at most, because only a claim proves that claims can be made.
LATE_LOOK_SECONDS = 0.5
# After a claim that brought something, but not all that it was to bring; at once when that was a good many.
ANOTHER_LOOK_SECONDS, A_GOOD_MANY = 0.05, 8
UNPROVEN_SECONDS = 30.0
# By then a claim that an old connection left under way has ended, one way or the other.
SETTLED_SECONDS = 35.0


class Claimer:
    """Sends claims on one connection and hands the rows to the slots. Durations are in seconds."""

    def __init__(
        self,
        connection: LoopConnection,
        claims: ClaimPlanner,
        state: ClaimState,
        slots: Slots,
        in_flight: RunsInFlight,
        turnover: DeferredResults,
        writer: ResultWriter,
        *,
        worker_id: str,
        lease_seconds: float,
        poll_seconds: float,
        lack: MissingTables,
    ) -> None:
        """``lack``: the tables that are missing, as every thread meets it."""
        self._connection = connection
        self._claims = claims
        self._state = state
        self._front = ClaimCursor()
        self._slots = slots
        self._in_flight = in_flight
        self._turnover = turnover
        self._writer = writer
        # Whether the worker may claim, and how often its duties have come round: as of the loop's last step.
        self.may_claim = False
        self._duty_rounds = 0
        self._is_gathering = False
        # What the claim under way has taken along.
        self._ends: ResultsWithClaim | None = None
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._lack = lack
        self._is_idle = False
        self._announcement: bool | None = None
        self._next_poll = self._claimed_at = 0.0
        self._looked_empty = False
        self._recover_at = math.inf
        self._succeeded_at = monotonic()
        self._passed_by = PassedBy()
        self._warnings = RepeatedWarnings()

    def beat(self) -> Beat:
        """Return how the claims stand. The loop itself sets the time: when it hangs, the claims are late."""
        error = self._state.hindrance or self._state.error
        return Beat("claim", self._poll_seconds, monotonic() - self._succeeded_at, error)

    def well(self) -> None:
        """All is as it should be: a claim was answered, or none is due (slots busy, worker draining)."""
        if self._state.hindrance is None:
            self._succeeded_at = monotonic()
        self._state.error = None

    def rest(self) -> None:
        """Nothing may be claimed for now, and that is as it should be: nobody need notify this worker."""
        self.well()
        if self._is_idle and self._connection.is_free:
            self._is_idle = self._announcement = False
            self._take_back_idle()

    @property
    def is_drained(self) -> bool:
        """Whether a claim came back empty after what was due had been fired, and nothing ended since."""
        return self._state.empty_since_round >= 1 and not self._state.is_hungry and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way."""
        return self._connection.is_quiet

    @property
    def is_at_it(self) -> bool:
        """Whether a claim is under way, or waits for runs that are over in a moment."""
        return self._is_gathering or not self._connection.is_quiet

    @property
    def seconds_to_gather(self) -> float:
        """Seconds for which a claim waits for such runs, 0 when none does."""
        return self._turnover.seconds_to_gather if self._is_gathering else 0.0

    @property
    def seconds_to_poll(self) -> float:
        """Seconds until the next claim is due anyway; 0 when one is wanted now."""
        return 0.0 if self._state.is_hungry else max(0.0, self._next_poll - monotonic())

    def looked(self, has_work: bool, asked_at: float) -> None:
        """Somebody asked at ``asked_at`` (monotonic) whether anything could be claimed: no need to poll.

        While claims fail or have no connection, they go on trying at their own pace.
        """
        self._looked_empty = not has_work
        if has_work:
            self._state.wake()
        elif self._state.error is None and self._connection.is_up:
            until = min(
                asked_at + self._poll_seconds + LATE_LOOK_SECONDS, self._claimed_at + UNPROVEN_SECONDS
            )
            self._next_poll = max(self._next_poll, until)
            self.well()

    def connected(self) -> None:
        """There is a fresh connection: compare what is held with what the database knows, publish anew."""
        self._state.is_hungry, self._is_idle, self._announcement = True, False, None
        self._recover()
        self._recover_at = monotonic() + SETTLED_SECONDS

    def _recover(self) -> None:
        assert self._connection.channel is not None
        self._recover_at = math.inf
        script = recovery_script(self._worker_id, self._in_flight)
        self._connection.channel.run(script, self._recovered, self._failed)

    def _recovered(self, found: RecoveryResult) -> None:
        """Stop what the database does not know of before it is claimed once more."""
        self._lack.over("claim")
        if found.forgotten:
            self._slots.forget(found.forgotten)
        if found.refused:
            self._in_flight.abandon(found.refused)
            ids = ",".join(str(run_id) for run_id, _ in found.refused[:20])
            log.warn("The database refuses to take claims back; their leases end by themselves.",
                     runs=ids, count=len(found.refused))  # fmt: skip
        if found.given_back:
            log.note("Gave back claims whose answer was lost.", count=found.given_back)

    def step(self, duty_rounds: int) -> None:
        """Send the next claim when somebody may be waiting and a slot is free.

        ``duty_rounds``: how often the duties have come round, so that what was due has been fired.
        """
        self._duty_rounds = duty_rounds
        now = monotonic()
        self._is_gathering = False
        if not self._connection.is_free or now < self._state.not_before or self._slots.is_clearing:
            return
        if now >= self._recover_at:
            self._recover()
            return
        if not self._state.is_hungry and now < self._next_poll:
            return
        if self._turnover.must_leave_room:
            self._leave_room()
        elif self._turnover.seconds_to_gather > 0:
            self._is_gathering = True
        elif (plan := self._plan()) is not None:
            self._send(plan)
        else:
            if self._unwritten >= self._most_unwritten:
                self._state.error = f"{self._unwritten:,} runs have ended and could not be written yet."
            else:
                self.well()
            self._take_back_idle()

    @property
    def _unwritten(self) -> int:
        """How many runs have ended and are not written yet."""
        return len(self._in_flight) - sum(load.outstanding for load in self._slots.loads)

    @property
    def _most_unwritten(self) -> int:
        """So many answers may wait while claims go on: hardly any while the database refuses them all."""
        return self._claims.slots if self._writer.is_refused else MOST_HELD

    def _plan(self, coming: int = 0) -> ClaimPlan | None:
        if self._unwritten >= self._most_unwritten:
            return None
        return self._claims.plan(self._slots.loads, coming=coming, unwritten=self._unwritten)

    def _go_on(self, rows: Rows) -> None:
        """Send the next claim of a backlog before ``rows`` are handed out: that takes as long as a claim."""
        if not self._state.not_before <= monotonic() < self._recover_at or not self.may_claim:
            return
        if not self._claims.are_quick(rows):
            return
        if (plan := self._plan(len(rows))) is not None:
            self._send(plan)

    def _send(self, plan: ClaimPlan) -> None:
        assert self._connection.channel is not None
        announce, self._announcement = self._announcement, None
        # At rest, where looks say that there is nothing, a claim only proves itself.
        is_proof = self._looked_empty and not self._state.is_hungry
        self._looked_empty = self._state.is_hungry = False
        self._claimed_at = monotonic()
        self._next_poll = self._claimed_at + self._poll_seconds
        round_ = self._duty_rounds
        # Where other types are asked first, what has ended would wait for them.
        self._ends = ends = self._turnover.take(most=0 if plan.unlimited_first else MOST_ALONG)
        script = claim_script(
            plan, self._worker_id, self._lease_seconds, self._front, announce=announce,
            passed_by=self._passed_by.ids, ends=ends, is_proof=is_proof,
        )  # fmt: skip

        def done(claimed: ClaimResult) -> None:
            rows, is_full = claimed.rows, claimed.is_full
            if rows or claimed.failure is None:
                self.well()
            self._claims.weigh(rows)
            if claimed.has_more is not None:
                self._claims.has_more = claimed.has_more
            if claimed.is_contended:
                self._next_poll = min(self._next_poll, monotonic() + CONTENDED_SECONDS)
            # Hungry by now: something ended or was enqueued after the claim had looked.
            self._state.empty_since_round = NEVER if rows or self._state.is_hungry else round_
            self._turnover.handed_out(rows)
            # Published as idle first, then claimed once more: nothing that came in between can be missed.
            self._state.is_hungry = self._state.is_hungry or is_full or not self._is_idle
            if rows and not is_full:
                # Others may have held for a moment what came next.
                if len(rows) >= A_GOOD_MANY:
                    self._state.is_hungry = True
                self._next_poll = min(self._next_poll, monotonic() + ANOTHER_LOOK_SECONDS)
            # Runs that are over in a moment end before anybody could be told that a slot is free.
            is_at_rest = is_full or not self._turnover.seconds_to_gather
            if is_full == self._is_idle and is_at_rest:
                self._is_idle = self._announcement = not is_full
            if claimed.refused:
                self._pass_by(claimed)
            if claimed.failure is not None:
                self._failed(claimed.failure)
            elif is_full:
                self._go_on(rows)
            self._slots.take(rows, claimed.sent_ns, claimed.listed)
            self._tell(ends)

        self._connection.channel.run(script, done, partial(self._lost, ends), is_spare=is_proof)

    def give_back_overdue(self) -> None:
        """Leave to the writer what a claim has taken along that has not answered for a second.

        For when nothing is claimed any more: a stop waits for no claim. What is written twice is known then.
        """
        channel = self._connection.channel
        if self._ends is not None and channel is not None and channel.is_overdue(OVERDUE_SECONDS):
            self._ends.give_back()

    def _leave_room(self) -> None:
        """Let another worker that is idle be the first to claim from the types with a limit."""
        assert self._connection.channel is not None
        self._ends = ends = self._turnover.take()
        self._state.is_hungry = True

        def done(is_heard: bool) -> None:
            self._tell(ends)
            if is_heard:
                self._state.pause(LEAVES_SECONDS)

        script = self._turnover.leave_room(ends, self._worker_id.encode())
        self._connection.channel.run(script, done, partial(self._lost, ends))

    def _lost(self, ends: ResultsWithClaim, failure: Exception) -> None:
        """Leave to the writer what a claim has taken along that was refused or lost."""
        ends.give_back()
        self._tell(ends)
        self._failed(failure)

    def _tell(self, ends: ResultsWithClaim) -> None:
        """Tell of what was written with a claim."""
        if self._ends is ends:
            self._ends = None
        self._claims.wrote(len(ends.written))
        self._writer.written(ends.written)

    def _pass_by(self, claimed: ClaimResult) -> None:
        """Tell of runs whose claim was refused; a round of nothing else is no reason to hurry."""
        if not claimed.rows:
            self._state.pause(REFUSED_PAUSE_SECONDS)
        for one in claimed.refused:
            if not one.is_set_aside:
                self._passed_by.add(one.run_id)
            self._warnings.warn(
                one.run_id, "The database refuses to let a run start; the others go past it.",
                run_id=one.run_id, job_type=one.job_type, error=one.why,
            )  # fmt: skip

    def _take_back_idle(self) -> None:
        """Every slot is busy: producers need not notify this worker."""
        if self._announcement is False and self._connection.channel is not None:
            self._announcement = None
            self._connection.channel.run(busy_script(self._worker_id), lambda _: None, self._failed)

    def _failed(self, failure: Exception) -> None:
        self._is_idle, self._announcement = False, None
        self._state.error = str(failure)
        if isinstance(failure, StatementFailed):
            # A claim among the refused statements may have been committed: look for runs that nobody holds.
            self._recover_at = monotonic()
            if failure.sqlstate in NO_TABLES_STATES:
                self._state.pause(NO_TABLES_PAUSE_SECONDS)
                self._lack.met("claim", failure)
                return
            self._state.pause(REFUSED_PAUSE_SECONDS)
            self._warnings.warn(
                str(failure), "The database refused a claim.", error=str(failure),
                sqlstate=failure.sqlstate,
            )  # fmt: skip
