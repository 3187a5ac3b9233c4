"""The dispatcher: which run goes to which slot, and what the answer or the end of its child means for it.

It joins children (processes) and runs in flight (leases). It sends no statement: ended attempts go to
``deferred_results`` and ``result_writer``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from math import inf
from time import monotonic

from wakeboard.config import log
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.text.sanitize import last_line
from wakeboard.runtime.deadlines import FORGOTTEN_KILL_SECONDS
from wakeboard.runtime.loop.channel import Rows
from wakeboard.runtime.loop.claim_planner import LONG_SECONDS, ClaimPlanner, Load
from wakeboard.runtime.loop.ended_attempt import (
    EndedAttempt,
    decide_end,
    plain_success,
    release_bystander,
    release_unstarted,
)
from wakeboard.runtime.loop.in_flight import (
    RunInFlight,
    RunsInFlight,
    StopReason,
    is_lease_unconfirmed,
    run_from_row,
)
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.protocol import AttemptEnd, ChildExit, SuccessBatch
from wakeboard.runtime.worker import Worker

# So many children in a row that end before they start a run are a sign of a broken start.
IDLE_DEATHS = 3
# The most work handed to one slot at once: waking one process is quicker than waking many.
BUNDLE_SECONDS = 0.0005
# How long claims pause after a broken start, at first and at most; each pause is twice as long.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A run is long after LONG_NS; runs that wait behind it, or have waited for WAIT_NS, are taken back.
LONG_NS, WAIT_NS = 250_000_000, 1_000_000_000


class Dispatcher:
    """Gives runs to slots, and ends the attempts that their children answered or died in."""

    def __init__(
        self,
        worker: Worker,
        children: Children,
        in_flight: RunsInFlight,
        planner: ClaimPlanner,
        writer: ResultWriter,
    ) -> None:
        self._worker = worker
        self._children = children
        self.in_flight = in_flight
        self._planner = planner
        self._writer = writer
        self._deferred = writer.deferred
        self._idle_deaths = 0
        self._pause_seconds, self._paused_until = PAUSE_SECONDS, 0.0
        # Until when the child of a slot, killed because its runs were forgotten, may still run.
        self._killed_until: dict[int, float] = {}
        self.loads = [Load(slot=slot) for slot in range(planner.slots)]
        self.is_stopping = False

    @property
    def unwritten(self) -> int:
        """How many runs have ended and are not written yet."""
        return len(self.in_flight) - sum(load.outstanding for load in self.loads)

    # ---- claimed runs -------------------------------------------------------------------------------

    def take(self, rows: Rows, sent_ns: int, listed_types: Collection[str] = ()) -> None:
        """Hand the rows of a claim to the children.

        When the worker has begun to stop, or a lease may be about to end, runs are given back.

        Args:
            rows: The rows of the claim.
            sent_ns: When the claim was sent; the leases count from then.
            listed_types: Job types whose runs the claim listed as not begun.
        """
        policies, worker = self._planner.policies, self._worker
        claimed = [
            run_from_row(row, policies, worker.id, worker.lease_seconds, sent_ns, listed_types)
            for row in rows
        ]
        if replaced := self.in_flight.add(claimed):
            self._kill_forgotten(replaced)
        startable = claimed if self._may_start(sent_ns) else self._startable(claimed)
        log.run_moves("claim", worker.id, map(_log_entry, startable))
        for slot, assignments in self._assign(startable).items():
            self._children.send(slot, assignments)

    def _may_start(self, sent_ns: int) -> bool:
        """Whether all runs of a claim that was sent at ``sent_ns`` may start: no lease is shorter than
        ours."""
        lease_seconds = self._worker.lease_seconds
        return not self.is_stopping and not is_lease_unconfirmed(sent_ns, lease_seconds, boottime_ns())

    def _startable(self, claimed: Sequence[RunInFlight]) -> list[RunInFlight]:
        """Return the runs that may start; give the others back."""
        now = boottime_ns()
        startable: list[RunInFlight] = []
        for run in claimed:
            if self.is_stopping or run.is_lease_unconfirmed(now):
                self._deferred.add(release_unstarted(run))
            else:
                startable.append(run)
        return startable

    def _assign(self, claimed: Sequence[RunInFlight]) -> dict[int, list[Assignment]]:
        """Assign each run to the slot with the least work; one with a slow run comes last.

        Returns what to send to each slot.
        """
        job_types = {run.assignment.job_type for run in claimed}
        slow = {job_type: not self._planner.is_quick(job_type) for job_type in job_types}
        rejected: list[RunInFlight] = []
        burdens = [(load.slow, load.outstanding, load.slot) for load in self.loads]
        heapify(burdens)
        chosen: dict[int, list[Assignment]] = {}
        brief = self._planner.brief_types(job_types)
        for bundle in _bundles(claimed, brief) if brief else zip(claimed):
            slows, outstanding, slot = burdens[0]
            first, is_slow = bundle[0], slow[bundle[0].assignment.job_type]
            if outstanding and first.max_attempts == 1 and not is_slow and not first.assignment.is_listed:
                # It was claimed ahead: if the worker were killed, its only try would be lost.
                rejected.append(first)
                continue
            for run in bundle:
                run.is_slow, run.slot = is_slow, slot
                outstanding += 1
                chosen.setdefault(slot, []).append(run.assignment)
            heapreplace(burdens, (slows + is_slow, outstanding, slot))
        for slows, outstanding, slot in burdens:
            self.loads[slot].slow, self.loads[slot].outstanding = slows, outstanding
        for run in rejected:
            self._planner.note_only_try(run.assignment.job_type)
            self._deferred.add(release_unstarted(run))
        return chosen

    def step(self) -> None:
        """Give back runs that wait behind a long run, behind one of a slow type, or for long."""
        now = boottime_ns()
        for load in self.loads:
            started = self._children.current(load.slot) if load.outstanding else None
            if started is None:
                if load.outstanding > 1 and now - self._waits_since_ns(load.slot) >= WAIT_NS:
                    # The child is about to begin a run, and waits for the database to strike it off the list.
                    self._children.take_back(load.slot)
                continue
            run = self.in_flight.get(started.run_id, started.lease_epoch)
            if run is None or run.slot != load.slot:
                continue
            is_long = now - started.started_ns >= LONG_NS
            if is_long and not run.is_slow:
                run.is_slow = True
                load.slow += 1
                self._planner.observe(run, (now - started.started_ns) / 1e9)
            is_slow = is_long or not self._planner.is_quick(run.assignment.job_type)
            if load.outstanding > 1 and (is_slow or now - self._waits_since_ns(load.slot) >= WAIT_NS):
                for assignment in self._children.take_back(load.slot):
                    behind = self._unassign(load.slot, assignment.run_id, assignment.lease_epoch)
                    if behind is not None:
                        self._deferred.add(release_unstarted(behind))

    def _waits_since_ns(self, slot: int) -> int:
        """Return when the next run of a slot was claimed."""
        _, waiting, *_ = self._children.outstanding(slot)
        run = self.in_flight.get(waiting.run_id, waiting.lease_epoch)
        return boottime_ns() if run is None else run.claimed_ns

    def _unassign(self, slot: int, run_id: int, lease_epoch: int) -> RunInFlight | None:
        """Remove a run from its slot and return it; None when it is not there."""
        run = self.in_flight.get(run_id, lease_epoch)
        if run is None or run.slot != slot:
            return None
        self._unload(slot, run)
        return run

    def _unload(self, slot: int, run: RunInFlight) -> None:
        load = self.loads[slot]
        load.outstanding -= 1
        load.slow -= run.is_slow
        run.slot = None

    # ---- forgotten runs -----------------------------------------------------------------------------

    def kill_forgotten(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Kill attempts (run, epoch) that the database does not know of, and write nothing of them."""
        if forgotten := self.in_flight.forget(attempts):
            self._kill_forgotten(forgotten)

    def _kill_forgotten(self, forgotten: Sequence[RunInFlight]) -> None:
        log.warn(
            "The database has forgotten claims of this worker, as after a failover to a server that was "
            "behind. Their handlers are stopped; the runs that it knows start again.",
            count=len(forgotten),
        )
        slots = set()
        for run in forgotten:
            if run.slot is not None:
                slots.add(run.slot)
                self._unload(run.slot, run)
        for slot in slots:
            self._killed_until[slot] = monotonic() + FORGOTTEN_KILL_SECONDS
            self._children.kill(slot)
        self._writer.forget()

    @property
    def is_clearing(self) -> bool:
        """Whether forgotten attempts may still run or be written: their runs must not be claimed so soon."""
        return self._writer.may_write_forgotten or any(
            until > monotonic() for until in self._killed_until.values()
        )

    # ---- answers of children ------------------------------------------------------------------------

    def handle_finished(self, event: AttemptEnd) -> None:
        """End the attempt that a child answered."""
        slot, assignment, answer, started_ns, finished_ns = event
        run = self._unassign(slot, assignment[0], assignment[1])
        if run is not None:
            if self._idle_deaths:
                self._reset_idle_deaths()
            seconds = max(0.0, (finished_ns - started_ns) / 1e9)
            if answer.kind != "unbegun":
                self._planner.observe(run, seconds)
            elif answer.message is not None and self._planner.pause_only_tries(assignment.job_type):
                log.warn(
                    "A process cannot tell the database what it begins: for a minute no runs of a type with "
                    "single tries are claimed ahead.",
                    run_id=run.run_id, job_type=assignment.job_type, error=answer.message,
                )  # fmt: skip
            self._end(run, answer, seconds, finished_ns)

    def handle_returned(self, event: SuccessBatch) -> None:
        """End the attempts that returned without a result or output."""
        slot, attempts = event
        ended: list[EndedAttempt] = []
        slow = 0
        runs = self.in_flight.find([assignment for assignment, _, _ in attempts])
        for run, (_, started_ns, finished_ns) in zip(runs, attempts, strict=True):
            if run is None or run.slot != slot:
                continue
            run.slot = None
            slow += run.is_slow
            ended.append(plain_success(run, max(0, finished_ns - started_ns) / 1e9, finished_ns))
        if ended:
            load = self.loads[slot]
            load.outstanding -= len(ended)
            load.slow -= slow
            if self._idle_deaths:
                self._reset_idle_deaths()
            self._planner.observe_all(ended)
            self._deferred.add_succeeded(ended)

    def handle_died(self, event: ChildExit) -> None:
        """End the attempt that a dead child ran; give back what it had not begun, or send it once more."""
        self._killed_until.pop(event.slot, None)
        now = boottime_ns()
        if event.running is not None:
            if self._idle_deaths:
                self._reset_idle_deaths()
            self._end_died(event, event.running, now)
        elif event.unstarted and not event.is_unconditional_kill and not event.has_begun:
            self._note_idle_death(event)
        resent: list[Assignment] = []
        for assignment in event.unstarted:
            if event.is_clean and self._may_begin_again(event.slot, assignment, now):
                resent.append(assignment)
                continue
            run = self._unassign(event.slot, assignment.run_id, assignment.lease_epoch)
            if run is not None:
                self._deferred.add(release_unstarted(run))
        if resent:
            self._children.send(event.slot, resent)

    def _end_died(self, event: ChildExit, running: Assignment, now_ns: int) -> None:
        """End the attempt that a dead child ran, or give it back when the kill was meant for another run."""
        run = self._unassign(event.slot, running.run_id, running.lease_epoch)
        if run is None:
            return
        seconds = max(0.0, (now_ns - event.started_ns) / 1e9) if event.started_ns else 0.0
        if event.unstarted and not event.is_unconditional_kill:
            # All that waits is given back, which costs as much as a long run.
            self._planner.observe(run, LONG_SECONDS)
        if event.is_unconditional_kill and not run.killed_ns:
            self._deferred.add(release_bystander(run, event.answer, took_seconds=seconds, ended_ns=now_ns))
        else:
            self._end(run, event.answer, seconds, now_ns)

    def _may_begin_again(self, slot: int, assignment: Assignment, now_ns: int) -> bool:
        """Whether the slot's next child may have what the last one left when it ended in order.

        Not while one child after the other ends before it starts a run.
        """
        run = self.in_flight.get(assignment.run_id, assignment.lease_epoch)
        if run is None or run.slot != slot or run.stop_reason is StopReason.LEASE_LOST:
            return False
        is_late = self.is_stopping or run.is_lease_unconfirmed(now_ns)
        return not is_late and self._idle_deaths < IDLE_DEATHS

    def _note_idle_death(self, event: ChildExit) -> None:
        """Count a child that died before it started a run. After a few, claims pause longer and longer, until
        one has started a run."""
        self._idle_deaths += 1
        if self._idle_deaths < IDLE_DEATHS or monotonic() < self._paused_until:
            return
        pause = self._pause_seconds
        self._paused_until = monotonic() + pause
        self._pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        output_line = last_line(event.answer.output_tail or "")
        how = f"{event.text}: {output_line}" if output_line else event.text
        log.warn("Processes for handlers end before they start a run; claims wait.", how=how, seconds=pause)
        self._planner.demand.block(f"Processes for handlers end before they start a run ({how}).", pause)

    def _reset_idle_deaths(self) -> None:
        self._idle_deaths, self._pause_seconds, self._paused_until = 0, PAUSE_SECONDS, 0.0
        self._planner.demand.unblock()

    def _end(self, run: RunInFlight, answer: AttemptResult, seconds: float, ended_ns: int) -> None:
        ended = decide_end(run, answer, took_seconds=seconds, ended_ns=ended_ns)
        if ended is None:
            self._writer.handle_committed(run, seconds)
            if answer.error_code is not None:
                _warn_of_late_failure(run, answer)
        else:
            self._deferred.add(ended)

    # ---- what other threads read --------------------------------------------------------------------

    def progress(self, run: RunInFlight) -> tuple[int, int] | None:
        """Return the progress of a run (done, total) while its slot runs it, else None."""
        slot = run.slot
        started = None if slot is None else self._children.current(slot)
        if slot is None or started is None:
            return None
        if (started.run_id, started.lease_epoch) != run.assignment[:2]:
            return None
        return self._children.progress(slot)

    def output_tail(self, slot: int) -> str:
        """Return what a slot's run has printed so far."""
        return self._children.output_tail(slot)


