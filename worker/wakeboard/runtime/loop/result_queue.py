"""The queue of ended attempts, and the statements that write them in batches.

``ended_attempt`` has decided how each ended; the run's row, under its lock, decides the rest. A row that
somebody else has locked is left for the next batch. A batch that the database refuses for one of its rows is
sent again in halves, down to that row (``reduce_end``), so no other run is affected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from time import monotonic

from wakeboard.core.errors.error_groups import group_of
from wakeboard.core.outcome import PLAIN
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.states import Status
from wakeboard.database.poison_rows import RowBatches, is_refusal, refusal_reason
from wakeboard.queue.engine.endings import FAIL, RELEASE, SUCCEED
from wakeboard.queue.engine.fence import NOTE_REFUSAL, RUN_STATES
from wakeboard.runtime.loop.channel import Row, Rows, Script, Statement, StatementFailed, array, numbers
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, Move, reduce_end
from wakeboard.runtime.loop.in_flight import RunInFlight

BATCH = 750
# The most characters of texts in one statement. The socket accepts it in pieces while the loop continues.
BATCH_CHARACTERS = 1_000_000
BUSY_PAUSE_SECONDS = 0.02
REFUSED_PAUSE_SECONDS = 0.2

# Nearly every answer; it has no texts.
_RETURNED = PLAIN["returned"]

GROUP_SECONDS = 60.0
# Beyond so many groups in a minute, some are written more often than once a minute.
MOST_GROUPS = 10_000

# An attempt, and the status that its run has now.
WrittenAttempt = tuple[EndedAttempt, str]


class ResultQueue:
    """Ended attempts that wait to be written, and the scripts that write them."""

    def __init__(
        self,
        worker_id: str,
        on_written: Callable[[Sequence[WrittenAttempt]], None],
        on_late: Callable[[EndedAttempt], None],
        on_abandoned: Callable[[EndedAttempt], None],
    ) -> None:
        """
        Args:
            worker_id: The worker whose attempts they are.
            on_written: Called with attempts that are written.
            on_late: Called with an attempt whose lease was lost before.
            on_abandoned: Called with an attempt whose end the database refuses in every form.
        """
        self._worker_id = worker_id
        self._on_written = on_written
        self._on_late = on_late
        self._on_abandoned = on_abandoned
        # In the order of their turns: the move written last comes last.
        self._waiting: dict[Move, deque[EndedAttempt]] = {
            "succeed": deque(),
            "fail": deque(),
            "release": deque(),
        }
        # RowBatches of refused batches; each is sent as it is.
        self._parts: RowBatches[EndedAttempt] = RowBatches()
        self._group_throttle = ErrorGroupThrottle()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._parts.rows)

    def waiting(self) -> Iterator[EndedAttempt]:
        """Iterate over every attempt in the queue."""
        return chain(*self._waiting.values(), self._parts.rows)

    def add(self, ended: EndedAttempt) -> None:
        """Add an attempt."""
        if not ended.run.is_forgotten:
            self._waiting[ended.move].append(ended)

    def add_succeeded(self, ended: Sequence[EndedAttempt]) -> None:
        """Add attempts that succeeded."""
        self._waiting["succeed"].extend(ended)

    def next_batch(self) -> list[EndedAttempt]:
        """Remove and return what one statement can write now; empty when all must wait."""
        for part in self._parts:
            return list(part)
        for move in list(self._waiting):
            batch = take_batch(self._waiting[move], BATCH)
            if batch:
                self._waiting[move] = self._waiting.pop(move)
                return batch
        return []

    def give_back(self, batch: Sequence[EndedAttempt]) -> None:
        """Put back a batch that may or may not be written. The epoch makes a second write harmless."""
        for ended in reversed(batch):
            if not ended.run.is_forgotten:
                self._waiting[ended.move].appendleft(ended)

    def forget(self) -> None:
        """Remove forgotten attempts: another attempt may have their run and epoch by now."""
        for move, waiting in self._waiting.items():
            self._waiting[move] = deque(ended for ended in waiting if not ended.run.is_forgotten)
        self._parts.keep(lambda ended: not ended.run.is_forgotten)

    def refuse(self, batch: Sequence[EndedAttempt], error: StatementFailed) -> None:
        """Handle the refusal of a batch: send its halves; write less of a single row, or abandon it.

        After a refusal that is about no row (a lock or statement timeout, a full disk) the batch waits a
        moment. Attempts that were forgotten meanwhile are left out: a later claim may have their epoch.
        """
        remaining = [ended for ended in batch if not ended.run.is_forgotten]
        if not remaining:
            return
        is_of_row = is_refusal(error)
        if is_of_row and self._parts.split(remaining):
            return
        if is_of_row and len(batch) > 1:
            # The remaining row was not refused alone.
            self._parts.put(remaining)
        elif is_of_row and not reduce_end(remaining[0], error.sqlstate, refusal_reason(error)):
            self._on_abandoned(remaining[0])
        else:
            for ended in remaining:
                ended.not_before = monotonic() + REFUSED_PAUSE_SECONDS
            self.give_back(remaining)

    def script(self, batch: Sequence[EndedAttempt]) -> Script:
        """Return the script that writes ``batch`` (all of one move) and deals with every row of it.

        Its value are the attempts that were written and not reported yet, each with its run's status.
        """
        rows: Rows = yield self.statement(batch)
        written, missing = self.split(batch, rows)
        if missing:
            self.report(written)
            written = []
            standing = yield RUN_STATES, (array(ended.run.run_id for ended in missing),)
            for ended in self._lost(missing, standing):
                run = ended.run
                values = str(run.run_id).encode(), str(run.lease_epoch).encode(), ended.outcome.encode()
                yield NOTE_REFUSAL, values
                self._on_late(ended)
        return written

    def statement(self, batch: Sequence[EndedAttempt]) -> Statement:
        """Return the statement that writes ``batch`` (all of one move)."""
        move = batch[0].move
        statement, values = _STATEMENTS[move]
        if move == "fail":
            self._set_groups(batch)
        return statement, (self._worker_id.encode(), *values(batch))

    def split(
        self, batch: Sequence[EndedAttempt], rows: Rows
    ) -> tuple[list[WrittenAttempt], list[EndedAttempt]]:
        """Return the attempts of ``batch`` that were written, by the statement's ``rows``, and the others."""
        if batch[0].move == "succeed" and len(rows) == len(batch):
            status = Status.SUCCEEDED
            return [(ended, status) for ended in batch], []
        # By run and epoch: a batch may have two attempts of one run, one of which has lost its lease.
        moved = {row[:2]: row[2:] for row in rows}
        self._group_throttle.note(
            ended.group.id
            for ended in batch
            if ended.group and ended.writes_group and ended.run.assignment[:2] in moved
        )
        written, missing = [], []
        for ended in batch:
            row = moved.get(ended.run.assignment[:2])
            if row is None:
                missing.append(ended)
            else:
                written.append((ended, row[0] if row else Status.SUCCEEDED))
        return written, missing

    def report(self, written: Sequence[WrittenAttempt]) -> None:
        """Report attempts as written, if there are any."""
        if written:
            self._on_written(written)

    def _set_groups(self, batch: Sequence[EndedAttempt]) -> None:
        """Set the error group of each failure. A run that was cancelled has none."""
        for ended in batch:
            answer = ended.answer
            ended.group = (
                None
                if ended.outcome == "cancelled"
                else group_of(ended.run.assignment.job_type, _code(ended), answer.message, answer.traceback)
            )
            ended.writes_group = ended.group is not None and self._group_throttle.is_due(ended.group.id)

    def _has_other_owner(self, row: Row, run: RunInFlight) -> bool:
        """Whether another worker owns the run, after a failover perhaps under our epoch."""
        _, epoch, owner, _ = row
        return epoch != run.lease_epoch or owner not in (None, self._worker_id)

    def _lost(self, missing: Sequence[EndedAttempt], standing: Rows) -> list[EndedAttempt]:
        """Return those of ``missing`` whose lease was lost, by the rows of RUN_STATES.

        An attempt whose row is locked is queued again; one that had been written already is reported.
        """
        rows = {row[0]: row for row in standing}
        lost = []
        for ended in missing:
            if ended.run.is_forgotten:
                continue
            row = rows.get(ended.run.run_id)
            if row is None or self._has_other_owner(row, ended.run):
                lost.append(ended)
            elif row[3] != Status.RUNNING:
                self._on_written([(ended, row[3])])
            else:
                ended.tries += 1
                ended.not_before = monotonic() + (BUSY_PAUSE_SECONDS if ended.tries > 2 else 0.0)
                self.add(ended)
        return lost


