"""How the runs that an operation moved end, by their first attempt afterwards, and when that stops it."""

from __future__ import annotations

from typing import Any

import psycopg

from wakeboard.bulk import rules
from wakeboard.core.states import FAILURES, sql_list

Connection = psycopg.Connection[Any]
Row = dict[str, Any]

# So many a step, in turn: one that waits for long is in nobody's way.
LOOKED_AT = 500
# Where an attempt was cut short through no fault of its own, the next one tells.
LOOK = f"""
WITH looked AS MATERIALIZED (
    SELECT run_id, coalesce(watched_run_id, run_id) AS watched, lease_epoch
    FROM wakeboard.operation_runs
    WHERE operation_id = %(id)s AND result = 'moved' AND outcome IS NULL AND run_id > %(after)s
    ORDER BY run_id LIMIT {LOOKED_AT}
), found AS MATERIALIZED (
    SELECT l.run_id, CASE
        WHEN a.outcome IN ({sql_list(FAILURES)}) THEN 'failed'
        WHEN a.outcome IS NOT NULL THEN a.outcome
        WHEN r.id IS NULL THEN 'gone'
        WHEN r.status = 'cancelled' THEN 'cancelled' END AS outcome
    FROM looked AS l LEFT JOIN wakeboard.job_runs AS r ON r.id = l.watched
    LEFT JOIN LATERAL (
        SELECT outcome FROM wakeboard.job_attempts
        WHERE run_id = l.watched AND lease_epoch > l.lease_epoch AND outcome <> 'released'
        ORDER BY lease_epoch LIMIT 1
    ) AS a ON true
), judged AS (
    UPDATE wakeboard.operation_runs AS o SET outcome = f.outcome FROM found AS f
    WHERE o.operation_id = %(id)s AND o.run_id = f.run_id AND f.outcome IS NOT NULL
    RETURNING o.outcome, coalesce(o.watched_run_id, o.run_id) AS watched
)
SELECT (SELECT count(*) FROM looked), (SELECT max(run_id) FROM looked),
    count(*) FILTER (WHERE outcome = 'succeeded'), count(*) FILTER (WHERE outcome = 'failed'),
    count(*) FILTER (WHERE outcome NOT IN ('succeeded', 'failed')),
    max(outcome) FILTER (WHERE watched = %(canary)s)
FROM judged
"""
PENDING = """
SELECT EXISTS (SELECT FROM wakeboard.operation_runs
    WHERE operation_id = %(id)s AND result = 'moved' AND outcome IS NULL),
    %(finished_at)s::timestamptz < now() - make_interval(days => %(days)s)
"""
FAILURE = f"""
SELECT error_code FROM wakeboard.job_attempts
WHERE run_id = %(run)s AND outcome IN ({sql_list(FAILURES)}) ORDER BY lease_epoch DESC LIMIT 1
"""


def look(connection: Connection, operation: Row) -> None:
    """Count how the next of the moved runs ended, in ``operation``'s own numbers."""
    values = {
        "id": operation["id"],
        "after": operation["watched"] or 0,
        "canary": operation["canary_run_id"] if operation["canary_outcome"] is None else None,
    }
    row = connection.execute(LOOK.encode(), values).fetchone()
    assert row is not None
    looked, last, succeeded, failed, dropped, canary = row
    operation["watched"] = last if looked == LOOKED_AT else None
    operation["succeeded"] += succeeded
    operation["failed"] += failed
    operation["dropped"] += dropped
    operation["canary_outcome"] = canary or operation["canary_outcome"]


def reason_to_stop(connection: Connection, operation: Row) -> str | None:
    """Return why the operation must not go on, in a sentence; None when it may."""
    outcome, run_id = operation["canary_outcome"], operation["canary_run_id"]
    if outcome == "failed":
        row = connection.execute(FAILURE, {"run": run_id}).fetchone()
        said = f" with {row[0]}" if row and row[0] else ""
        return f"The canary, run {run_id}, failed{said}."
    if outcome not in (None, "succeeded"):
        word = "was removed" if outcome == "gone" else f"was {outcome}"
        return f"The canary, run {run_id}, {word} before it ended."
    limit, ended = operation["stop_above_percent"], operation["succeeded"] + operation["failed"]
    if limit is None or ended < rules.JUDGED_FROM or operation["failed"] * 100 <= limit * ended:
        return None
    share = operation["failed"] * 100 / ended
    return f"{operation['failed']} of {ended} that ended failed again: {share:.0f} %, more than {limit} %."


def goes_on(connection: Connection, operation: Row, days: int) -> bool:
    """Whether moved runs have yet to end, and the operation itself did not end ``days`` ago."""
    if operation["verb"] not in rules.WATCHED:
        return False
    values = {"id": operation["id"], "finished_at": operation["finished_at"], "days": days}
    row = connection.execute(PENDING, values).fetchone()
    return bool(row and row[0] and not row[1])
