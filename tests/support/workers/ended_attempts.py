"""Attempts that are held and attempts that ended, for the tests of what is decided and what is written."""

from __future__ import annotations

from typing import Any

from wakeboard.core.outcome import AttemptResult, Kind
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.ended_attempt import EndedAttempt, decide_end
from wakeboard.runtime.loop.in_flight import RunInFlight


def held(run_id: int = 1, epoch: int = 1, **columns: Any) -> RunInFlight:
    """Return a held run of the type mail; ``columns`` are what else it should be."""
    assignment = Assignment(run_id, epoch, 1, "mail", "{}", None, None, None, None, 300.0, None, "w1")
    now = boottime_ns()
    values: dict[str, Any] = {
        "failures": 0, "max_attempts": 10, "backoff": "fixed 7s", "lease_seconds": 30.0, "leased_ns": now,
        "claimed_ns": now,
    }  # fmt: skip
    made = RunInFlight(assignment, **values)
    for name, value in columns.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made


def decided(kind: Kind, **columns: Any) -> EndedAttempt:
    """Return what is decided of an answer of ``kind`` for a run that is held as ``columns`` say."""
    ended = decide_end(
        held(**columns), AttemptResult(kind, error_code="code"), took_seconds=1, ended_ns=boottime_ns()
    )
    assert ended is not None
    return ended