def _bundles(claimed: Sequence[RunInFlight], brief: Mapping[str, float]) -> Iterator[Sequence[RunInFlight]]:
    """Yield the runs that go to one slot together: several of the types ``brief``, any other alone.

    ``brief`` has the seconds that a run of each type lasts. A run with a single try that is not listed is
    alone, too.
    """
    bundle: list[RunInFlight] = []
    left = 0.0
    for run in claimed:
        is_alone = run.max_attempts == 1 and not run.assignment.is_listed
        seconds = inf if is_alone else brief.get(run.assignment.job_type, inf)
        left -= seconds
        if left < 0 and bundle:
            yield bundle
            bundle = []
        if not bundle:
            left = BUNDLE_SECONDS - seconds
        bundle.append(run)
    if bundle:
        yield bundle


def _warn_of_late_failure(run: RunInFlight, answer: AttemptResult) -> None:
    """Log an error after the run had written its own end. Its outcome stands, so nothing else shows it."""
    log.warn(
        "Code after the handler's transaction() failed. The run has succeeded; nothing of this is recorded.",
        run_id=run.run_id,
        job_type=run.assignment.job_type,
        error_code=answer.error_code,
        reason=answer.message,
    )


def _log_entry(run: RunInFlight) -> log.RunMove:
    assignment = run.assignment
    return assignment[0], assignment[3], assignment[2], None
