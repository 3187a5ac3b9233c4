"""When ended attempts are written: by themselves at once, those of a backlog a few hundred at a time."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.factories import Connection, a_run, a_type, claim
from wakeboard.core.outcome import Answer
from wakeboard.core.process.assignment import Assignment
from wakeboard.database import db
from wakeboard.runtime.loop.channel import Channel
from wakeboard.runtime.loop.deciding import decide
from wakeboard.runtime.loop.in_flight import Held, Holdings, boottime_ns
from wakeboard.runtime.loop.line import Line
from wakeboard.runtime.loop.writer import ENOUGH_ENDED, STILL_HELD, Writer

FOREVER = 3600.0


class Desk:
    """A writer with a connection of its own, and what it holds. Who waits for more waits for ever."""

    def __init__(self, database: str) -> None:
        self.wrote: list[int] = []
        self.tells: Callable[[], None] = lambda: None
        self.channel = Channel(db.connect(database, name="wakeboard finish"))
        self._holdings = Holdings()
        line = Line(database, "finish", lambda _: None)
        line.adopt(self.channel)
        self.writer = Writer(line, self._holdings, "w1", wrote=self._wrote, gather_seconds=FOREVER)

    def _wrote(self, written: Sequence[Held]) -> None:
        self.wrote.extend(held.run_id for held in written)
        self.tells()

    def take(self, connection: Connection, count: int) -> list[Held]:
        """Claim ``count`` runs and hold them."""
        a_type(connection)
        for _ in range(count):
            a_run(connection)
        now = boottime_ns()
        held = [
            Held(
                Assignment(one.id, one.epoch, 1, "mail", "{}", None, None, None, None, 300.0, None, "w1"),
                failures=0, max_attempts=10, backoff="fixed 1s", lease_seconds=30.0, leased_ns=now,
                claimed_ns=now,
            )
            for one in claim(connection, limit=count)
        ]  # fmt: skip
        self._holdings.add(held)
        return held

    def end(self, runs: Sequence[Held]) -> None:
        """Let attempts end well, and the loop make one step."""
        for run in runs:
            ended = decide(run, Answer("returned"), took_seconds=1, ended_ns=boottime_ns(), is_stopping=False)
            assert ended is not None
            self.writer.add(ended)
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
        assert len(desk.wrote) == number
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
    assert len(desk.wrote) == ENOUGH_ENDED + 1


def test_the_end_of_a_backlog_waits_for_nobody(desk: Desk, connection: Connection) -> None:
    runs = desk.take(connection, STILL_HELD + 10)
    desk.end(runs[:1])
    desk.settle()
    desk.end(runs[1:5])
    assert not desk.channel.is_busy, "there may be more in a moment"
    desk.end(runs[5:20])
    desk.settle()
    assert len(desk.wrote) == 20, "as many do not come any more"


def test_what_ended_meanwhile_is_sent_before_the_last_batch_is_told(
    desk: Desk, connection: Connection
) -> None:
    one, other = desk.take(connection, 2)
    under_way: list[bool] = []
    desk.tells = lambda: under_way.append(desk.channel.is_busy)
    desk.end([one])
    desk.end([other])
    desk.settle()
    assert under_way == [True, False]
