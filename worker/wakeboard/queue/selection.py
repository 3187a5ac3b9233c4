"""One verb on several runs: each by its own guard and with its own audit row; no locked run stops another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.queue import operator

# A worker locks a run for a moment. A longer lock is waited for once, not once for each run.
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.1
# So many are named where many are locked.
MOST_NAMED = 10

MOVES: dict[str, Callable[[Connection, int, Actor, str | None], Answer]] = {
    "run.retry": operator.retry_now,
    "run.cancel": operator.cancel,
    "run.again": operator.run_again,
    "lease.release": operator.release_lease,
}
LOCKED = """
WITH free AS MATERIALIZED (
    SELECT id FROM wakeboard.job_runs WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT r.id FROM wakeboard.job_runs AS r
WHERE r.id = ANY(%(ids)s) AND NOT EXISTS (SELECT FROM free WHERE free.id = r.id)
"""


def act_on_each(
    connection: Connection, action: str, ids: Sequence[int], actor: Actor, reason: str | None = None
) -> list[Answer]:
    """Do ``action``, a key of MOVES, to the runs ``ids``, each once; return the answers in their order.

    Runs that another transaction has locked are left until the others are done, tried again for up to
    PATIENCE_SECONDS in all, and then answered 'locked'.
    """
    answers: dict[int, Answer] = {}
    remaining = list(dict.fromkeys(ids))
    give_up_at = monotonic() + PATIENCE_SECONDS
    while True:
        locked = {run_id for (run_id,) in connection.execute(LOCKED, {"ids": remaining})}
        for run_id in remaining:
            if run_id not in locked:
                answers[run_id] = MOVES[action](connection, run_id, actor, reason)
        remaining = [run_id for run_id in remaining if run_id in locked]
        if not remaining or monotonic() >= give_up_at:
            break
        sleep(PAUSE_SECONDS)
    for run_id in remaining:
        answers[run_id] = operator.record_locked(connection, run_id, actor, action, reason)
    return [answers[run_id] for run_id in dict.fromkeys(ids)]


def describe_locked(answers: Sequence[Answer]) -> str | None:
    """Return the sentence that names the runs which were locked, None when none was."""
    locked = [answer for answer in answers if answer.result == "locked"]
    if len(locked) < 2:
        return locked[0].message if locked else None
    names = ", ".join(str(answer.id) for answer in locked[:MOST_NAMED])
    more = f" and {len(locked) - MOST_NAMED} more" if len(locked) > MOST_NAMED else ""
    return f"Runs {names}{more} were locked by another transaction: try again."
