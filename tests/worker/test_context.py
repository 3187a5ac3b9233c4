"""What a handler is given in a child, beside what it is given anywhere else."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import SharedSlot, create_shared_slots
from wakeboard.handlers.context import Context


def test_the_context_of_an_assignment_is_that_of_its_fields() -> None:
    page = SharedSlot(create_shared_slots(1), 0)
    fields = {
        "run_id": 7, "lease_epoch": 3, "attempt": 2, "job_type": "mail", "key": "k", "definition_id": 5,
        "scheduled_for": "2026-03-08 07:00:00+00", "enqueued_at": "2026-03-08 06:00:00+00",
        "timeout_seconds": 1.5, "traceparent": "00-1-2-01", "worker_id": "host-1",
    }  # fmt: skip
    assignment = Assignment(**fields, payload="[1]")  # type: ignore[arg-type]
    made = Context(**fields, payload=[1], page=page, started_ns=10**9)  # type: ignore[arg-type]
    given = Context.for_assignment(assignment, [1], page, 10**9)
    assert vars(given) == vars(made)
    assert given.scheduled_for == made.scheduled_for
    assert given.enqueued_at == made.enqueued_at
    assert (given.committed, given.cancelled, given.progress_done) == (False, False, 0)


def test_a_time_given_by_hand_is_the_one_that_a_schedule_meant() -> None:
    night = datetime(2026, 3, 29, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    given = Context(payload={}, scheduled_for=night).scheduled_for
    assert given is night
    written = Context(scheduled_for="2026-03-28 23:30:00+00[Europe/Berlin]").scheduled_for
    assert (written, str(written)) == (night, str(night))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (datetime(2026, 3, 29, 0, 30), "has no time zone, and a schedule always has one"),
        ("2026-03-29T00:30", "has no time zone, and a schedule always has one"),
        (date(2026, 3, 29), "is no datetime"),
        (1774740600, "is no datetime"),
    ],
)
def test_a_time_that_no_schedule_could_have_meant_is_refused_in_a_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Context(payload={}, scheduled_for=value)
    assert Context(scheduled_for=datetime.now(UTC)).scheduled_for is not None
