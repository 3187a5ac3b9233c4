"""The product from outside: `wakeboard up` with our handlers, its tables, and visitors of its pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.endtoend.visitor import Visitor, sign_in
from tests.processes import Wakeboard, run_wakeboard, wait_until, wakeboard

APP = "tests.endtoend.handlers"
LINK = re.compile(r"(http://127\.0\.0\.1:\d+)/login\?token=\S+")
# Short leases show within seconds what otherwise shows within a minute.
QUICK = {"WAKEBOARD_LEASE_SECONDS": "3", "WAKEBOARD_KILL_SECONDS": "1", "WAKEBOARD_CONCURRENCY": "4"}
INSERT = "INSERT INTO wakeboard.job_runs (job_type, payload) VALUES (%s, %s) RETURNING id"
ENDED = ("succeeded", "dead", "cancelled")


@dataclass
class Household:
    """A running ``wakeboard up``: where it is, and the link it printed."""

    up: Wakeboard
    database: str
    url: str
    link: str


@pytest.fixture(scope="module")
def household(shared_database: str) -> Iterator[Household]:
    """Worker and dashboard on ``shared_database``, for all tests of a module."""
    words = ("up", "--port", "0", "--app", APP)
    with wakeboard(*words, database=shared_database, environment=QUICK) as up:
        yield household_of(up, shared_database)


def household_of(up: Wakeboard, database: str, seconds: float = 60) -> Household:
    """Wait until ``up`` has printed its login link; return where it is."""
    up.wait_for("/login?token=", seconds)
    found = LINK.search(up.output)
    assert found, up.output
    return Household(up, database, found[1], found[0])


@pytest.fixture(scope="module")
def admin(household: Household) -> Visitor:
    """Who used the link of the terminal."""
    return sign_in(household.link)


@pytest.fixture(scope="module")
def command(shared_database: str) -> Callable[..., Any]:
    """Run a ``wakeboard`` command on ``shared_database`` that must succeed; return its JSON answer."""

    def run(*words: str) -> Any:
        said = run_wakeboard(*words, "--json", database=shared_database)
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    return run


def enqueue(connection: psycopg.Connection[Any], job_type: str, **payload: Any) -> int:
    """Enqueue a run by the plainest INSERT there is; return its id."""
    row = connection.execute(INSERT, (job_type, json.dumps(payload))).fetchone()
    assert row
    return int(row[0])


def wait_for_end(connection: psycopg.Connection[Any], run_id: int, seconds: float = 30) -> str:
    """Return the status in which a run ended."""

    def ended() -> str:
        row = connection.execute("SELECT status FROM wakeboard.job_runs WHERE id = %s", (run_id,)).fetchone()
        return str(row[0]) if row and row[0] in ENDED else ""

    return wait_until(ended, seconds, f"run {run_id} has ended")
