"""Programs that enqueue while the database is taken from them, and how the house comes through that."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import psycopg

from tests.support.factories import rows
from tests.support.faults.deployment import Connection, House
from tests.support.faults.timed_steps import every
from tests.support.faults.truth_file import now
from wakeboard import enqueue
from wakeboard.database import db


class Feeder:
    """Enqueues about a hundred runs a second, whether or not the database takes them."""

    def __init__(self, house: House, chance: Random) -> None:
        self._house = house
        self._chance = chance
        self.accepted = 0
        self.refused = 0

    def feed(self, seconds: float) -> None:
        """Go on for ``seconds``; what the database refuses was told to nobody."""
        every(0.25, now() + seconds, self._enqueue)

    def _enqueue(self) -> None:
        try:
            self._house.enqueue_many("effect", 15, {"seconds": self._chance.uniform(0, 0.05)})
            self._house.enqueue_many("note", 10)
            self.accepted += 25
        except psycopg.OperationalError:
            self.refused += 1


class Producer:
    """A program that enqueues by the product's own function, on a session that is cut like the others."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._connection: Connection | None = None
        self.accepted = 0
        self.told: list[str] = []

    def enqueue(self) -> None:
        """Enqueue one run; an error is what the program is told, and it connects again."""
        payload = {"seconds": 0.0, "n": self.accepted}
        try:
            if self._connection is None or self._connection.closed:
                self._connection = db.connect(self._house.database, name="wakeboard producer")
            run_id = enqueue(self._connection, "effect", payload)
        except (psycopg.OperationalError, db.DatabaseError) as told:
            self.told.append(str(told))
        else:
            self._house.acknowledge(run_id, payload)
            self.accepted += 1

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()


def resumed_after(house: House) -> float:
    """Enqueue a run and return how many seconds later it starts."""
    asked_at = now()
    (line,) = house.wait_until_started([house.enqueue("note")], 60)
    return line.at - asked_at


def failed_without_sessions(house: House, *, but_for: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the attempts that did not succeed although their handler asked the database nothing.

    ``but_for``: outcomes that do not count.
    """
    failed = "job_type <> 'effect' AND outcome <> 'succeeded' AND outcome <> ALL(%s)"
    return rows(house.connection, "job_attempts", failed, list(but_for))
