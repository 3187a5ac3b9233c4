"""The slots of one worker: what each was sent, what came back, and what that means for the run.

Joins the children (processes) with the runs in flight (leases). Sends no statement: ended attempts are left to
``turnover`` and ``writer``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from math import inf
from time import monotonic

from wakeboard.config import log
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.text.sanitize import last_line
from wakeboard.runtime.loop.channel import Rows
from wakeboard.runtime.loop.claim_state import ClaimState
from wakeboard.runtime.loop.claim_planner import LONG_SECONDS, ClaimPlanner, Load
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, bystander, decide, never_started, succeeded
from wakeboard.runtime.loop.in_flight import (
    RunInFlight,
    RunsInFlight,
    boottime_ns,
    run_from_row,
    is_past_fence,
)
from wakeboard.runtime.loop.deferred_results import DeferredResults
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.events import Died, Finished, Returned

IDLE_DEATHS = 3
# So long what is handed to one slot together lasts at most: to wake one process is quicker than to wake many.
HANDFUL_SECONDS = 0.0005
# How long nothing is claimed then, at first; each time twice as long, up to the longest.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# What waits behind a run that goes on for so long is taken back, and whatever has waited for so long.
LONG_NS, WAITED_NS = 250_000_000, 1_000_000_000
# By then a child that was killed is gone, or its slot had none.
CLEARED_SECONDS = 5.0


class Slots:
    """The slots, their loads and their runs."""

    def __init__(
        self,
        children: Children,
        in_flight: RunsInFlight,
        claims: ClaimPlanner,
        claim_state: ClaimState,
        turnover: DeferredResults,
        writer: ResultWriter,
        *,
        worker_id: str,
        lease_seconds: float,
    ) -> None:
        """``turnover`` takes what has ended and must be written; ``writer`` hears of what is forgotten."""
        self._claim_state = claim_state
        self._turnover = turnover
        self._writer = writer
        self._idle_deaths = 0
        self._pause_seconds, self._paused_until = PAUSE_SECONDS, 0.0
        self._children = children
        self._in_flight = in_flight
        self._claims = claims
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._clearing: dict[int, float] = {}
        self.loads = [Load(slot=slot) for slot in range(claims.slots)]
        self.is_stopping = False

    def take(self, rows: Rows, sent_ns: int, listed: Collection[str] = ()) -> None:
        """Hold what a claim that was sent at ``sent_ns`` returned, and hand it to the children.

        ``listed``: the types of which the claim listed what has not begun.

        An answer that came when the worker had begun to stop, or the lease may be about to end, goes back.
        """
        claimed = [
            run_from_row(row, self._claims.policies, self._worker_id, self._lease_seconds, sent_ns, listed)
            for row in rows
        ]
        if again := self._in_flight.add(claimed):
            self._tell_forgotten(len(again))
            self._stop(again)
        kept = claimed if self._may_start(sent_ns) else self._kept(claimed)
        log.run_moves("claim", self._worker_id, map(_moved, kept))
        for slot, assignments in self._share_out(kept).items():
            self._children.send(slot, assignments)

    def _may_start(self, sent_ns: int) -> bool:
        """Whether all of a claim that was sent at ``sent_ns`` may start: no lease is shorter than ours."""
        return not self.is_stopping and not is_past_fence(sent_ns, self._lease_seconds, boottime_ns())

    def _kept(self, claimed: Sequence[RunInFlight]) -> list[RunInFlight]:
        """Return what may start, one by one; the rest goes back."""
        now = boottime_ns()
        kept: list[RunInFlight] = []
        for run in claimed:
            if self.is_stopping or run.is_past_fence(now):
                self._turnover.add(never_started(run))
            else:
                kept.append(run)
        return kept

    def _share_out(self, claimed: Sequence[RunInFlight]) -> dict[int, list[Assignment]]:
        """Give each run the slot with the least to do, one with a slow run only when there is no other.

        Returns what is to be sent to each slot.
        """
        job_types = {run.assignment.job_type for run in claimed}
        slow = {job_type: not self._claims.is_quick(job_type) for job_type in job_types}
        back: list[RunInFlight] = []
        burdens = [(load.slow, load.outstanding, load.slot) for load in self.loads]
        heapify(burdens)
        chosen: dict[int, list[Assignment]] = {}
        brief = self._claims.brief(job_types)
        for handful in _handfuls(claimed, brief) if brief else zip(claimed):
            slows, outstanding, slot = burdens[0]
            first, is_slow = handful[0], slow[handful[0].assignment.job_type]
            if outstanding and first.max_attempts == 1 and not is_slow and not first.assignment.is_listed:
                # It came ahead: a worker that is killed would cost it its only try unseen.
                back.append(first)
                continue
            for run in handful:
                run.is_slow, run.slot = is_slow, slot
                outstanding += 1
                chosen.setdefault(slot, []).append(run.assignment)
            heapreplace(burdens, (slows + is_slow, outstanding, slot))
        for slows, outstanding, slot in burdens:
            self.loads[slot].slow, self.loads[slot].outstanding = slows, outstanding
        for run in back:
            self._claims.met_only_try(run.assignment.job_type)
            self._turnover.add(never_started(run))
        return chosen

    def step(self) -> None:
        """Give back what waits behind a run that goes on for long, or whose type turned out to be slow, and
        what has waited for long."""
        now = boottime_ns()
        for load in self.loads:
            started = self._children.current(load.slot) if load.outstanding else None
            if started is None:
                if load.outstanding > 1 and now - self._waits_since_ns(load.slot) >= WAITED_NS:
                    # It is about to begin one, and waits for the database to strike it off.
                    self._children.take_back(load.slot)
                continue
            run = self._in_flight.get(started.run_id, started.lease_epoch)
            if run is None or run.slot != load.slot:
                continue
            is_long = now - started.started_ns >= LONG_NS
            if is_long and not run.is_slow:
                run.is_slow = True
                load.slow += 1
                self._claims.observe(run, (now - started.started_ns) / 1e9)
            is_slow = is_long or not self._claims.is_quick(run.assignment.job_type)
            if load.outstanding > 1 and (is_slow or now - self._waits_since_ns(load.slot) >= WAITED_NS):
                for assignment in self._children.take_back(load.slot):
                    behind = self._free(load.slot, assignment.run_id, assignment.lease_epoch)
                    if behind is not None:
                        self._turnover.add(never_started(behind))

    def _waits_since_ns(self, slot: int) -> int:
        """Return when the run was claimed that comes next in a slot."""
        _, waiting, *_ = self._children.outstanding(slot)
        run = self._in_flight.get(waiting.run_id, waiting.lease_epoch)
        return boottime_ns() if run is None else run.claimed_ns

    def _free(self, slot: int, run_id: int, lease_epoch: int) -> RunInFlight | None:
        """Take a run off its slot; None when it is not there (any more)."""
        run = self._in_flight.get(run_id, lease_epoch)
        if run is None or run.slot != slot:
            return None
        self._take_off(slot, run)
        return run

    def forget(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Stop the handlers of attempts that the database does not know of, and write nothing of them."""
        if gone := self._in_flight.forget(attempts):
            self._tell_forgotten(len(gone))
            self._stop(gone)

    def _tell_forgotten(self, count: int) -> None:
        log.warn(
            "The database has forgotten claims of this worker, as after a failover to a server that was "
            "behind. Their handlers are stopped; the runs that it knows start again.",
            count=count,
        )

    def _stop(self, gone: Iterable[RunInFlight]) -> None:
        slots = set()
        for run in gone:
            if run.slot is not None:
                slots.add(run.slot)
                self._take_off(run.slot, run)
        for slot in slots:
            self._clearing[slot] = monotonic() + CLEARED_SECONDS
            self._children.kill(slot)
        self._writer.forget()

    @property
    def is_clearing(self) -> bool:
        """Whether forgotten attempts may still run or be written: their runs must not be claimed so soon."""
        return self._writer.may_write_forgotten or any(
            until > monotonic() for until in self._clearing.values()
        )

    def _take_off(self, slot: int, run: RunInFlight) -> None:
        load = self.loads[slot]
        load.outstanding -= 1
        load.slow -= run.is_slow
        run.slot = None

    def finished(self, event: Finished) -> None:
        """A child answered."""
        slot, assignment, answer, started_ns, finished_ns = event
        run = self._free(slot, assignment[0], assignment[1])
        if run is not None:
            if self._idle_deaths:
                self._live_again()
            seconds = max(0.0, (finished_ns - started_ns) / 1e9)
            if answer.kind != "unbegun":
                self._claims.observe(run, seconds)
            elif answer.message is not None and self._claims.pause_only_tries(assignment.job_type):
                log.warn(
                    "A process cannot tell the database what it begins: for a minute no runs of a type with "
                    "single tries are claimed ahead.",
                    run_id=run.run_id, job_type=assignment.job_type, error=answer.message,
                )  # fmt: skip
            self._settle(run, answer, seconds, finished_ns)

    def returned(self, event: Returned) -> None:
        """A child answered that these returned."""
        slot, attempts = event
        ended: list[EndedAttempt] = []
        slow = 0
        runs = self._in_flight.find([assignment for assignment, _, _ in attempts])
        for run, (_, started_ns, finished_ns) in zip(runs, attempts, strict=True):
            if run is None or run.slot != slot:
                continue
            run.slot = None
            slow += run.is_slow
            ended.append(succeeded(run, max(0, finished_ns - started_ns) / 1e9, finished_ns))
        if ended:
            load = self.loads[slot]
            load.outstanding -= len(ended)
            load.slow -= slow
            if self._idle_deaths:
                self._live_again()
            self._claims.observe_all(ended)
            self._turnover.add_succeeded(ended)

    def died(self, event: Died) -> None:
        """A child is gone: what it ran has ended, what it never began goes back."""
        self._clearing.pop(event.slot, None)
        now = boottime_ns()
        if event.running is not None:
            if self._idle_deaths:
                self._live_again()
            run = self._free(event.slot, event.running.run_id, event.running.lease_epoch)
            if run is not None:
                seconds = max(0.0, (now - event.started_ns) / 1e9) if event.started_ns else 0.0
                if event.unstarted and not event.by_order:
                    # Each such end gives back all that waits: it costs as much as a long run.
                    self._claims.observe(run, LONG_SECONDS)
                if event.by_order and not run.killed_ns:
                    self._turnover.add(bystander(run, event.answer, took_seconds=seconds, ended_ns=now))
                else:
                    self._settle(run, event.answer, seconds, now)
        elif event.unstarted and not event.by_order and not event.has_begun:
            self._died_idle(event)
        again: list[Assignment] = []
        for assignment in event.unstarted:
            if event.in_order and self._may_begin_again(event.slot, assignment, now):
                again.append(assignment)
                continue
            run = self._free(event.slot, assignment.run_id, assignment.lease_epoch)
            if run is not None:
                self._turnover.add(never_started(run))
        if again:
            self._children.send(event.slot, again)

    def _may_begin_again(self, slot: int, assignment: Assignment, now_ns: int) -> bool:
        """Whether the slot's next child may have what the last one left to it by ending in order.

        Not while children end and end, and start nothing.
        """
        run = self._in_flight.get(assignment.run_id, assignment.lease_epoch)
        if run is None or run.slot != slot or run.is_lost:
            return False
        return not self.is_stopping and self._idle_deaths < IDLE_DEATHS and not run.is_past_fence(now_ns)

    def _died_idle(self, event: Died) -> None:
        """A child that dies before it starts anything, again and again, must not spin: say so, and claim
        nothing for longer and longer, until one has started a run."""
        self._idle_deaths += 1
        if self._idle_deaths < IDLE_DEATHS or monotonic() < self._paused_until:
            return
        pause = self._pause_seconds
        self._paused_until = monotonic() + pause
        self._pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        last_words = last_line(event.answer.output_tail or "")
        how = f"{event.text}: {last_words}" if last_words else event.text
        log.warn("Processes for handlers end before they start a run; claims wait.", how=how, seconds=pause)
        self._claim_state.hinder(f"Processes for handlers end before they start a run ({how}).", pause)

    def _live_again(self) -> None:
        """A child has started a run."""
        self._idle_deaths, self._pause_seconds, self._paused_until = 0, PAUSE_SECONDS, 0.0
        self._claim_state.unhinder()

    def _settle(self, run: RunInFlight, answer: AttemptResult, seconds: float, ended_ns: int) -> None:
        ended = decide(run, answer, took_seconds=seconds, ended_ns=ended_ns, is_stopping=self.is_stopping)
        if ended is None:
            self._in_flight.remove([run])
            self._turnover.committed(run, seconds)
            if answer.error_code is not None:
                _warn_of_aftermath(run, answer)
        else:
            self._turnover.add(ended)

    def progress(self, run: RunInFlight) -> tuple[int, int] | None:
        """Return how far an attempt has come, when it is the one its slot runs. Safe from any thread."""
        slot = run.slot
        started = None if slot is None else self._children.current(slot)
        if slot is None or started is None:
            return None
        if (started.run_id, started.lease_epoch) != run.assignment[:2]:
            return None
        return self._children.progress(slot)

    def tail(self, slot: int) -> str:
        """Return what a slot's run has printed so far. Safe from any thread."""
        return self._children.output_tail(slot)


