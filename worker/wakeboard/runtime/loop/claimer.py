"""The claimer: when to claim, whether to be notified, and what an empty answer means.

NOTIFY is a hint. After a claim that was not full the worker publishes itself as idle, claims once more, and
waits for a notification or the next poll. Once claims come back full it takes that back, because every
enqueue pays for an idle worker.
"""

from __future__ import annotations

import math
from functools import partial
from time import monotonic

from wakeboard.config import log
from wakeboard.database.db import MISSING_TABLE_STATES
from wakeboard.database.outage_log import MissingTables, WarningThrottle
from wakeboard.database.poison_rows import SkippedRows
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.loop.channel import Rows, StatementFailed
from wakeboard.runtime.loop.claim_batch import (
    ClaimBatch,
    ClaimResult,
    RecoveryResult,
    busy_script,
    recovery_script,
)
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_planner import MOST_IN_FLIGHT, NEVER, ClaimPlan, ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.deferred_results import LEAVE_SECONDS, MOST_RESULTS, ResultsWithClaim
from wakeboard.runtime.loop.dispatcher import Dispatcher
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.worker import Worker

# Who claims from a type with a limit holds its lock for about a millisecond.
CONTENDED_SECONDS = 0.02
OVERDUE_SECONDS = 1.0
REFUSED_PAUSE_SECONDS, NO_TABLES_PAUSE_SECONDS = 0.2, 1.0
# A poll that found no work replaces the next claim until this long after the next poll is expected, and at
# most so long after the last claim, because only a claim proves that claims can be made.
LATE_POLL_SECONDS = 0.5
UNPROVEN_SECONDS = 30.0
# When the next claim follows after one that brought some runs but was not full; at once after a good many.
PARTIAL_SECONDS, A_GOOD_MANY = 0.05, 8
# By then a claim that was under way on a lost connection has ended, one way or the other.
SETTLED_SECONDS = 35.0


