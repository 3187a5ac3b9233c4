"""A queue of results, and the loop that writes them, for the tests of what a refusal costs."""

from __future__ import annotations

import select
from typing import Any

from tests.support.factories import Connection, a_run, a_type, claim
from tests.support.workers.ended_attempts import held
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.channel import Channel, StatementFailed
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, decide_end
from wakeboard.runtime.loop.in_flight import RunInFlight
from wakeboard.runtime.loop.result_queue import ResultQueue


class Desk:
    """A queue of the worker w1, and what it reports of each run."""

    def __init__(self) -> None:
        self.written: list[tuple[int, str]] = []
        self.refused: list[int] = []
        self.abandoned: list[int] = []
        self.queue = ResultQueue(
            "w1",
            lambda batch: self.written.extend((ended.run.run_id, status) for ended, status in batch),
            lambda ended: self.refused.append(ended.run.run_id),
            lambda ended: self.abandoned.append(ended.run.run_id),
        )


def result_queue() -> tuple[ResultQueue, list[tuple[int, str]], list[int]]:
    """Return a queue, the runs that it has written, and those whose answers came too late."""
    desk = Desk()
    return desk.queue, desk.written, desk.refused


def write(channel: Channel, made: ResultQueue, *, rounds: int = 50) -> int:
    """Write as the worker's loop does, until nothing waits; return how many batches were sent."""
    sent = 0
    for _ in range(rounds):
        batch = made.next_batch()
        if not batch:
            if not len(made):
                return sent
            select.select([], [], [], 0.02)
            continue
        sent += 1
        told: list[Any] = []
        channel.run(made.script(batch), told.append, told.append)
        while not told:
            select.select([channel.fileno()], [], [], 10)
            channel.pump()
        if isinstance(told[0], StatementFailed):
            made.refuse(batch, told[0])
        else:
            made.report(told[0])
    return sent


def running(connection: Connection, count: int) -> list[RunInFlight]:
    """Claim ``count`` new runs for w1, and hold them."""
    a_type(connection)
    for _ in range(count):
        a_run(connection)
    return [held(one.id, one.lease_epoch) for one in claim(connection, limit=count)]


def succeeded(one: RunInFlight, **answer: Any) -> EndedAttempt:
    """Let a held run end well."""
    ended = decide_end(one, AttemptResult("returned", **answer), took_seconds=1, ended_ns=boottime_ns())
    assert ended is not None
    return ended
