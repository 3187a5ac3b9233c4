"""The first claim of a run writes how late it starts, and whether another run of its schedule goes on."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.factories import (
    a_definition,
    a_run,
    a_type,
    claim,
    claim_limited,
    fail,
    from_now,
    make_due,
    release,
    row,
    send,
    succeed,
)
from wakeboard.queue.engine.claims import CLAIM_THESE


@pytest.fixture
def nightly(connection: Connection) -> int:
    a_type(connection)
    return a_definition(connection, "nightly")


def a_fire(connection: Connection, definition: int, minutes: int) -> int:
    """Write the waiting run of a fire that was due so many minutes ago."""
    return a_run(connection, definition_id=definition, scheduled_for=from_now(f"-{minutes} minutes"))


def overlapped(connection: Connection, *ids: int) -> list[bool]:
    return [row(connection, each)["overlapped"] for each in ids]


def test_a_fire_says_how_late_it_first_started(connection: Connection, nightly: int) -> None:
    run = a_fire(connection, nightly, 3)
    (claimed,) = claim(connection)
    assert row(connection, run)["late_by"] == pytest.approx(180, abs=5)
    fail(connection, claimed.held, delay=0)
    connection.execute("UPDATE wakeboard.job_runs SET late_by = 7, scheduled_for = now() - interval '1 hour'")
    make_due(connection, run)
    assert claim(connection)[0].id == run
    assert row(connection, run)["late_by"] == 7, "a later attempt says nothing about it"


def test_a_run_for_no_time_is_not_late(connection: Connection, nightly: int) -> None:
    by_hand, other = a_run(connection, definition_id=nightly), a_run(connection)
    assert len(claim(connection)) == 2
    assert row(connection, by_hand)["late_by"] is row(connection, other)["late_by"] is None


def test_what_was_given_back_unbegun_has_not_started(connection: Connection, nightly: int) -> None:
    run = a_fire(connection, nightly, 1)
    (claimed,) = claim(connection)
    release(connection, claimed.held, started=False)
    connection.execute("UPDATE wakeboard.job_runs SET scheduled_for = now() - interval '1 hour'")
    make_due(connection, run)
    claim(connection)
    assert row(connection, run)["late_by"] == pytest.approx(3600, abs=5)


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_that_starts_while_another_of_its_schedule_is_under_way_overlaps(
    connection: Connection, nightly: int, status: str
) -> None:
    a_run(connection, status, definition_id=nightly)
    run, elsewhere = a_fire(connection, nightly, 0), a_fire(connection, a_definition(connection, "weekly"), 0)
    by_hand, alone = a_run(connection, definition_id=nightly), a_run(connection)
    claim(connection)
    assert overlapped(connection, run, by_hand, elsewhere, alone) == [True, True, False, False]


def test_a_run_after_the_end_of_the_one_before_does_not_overlap(connection: Connection, nightly: int) -> None:
    first = a_fire(connection, nightly, 2)
    succeed(connection, claim(connection)[0].held)
    second, waits = a_fire(connection, nightly, 1), a_run(connection, definition_id=nightly, run_at="1 hour")
    claim(connection)
    assert overlapped(connection, first, second, waits) == [False, False, False]


def test_of_runs_that_one_claim_takes_all_but_the_first_overlap(connection: Connection, nightly: int) -> None:
    runs = [a_fire(connection, nightly, minutes) for minutes in (3, 2, 1)]
    assert len(claim(connection)) == 3
    assert overlapped(connection, *runs) == [False, True, True]


def test_a_limited_claim_and_a_claim_of_named_runs_write_it_too(connection: Connection) -> None:
    a_type(connection, max_running=5)
    a_type(connection, "other")
    nightly = a_definition(connection, "nightly")
    runs = [a_fire(connection, nightly, minutes) for minutes in (3, 2)]
    assert len(claim_limited(connection)) == 2
    named = a_run(connection, job_type="other", definition_id=nightly, scheduled_for=from_now("-4 minutes"))
    assert len(send(connection, CLAIM_THESE, [named], "w1", 30, None)) == 1
    assert overlapped(connection, *runs, named) == [False, True, True]
    assert row(connection, named)["late_by"] == pytest.approx(240, abs=5)
