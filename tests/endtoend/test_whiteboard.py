"""Whoever can write a row can have work done, and what became of it can be read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support.factories import attempts, row
from tests.support.http_client import Visitor
from tests.support.installation import QUICK, Household, enqueue, wait_for_end
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive

KILL_SECONDS = float(QUICK["WAKEBOARD_KILL_SECONDS"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where handlers leave their traces."""
    return tmp_path / "trace"


@pytest.fixture(autouse=True)
def _working(household: Household, shared: Connection) -> None:
    """A worker is up and has said what it can run."""
    wait_until(
        lambda: shared.execute("SELECT 1 FROM wakeboard.job_types WHERE name = 'tidy'").fetchone(),
        30,
        "the worker has published its types",
    )


def test_a_plain_insert_is_run_within_three_seconds_and_leaves_its_history(shared: Connection) -> None:
    started = time.monotonic()
    run_id = enqueue(shared, "tidy")
    assert wait_for_end(shared, run_id) == "succeeded"
    assert time.monotonic() - started < 3
    (attempt,) = attempts(shared, run_id)
    assert (attempt["attempt"], attempt["outcome"], attempt["job_type"]) == (1, "succeeded", "tidy")


def test_an_endless_loop_that_ignores_every_signal_ends_with_its_grandchild(
    shared: Connection, file: Path
) -> None:
    run_id = enqueue(shared, "deaf", file=str(file))
    assert wait_for_end(shared, run_id) == "dead"
    (attempt,) = attempts(shared, run_id)
    assert attempt["outcome"] == "timed_out"
    lasted = (attempt["finished_at"] - attempt["started_at"]).total_seconds()
    assert 2 <= lasted <= 2 + KILL_SECONDS + 1
    handler, grandchild = map(int, file.read_text().split())
    wait_until(lambda: not is_alive(handler) and not is_alive(grandchild), 5, "both processes are gone")


def test_an_effect_that_failed_with_an_ordinary_error_is_tried_again(
    shared: Connection, file: Path, admin: Visitor
) -> None:
    run_id = enqueue(shared, "charge_with_error", file=str(file))
    assert wait_for_end(shared, run_id) == "succeeded"
    assert file.read_text().split() == ["1", "2"]
    assert unconfirmed(admin, run_id) == []


def test_an_effect_cut_short_by_death_is_flagged_and_never_repeated(
    shared: Connection, file: Path, admin: Visitor
) -> None:
    run_id = enqueue(shared, "charge_and_die", file=str(file))
    assert wait_for_end(shared, run_id) == "succeeded"
    assert file.read_text().split() == ["1"]
    assert [each["outcome"] for each in attempts(shared, run_id)] == ["failed", "succeeded"]
    assert unconfirmed(admin, run_id) == ["charge"]


def unconfirmed(visitor: Visitor, run_id: int) -> list[str]:
    """Return the keys of a run's effects that the page of effects lists as started and never confirmed."""
    listed = visitor.get("/effects.json").json["items"]
    return [each["key"] for each in listed if each["run_id"] == run_id and each["status"] == "started"]


def test_the_page_of_a_run_tells_what_the_row_tells(shared: Connection, admin: Visitor) -> None:
    run_id = enqueue(shared, "needs_file", file="/nowhere/prices.csv")
    assert wait_for_end(shared, run_id) == "dead"
    shown = admin.get(f"/runs/{run_id}.json").json
    assert (shown["status"], shown["error_code"]) == ("dead", "FileNotFoundError")
    assert shown["last_error"] == row(shared, run_id)["last_error"]
    assert "The price list prices.csv has not arrived." in admin.get(f"/runs/{run_id}").text
