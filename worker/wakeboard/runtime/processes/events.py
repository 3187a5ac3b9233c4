"""What the supervisor's loop learns from its children. Data only. Times in nanoseconds on the clock of
`slotpage.boottime_ns`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, NamedTuple

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Ready:
    """The handlers are imported. `types`: the policy of each job type that can run here."""

    types: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AppFailed:
    """The handlers' module cannot be imported: one sentence, then the traceback. The template has ended."""

    message: str


@dataclass(frozen=True, slots=True)
class Warned:
    """One line an operator should read."""

    message: str


class Finished(NamedTuple):
    """A run's attempt ended and its child answered."""

    slot: int
    assignment: Assignment
    answer: AttemptResult
    started_ns: int
    finished_ns: int


class Returned(NamedTuple):
    """Several attempts ended, in this order, of which their child has nothing more to tell than that their
    handlers returned: what each was, when it started and finished."""

    slot: int
    attempts: list[tuple[Assignment, int, int]]


@dataclass(frozen=True, slots=True)
class Died:
    """A slot's child is gone with everything below it; the next `send` forks another.

    `running` is what it had started and not ended (its attempt ends with `answer`; it began at `started_ns`),
    `unstarted` what it was sent and never began, in order. A child that was replaced after its runs dies with
    neither. `by_order`: the supervisor had it killed, perhaps for the sake of a run that came before.
    `in_order`: it ended by itself, between two runs. `has_begun`: it had begun a run at all.
    """

    slot: int
    text: str
    running: Assignment | None
    answer: AttemptResult
    unstarted: list[Assignment]
    started_ns: int = 0
    by_order: bool = False
    in_order: bool = False
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class TemplateDied:
    """The template is gone and its children with it; a `Died` follows for each slot that held work. `start()`
    again."""

    text: str


Event = Ready | AppFailed | Warned | Finished | Returned | Died | TemplateDied


def describe_status(status: int | None) -> str:
    """The words for a wait status; None for a process whose end nobody could read."""
    if status is None:
        return "gone, its status unread"
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)} ({_signal_name(status)})"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"


def _signal_name(status: int) -> str:
    number = os.WTERMSIG(status)
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def crash_answer(
    status: int | None, text: str, output_tail: str, *, out_of_memory: bool = False, reason: str | None = None
) -> AttemptResult:
    """The answer of a run whose process died under it, by wait status.

    The code is `exited` for a process that ended itself, `out_of_memory` or `killed` for SIGKILL (the kernel
    was `out_of_memory` at that moment, or not), `signal_<NAME>` for other signals, `crashed` for an end that
    nobody could read. `reason`: why we killed it, which is `crashed` too.
    """
    code, message = "crashed", text
    if reason is not None:
        message = reason
    elif status is not None and os.WIFEXITED(status):
        code, message = "exited", f"{text} in the middle of the run"
    elif status is not None and os.WIFSIGNALED(status):
        code = f"signal_{_signal_name(status)}"
        if os.WTERMSIG(status) == signal.SIGKILL:
            code = "out_of_memory" if out_of_memory else "killed"
            message = f"{text}: the kernel had run out of memory" if out_of_memory else text
    return AttemptResult("crashed", code, message, output_tail=output_tail or None)
