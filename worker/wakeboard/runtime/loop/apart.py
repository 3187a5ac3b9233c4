"""Claims whose batch the database refused for one of its runs: smaller ones, down to a single run.

A rule that somebody put on the table may forbid that a run is started. It forbids nothing to the others, so
what the batch would have taken is read, and claimed in halves until the run is found that is refused alone.
That one is set aside: it is due again after a minute, then two, up to an hour, with ``claim_refused`` and the
database's sentence on its row. No attempt of it has begun, and none is counted. Where the rule refuses even
that, this process passes the run by for a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from wakeboard.database.refusals import halves, is_of_row, one_line
from wakeboard.queue.engine.refused import CLAIM_THESE, SET_ASIDE, candidates
from wakeboard.runtime.loop.channel import Asked, Rows, Script, Statement, StatementFailed, array, numbers
from wakeboard.runtime.loop.claim_batch import Refused, Round, Turn
from wakeboard.runtime.loop.claims import Plan
from wakeboard.runtime.loop.in_flight import boottime_ns

# So many refused runs at most are looked for in one round: each costs some statements.
MOST_REFUSED = 25

# A run and its type.
_Run = tuple[int, str]
_Claim = Callable[[Sequence[int]], Script]


def claim_apart(plan: Plan, names: Sequence[str], limit: int, round_: Round, *, is_limited: bool) -> Turn:
    """Claim up to ``limit`` runs of ``names`` in parts; returns as a turn of a round does.

    is_limited: ``names`` is one type that may run only so often at once.
    """
    passed_by = [*round_.passed_by, *(one.run_id for one in round_.refused)]
    statement = candidates(limit, oldest_first=plan.oldest_first)
    runs: Rows = yield statement, (array(names), numbers(passed_by), b"t" if is_limited else b"f")
    known, before = len(round_.refused), len(round_.rows)

    def claim(ids: Sequence[int]) -> Script:
        name = names[0].encode() if is_limited else None
        these = CLAIM_THESE, (numbers(ids), round_.me, round_.lease, name)
        return round_.under_limit(names[0], these) if is_limited else _alone(round_.listing(these, names))

    if runs:
        yield from _in_parts([(run_id, name) for run_id, name in runs], claim, round_)
    # What is left of runs that a limit or somebody's lock keeps is no reason to ask again at once.
    is_full = len(runs) >= limit and len(round_.rows) > before
    return is_full or len(round_.refused) > known


def _in_parts(runs: Sequence[_Run], claim: _Claim, round_: Round) -> Generator[Asked, Any, None]:
    """Claim ``runs``, in halves where that is refused, until that has cost enough."""
    if round_.is_late or len(round_.refused) >= MOST_REFUSED:
        return
    sent_ns = boottime_ns()
    try:
        round_.took((yield from claim([run_id for run_id, _ in runs])), sent_ns)
        return
    except StatementFailed as failure:
        if not is_of_row(failure.sqlstate):
            raise
        refused = failure
    if len(runs) > 1:
        for part in halves(runs):
            yield from _in_parts(part, claim, round_)
        return
    ((run_id, job_type),) = runs
    why = one_line(str(refused))
    is_set_aside = yield from _set_aside(run_id, why)
    round_.refused.append(Refused(run_id, job_type, why, is_set_aside))


def _alone(statement: Statement) -> Script:
    """Send one statement; return its rows."""
    rows: Rows = yield statement
    return rows


def _set_aside(run_id: int, why: str) -> Generator[Asked, Any, bool]:
    """Set a run aside; return whether the rule let its row say so."""
    sentence = f"The database refuses to let it start: {why}. It is tried again later."
    try:
        moved: Rows = yield SET_ASIDE, (b"%d" % run_id, sentence.encode())
    except StatementFailed as refused:
        if not is_of_row(refused.sqlstate):
            raise
        return False
    return bool(moved)
