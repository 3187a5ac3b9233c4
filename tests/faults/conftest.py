"""What every fault row may ask for: its seed, its scale, a house, and a place to state its measures."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.faults.deployment import House, a_house
from tests.support.faults.fault_rows import Scale
from tests.support.processes import wait_until
from wakeboard.database import db

# Workers leave ended leases alone for a heartbeat and five seconds after a server's start (duties.reaper).
SETTLED_SECONDS = 10.0


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of the row, drawn for it or given; printed, so that the row can be repeated."""
    given = request.config.getoption("--faults-seed")
    drawn = secrets.randbelow(1_000_000) if given is None else int(given)
    request.node.user_properties.append(("seed", drawn))
    print(f"seed {drawn}")
    return drawn


@pytest.fixture
def chance(seed: int) -> Random:
    """The source of every choice that a row makes."""
    return Random(seed)


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """How much to do: ``scale.times(small, full)``."""
    return Scale(bool(request.config.getoption("--faults-full")))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """State what was measured, in words with numbers, for the table."""

    def state(words: str) -> None:
        request.node.user_properties.append(("measured", words))

    return state


def is_settled(database: str) -> bool:
    """Whether the server runs for so long that ended leases are not left to their workers any more."""
    with db.connect(database, name="wakeboard test") as connection:
        age = "SELECT now() - pg_postmaster_start_time() > make_interval(secs => %s)"
        return connection.execute(age, (SETTLED_SECONDS,)).fetchone() == (True,)


@pytest.fixture
def house(database: str, tmp_path: Path, request: pytest.FixtureRequest, seed: int) -> Iterator[House]:
    """A house on a database of its own; a row that passes must have checked the invariants."""
    wait_until(lambda: is_settled(database), SETTLED_SECONDS, "the server is no new one")
    with a_house(database, tmp_path) as opened:
        failures = request.session.testsfailed
        yield opened
        if request.session.testsfailed == failures:
            assert opened.was_checked, "The row ended without house.check(): its invariants were not asked."
