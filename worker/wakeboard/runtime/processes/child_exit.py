"""How a child ended, and what its end says about its run.

ARCHITECTURE.md has the table of reasons for which a worker kills one.

A child ends by itself, between two runs: when the worker closes its socket; after a run that got TERM; after
10,000 runs or above 512 MB of memory; before and after a run of a type with `fresh=True`; when `child_reset`
cannot put back what a run left. What had not started then goes to the slot's next child.
"""

from __future__ import annotations

import os
import signal

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.text.sanitize import last_line

# The exit status of a child with a failed hook; the traceback is in the slot's output.
HOOK_FAILED = 71


def describe_status(status: int | None) -> str:
    """Return a wait status in words; None stands for a process whose end nobody could read."""
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
    status: int | None, text: str, output_tail: str, *, is_out_of_memory: bool, reason: str | None
) -> AttemptResult:
    """Return the answer of a run whose process died, by its wait status.

    The error code is `exited` for a process that ended itself, `out_of_memory` or `killed` for SIGKILL (the
    kernel had run out of memory at that moment, or not), `signal_<NAME>` for other signals, `crashed` for an
    end that nobody could read. `reason`: why this worker killed it, which is `crashed` too.
    """
    code, message = "crashed", text
    if reason is not None:
        message = reason
    elif status is not None and os.WIFEXITED(status):
        code, message = "exited", f"{text} in the middle of the run"
    elif status is not None and os.WIFSIGNALED(status):
        code = f"signal_{_signal_name(status)}"
        if os.WTERMSIG(status) == signal.SIGKILL:
            code = "out_of_memory" if is_out_of_memory else "killed"
            message = f"{text}: the kernel had run out of memory" if is_out_of_memory else text
    return AttemptResult("crashed", code, message, output_tail=output_tail or None)


def is_clean_exit(status: int | None) -> bool:
    """Return whether a child with this wait status ended in order, within its time or cut by the timer."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return code in (0, HOOK_FAILED, -signal.SIGALRM)


def clean_exit_warning(status: int | None, output: str) -> str | None:
    """Return what went wrong in a clean exit, or None. `output`: what the child wrote."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return (
            "took longer to end than WAKEBOARD_CHILD_EXIT_SECONDS allows: what its threads, atexit functions "
            "and hooks had still to do is lost."
        )
    if code == HOOK_FAILED:
        return f"ended with a hook of @on_child_exit that failed: {last_line(output)[:300]}"
    return None