class Claimer:
    """Sends claims on one connection and hands the rows to the dispatcher.

    ``may_claim``: whether the worker may claim, as of the loop's last step.
    """

    def __init__(
        self,
        worker: Worker,
        connection: LoopConnection,
        planner: ClaimPlanner,
        dispatcher: Dispatcher,
        writer: ResultWriter,
        missing_tables: MissingTables,
    ) -> None:
        self._worker = worker
        self._connection = connection
        self._planner = planner
        self._demand = planner.demand
        self._dispatcher = dispatcher
        self._writer = writer
        self._deferred = writer.deferred
        self._missing_tables = missing_tables
        self._cursor = ClaimCursor()
        self.may_claim = False
        self._duty_rounds = 0
        self._is_gathering = False
        # The results that the claim under way writes.
        self._results: ResultsWithClaim | None = None
        # Whether the worker is idle, and what the next claim has to publish of that.
        self._is_idle = False
        self._publish_idle: bool | None = None
        self._next_claim_at = self._claimed_at = 0.0
        # Whether the last poll found no work.
        self._is_poll_empty = False
        self._recover_at = math.inf
        self._succeeded_at = monotonic()
        self._skipped = SkippedRows()
        self._warnings = WarningThrottle()

    def beat(self) -> Beat:
        """Return the claimer's state. The loop itself sets its time: when it hangs, claims are late."""
        error = self._demand.block_reason or self._demand.error
        return Beat("claim", self._worker.poll_seconds, monotonic() - self._succeeded_at, error)

    def mark_healthy(self) -> None:
        """Note that a claim was answered, or that none is due because slots are busy or the worker drains."""
        if self._demand.block_reason is None:
            self._succeeded_at = monotonic()
        self._demand.error = None

    def stand_down(self) -> None:
        """Note that nothing may be claimed for now: no enqueue need notify this worker."""
        self.mark_healthy()
        if self._is_idle and self._connection.is_free:
            self._is_idle = self._publish_idle = False
            self._publish_busy()

    @property
    def is_drained(self) -> bool:
        """Whether a claim came back empty after all that was due had been fired, and no run ended since."""
        return self._demand.empty_since_round >= 1 and not self._demand.is_wanted and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way."""
        return self._connection.is_quiet

    @property
    def is_active(self) -> bool:
        """Whether a claim is under way, or waits for brief runs."""
        return self._is_gathering or not self._connection.is_quiet

    @property
    def seconds_to_gather(self) -> float:
        """Seconds for which a claim waits for brief runs, 0.0 when none waits."""
        return self._deferred.seconds_to_gather if self._is_gathering else 0.0

    @property
    def seconds_to_claim(self) -> float:
        """Seconds until the next claim is due; 0.0 when one is wanted now."""
        return 0.0 if self._demand.is_wanted else max(0.0, self._next_claim_at - monotonic())

    def handle_poll(self, has_work: bool, polled_at: float) -> None:
        """Use a poll's answer of whether any run could be claimed: without work no claim is due soon.

        ``polled_at``: when it was sent (monotonic seconds). While claims fail or have no connection, they go
        on trying at their own pace.
        """
        self._is_poll_empty = not has_work
        if has_work:
            self._demand.wake()
        elif self._demand.error is None and self._connection.is_up:
            until = min(
                polled_at + self._worker.poll_seconds + LATE_POLL_SECONDS,
                self._claimed_at + UNPROVEN_SECONDS,
            )
            self._next_claim_at = max(self._next_claim_at, until)
            self.mark_healthy()

    def handle_new_connection(self) -> None:
        """Compare the runs in flight with the database, and publish the worker's idleness again."""
        self._demand.is_wanted, self._is_idle, self._publish_idle = True, False, None
        self._recover()
        self._recover_at = monotonic() + SETTLED_SECONDS

    def _recover(self) -> None:
        assert self._connection.channel is not None
        self._recover_at = math.inf
        script = recovery_script(self._worker.id, self._dispatcher.in_flight)
        self._connection.channel.run(script, self._handle_recovery, self._handle_failure)

    def _handle_recovery(self, result: RecoveryResult) -> None:
        """Stop the attempts that the database does not know of, before anything is claimed once more."""
        self._missing_tables.remove("claim")
        if result.forgotten:
            self._dispatcher.kill_forgotten(result.forgotten)
        if result.refused:
            self._dispatcher.in_flight.abandon(result.refused)
            ids = ",".join(str(run_id) for run_id, _ in result.refused[:20])
            log.warn("The database refuses to take claims back; their leases end by themselves.",
                     runs=ids, count=len(result.refused))  # fmt: skip
        if result.given_back:
            log.note("Gave back claims whose answer was lost.", count=result.given_back)

    def step(self, duty_rounds: int) -> None:
        """Send the next claim when there may be work and a slot is free.

        ``duty_rounds``: how often all duties have run, so that what was due is fired.
        """
        self._duty_rounds = duty_rounds
        now = monotonic()
        self._is_gathering = False
        if not self._connection.is_free or now < self._demand.not_before or self._dispatcher.is_clearing:
            return
        if now >= self._recover_at:
            self._recover()
            return
        if not self._demand.is_wanted and now < self._next_claim_at:
            return
        if self._deferred.must_leave_room:
            self._leave_room()
        elif self._deferred.seconds_to_gather > 0:
            self._is_gathering = True
        elif (plan := self._plan()) is not None:
            self._send(plan)
        else:
            unwritten = self._dispatcher.unwritten
            if unwritten >= self._most_unwritten:
                self._demand.error = f"{unwritten:,} runs have ended and could not be written yet."
            else:
                self.mark_healthy()
            self._publish_busy()

    @property
    def _most_unwritten(self) -> int:
        """How many results may wait while claims go on: few while the database refuses all of them."""
        return self._planner.slots if self._writer.is_refused else MOST_IN_FLIGHT

    def _plan(self, coming: int = 0) -> ClaimPlan | None:
        unwritten = self._dispatcher.unwritten
        if unwritten >= self._most_unwritten:
            return None
        return self._planner.plan(self._dispatcher.loads, coming=coming, unwritten=unwritten)

    def _claim_ahead(self, rows: Rows) -> None:
        """Send the next claim of a backlog before ``rows`` are handed out, which takes as long as a claim."""
        if not self._demand.not_before <= monotonic() < self._recover_at or not self.may_claim:
            return
        if not self._planner.are_quick(rows):
            return
        if (plan := self._plan(len(rows))) is not None:
            self._send(plan)

    def _send(self, plan: ClaimPlan) -> None:
        assert self._connection.channel is not None
        publish_idle, self._publish_idle = self._publish_idle, None
        # While polls find no work, a claim only proves that claims can be made.
        is_probe = self._is_poll_empty and not self._demand.is_wanted
        self._is_poll_empty = self._demand.is_wanted = False
        self._claimed_at = monotonic()
        self._next_claim_at = self._claimed_at + self._worker.poll_seconds
        # Where types without a limit are asked first, results would wait for them.
        results = self._deferred.take(most=0 if plan.unlimited_first else MOST_RESULTS)
        self._results = results
        batch = ClaimBatch(
            plan, self._worker, self._cursor, results=results, skipped=self._skipped.ids, is_probe=is_probe
        )
        self._connection.channel.run(
            batch.script(publish_idle=publish_idle),
            partial(self._handle_claimed, results, self._duty_rounds),
            partial(self._handle_failed_claim, results),
            is_background=is_probe,
        )

    def _handle_claimed(self, results: ResultsWithClaim, duty_rounds: int, claimed: ClaimResult) -> None:
        """Hand out what a claim brought. ``duty_rounds``: of the duties when it was sent."""
        rows, is_full = claimed.rows, claimed.is_full
        demand, planner = self._demand, self._planner
        if rows or claimed.failure is None:
            self.mark_healthy()
        planner.observe_payloads(rows)
        if claimed.has_more is not None:
            planner.has_more = claimed.has_more
        if claimed.is_contended:
            self._next_claim_at = min(self._next_claim_at, monotonic() + CONTENDED_SECONDS)
        # A claim is wanted by now when a run ended or was enqueued after this one was sent.
        demand.empty_since_round = NEVER if rows or demand.is_wanted else duty_rounds
        self._deferred.note_handed_out(rows)
        # Published as idle first, then claimed once more: no run that came in between can be missed.
        demand.is_wanted = demand.is_wanted or is_full or not self._is_idle
        if rows and not is_full:
            # Other workers may have locked the next rows for a moment.
            if len(rows) >= A_GOOD_MANY:
                demand.is_wanted = True
            self._next_claim_at = min(self._next_claim_at, monotonic() + PARTIAL_SECONDS)
        # Brief runs end before anybody could be notified that a slot is free.
        may_change_idle = is_full or not self._deferred.seconds_to_gather
        if is_full == self._is_idle and may_change_idle:
            self._is_idle = self._publish_idle = not is_full
        if claimed.refused:
            self._skip_refused(claimed)
        if claimed.failure is not None:
            self._handle_failure(claimed.failure)
        elif is_full:
            self._claim_ahead(rows)
        self._dispatcher.take(rows, claimed.sent_ns, claimed.listed)
        self._log_results(results)

    def give_back_overdue(self) -> None:
        """Leave the results of a claim that has not answered for a second to the writer.

        For a worker that claims nothing any more: a stop waits for no claim. The epoch makes it harmless when
        both write them.
        """
        channel = self._connection.channel
        if self._results is not None and channel is not None and channel.is_overdue(OVERDUE_SECONDS):
            self._results.give_back()

    def _leave_room(self) -> None:
        """Let an idle worker be the first to claim from the types with a limit."""
        assert self._connection.channel is not None
        self._results = results = self._deferred.take()
        self._demand.is_wanted = True

        def done(is_woken: bool) -> None:
            self._log_results(results)
            if is_woken:
                self._demand.pause(LEAVE_SECONDS)

        script = self._deferred.leave_room(results, self._worker.id)
        self._connection.channel.run(script, done, partial(self._handle_failed_claim, results))

    def _handle_failed_claim(self, results: ResultsWithClaim, failure: Exception) -> None:
        """Leave the results of a claim that was refused or lost to the writer."""
        results.give_back()
        self._log_results(results)
        self._handle_failure(failure)

    def _log_results(self, results: ResultsWithClaim) -> None:
        """Log the results that were written with a claim."""
        if self._results is results:
            self._results = None
        self._planner.count_written(len(results.written))
        self._writer.log_written(results.written)

    def _skip_refused(self, claimed: ClaimResult) -> None:
        """Log the runs whose claim was refused; after a batch of nothing else, pause."""
        if not claimed.rows:
            self._demand.pause(REFUSED_PAUSE_SECONDS)
        for one in claimed.refused:
            if not one.is_set_aside:
                self._skipped.add(one.run_id)
            self._warnings.warn(
                one.run_id, "The database refuses to let a run start; the others go past it.",
                run_id=one.run_id, job_type=one.job_type, error=one.reason,
            )  # fmt: skip

    def _publish_busy(self) -> None:
        """Publish that every slot is busy, if that is new: no enqueue need notify this worker."""
        if self._publish_idle is False and self._connection.channel is not None:
            self._publish_idle = None
            script = busy_script(self._worker.id)
            self._connection.channel.run(script, lambda _: None, self._handle_failure)

    def _handle_failure(self, failure: Exception) -> None:
        self._is_idle, self._publish_idle = False, None
        self._demand.error = str(failure)
        if isinstance(failure, StatementFailed):
            # A claim among the refused statements may have been committed: look for runs that are not in
            # flight.
            self._recover_at = monotonic()
            if failure.sqlstate in MISSING_TABLE_STATES:
                self._demand.pause(NO_TABLES_PAUSE_SECONDS)
                self._missing_tables.add("claim", failure)
                return
            self._demand.pause(REFUSED_PAUSE_SECONDS)
            self._warnings.warn(
                str(failure), "The database refused a claim.", error=str(failure),
                sqlstate=failure.sqlstate,
            )  # fmt: skip