def _handfuls(claimed: Sequence[RunInFlight], brief: Mapping[str, float]) -> Iterator[Sequence[RunInFlight]]:
    """Yield what goes to one slot at once: runs of the types ``brief``, with the seconds that each lasts, and
    any other by itself, as one with a single try that is not listed."""
    handful: list[RunInFlight] = []
    left = 0.0
    for run in claimed:
        stands_alone = run.max_attempts == 1 and not run.assignment.is_listed
        seconds = inf if stands_alone else brief.get(run.assignment.job_type, inf)
        left -= seconds
        if left < 0 and handful:
            yield handful
            handful = []
        if not handful:
            left = HANDFUL_SECONDS - seconds
        handful.append(run)
    if handful:
        yield handful


def _warn_of_aftermath(run: RunInFlight, answer: AttemptResult) -> None:
    """Say what failed after a run had finished itself: its outcome stands, so nothing else tells of it."""
    log.warn(
        "Code after the handler's transaction() failed. The run has succeeded; nothing of this is recorded.",
        run_id=run.run_id,
        job_type=run.assignment.job_type,
        error_code=answer.error_code,
        reason=answer.message,
    )


def _moved(run: RunInFlight) -> log.Moved:
    assignment = run.assignment
    return assignment[0], assignment[3], assignment[2], None
