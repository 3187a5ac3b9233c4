"""The moves of workers: drain, undrain or stop one. It obeys at its next heartbeat. Each is audited."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

DRAIN = """
UPDATE wakeboard.workers SET drain_requested_at = now()
WHERE id = %(name)s AND stopped_at IS NULL AND drain_requested_at IS NULL
"""
UNDRAIN = """
UPDATE wakeboard.workers SET drain_requested_at = NULL
WHERE id = %(name)s AND stopped_at IS NULL AND stopping_at IS NULL AND stop_requested_at IS NULL
    AND drain_requested_at IS NOT NULL
"""
STOP = """
UPDATE wakeboard.workers SET stop_requested_at = now()
WHERE id = %(name)s AND stopped_at IS NULL AND stop_requested_at IS NULL
"""
WORKER = """
SELECT stopped_at, stop_requested_at IS NOT NULL OR stopping_at IS NOT NULL AS is_stopping
FROM wakeboard.workers WHERE id = %(name)s
"""


class WorkerRow(NamedTuple):
    """Whether a worker has stopped, or is about to."""

    stopped_at: datetime | None
    is_stopping: bool


def drain(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Ask a worker to claim nothing new; what runs goes on."""
    return _request(connection, DRAIN, "drain", worker_id, actor, reason)


def stop(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Ask a worker to stop as SIGTERM would."""
    return _request(connection, STOP, "stop", worker_id, actor, reason)


def _request(
    connection: Connection, statement: str, verb: str, worker_id: str, actor: Actor, reason: str | None
) -> Answer:
    def move() -> Transition:
        row = read_one(connection, WORKER, WorkerRow, {"name": worker_id})
        if row is None:
            return Transition(_missing(worker_id))
        if row.stopped_at is not None:
            return Transition(Answer(worker_id, "stopped", "already", f"Worker {worker_id} has stopped."))
        if not connection.execute(statement.encode(), {"name": worker_id}).rowcount:
            message = f"Worker {worker_id} was already asked to {verb}."
            return Transition(Answer(worker_id, "asked", "already", message))
        message = f"Worker {worker_id} was asked to {verb}."
        return Transition(Answer(worker_id, "asked", "asked", message), after={"asked": True})

    return act(connection, actor, f"worker.{verb}", ("worker", worker_id), reason, move)


def undrain(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Take a drain back: the worker claims again, unless it was asked to stop."""

    def move() -> Transition:
        row = read_one(connection, WORKER, WorkerRow, {"name": worker_id})
        if row is None:
            return Transition(_missing(worker_id))
        if row.stopped_at is not None or row.is_stopping:
            status, words = (
                ("stopping", "is stopping") if row.stopped_at is None else ("stopped", "has stopped")
            )
            message = f"Worker {worker_id} {words}: start another one."
            return Transition(Answer(worker_id, status, "forbidden", message))
        if not connection.execute(UNDRAIN, {"name": worker_id}).rowcount:
            return Transition(
                Answer(worker_id, None, "already", f"Worker {worker_id} was not asked to drain.")
            )
        message = f"Worker {worker_id} was asked to claim again."
        return Transition(Answer(worker_id, "asked", "asked", message), after={"asked": True})

    return act(connection, actor, "worker.undrain", ("worker", worker_id), reason, move)


def _missing(worker_id: str) -> Answer:
    return Answer(worker_id, None, "missing", f"There is no worker '{worker_id}'.")
