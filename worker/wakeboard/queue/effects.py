"""The operator's move on an unconfirmed effect: say whether it happened. One guarded statement each way."""

from __future__ import annotations

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import Connection, Row, _row, act

BY_ID = """
SELECT e.key, e.scope, e.status, e.run_id, e.settled_by, EXISTS (
    SELECT 1 FROM wakeboard.job_runs AS r
    WHERE r.id = e.run_id AND r.lease_epoch = e.lease_epoch AND (r.status || '') = 'running'
) AS is_live
FROM wakeboard.effects AS e WHERE e.id = %(id)s FOR UPDATE
"""
HAPPENED = """
UPDATE wakeboard.effects SET status = 'done', finished_at = now(), settled_by = %(actor)s
WHERE id = %(id)s AND status = 'started' RETURNING id
"""
DID_NOT = "DELETE FROM wakeboard.effects WHERE id = %(id)s AND status = 'started' RETURNING id"


def settle(
    connection: Connection, effect_id: int, actor: Actor, *, happened: bool, reason: str | None = None
) -> Answer:
    """Say of an unconfirmed effect that it ``happened`` (it stays done), or did not (who asks next makes it).

    ``Answer.status`` is 'done', 'started', or None when the row is gone. Forbidden while its attempt runs.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_ID, {"id": effect_id})
        if row is None:
            return Answer(effect_id, None, "missing", f"There is no effect {effect_id}."), None, None
        name = f"Effect '{row['key']}' of run {row['run_id']}"
        if row["status"] == "done":
            who = f", settled by {row['settled_by']}" if row["settled_by"] else ""
            return Answer(effect_id, "done", "already", f"{name} is done already{who}."), None, None
        if row["is_live"]:
            sentence = f"{name} is being made right now by its running attempt; wait for that one to end."
            return Answer(effect_id, "started", "forbidden", sentence), None, None
        _row(connection, HAPPENED if happened else DID_NOT, {"id": effect_id, "actor": actor.name})
        before = {"key": row["key"], "scope": row["scope"], "status": "started"}
        if happened:
            sentence = f"{name} is settled as done; it will not be made again."
            return Answer(effect_id, "done", "done", sentence), before, {"status": "done"}
        sentence = f"{name} is settled as not made; a run that asks for it makes it."
        return Answer(effect_id, None, "done", sentence), before, None

    return act(connection, actor, "effect.settle", ("effect", effect_id), reason, move)
