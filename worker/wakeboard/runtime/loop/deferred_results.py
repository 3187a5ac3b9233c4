"""How runs of a type with a limit follow each other: an end and the claim that it makes room for are one
transaction.

No more of them are claimed than may run, so their pace is that of transactions. Where they are over in a
moment, a claim waits for the ends of all that are out: one transaction for as many as there is room for.
Whoever has the room keeps it so, as long as there is work; so now and then it leaves it to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic

from wakeboard.queue.engine.claims import WAKE_ANOTHER
from wakeboard.runtime.loop.channel import Rows, Script, Statement, StatementFailed, Together, array
from wakeboard.runtime.loop.claim_cursor import JOB_TYPE
from wakeboard.runtime.loop.claim_state import ClaimState
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import RunInFlight
from wakeboard.runtime.loop.result_queue import ResultQueue, WrittenAttempt, characters, take
from wakeboard.runtime.loop.result_writer import ResultWriter

# So long after they were handed out, runs that are over in a moment are waited for.
GATHER_SECONDS = 0.002
# So long an end waits at most for the claim that is under way, behind which the next one takes it along.
PATIENCE_SECONDS = 0.05
# What goes with a claim fits into what a connection takes at once, so that no process that is stopped in the
# middle of sending keeps a type locked: so many ends at most with so many characters of texts. An end with
# more than half of them is written by itself.
MOST_ALONG, CHARACTERS_ALONG = 200, 20_000
# So long a worker keeps the room at most while others are idle, and so long it claims nothing then: on a busy
# machine they take a while to hear of it.
KEEPS_SECONDS, LEAVES_SECONDS = 1.0, 0.1


class ResultsWithClaim:
    """What has ended and is written with a claim. ``written``: what is known to be written, not told yet."""

    def __init__(self, queue: ResultQueue, ended: Sequence[EndedAttempt]) -> None:
        self._queue = queue
        self._batches: dict[str, list[EndedAttempt]] = {}
        for one in ended:
            self._batches.setdefault(one.move, []).append(one)
        self.written: list[WrittenAttempt] = []

    def before(self, *statements: Statement) -> Script:
        """Return the script that sends ``statements``, and before them in one transaction what has ended.

        Its value are the rows of each of ``statements``. Whichever is refused, each is tried by itself: the
        ends are left to the writer.
        """
        batches = list(self._batches.values())
        if batches:
            try:
                answers = yield Together([*map(self._queue.statement, batches), *statements])
            except StatementFailed:
                self.give_back()
            else:
                self._wrote(batches, answers)
                return answers[len(batches) :]
        return (yield Together(statements)) if statements else []

    def _wrote(self, batches: Sequence[Sequence[EndedAttempt]], answers: Sequence[Rows]) -> None:
        """Take in what was written. Whose row did not move is left to the writer, which finds out why, and so
        is all that was given back meanwhile."""
        if not self._batches:
            return
        self._batches = {}
        for batch, rows in zip(batches, answers, strict=False):
            written, missing = self._queue.split(batch, rows)
            self.written += written
            self._queue.give_back(missing)

    def give_back(self) -> None:
        """Leave to the writer what may not be written."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._queue.give_back(batch)


class DeferredResults:
    """The attempts that ended and wait for the claim that they make room for."""

    def __init__(self, writer: ResultWriter, claims: ClaimPlanner, claim_state: ClaimState) -> None:
        """``writer`` writes what does not go with a claim."""
        self._writer, self._queue = writer, writer.queue
        self._claims = claims
        self._claim_state = claim_state
        self._waiting: deque[EndedAttempt] = deque()
        self._waiting_since = self._left_room_at = self._handed_out_at = 0.0
        self._out: set[tuple[int, int]] = set()

    def add(self, ended: EndedAttempt) -> None:
        """Queue an attempt to be written."""
        assignment = ended.run.assignment
        self._out.discard(assignment[:2])
        is_limited = assignment.job_type in self._claims.limited
        if not is_limited or ended.move == "release" or 2 * characters(ended) > CHARACTERS_ALONG:
            self._queue.add(ended)
            return
        if not self._waiting:
            self._waiting_since = monotonic()
        self._waiting.append(ended)
        self._claim_state.wake()

    def add_succeeded(self, ended: Sequence[EndedAttempt]) -> None:
        """Queue attempts that succeeded to be written."""
        limited = self._claims.limited
        if limited and any(one.run.assignment.job_type in limited for one in ended):
            for one in ended:
                self.add(one)
        else:
            self._queue.add_succeeded(ended)

    def handed_out(self, rows: Rows) -> None:
        """The runs of a claim were handed to their slots."""
        if self._claims.limited and (brief := self._claims.brief({row[JOB_TYPE] for row in rows})):
            self._handed_out_at = monotonic()
            self._out = {row[:2] for row in rows if row[JOB_TYPE] in brief}

    def committed(self, run: RunInFlight, seconds: float) -> None:
        """A run has written its own end by ``transaction()``: no claim waits for it."""
        self._out.discard(run.assignment[:2])
        self._writer.committed(run, seconds)

    @property
    def seconds_to_gather(self) -> float:
        """Seconds for which a claim should wait for runs that are over in a moment, 0 when there are none."""
        return max(0.0, self._handed_out_at + GATHER_SECONDS - monotonic()) if self._out else 0.0

    @property
    def may_wait(self) -> bool:
        """Whether what has ended may wait for the next claim."""
        return monotonic() - self._waiting_since < PATIENCE_SECONDS

    @property
    def must_leave_room(self) -> bool:
        """Whether what has ended should make room for other workers first."""
        return bool(self._waiting) and monotonic() - self._left_room_at >= KEEPS_SECONDS

    def take(self, most: int = MOST_ALONG) -> ResultsWithClaim:
        """Return what a claim is to take along, up to ``most``."""
        return ResultsWithClaim(self._queue, take(self._waiting, most, CHARACTERS_ALONG))

    def let_go(self) -> bool:
        """Leave what waits to the writer: no claim comes soon. Return whether there was something."""
        had_some = bool(self._waiting)
        while self._waiting:
            self._queue.add(self._waiting.popleft())
        return had_some

    def leave_room(self, ends: ResultsWithClaim, me: bytes) -> Script:
        """Return the script that writes ``ends``, and wakes an idle worker that has a type with a limit.

        Its value says whether there is one.
        """
        self._left_room_at = monotonic()
        (woken,) = yield from ends.before((WAKE_ANOTHER, (me, array(self._claims.limited))))
        return bool(woken)
