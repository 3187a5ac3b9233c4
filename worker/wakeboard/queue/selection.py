"""One verb on several runs: each by its own guard and with its own audit row; no locked run stops another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.queue import operator
from wakeboard.queue.operator import Connection

# A worker holds a run for a moment; who holds one for longer is waited for once, not once for each run.
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.1
# So many are named where many are locked.
NAMED = 10

MOVES: dict[str, Callable[[Connection, int, Actor, str | None], Answer]] = {
    "run.retry": operator.retry_now,
    "run.cancel": operator.cancel,
    "run.again": operator.run_again,
    "lease.release": operator.release_lease,
}
HELD = """
WITH free AS MATERIALIZED (
    SELECT id FROM wakeboard.job_runs WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT r.id FROM wakeboard.job_runs AS r
WHERE r.id = ANY(%(ids)s) AND NOT EXISTS (SELECT FROM free WHERE free.id = r.id)
"""


def each(
    connection: Connection, action: str, ids: Sequence[int], actor: Actor, reason: str | None = None
) -> list[Answer]:
    """Do ``action``, a key of MOVES, to the runs ``ids``, each once; return the answers in their order.

    What another transaction holds is left until the others are done, looked at again for up to
    PATIENCE_SECONDS in all, and then answered 'locked'.
    """
    answers: dict[int, Answer] = {}
    left = list(dict.fromkeys(ids))
    give_up_at = monotonic() + PATIENCE_SECONDS
    while True:
        held = _held(connection, left)
        for run_id in left:
            if run_id not in held:
                answers[run_id] = MOVES[action](connection, run_id, actor, reason)
        left = [run_id for run_id in left if run_id in held]
        if not left or monotonic() >= give_up_at:
            break
        sleep(PAUSE_SECONDS)
    for run_id in left:
        answers[run_id] = operator.leave(connection, run_id, actor, action, reason)
    return [answers[run_id] for run_id in dict.fromkeys(ids)]


def locked(answers: Sequence[Answer]) -> str | None:
    """Return the sentence that names the runs which were locked, None when none was."""
    names = [str(answer.id) for answer in answers if answer.result == "locked"]
    if len(names) < 2:
        return next((answer.message for answer in answers if answer.result == "locked"), None)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"Runs {', '.join(names[:NAMED])}{more} were locked by another transaction: try again."


def _held(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Return which of ``ids`` another transaction holds now."""
    return {row[0] for row in connection.execute(HELD.encode(), {"ids": list(ids)})}
