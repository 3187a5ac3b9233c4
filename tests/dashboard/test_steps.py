"""Steps of statistics are kept while nothing is added to them, and told anew as soon as something is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection as Asker
from sqlalchemy import create_engine

from tests.conftest import Connection
from wakeboard.reporting import statistics
from wakeboard_dashboard.queries.steps import MOST, STEP, Steps

NOON = datetime.fromisoformat("2026-03-02T12:00Z")
HOUR = timedelta(hours=1)


class Reader:
    """Sums the runs of steps, and knows which spans it was asked for."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.steps: Steps[int] = Steps()
        self.spans: list[tuple[int, int]] = []

    def told(self) -> dict[int, int]:
        """Return the runs of each step of the hour, by the minute in which it begins."""
        self.spans.clear()
        told = self.steps.read(self.asker, NOON, NOON + HOUR, self._by_minutes)
        return {(start - NOON) // timedelta(minutes=1): runs for start, runs in told.items()}

    def _by_minutes(self, first: datetime, until: datetime, step: timedelta) -> dict[datetime, int]:
        self.spans.append((round((first - NOON) / STEP), round((until - NOON) / STEP)))
        rows = self.asker.exec_driver_sql(
            """SELECT date_bin(%(step)s, minute, %(first)s), sum(runs)::int FROM (
                SELECT minute, runs FROM wakeboard.statistics_deltas
                UNION ALL SELECT minute, runs FROM wakeboard.statistics_rollups
            ) AS both_tables WHERE minute >= %(first)s AND minute < %(until)s GROUP BY 1""",
            {"step": step, "first": first, "until": until},
        )
        return {start: int(runs) for start, runs in rows}


@pytest.fixture
def reader(database: str) -> Iterator[Reader]:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as asker:
        yield Reader(asker)
    engine.dispose()


def ended(connection: Connection, minute: int, runs: int, table: str = "statistics_rollups") -> None:
    connection.execute(
        f"INSERT INTO wakeboard.{table} VALUES (%s, 'mail', 'succeeded', 1, 1, %s, 1, 1, 1, 1)".encode(),
        (NOON + timedelta(minutes=minute), runs),
    )


def test_what_is_as_it_was_is_not_read_again(connection: Connection, reader: Reader) -> None:
    for minute in (0, 1, 30, 59):
        ended(connection, minute, 1 + minute)
    assert reader.told() == {0: 3, 30: 31, 55: 60} and reader.spans == [(0, 12)]
    assert reader.told() == {0: 3, 30: 31, 55: 60} and reader.spans == []


def test_an_hour_in_which_nothing_ended_is_not_read(reader: Reader) -> None:
    assert reader.told() == {} and reader.spans == []


def test_a_step_with_a_row_more_is_read_from_there_on(connection: Connection, reader: Reader) -> None:
    for minute in (0, 30, 59):
        ended(connection, minute, 1)
    reader.told()
    ended(connection, 31, 7)
    assert reader.told() == {0: 1, 30: 8, 55: 1} and reader.spans == [(6, 12)]
    ended(connection, 12, 5)
    assert reader.told() == {0: 1, 10: 5, 30: 8, 55: 1} and reader.spans == [(2, 12)]
    reader.told()
    assert reader.spans == []


def test_deltas_are_told_before_and_after_they_are_merged(connection: Connection, reader: Reader) -> None:
    for minute in (0, 30):
        ended(connection, minute, 1)
    reader.told()
    # Two of one kind are one row once they are merged.
    for runs in (2, 3):
        ended(connection, 30, runs, "statistics_deltas")
    assert [reader.told() for _ in range(2)] == 2 * [{0: 1, 30: 6}] and reader.spans == [(6, 12)]
    ended(connection, 30, 4, "statistics_deltas")
    assert reader.told() == {0: 1, 30: 10}
    statistics.merge(connection)
    assert reader.told() == {0: 1, 30: 10} and reader.spans == [(6, 12)]
    assert reader.told() == {0: 1, 30: 10} and reader.spans == []


def test_what_comes_between_the_two_questions_is_told_once(
    connection: Connection, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(connection, 0, 1)
    reads = reader._by_minutes

    def late(first: datetime, until: datetime, step: timedelta) -> dict[datetime, int]:
        ended(connection, 1, 10)
        monkeypatch.undo()
        return reads(first, until, step)

    monkeypatch.setattr(reader, "_by_minutes", late)
    assert reader.told() == {0: 11}
    ended(connection, 2, 100)
    assert reader.told() == {0: 111}
    assert reader.told() == {0: 111} and reader.spans == []


def test_a_day_of_steps_does_not_stay_in_memory(connection: Connection, reader: Reader) -> None:
    for minute in range(0, 24 * 60, 5):
        ended(connection, minute, 1)
    for hour in range(24):
        reader.steps.read(reader.asker, NOON + hour * HOUR, NOON + (hour + 1) * HOUR, reader._by_minutes)
    assert len(reader.steps._kept) == MOST
