"""How an attempt ended and what is written of it: it succeeded, is tried again in 40 s, or is given back.

The decision depends on the child's answer and on what was done to the run. Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from wakeboard.core.errors.error_groups import ErrorGroup
from wakeboard.core.outcome import PLAIN, AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.retry import delay_seconds
from wakeboard.core.states import FINISH_REFUSED
from wakeboard.runtime.loop.in_flight import RunInFlight, StopReason

Move = Literal["succeed", "fail", "release"]

_RETURNED = PLAIN["returned"]

# The longest delay of a run whose end was refused as it was.
LONGEST_DELAY_SECONDS = 3600.0


@dataclass
class EndedAttempt:
    """One attempt that ended and waits to be written.

    ``tries`` counts how often its row was locked by others, ``refusals`` how often the database refused it.
    ``not_before`` (monotonic seconds): when to try again. ``group`` is the error group of a failure;
    ``writes_group``: whether the group's row is written too.
    """

    run: RunInFlight
    move: Move
    answer: AttemptResult
    outcome: str
    has_started: bool
    ended_ns: int
    took_seconds: float
    delay_seconds: float = 0.0
    tries: int = field(default=0, init=False)
    refusals: int = field(default=0, init=False)
    not_before: float = field(default=0.0, init=False)
    group: ErrorGroup | None = field(default=None, init=False)
    writes_group: bool = field(default=False, init=False)


def decide_end(
    run: RunInFlight, answer: AttemptResult, *, took_seconds: float, ended_ns: int
) -> EndedAttempt | None:
    """Return what to write for a child's answer, None when ``transaction()`` has already written it.

    Args:
        run: The run that the attempt belongs to.
        answer: The child's answer, or what the end of its process says.
        took_seconds: How long the attempt took.
        ended_ns: When it ended.
    """
    if answer.kind == "returned":
        return EndedAttempt(run, "succeed", answer, "succeeded", True, ended_ns, took_seconds)
    if answer.kind == "committed":
        return None
    if answer.kind == "unbegun":
        return release_unstarted(run)
    outcome = "timed_out" if answer.kind == "timed_out" else "failed"
    # A handler that raised an error of its own was not cut short.
    match None if answer.kind == "raised" else run.stop_reason:
        case None | StopReason.LEASE_LOST:
            # Of a lost run the database refuses every answer, and notes the outcome.
            pass
        case StopReason.TIMEOUT:
            answer, outcome = _timeout_answer(run, answer), "timed_out"
        case StopReason.CANCEL:
            answer, outcome = _cancel_answer(answer), "cancelled"
        case StopReason.MEMORY:
            answer = _memory_answer(run, answer)
        case StopReason.LEASE_UNCONFIRMED:
            answer = _lease_answer(answer)
        case StopReason.SHUTDOWN:
            # It is given back and costs nothing.
            return EndedAttempt(run, "release", answer, "released", True, ended_ns, took_seconds)
    return _failure(run, answer, outcome, took_seconds, ended_ns)


def plain_success(run: RunInFlight, took_seconds: float, ended_ns: int) -> EndedAttempt:
    """Return what to write for an attempt that returned, without a result or output."""
    return EndedAttempt(run, "succeed", _RETURNED, "succeeded", True, ended_ns, took_seconds)


def release_unstarted(run: RunInFlight) -> EndedAttempt:
    """Return the release of a run whose handler was not called: it costs no attempt."""
    nothing = AttemptResult(kind="cancelled")
    return EndedAttempt(
        run, "release", nothing, "released", has_started=False, ended_ns=boottime_ns(), took_seconds=0.0
    )


def release_bystander(
    run: RunInFlight, answer: AttemptResult, *, took_seconds: float, ended_ns: int
) -> EndedAttempt:
    """Return the release of a run whose process was killed because of another run: it costs no failure."""
    note = "its process was ended for the sake of another run; this costs the run nothing"
    given = replace(answer, note=note)
    return EndedAttempt(run, "release", given, "released", True, ended_ns, took_seconds)


def _failure(
    run: RunInFlight, answer: AttemptResult, outcome: str, took: float, ended_ns: int
) -> EndedAttempt:
    delay = delay_seconds(answer, run.backoff, run.failures + 1)
    return EndedAttempt(run, "fail", answer, outcome, True, ended_ns, took, delay_seconds=delay)


def _timeout_answer(run: RunInFlight, answer: AttemptResult) -> AttemptResult:
    seconds = run.assignment.timeout_seconds
    message = f"ran longer than its timeout of {seconds:g} s and was stopped"
    return replace(answer, error_code="timed_out", message=message, permanent=False)


def _cancel_answer(answer: AttemptResult) -> AttemptResult:
    return replace(answer, error_code="cancelled", message="cancelled on request", permanent=False)


def _memory_answer(run: RunInFlight, answer: AttemptResult) -> AttemptResult:
    used = run.memory_bytes / 2**20
    message = f"held {used:,.0f} MB of memory, where its type may hold {run.memory_mb:,} MB, and was killed"
    return replace(answer, error_code="memory_limit", message=message, permanent=False)


def _lease_answer(answer: AttemptResult) -> AttemptResult:
    message = "stopped by its own worker: the lease could not be renewed in time"
    return replace(answer, error_code="lease_unconfirmed", message=message, permanent=False)


def reduce_end(ended: EndedAttempt, sqlstate: str, reason: str) -> bool:
    """Change an end that the database refused, for its next try. Return False when nothing is left to try.

    1. What the handler supplied is left out.
    2. The error gets a code of ours, and the times are left out: then the data were at fault.
    3. The run is dead with ``finish_refused`` and the database's sentence, for a person to look at. A rule of
       the tables forbids the end itself, and nobody runs again what may have had its effect.

    Where that is refused too, the attempt is abandoned: its lease expires, and the reaper decides.
    """
    ended.refusals += 1
    note = f"The answer could not be stored ({sqlstate}) and was left out."
    if ended.refusals == 1:
        ended.answer = replace(ended.answer, result=None, output_tail=None, traceback=None, note=note)
    elif ended.refusals == 2:
        ended.answer = replace(ended.answer, error_code="unrecordable", message=note)
        ended.took_seconds = 0.0
        ended.delay_seconds = min(ended.delay_seconds, LONGEST_DELAY_SECONDS)
    elif ended.refusals == 3 and ended.move != "release":
        message = f"The attempt ended ({ended.outcome}), and the database refuses that end: {reason}."
        ended.move, ended.outcome = "fail", "failed"
        ended.answer = replace(ended.answer, permanent=True, error_code=FINISH_REFUSED, message=message)
    else:
        return False
    return True
