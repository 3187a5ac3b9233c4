"""Connections that give a silent server up."""

from __future__ import annotations

import time

import pytest

from wakeboard.database import db
from wakeboard.database.timed_connection import AnswerTimeout, TimedConnection


def test_a_server_that_does_not_answer_in_time_is_given_up(database: str) -> None:
    with db.connect(database, name="wakeboard test", answer_seconds=0.5) as connection:
        assert connection.execute("SELECT pg_sleep(0.1), 7").fetchone() == ("", 7)
        began = time.monotonic()
        with pytest.raises(AnswerTimeout, match=r"has not answered for 0\.5 seconds"):
            connection.execute("SELECT pg_sleep(20)")
        assert time.monotonic() - began < 5
        assert connection.closed


def test_the_time_is_that_of_one_exchange(database: str) -> None:
    with db.connect(database, name="wakeboard test", answer_seconds=0.6) as connection:
        for _ in range(4):
            with connection.transaction():
                connection.execute("SELECT pg_sleep(0.3)")
        assert not connection.closed


def test_who_sets_no_time_waits_for_the_server(database: str) -> None:
    with db.connect(database, name="wakeboard test") as connection:
        assert isinstance(connection, TimedConnection) and connection.answer_seconds is None
        assert connection.execute("SELECT pg_sleep(1), 7").fetchone() == ("", 7)
