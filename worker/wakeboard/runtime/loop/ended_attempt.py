"""From how an attempt ended to what is to be written of it: succeeded, try again in 40 s, given back.

Decides by what the child said and by what was done to the run; writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wakeboard.core.errors.error_groups import ErrorGroup
from wakeboard.core.outcome import PLAIN, AttemptResult
from wakeboard.core.retry import delay_seconds
from wakeboard.core.states import FINISH_REFUSED
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight

_RETURNED = PLAIN["returned"]

# The longest delay of a run whose end was refused as it was.
LONGEST_DELAY_SECONDS = 3600.0


@dataclass
class EndedAttempt:
    """One attempt that ended and waits to be written. ``move`` is 'succeed', 'fail' or 'release'."""

    run: RunInFlight
    move: str
    answer: AttemptResult
    outcome: str
    started: bool
    ended_ns: int
    took_seconds: float
    delay_seconds: float = 0.0
    tries: int = field(default=0, init=False)
    refusals: int = field(default=0, init=False)
    not_before: float = field(default=0.0, init=False)
    # Of a failure, and whether the database is to be told what the group is.
    group: ErrorGroup | None = field(default=None, init=False)
    tells: bool = field(default=False, init=False)


def decide(
    run: RunInFlight, answer: AttemptResult, *, took_seconds: float, ended_ns: int, is_stopping: bool
) -> EndedAttempt | None:
    """Return what to write for ``answer``, or None when ``transaction()`` has already written it.

    ``is_stopping``: an attempt cut short because the worker stops is given back and costs nothing.
    """
    if answer.kind == "returned":
        return EndedAttempt(run, "succeed", answer, "succeeded", True, ended_ns, took_seconds)
    if answer.kind == "committed":
        return None
    if answer.kind == "unbegun":
        return never_started(run)
    cut_short = answer.kind in ("cancelled", "crashed", "timed_out") and run.terminated_ns > 0
    if run.timed_out and cut_short:
        return _failed(run, _timed_out(run, answer), "timed_out", took_seconds, ended_ns)
    if run.cancel_asked_ns and answer.kind in ("cancelled", "crashed", "timed_out"):
        answer = replace(answer, error_code="cancelled", message="cancelled on request", permanent=False)
        return _failed(run, answer, "cancelled", took_seconds, ended_ns)
    if run.memory_bytes and cut_short:
        return _failed(run, _too_heavy(run, answer), "failed", took_seconds, ended_ns)
    if run.is_fenced and cut_short:
        return _failed(run, _fenced(answer), "failed", took_seconds, ended_ns)
    if is_stopping and cut_short:
        return EndedAttempt(run, "release", answer, "released", True, ended_ns, took_seconds)
    outcome = "timed_out" if answer.kind == "timed_out" else "failed"
    return _failed(run, answer, outcome, took_seconds, ended_ns)


def succeeded(run: RunInFlight, took_seconds: float, ended_ns: int) -> EndedAttempt:
    """Return what to write of an attempt that returned and told nothing more."""
    return EndedAttempt(run, "succeed", _RETURNED, "succeeded", True, ended_ns, took_seconds)


def never_started(run: RunInFlight) -> EndedAttempt:
    """Return the release of a run that no handler has seen: it costs no attempt."""
    nothing = AttemptResult(kind="cancelled")
    return EndedAttempt(
        run, "release", nothing, "released", started=False, ended_ns=boottime_ns(), took_seconds=0.0
    )


def bystander(
    run: RunInFlight, answer: AttemptResult, *, took_seconds: float, ended_ns: int
) -> EndedAttempt:
    """Return the release of a run whose process was killed for another run's sake: it costs no failure."""
    note = "its process was ended for the sake of another run; this costs the run nothing"
    given = replace(answer, note=note)
    return EndedAttempt(run, "release", given, "released", True, ended_ns, took_seconds)


def _failed(
    run: RunInFlight, answer: AttemptResult, outcome: str, took: float, ended_ns: int
) -> EndedAttempt:
    delay = delay_seconds(answer, run.backoff, run.failures + 1)
    return EndedAttempt(run, "fail", answer, outcome, True, ended_ns, took, delay_seconds=delay)


def _timed_out(run: RunInFlight, answer: AttemptResult) -> AttemptResult:
    seconds = run.assignment.timeout_seconds
    message = f"ran longer than its timeout of {seconds:g} s and was stopped"
    return replace(answer, error_code="timed_out", message=message, permanent=False)


def _too_heavy(run: RunInFlight, answer: AttemptResult) -> AttemptResult:
    used = run.memory_bytes / 2**20
    message = f"held {used:,.0f} MB of memory, where its type may hold {run.memory_mb:,} MB, and was killed"
    return replace(answer, error_code="memory_limit", message=message, permanent=False)


def _fenced(answer: AttemptResult) -> AttemptResult:
    message = "stopped by its own worker: the lease could not be renewed in time"
    return replace(answer, error_code="lease_unconfirmed", message=message, permanent=False)


def record_less(ended: EndedAttempt, sqlstate: str, why: str) -> bool:
    """Change an end that the database refuses alone, for its next try; return False when nothing is left.

    First without what its handler supplied, then under a code of ours and without its times: then the data
    were at fault. A rule of the tables that forbids the end itself forbids these too. Then the run is dead
    with ``finish_refused`` and the database's sentence, for a person to look at: nobody runs again what may
    have had its effect. Where that is forbidden as well, the attempt is given up: its lease is not renewed
    any more, and whoever takes back ended leases decides.
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
        message = f"The attempt ended ({ended.outcome}), and the database refuses that end: {why}."
        ended.move, ended.outcome = "fail", "failed"
        ended.answer = replace(ended.answer, permanent=True, error_code=FINISH_REFUSED, message=message)
    else:
        return False
    return True
