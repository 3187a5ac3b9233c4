"""What is tried of an attempt whose end the database refuses alone: less of it each time, at last nothing.

First without what its handler supplied, then under a code of ours, then without its times: then the data were
at fault. A rule of the tables that forbids the end itself forbids all of these. Then the run is dead with the
code ``finish_refused`` and the database's sentence, for a person to look at; nobody runs again what may have
had its effect. Where that is forbidden too, the attempt is given up: its lease is not renewed any more, and
whoever takes back ended leases decides.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from wakeboard.core.states import FINISH_REFUSED
from wakeboard.database.refusals import one_line
from wakeboard.runtime.loop.channel import StatementFailed
from wakeboard.runtime.loop.deciding import Ended

LONGEST_PAUSE_SECONDS = 5.0
LONGEST_DELAY_SECONDS = 3600.0


def lighten(ended: Ended, refused: StatementFailed) -> bool:
    """Change ``ended`` for its next try, a moment later; return False when there is nothing left to try."""
    ended.refusals += 1
    ended.not_before = monotonic() + min(LONGEST_PAUSE_SECONDS, 0.1 * ended.refusals)
    if ended.refusals <= 3:
        _leave_out(ended, refused)
        return True
    if ended.refusals == 4 and ended.move != "release":
        _bury(ended, refused)
        return True
    return False


def _leave_out(ended: Ended, refused: StatementFailed) -> None:
    note = f"The answer could not be stored ({refused.sqlstate}) and was left out."
    ended.answer = replace(ended.answer, result=None, output_tail=None, traceback=None, note=note)
    if ended.refusals > 1:
        ended.answer = replace(ended.answer, error_code="unrecordable", message=note)
    if ended.refusals > 2:
        ended.took_seconds = 0.0
        ended.delay_seconds = min(ended.delay_seconds, LONGEST_DELAY_SECONDS)


def _bury(ended: Ended, refused: StatementFailed) -> None:
    message = (
        f"The attempt ended ({ended.outcome}), and the database refuses that end: {one_line(str(refused))}."
    )
    ended.move, ended.outcome = "fail", "failed"
    ended.answer = replace(ended.answer, permanent=True, error_code=FINISH_REFUSED, message=message)