class ErrorGroupThrottle:
    """Which error groups this process has written lately, so that each is written once a minute.

    A fault that fails ten thousand runs a minute would otherwise write one row of ``error_groups`` as often:
    all writers would wait for each other there, and each write leaves a dead row. ``last_seen_at`` is at most
    a minute old.
    """

    def __init__(self) -> None:
        self._written_at: dict[int, float] = {}

    def is_due(self, group: int) -> bool:
        """Return whether ``group`` was not written in the last GROUP_SECONDS."""
        at = self._written_at.get(group)
        return at is None or monotonic() - at >= GROUP_SECONDS

    def note(self, groups: Iterable[int]) -> None:
        """Remember that these groups were written just now."""
        if len(self._written_at) > MOST_GROUPS:
            self._written_at.clear()
        self._written_at.update(dict.fromkeys(groups, monotonic()))


def take_batch(queue: deque[EndedAttempt], size: int, room: int = BATCH_CHARACTERS) -> list[EndedAttempt]:
    """Remove and return up to ``size`` attempts that may be written now, with about ``room`` characters."""
    now = monotonic()
    batch: list[EndedAttempt] = []
    for _ in range(min(len(queue), size)):
        ended = queue.popleft()
        if ended.run.is_forgotten:
            continue
        if ended.not_before > now:
            queue.append(ended)
            continue
        batch.append(ended)
        room -= characters(ended)
        if room <= 0:
            break
    return batch


