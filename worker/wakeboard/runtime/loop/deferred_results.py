"""Results of types with a limit: each is written in one transaction with the claim that it makes room for.

No more runs of such a type are claimed than may run, so they follow each other at the pace of transactions.
When runs are brief, a claim waits for the ends of all that are out: one transaction for as many as there is
room for. A worker that has the room would keep it as long as there is work, so now and then it leaves it to
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic

from wakeboard.queue.engine.claims import WAKE_ANOTHER
from wakeboard.runtime.loop.channel import Rows, Script, Statement, StatementFailed, Transaction, array
from wakeboard.runtime.loop.claim_cursor import JOB_TYPE
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, Move
from wakeboard.runtime.loop.in_flight import RunInFlight
from wakeboard.runtime.loop.result_queue import ResultQueue, WrittenAttempt, characters, take_batch

# How long a claim waits for brief runs after they were handed out.
GATHER_SECONDS = 0.002
# How long a result waits for the claim under way, after which the next claim takes it along.
PATIENCE_SECONDS = 0.05
# The most results, and characters of their texts, in one claim. They fit into what a connection accepts at
# once, so a process that is stopped while it sends keeps no type locked. A result with more than half of the
# characters is written by itself.
MOST_RESULTS, MOST_CHARACTERS = 200, 20_000
# How long a worker keeps the room while others are idle, and how long it claims nothing then: on a busy
# machine the others take a while to be notified.
KEEP_SECONDS, LEAVE_SECONDS = 1.0, 0.1


class ResultsWithClaim:
    """Results that one claim writes. ``written``: what is known to be written and not reported yet."""

    def __init__(self, queue: ResultQueue, ended: Sequence[EndedAttempt]) -> None:
        self._queue = queue
        self._batches: dict[Move, list[EndedAttempt]] = {}
        for one in ended:
            self._batches.setdefault(one.move, []).append(one)
        self.written: list[WrittenAttempt] = []

    def before(self, *statements: Statement) -> Script:
        """Return the script that writes the results and runs ``statements`` in one transaction.

        Its value is a list with the rows of each of ``statements``. When the transaction is refused, the
        results are left to the writer and ``statements`` are tried by themselves.
        """
        batches = list(self._batches.values())
        if batches:
            try:
                answers = yield Transaction([*map(self._queue.statement, batches), *statements])
            except StatementFailed:
                self.give_back()
            else:
                self._note_written(batches, answers)
                return answers[len(batches) :]
        return (yield Transaction(statements)) if statements else []

    def _note_written(self, batches: Sequence[Sequence[EndedAttempt]], answers: Sequence[Rows]) -> None:
        """Note what was written. An attempt whose row did not move is left to the writer, which finds why.

        When the claim took too long, all results were given back meanwhile, and the writer has them.
        """
        if not self._batches:
            return
        self._batches = {}
        for batch, rows in zip(batches, answers, strict=False):
            written, missing = self._queue.split(batch, rows)
            self.written += written
            self._queue.give_back(missing)

    def give_back(self) -> None:
        """Leave the results to the writer."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._queue.give_back(batch)


class DeferredResults:
    """The results that wait for a claim; all others go to the writer's queue at once."""

    def __init__(self, queue: ResultQueue, planner: ClaimPlanner) -> None:
        self._queue = queue
        self._planner = planner
        self._waiting: deque[EndedAttempt] = deque()
        self._waiting_since = self._left_room_at = self._handed_out_at = 0.0
        # The brief runs of the last claim that have not ended yet.
        self._outstanding: set[tuple[int, int]] = set()

    def add(self, ended: EndedAttempt) -> None:
        """Add an ended attempt."""
        assignment = ended.run.assignment
        self._outstanding.discard(assignment[:2])
        is_limited = assignment.job_type in self._planner.limited_types
        if not is_limited or ended.move == "release" or 2 * characters(ended) > MOST_CHARACTERS:
            self._queue.add(ended)
            return
        if not self._waiting:
            self._waiting_since = monotonic()
        self._waiting.append(ended)
        self._planner.demand.wake()

    def add_succeeded(self, ended: Sequence[EndedAttempt]) -> None:
        """Add attempts that succeeded."""
        limited = self._planner.limited_types
        if limited and any(one.run.assignment.job_type in limited for one in ended):
            for one in ended:
                self.add(one)
        else:
            self._queue.add_succeeded(ended)

    def note_handed_out(self, rows: Rows) -> None:
        """Note that the rows of a claim are handed to the slots."""
        planner = self._planner
        if planner.limited_types and (brief := planner.brief_types({row[JOB_TYPE] for row in rows})):
            self._handed_out_at = monotonic()
            self._outstanding = {row[:2] for row in rows if row[JOB_TYPE] in brief}

    def note_committed(self, run: RunInFlight) -> None:
        """Note that a run has written its own end, by ``transaction()``: no claim waits for it."""
        self._outstanding.discard(run.assignment[:2])

    @property
    def seconds_to_gather(self) -> float:
        """Seconds for which a claim should wait for brief runs, 0.0 when none is out."""
        return max(0.0, self._handed_out_at + GATHER_SECONDS - monotonic()) if self._outstanding else 0.0

    @property
    def may_wait(self) -> bool:
        """Whether the results may wait for the next claim."""
        return monotonic() - self._waiting_since < PATIENCE_SECONDS

    @property
    def must_leave_room(self) -> bool:
        """Whether the room of these results should be left to other workers first."""
        return bool(self._waiting) and monotonic() - self._left_room_at >= KEEP_SECONDS

    def take(self, most: int = MOST_RESULTS) -> ResultsWithClaim:
        """Remove and return up to ``most`` results for a claim."""
        return ResultsWithClaim(self._queue, take_batch(self._waiting, most, MOST_CHARACTERS))

    def flush(self) -> bool:
        """Leave all results to the writer, because no claim comes soon. Return whether there were any."""
        had_some = bool(self._waiting)
        while self._waiting:
            self._queue.add(self._waiting.popleft())
        return had_some

    def leave_room(self, results: ResultsWithClaim, worker_id: str) -> Script:
        """Return the script that writes ``results`` and wakes an idle worker that has a type with a limit.

        Its value says whether there is one.
        """
        self._left_room_at = monotonic()
        statement = WAKE_ANOTHER, (worker_id.encode(), array(self._planner.limited_types))
        (woken,) = yield from results.before(statement)
        return bool(woken)
