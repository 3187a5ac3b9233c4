"""The operator's move on an unconfirmed effect: say whether it happened. One guarded statement each way."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

BY_ID = """
SELECT e.key, e.scope, e.status, e.run_id, e.settled_by, EXISTS (
    SELECT 1 FROM wakeboard.job_runs AS r
    WHERE r.id = e.run_id AND r.lease_epoch = e.lease_epoch AND (r.status || '') = 'running'
) AS is_live
FROM wakeboard.effects AS e WHERE e.id = %(id)s FOR UPDATE
"""
HAPPENED = """
UPDATE wakeboard.effects SET status = 'done', finished_at = now(), settled_by = %(actor)s
WHERE id = %(id)s AND status = 'started'
"""
DID_NOT_HAPPEN = "DELETE FROM wakeboard.effects WHERE id = %(id)s AND status = 'started'"


class EffectRow(NamedTuple):
    """An effect as its row says it. ``is_live``: the attempt that started it still runs."""

    key: str
    scope: str
    status: str
    run_id: int
    settled_by: str | None
    is_live: bool


def settle(
    connection: Connection, effect_id: int, actor: Actor, *, happened: bool, reason: str | None = None
) -> Answer:
    """Say of an unconfirmed effect that it ``happened`` (it stays done), or did not (who asks next makes it).

    ``Answer.status`` is 'done', 'started', or None when the row is gone. Forbidden while its attempt runs.
    """

    def move() -> Transition:
        effect = read_one(connection, BY_ID, EffectRow, {"id": effect_id})
        if effect is None:
            return Transition(Answer(effect_id, None, "missing", f"There is no effect {effect_id}."))
        name = f"Effect '{effect.key}' of run {effect.run_id}"
        if effect.status == "done":
            who = f", settled by {effect.settled_by}" if effect.settled_by else ""
            return Transition(Answer(effect_id, "done", "already", f"{name} is done already{who}."))
        if effect.is_live:
            message = f"{name} is being made right now by its running attempt; wait for that one to end."
            return Transition(Answer(effect_id, "started", "forbidden", message))
        statement = HAPPENED if happened else DID_NOT_HAPPEN
        connection.execute(statement.encode(), {"id": effect_id, "actor": actor.name})
        before = {"key": effect.key, "scope": effect.scope, "status": "started"}
        if happened:
            message = f"{name} is settled as done; it will not be made again."
            return Transition(Answer(effect_id, "done", "done", message), before, {"status": "done"})
        message = f"{name} is settled as not made; a run that asks for it makes it."
        return Transition(Answer(effect_id, None, "done", message), before)

    return act(connection, actor, "effect.settle", ("effect", effect_id), reason, move)
