"""A handler that tells the truth file again and again that it works, with a process of its own that does."""

from __future__ import annotations

import os
import time
from typing import NoReturn

from tests.support.faults.apps.handlers import BACKOFF, be_deaf, note
from tests.support.faults.truth_file import tell
from wakeboard import Context, job

__all__ = ["note", "pulse"]


@job("pulse", backoff=BACKOFF, timeout=300, max_attempts=50)
def pulse(ctx: Context) -> None:
    """Never end of its own will at the first attempt, nor does a process of it in another session."""
    tell("start", ctx)
    if ctx.attempt == 1:
        if os.fork() == 0:
            os.setsid()
        be_deaf()
        beat(ctx)
    tell("end", ctx)


def beat(ctx: Context) -> NoReturn:
    """Tell each hundredth of a second that this process still works."""
    while True:
        try:
            tell("beat", ctx)
            time.sleep(0.01)
        except BaseException:
            continue
