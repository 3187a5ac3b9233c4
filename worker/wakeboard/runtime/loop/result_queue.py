"""From ended attempts to the statements that say so: they are queued here and written in batches.

How each ended was decided before (``deciding``); the row decides the rest under its lock. A batch that meets
a row somebody holds leaves that row for the next try; a batch that the database refuses for one of its rows
is sent again in halves, down to that one (``record_less``): it hurts no other run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from time import monotonic
from typing import Any

from wakeboard.core.errors.error_groups import group_of
from wakeboard.core.outcome import PLAIN
from wakeboard.core.states import Status
from wakeboard.database.poison_rows import Parts, is_refusal, reason
from wakeboard.queue.engine.endings import FAIL, RELEASE, SUCCEED
from wakeboard.queue.engine.fence import NOTE_REFUSAL, STANDING
from wakeboard.runtime.loop.channel import Rows, Script, Statement, StatementFailed, array, numbers
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, record_less
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight

BATCH = 750
# What one statement carries; the socket takes it in pieces while the loop goes on.
BATCH_CHARACTERS = 1_000_000
BUSY_PAUSE_SECONDS = 0.02
REFUSED_PAUSE_SECONDS = 0.2

# What nearly every answer is, with no texts.
_RETURNED = PLAIN["returned"]

TOLD_SECONDS = 60.0
# More groups than this in a minute are told again earlier, which is right and merely costs more.
MOST_TOLD = 10_000

# An attempt, and the status that its run has now.
WrittenAttempt = tuple[EndedAttempt, str]


class ResultQueue:
    """The queue of ended attempts and the scripts that write them."""

    def __init__(
        self,
        worker_id: str,
        written: Callable[[Sequence[WrittenAttempt]], None],
        refused: Callable[[EndedAttempt], None],
        gave_up: Callable[[EndedAttempt], None],
    ) -> None:
        """``refused``: a late answer, whose lease was lost; ``gave_up``: one that the database forbids."""
        self._worker_id = worker_id
        self._written = written
        self._refused = refused
        self._gave_up = gave_up
        # In the order of their turns: the one written last waits for the others.
        self._waiting: dict[str, deque[EndedAttempt]] = {
            "succeed": deque(),
            "fail": deque(),
            "release": deque(),
        }
        # Parts of batches that were refused: each is sent as it is.
        self._parts: Parts[EndedAttempt] = Parts()
        self._told = ErrorGroupThrottle()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._parts.rows)

    def waiting(self) -> Iterator[EndedAttempt]:
        """Give every attempt that waits to be written."""
        return chain(*self._waiting.values(), self._parts.rows)

    def add(self, ended: EndedAttempt) -> None:
        """Queue an attempt to be written."""
        if not ended.run.is_forgotten:
            self._waiting[ended.move].append(ended)

    def add_succeeded(self, ended: Sequence[EndedAttempt]) -> None:
        """Queue attempts that succeeded to be written."""
        self._waiting["succeed"].extend(ended)

    def next_batch(self) -> list[EndedAttempt]:
        """Take what can be written by one statement now; empty when all wait for a moment."""
        for part in self._parts:
            return list(part)
        for move in list(self._waiting):
            batch = take(self._waiting[move], BATCH)
            if batch:
                self._waiting[move] = self._waiting.pop(move)
                return batch
        return []

    def give_back(self, batch: Sequence[EndedAttempt]) -> None:
        """Put a batch back whose fate is unknown (the connection went): the epoch guards a second try."""
        for ended in reversed(batch):
            if not ended.run.is_forgotten:
                self._waiting[ended.move].appendleft(ended)

    def forget(self) -> None:
        """Leave out attempts that are forgotten: another run may have their number and epoch by now."""
        for move, waiting in self._waiting.items():
            self._waiting[move] = deque(ended for ended in waiting if not ended.run.is_forgotten)
        self._parts.keep(lambda ended: not ended.run.is_forgotten)

    def refuse(self, batch: Sequence[EndedAttempt], error: StatementFailed) -> None:
        """Answer the database's refusal of a batch: halve it; of a single row try less, or give it up.

        A refusal that does not speak of a row (a lock or statement timeout, a full disk) costs no answer: the
        batch waits a moment. What was forgotten meanwhile is left out: a later claim may have its epoch.
        """
        kept = [ended for ended in batch if not ended.run.is_forgotten]
        if not kept:
            return
        is_of_row = is_refusal(error)
        if is_of_row and self._parts.split(kept):
            return
        if is_of_row and len(batch) > 1:
            # It was not refused alone.
            self._parts.put(kept)
        elif is_of_row and not record_less(kept[0], error.sqlstate, reason(error)):
            self._gave_up(kept[0])
        else:
            for ended in kept:
                ended.not_before = monotonic() + REFUSED_PAUSE_SECONDS
            self.give_back(kept)

    def script(self, batch: Sequence[EndedAttempt]) -> Script:
        """Return the script that writes ``batch`` (all of one move) and settles every row of it.

        Its value are those that were written, each with the status that it has now, and not told yet.
        """
        rows: Rows = yield self.statement(batch)
        written, missing = self.split(batch, rows)
        if missing:
            self.tell(written)
            written = []
            standing = yield STANDING, (array(ended.run.run_id for ended in missing),)
            refused = self._settle(missing, standing)
            for ended in refused:
                yield NOTE_REFUSAL, _refusal(ended)
                self._refused(ended)
        return written

    def statement(self, batch: Sequence[EndedAttempt]) -> Statement:
        """Return the statement that writes ``batch`` (all of one move)."""
        move = batch[0].move
        statement, values = _STATEMENTS[move]
        if move == "fail":
            self._group(batch)
        return statement, (self._worker_id.encode(), *values(batch))

    def split(
        self, batch: Sequence[EndedAttempt], rows: Rows
    ) -> tuple[list[WrittenAttempt], list[EndedAttempt]]:
        """Return what of ``batch`` was written, by the ``rows`` that its statement brought, and the rest."""
        if batch[0].move == "succeed" and len(rows) == len(batch):
            # A success has nothing to tell but that it is written.
            status = Status.SUCCEEDED
            return [(ended, status) for ended in batch], []
        # By run and epoch: the batch may hold two attempts of one run, of which one has lost it.
        moved = {row[:2]: row[2:] for row in rows}
        self._told.note(
            ended.group.id
            for ended in batch
            if ended.group and ended.tells and ended.run.assignment[:2] in moved
        )
        written, missing = [], []
        for ended in batch:
            row = moved.get(ended.run.assignment[:2])
            if row is None:
                missing.append(ended)
            else:
                written.append((ended, row[0] if row else Status.SUCCEEDED))
        return written, missing

    def tell(self, written: Sequence[WrittenAttempt]) -> None:
        """Tell of attempts that they are written, if there are any."""
        if written:
            self._written(written)

    def _group(self, batch: Sequence[EndedAttempt]) -> None:
        """Say to which error group each failure belongs; what was stopped on request has none."""
        for ended in batch:
            answer = ended.answer
            ended.group = (
                None
                if ended.outcome == "cancelled"
                else group_of(ended.run.assignment.job_type, _code(ended), answer.message, answer.traceback)
            )
            ended.tells = ended.group is not None and self._told.is_due(ended.group.id)

    def _is_taken(self, row: tuple[Any, ...], run: RunInFlight) -> bool:
        """Whether somebody else owns the run now; after a failover that lost a claim, under our own epoch."""
        _, epoch, owner, _ = row
        return epoch != run.lease_epoch or owner not in (None, self._worker_id)

    def _settle(self, missing: Sequence[EndedAttempt], standing: Rows) -> list[EndedAttempt]:
        """Sort the rows that did not move: busy ones wait a moment; return those that are lost to us."""
        rows = {row[0]: row for row in standing}
        lost = []
        for ended in missing:
            if ended.run.is_forgotten:
                continue
            row = rows.get(ended.run.run_id)
            if row is None or self._is_taken(row, ended.run):
                lost.append(ended)
            elif row[3] != Status.RUNNING:
                self._written([(ended, row[3])])
            else:
                ended.tries += 1
                ended.not_before = monotonic() + (BUSY_PAUSE_SECONDS if ended.tries > 2 else 0.0)
                self.add(ended)
        return lost


class ErrorGroupThrottle:
    """Which error groups this process has told the database of lately, so that it tells each once a minute.

    A fault that fails ten thousand runs a minute would otherwise write one row of ``error_groups`` as often:
    every writer would queue at it, and each write leaves a dead row behind. ``last_seen_at`` is a minute old
    at most.
    """

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def is_due(self, group: int) -> bool:
        """Return whether the database has not heard of ``group`` from here for TOLD_SECONDS."""
        at = self._at.get(group)
        return at is None or monotonic() - at >= TOLD_SECONDS

    def note(self, groups: Iterable[int]) -> None:
        """Remember that these groups were told just now."""
        if len(self._at) > MOST_TOLD:
            self._at.clear()
        self._at.update(dict.fromkeys(groups, monotonic()))


def take(queue: deque[EndedAttempt], size: int, room: int = BATCH_CHARACTERS) -> list[EndedAttempt]:
    """Take up to ``size`` answers that may be written now, and about ``room`` characters of their texts."""
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
    """Return how long the texts of an answer are."""
    answer = ended.answer
    if answer is _RETURNED:
        return 0
    texts = answer.result, answer.message, answer.output_tail, answer.traceback
    return sum(len(text) for text in texts if text)


def _refusal(ended: EndedAttempt) -> tuple[bytes, bytes, bytes]:
    run = ended.run
    return str(run.run_id).encode(), str(run.lease_epoch).encode(), ended.outcome.encode()


def _times(batch: Sequence[EndedAttempt]) -> tuple[bytes, bytes, bytes, bytes]:
    """Return ids, epochs, seconds since each ended, seconds each took (both to the microsecond)."""
    now = boottime_ns()
    assigned = [ended.run.assignment for ended in batch]
    return (
        numbers([assignment[0] for assignment in assigned]),
        _alike([assignment[1] for assignment in assigned]),
        _microseconds([max(0, now - ended.ended_ns) // 1000 for ended in batch]),
        _microseconds([round(ended.took_seconds * 1e6) for ended in batch]),
    )


def _microseconds(values: Sequence[int]) -> bytes:
    """Return the array of seconds that so many microseconds, at least one of them, are."""
    return ("{" + "e-6,".join(map(str, values)) + "e-6}").encode("ascii")


def _rules(batch: Sequence[EndedAttempt]) -> tuple[bytes, bytes]:
    return (
        _alike([ended.run.max_attempts for ended in batch]),
        _alike([ended.run.assignment[9] for ended in batch]),
    )


def _alike(values: Sequence[float]) -> bytes:
    """Return the array of numbers that are the same for most batches: written once then."""
    first = values[0]
    if values.count(first) == len(values):
        return numbers([str(first)] * len(values))
    return numbers(values)


def _sparse(values: list[Any]) -> bytes:
    """Return the array of what only some runs have; empty where none has it: ``unnest`` says NULL then."""
    return array(() if values.count(None) == len(values) else values)


def _succeed_values(batch: Sequence[EndedAttempt]) -> tuple[bytes, ...]:
    answers = [ended.answer for ended in batch]
    return (
        *_times(batch),
        _sparse([answer.result for answer in answers]),
        _sparse([answer.output_tail for answer in answers]),
        _sparse([answer.note for answer in answers]),
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
        _sparse([ended.answer.traceback for ended in batch]),
        _sparse([ended.answer.output_tail for ended in batch]),
        _sparse([ended.answer.note for ended in batch]),
        *_rules(batch),
        _sparse([ended.group and ended.group.id for ended in batch]),
        _sparse([ended.group.template if ended.group and ended.tells else None for ended in batch]),
        _sparse([ended.group.frame if ended.group and ended.tells else None for ended in batch]),
    )


def _release_values(batch: Sequence[EndedAttempt]) -> tuple[bytes, ...]:
    return (
        *_times(batch),
        _sparse([ended.answer.output_tail for ended in batch]),
        _sparse([ended.answer.note for ended in batch]),
        array(ended.started for ended in batch),
    )


_STATEMENTS: dict[str, tuple[str, Callable[[Sequence[EndedAttempt]], tuple[bytes, ...]]]] = {
    "succeed": (SUCCEED, _succeed_values),
    "fail": (FAIL, _fail_values),
    "release": (RELEASE, _release_values),
}
