"""Enqueue: one row, inside the caller's own transaction. It imports no SQLAlchemy and commits nothing.

A key is the caller's name for a business event: the same key gives the same run, as long as that run is
kept, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from wakeboard.core.run_spec import Encoder, EnqueueError, NewRun, RunColumns, payload_limit
from wakeboard.database.caller_connection import executor, unwrap
from wakeboard.queue.handler_connection import own_connection

MOST_TRIES = 5
# The SQL type of each field of RunColumns.
FIELD_TYPES = dict(
    zip(
        RunColumns._fields,
        ("text", "jsonb", "timestamptz", "float8", "text", "smallint", "int", "text", "bigint", "text"),
        strict=True,
    )
)
PARAMETERS = {name: f"%s::{sql_type}" for name, sql_type in FIELD_TYPES.items()}


def insert_values(fields: Mapping[str, str]) -> str:
    """Return the SQL of the values of INSERT_INTO, from that of each field of RunColumns."""
    due_at = f"coalesce({fields['run_at']}, now()) + make_interval(secs => {fields['delay']})"
    return ", ".join(due_at if name == "run_at" else fields[name] for name in FIELD_TYPES if name != "delay")


# ``delay`` has no column of its own: ``run_at`` has both.
_COLUMNS = ", ".join(FIELD_TYPES).replace("delay, key", "idempotency_key")
INSERT_INTO = f"INSERT INTO wakeboard.job_runs ({_COLUMNS})"
INSERT = f"""
{INSERT_INTO} VALUES ({insert_values(PARAMETERS)})
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id
"""
# A run with a type and a payload alone has no key to conflict by, and takes the defaults of the table.
INSERT_PLAIN = "INSERT INTO wakeboard.job_runs (job_type, payload) VALUES (%s::text, %s::jsonb) RETURNING id"
_PLAIN = RunColumns("", "")[2:]
BY_KEY = "SELECT id, job_type FROM wakeboard.job_runs WHERE idempotency_key = %s::text"


class KeyTaken(EnqueueError):
    """The key belongs to a run of another type, ``job_type``."""

    def __init__(self, sentence: str, job_type: str) -> None:
        super().__init__(sentence)
        self.job_type = job_type


def enqueue(
    target: Any,
    job_type: str,
    payload: Mapping[str, object] | None = None,
    *,
    run_at: datetime | None = None,
    delay: float | timedelta | None = None,
    key: str | None = None,
    priority: int = 2,
    max_attempts: int | None = None,
    enqueued_by: str | None = None,
    traceparent: str | None = None,
    encoder: Encoder | None = None,
) -> int:
    """Enqueue one run and return its id; with a known ``key``, return the id of the run that has it.

    ``target`` is a SQLAlchemy connection or session, a psycopg 3 connection or django.db.connection, whose
    transaction the run joins, or None for a connection of our own. ``delay`` is in seconds, ``run_at`` an
    aware datetime. ``traceparent`` is that of W3C Trace Context, for the handler's context; other text is
    left out.
    ``encoder`` is a class derived from ``json.JSONEncoder`` for values in the payload that JSON has no form
    for, such as ``wakeboard.PlainEncoder`` or Django's.
    Raises EnqueueError when the run is refused, with a sentence that says why.
    """
    run = NewRun(job_type, payload, run_at, delay, key, priority, max_attempts, enqueued_by, traceparent)
    target = unwrap(target)
    if target is None:
        with own_connection() as connection:
            return enqueue(connection, **run._asdict(), encoder=encoder)
    values = run.columns(payload_limit(), encoder)
    execute = executor(target)
    if values[2:] == _PLAIN:
        return int(execute(INSERT_PLAIN, values[:2])[0][0])
    for _ in range(MOST_TRIES):
        rows = execute(INSERT, values)
        if rows:
            return int(rows[0][0])
        rows = execute(BY_KEY, [key])
        if rows:
            return check_key_type(rows[0][0], rows[0][1], job_type, str(key))
    raise EnqueueError(f"The key '{key}' is being enqueued by others again and again; try once more.")


def check_key_type(run_id: int, job_type: str, wanted: str, key: str) -> int:
    """Return ``run_id``, which has ``key``. Raises KeyTaken when its type is not the ``wanted`` one."""
    if job_type != wanted:
        sentence = f"The key '{key}' belongs to run {run_id} of type '{job_type}', not '{wanted}'."
        raise KeyTaken(sentence, job_type)
    return int(run_id)