def characters(ended: EndedAttempt) -> int:
    """Return the length of an answer's texts."""
    answer = ended.answer
    if answer is _RETURNED:
        return 0
    texts = answer.result, answer.message, answer.output_tail, answer.traceback
    return sum(len(text) for text in texts if text)


def _times(batch: Sequence[EndedAttempt]) -> tuple[bytes, bytes, bytes, bytes]:
    """Return ids, epochs, seconds since each ended and seconds each took, to the microsecond."""
    now = boottime_ns()
    assigned = [ended.run.assignment for ended in batch]
    return (
        numbers([assignment[0] for assignment in assigned]),
        _uniform_array([assignment[1] for assignment in assigned]),
        _seconds_array([max(0, now - ended.ended_ns) // 1000 for ended in batch]),
        _seconds_array([round(ended.took_seconds * 1e6) for ended in batch]),
    )


def _seconds_array(values: Sequence[int]) -> bytes:
    """Return an array of seconds from microseconds; ``values`` is not empty."""
    return ("{" + "e-6,".join(map(str, values)) + "e-6}").encode("ascii")


def _rules(batch: Sequence[EndedAttempt]) -> tuple[bytes, bytes]:
    return (
        _uniform_array([ended.run.max_attempts for ended in batch]),
        _uniform_array([ended.run.assignment[9] for ended in batch]),
    )


def _uniform_array(values: Sequence[float]) -> bytes:
    """Return an array of numbers; the text of numbers that are all the same is made once."""
    first = values[0]
    if values.count(first) == len(values):
        return numbers([str(first)] * len(values))
    return numbers(values)


def _sparse_array(values: Sequence[object]) -> bytes:
    """Return an array of what few attempts have, empty when none has it: ``unnest`` gives NULL then."""
    return array(() if values.count(None) == len(values) else values)


def _succeed_values(batch: Sequence[EndedAttempt]) -> tuple[bytes, ...]:
    answers = [ended.answer for ended in batch]
    return (
        *_times(batch),
        _sparse_array([answer.result for answer in answers]),
        _sparse_array([answer.output_tail for answer in answers]),
        _sparse_array([answer.note for answer in answers]),
        *_rules(batch),
    )


def _code(ended: EndedAttempt) -> str:
    return ended.answer.error_code or "unknown"


def _fail_values(batch: Sequence[EndedAttempt]) -> tuple[bytes, ...]:
    return (
        *_times(batch),
        array(ended.outcome for ended in batch),
        array(_code(ended) for ended in batch),
        array(ended.answer.message for ended in batch),
        array(ended.answer.permanent for ended in batch),
        array(round(ended.delay_seconds, 3) for ended in batch),
        _sparse_array([ended.answer.traceback for ended in batch]),
        _sparse_array([ended.answer.output_tail for ended in batch]),
        _sparse_array([ended.answer.note for ended in batch]),
        *_rules(batch),
        _sparse_array([ended.group and ended.group.id for ended in batch]),
        _sparse_array(
            [ended.group.template if ended.group and ended.writes_group else None for ended in batch]
        ),
        _sparse_array([ended.group.frame if ended.group and ended.writes_group else None for ended in batch]),
    )


def _release_values(batch: Sequence[EndedAttempt]) -> tuple[bytes, ...]:
    return (
        *_times(batch),
        _sparse_array([ended.answer.output_tail for ended in batch]),
        _sparse_array([ended.answer.note for ended in batch]),
        array(ended.has_started for ended in batch),
    )


_STATEMENTS: dict[Move, tuple[str, Callable[[Sequence[EndedAttempt]], tuple[bytes, ...]]]] = {
    "succeed": (SUCCEED, _succeed_values),
    "fail": (FAIL, _fail_values),
    "release": (RELEASE, _release_values),
}
