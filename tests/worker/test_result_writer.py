"""When ended attempts are written: by themselves at once, those of a backlog a few hundred at a time."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence

import pytest

from tests.support.factories import Connection, a_run, a_type, claim
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database import db
from wakeboard.runtime.loop.channel import Channel
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.ended_attempt import decide_end
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight
from wakeboard.runtime.loop.result_writer import ENOUGH_ENDED, ENOUGH_IN_FLIGHT, ResultWriter

FOREVER = 3600.0


class Desk:
    """A writer with a connection of its own, and what it holds. Who waits for more waits for ever."""

    def __init__(self, database: str) -> None:
        self.channel = Channel(db.connect(database, name="wakeboard finish"))
        self._in_flight = RunsInFlight()
        connection = LoopConnection(database, "finish", lambda _: None)
        connection.adopt(self.channel)
        self._taken = 0
        self.writer = ResultWriter(connection, self._in_flight, ClaimPlanner(2), "w1", gather_seconds=FOREVER)

    @property
    def wrote(self) -> int:
        """How many runs are written, and so held no more."""
        return self._taken - len(self._in_flight)

    def take(self, connection: Connection, count: int) -> list[RunInFlight]:
        """Claim ``count`` runs and hold them."""
        a_type(connection)
        for _ in range(count):
            a_run(connection)
        now = boottime_ns()
        held = [
            RunInFlight(
                Assignment(
                    one.id, one.lease_epoch, 1, "mail", "{}", None, None, None, None, 300.0, None, "w1"
                ),
                failures=0, max_attempts=10, backoff="fixed 1s", lease_seconds=30.0, leased_ns=now,
                claimed_ns=now,
            )
            for one in claim(connection, limit=count)
        ]  # fmt: skip
        self._in_flight.add(held)
        self._taken += count
        return held

    def end(self, runs: Sequence[RunInFlight]) -> None:
        """Let attempts end well, and the loop make one step."""
        for run in runs:
            ended = decide_end(run, AttemptResult("returned"), took_seconds=1, ended_ns=boottime_ns())
            assert ended is not None
            self.writer.deferred.add(ended)
        self.writer.step()

    def settle(self) -> None:
        """Wait until nothing is being written."""
        while self.channel.is_busy:
            select.select([self.channel.fileno()], [], [], 10)
            self.channel.pump()


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    made = Desk(database)
    yield made
    made.channel.close()


def test_what_ends_by_itself_is_written_at_once(desk: Desk, connection: Connection) -> None:
    runs = desk.take(connection, 3)
    for number, run in enumerate(runs, 1):
        desk.end([run])
        desk.settle()
        assert desk.wrote == number
    assert desk.writer.is_clear


def test_of_a_backlog_a_few_wait_for_more_and_many_do_not(desk: Desk, connection: Connection) -> None:
    first, few, *others = desk.take(connection, 2 * ENOUGH_ENDED + 2)
    desk.end([first])
    desk.settle()
    desk.end([few])
    assert not desk.channel.is_busy
    assert 0 < desk.writer.seconds_to_send <= FOREVER
    desk.end(others[: ENOUGH_ENDED - 1])
    desk.settle()
    assert desk.writer.is_clear
    assert desk.wrote == ENOUGH_ENDED + 1


def test_the_end_of_a_backlog_waits_for_nobody(desk: Desk, connection: Connection) -> None:
    runs = desk.take(connection, ENOUGH_IN_FLIGHT + 10)
    desk.end(runs[:1])
    desk.settle()
    desk.end(runs[1:5])
    assert not desk.channel.is_busy, "there may be more in a moment"
    desk.end(runs[5:20])
    desk.settle()
    assert desk.wrote == 20, "as many do not come any more"


def test_what_ended_meanwhile_is_sent_before_the_last_batch_is_told(
    desk: Desk, connection: Connection
) -> None:
    one, other = desk.take(connection, 2)
    desk.end([one])
    desk.end([other])
    while desk.wrote == 0:
        select.select([desk.channel.fileno()], [], [], 10)
        desk.channel.pump()
    assert desk.channel.is_busy, "the other is being written when the first is told"
    desk.settle()
    assert desk.wrote == 2
