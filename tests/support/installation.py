"""`wakeboard up` as somebody who installed it has it: processes, an address, a link, and rows to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.support.processes import Wakeboard, wait_until, wakeboard

APP = "tests.support.installed_handlers"
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


@contextmanager
def running_household(database: str) -> Iterator[Household]:
    """Run worker and dashboard on ``database`` while the block lasts."""
    words = ("up", "--port", "0", "--app", APP)
    with wakeboard(*words, database=database, environment=QUICK) as up:
        yield household_of(up, database)


def household_of(up: Wakeboard, database: str, seconds: float = 60) -> Household:
    """Wait until ``up`` has printed its login link; return where it is."""
    up.wait_for("/login?token=", seconds)
    found = LINK.search(up.output)
    assert found, up.output
    return Household(up, database, found[1], found[0])


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
