"""Consistent rows for tests, and thin callers of the engine's statements.

Times move by ``age``, never the clock. Everything here is plain SQL on a psycopg connection; nothing decides
what the product decides.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from wakeboard.core.errors.error_groups import group_of, lost_group
from wakeboard.core.states import FAILURES
from wakeboard.queue.engine import claims, endings, fence, reaping, unbegun
from wakeboard.queue.engine.claims import ClaimedRow

Connection = psycopg.Connection[Any]
Row = dict[str, Any]
Held = tuple[int, int]  # a run's id and the epoch under which a worker holds it
_numbers = itertools.count(1)

# What makes a row of each status true to life; times are SQL, written in the order of the columns.
_SHAPES: dict[str, Row] = {
    "queued": {"run_at": "-1 second"},
    "running": {
        "run_at": "-2 seconds", "attempts": 1, "lease_epoch": 1, "locked_by": "w1",
        "locked_until": "30 seconds", "started_at": "-1 second",
    },
    "succeeded": {
        "run_at": "-12 seconds", "attempts": 1, "lease_epoch": 1, "started_at": "-11 seconds",
        "finished_at": "-10 seconds",
    },
    "failed": {
        "run_at": "1 minute", "attempts": 1, "failures": 1, "lease_epoch": 1, "started_at": "-11 seconds",
        "failed_at": "-10 seconds", "error_code": "smtp_down",
        "last_error": "The mail server did not answer.",
    },
    "dead": {
        "run_at": "-12 seconds", "attempts": 10, "failures": 10, "lease_epoch": 10,
        "started_at": "-11 seconds", "finished_at": "-10 seconds", "failed_at": "-10 seconds",
        "error_code": "smtp_down", "last_error": "The mail server did not answer.",
    },
    "cancelled": {"run_at": "-12 seconds", "finished_at": "-10 seconds"},
}  # fmt: skip
_INTERVALS = ("run_at", "locked_until", "started_at", "finished_at", "failed_at", "cancel_requested_at")
_RUN_TIMES = (*_INTERVALS, "scheduled_for", "created_at", "updated_at")
_GROUP_TIMES = ("first_seen_at", "last_seen_at", "returned_at", "quiet_from_at", "muted_until", "muted_at")
_ATTEMPT_TIMES = ("due_at", "started_at", "finished_at", "next_run_at", "refused_at")


class Claimed(ClaimedRow):
    """A claimed run."""

    __slots__ = ()

    @property
    def held(self) -> Held:
        return self.id, self.lease_epoch


def insert(connection: Connection, table: str, values: Mapping[str, Any], returning: str = "id") -> Any:
    """Insert one row into ``wakeboard.<table>`` and return its column ``returning``.

    A dict becomes JSON; a ``sql.Composable`` stands for itself.
    """
    cells = [
        value if isinstance(value, sql.Composable) else sql.Literal(_adapt(value))
        for value in values.values()
    ]
    statement = sql.SQL("INSERT INTO wakeboard.{} ({}) VALUES ({}) RETURNING {}").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(cells),
        sql.Identifier(returning),
    )
    (value,) = psycopg.ClientCursor(connection).execute(statement).fetchone() or (None,)
    return value


def _adapt(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def from_now(interval: str) -> sql.Composable:
    """Return the SQL of a time ``interval`` away from the database's now, such as ``-10 minutes``."""
    return sql.SQL("now() + {}::interval").format(sql.Literal(interval))


def a_run(connection: Connection, status: str = "queued", **columns: Any) -> int:
    """Insert a run of ``status`` that satisfies every rule, with the attempts it must have had.

    Returns its id. ``columns`` override; times may be intervals from now, such as ``run_at="5 minutes"``.
    """
    values: Row = {"job_type": "mail", "status": status} | _SHAPES[status] | columns
    for name in _INTERVALS:
        if isinstance(values.get(name), str):
            values[name] = from_now(values[name])
    run_id = int(insert(connection, "job_runs", values))
    if values.get("definition_id") and "late_by" not in values:
        connection.execute(_FIRST_START.encode(), (run_id,))
    _past_attempts(connection, run_id, values)
    return run_id


# What the first claim of a run writes, as if it had been at its started_at.
_FIRST_START = """
UPDATE wakeboard.job_runs AS r SET late_by = date_part('epoch', started_at - scheduled_for),
    overlapped = EXISTS (
        SELECT FROM wakeboard.job_runs AS other
        WHERE other.definition_id = r.definition_id AND other.id < r.id AND other.started_at <= r.started_at
            AND coalesce(other.finished_at, 'infinity') > r.started_at
    )
WHERE id = %s AND started_at IS NOT NULL
"""


def _past_attempts(connection: Connection, run_id: int, values: Row) -> None:
    """Write the attempts before the present one: failures, and a success at the end of a succeeded run."""
    ended = values.get("attempts", 0) - (values["status"] == "running")
    for number in range(1, ended + 1):
        outcome = "succeeded" if values["status"] == "succeeded" and number == ended else "failed"
        error = {
            "error_code": values.get("error_code") or "smtp_down",
            "error": values.get("last_error") or "no",
            "error_group": values.get("error_group"),
        }
        an_attempt(
            connection,
            run_id,
            attempt=number,
            lease_epoch=number,
            job_type=values["job_type"],
            outcome=outcome,
            **(
                error
                if outcome == "failed"
                else {name: values[name] for name in ("started_at", "finished_at")}
            ),
        )


def an_attempt(connection: Connection, run_id: int, **columns: Any) -> int:
    """Insert an ended attempt of a run, which is told of it if it failed; return the run's id."""
    values: Row = {
        "run_id": run_id, "attempt": 1, "lease_epoch": 1, "job_type": "mail", "worker_id": "w1",
        "due_at": "-12 seconds", "started_at": "-11 seconds", "finished_at": "-10 seconds",
        "outcome": "succeeded",
    } | columns  # fmt: skip
    for name in _ATTEMPT_TIMES:
        if isinstance(values.get(name), str):
            values[name] = from_now(values[name])
    insert(connection, "job_attempts", values, "run_id")
    if values["outcome"] in FAILURES:
        connection.execute(
            """UPDATE wakeboard.job_runs SET failed_at = coalesce(failed_at, a.finished_at)
            FROM wakeboard.job_attempts AS a WHERE id = %s AND a.run_id = id AND a.lease_epoch = %s""",
            (run_id, values["lease_epoch"]),
        )
    return run_id


def a_later_success(connection: Connection, run_id: int) -> None:
    """Insert the attempt at which a run succeeded that had failed before."""
    end = row(connection, run_id)["finished_at"]
    times = dict.fromkeys(("due_at", "started_at", "finished_at"), end)
    an_attempt(connection, run_id, attempt=1000, lease_epoch=1000, **times)


def a_group(
    connection: Connection,
    job_type: str = "mail",
    code: str = "smtp_down",
    message: str = "The mail server did not answer.",
    traceback: str | None = None,
    **columns: Any,
) -> int:
    """Insert the error group of such a failure, first seen an hour ago; return its number."""
    group = group_of(job_type, code, message, traceback)
    values: Row = {
        "id": group.id, "fingerprint": group.fingerprint, "error_code": code, "job_type": job_type,
        "template": group.template, "frame": group.frame, "first_seen_at": "-1 hour",
        "last_seen_at": "-1 minute",
    } | columns  # fmt: skip
    for name in _GROUP_TIMES:
        if isinstance(values.get(name), str):
            values[name] = from_now(values[name])
    return int(insert(connection, "error_groups", values))


def a_type(connection: Connection, name: str = "mail", **columns: Any) -> str:
    """Insert a job type as workers publish it; return its name."""
    values = {"name": name, "seen_at": from_now("0 seconds")} | columns
    return str(insert(connection, "job_types", values, "name"))


def a_worker(
    connection: Connection,
    id: str | None = None,
    *,
    idle: bool = False,
    seen: str = "0 seconds",
    **columns: Any,
) -> str:
    """Insert a worker last seen ``seen`` from now (``-1 minute``: silent since); return its id."""
    values: Row = {
        "id": id or f"worker{next(_numbers)}", "hostname": "host1", "pid": 4321, "concurrency": 4,
        "job_types": ["mail"], "version": "0.1.0", "seen_at": from_now(seen),
    } | columns  # fmt: skip
    if idle:
        values["idle_since"] = from_now("-1 second")
    for name in ("started_at", "drain_requested_at", "stop_requested_at", "stopping_at", "stopped_at"):
        if isinstance(values.get(name), str):
            values[name] = from_now(values[name])
    return str(insert(connection, "workers", values))


def a_definition(connection: Connection, name: str | None = None, **columns: Any) -> int:
    """Insert a definition (every night at two, due tomorrow unless said otherwise); return its id."""
    given = f"nightly-{next(_numbers)}" if name is None else name
    values: Row = {
        "name": given, "job_type": "mail", "schedule": "0 2 * * *", "next_fire_at": "1 day",
    } | columns  # fmt: skip
    for column in ("next_fire_at", "last_fire_at"):
        if isinstance(values.get(column), str):
            values[column] = from_now(values[column])
    return int(insert(connection, "job_definitions", values))


def age(connection: Connection, run_id: int, interval: str) -> None:
    """Move every time of a run and of its attempts ``interval`` into the past."""
    for table, key, names in (("job_runs", "id", _RUN_TIMES), ("job_attempts", "run_id", _ATTEMPT_TIMES)):
        moved = sql.SQL(", ").join(
            sql.SQL("{0} = {0} - {1}::interval").format(sql.Identifier(name), sql.Literal(interval))
            for name in names
        )
        connection.execute(
            sql.SQL("UPDATE wakeboard.{} SET {} WHERE {} = {}").format(
                sql.Identifier(table), moved, sql.Identifier(key), sql.Literal(run_id)
            )
        )


def rows(
    connection: Connection, table: str, where: str = "true", *values: Any, order: str = "1"
) -> list[Row]:
    """Return the rows of ``wakeboard.<table>`` as dictionaries; ``where`` and ``order`` are SQL."""
    statement = f"SELECT * FROM wakeboard.{table} WHERE {where} ORDER BY {order}"
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), values or None).fetchall()


def row(connection: Connection, run_id: int) -> Row:
    """Return a run's row as a dictionary."""
    (found,) = rows(connection, "job_runs", "id = %s", run_id)
    return found


def status(connection: Connection, run_id: int) -> str:
    """Return a run's status."""
    return str(row(connection, run_id)["status"])


def attempts(connection: Connection, run_id: int) -> list[Row]:
    """Return a run's ended attempts, oldest first."""
    return rows(connection, "job_attempts", "run_id = %s", run_id, order="lease_epoch")


def send(connection: Connection, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Send one of the engine's statements (``$1`` placeholders) and return its rows."""
    return psycopg.RawCursor(connection).execute(statement.encode(), values).fetchall()


def claim(
    connection: Connection,
    types: Sequence[str] = ("mail",),
    worker_id: str = "w1",
    limit: int = 10,
    *,
    lease_seconds: float = 30,
    oldest_first: bool = False,
    past_locks: bool = False,
) -> list[Claimed]:
    """Claim up to ``limit`` due runs of unlimited ``types`` for ``worker_id``."""
    statement = claims.claim(limit, oldest_first=oldest_first, past_locks=past_locks)
    values = (list(types), worker_id, lease_seconds, *claims.FROM_FIRST)
    return [Claimed(*found) for found in send(connection, statement, *values)]


def claim_limited(
    connection: Connection,
    job_type: str = "mail",
    worker_id: str = "w1",
    limit: int = 10,
    lease_seconds: float = 30,
) -> list[Claimed]:
    """Claim due runs of one limited type, in the two statements of one transaction that it takes."""
    with connection.transaction():
        send(connection, claims.LOCK_LIMIT, job_type)
        found = send(connection, claims.claim_limited(limit), job_type, worker_id, lease_seconds)
        return [Claimed(*one) for one in found]


def claim_listed(
    connection: Connection, job_type: str = "mail", worker_id: str = "w1", limit: int = 10
) -> list[Claimed]:
    """Claim due runs of a type, and list them as not begun."""
    values = ([job_type], worker_id, 30, *claims.FROM_FIRST)
    statement = unbegun.claim_and_list(claims.claim(limit), len(values) + 1)
    return [Claimed(*found) for found in send(connection, statement, *values, [job_type])]


def renew(
    connection: Connection,
    *held: Held,
    worker_id: str = "w1",
    lease_seconds: float = 30,
    progress: tuple[int | None, int | None] = (None, None),
) -> dict[int, bool]:
    """Renew leases; return which ids were renewed, each with whether a cancel was asked."""
    n = len(held)
    done, total = progress
    found = send(
        connection,
        fence.RENEW,
        worker_id,
        *_split(held),
        [float(lease_seconds)] * n,
        [done] * n,
        [total] * n,
    )
    return {run_id: is_asked for run_id, _, is_asked in found}


def succeed(
    connection: Connection,
    *held: Held,
    worker_id: str = "w1",
    ago: float = 0,
    took: float = 1,
    result: Any = None,
    output: str | None = None,
    note: str | None = None,
) -> list[int]:
    """Say that runs succeeded ``ago`` seconds ago after ``took`` seconds; return the ids that moved."""
    n = len(held)
    text = None if result is None else json.dumps(result)
    found = send(
        connection, endings.SUCCEED, worker_id, *_split(held), [float(ago)] * n, [float(took)] * n,
        [text] * n, [output] * n, [note] * n, [10] * n, [300.0] * n,
    )  # fmt: skip
    return [one[0] for one in found]


def fail(
    connection: Connection,
    *held: Held,
    worker_id: str = "w1",
    outcome: str = "failed",
    code: str | None = "smtp_down",
    message: str | None = "The mail server did not answer.",
    permanent: bool = False,
    delay: float = 60,
    most: int = 10,
    ago: float = 0,
    took: float = 1,
    traceback: str | None = None,
    output: str | None = None,
    note: str | None = None,
    group: int | None = None,
    template: str | None = None,
    frame: str | None = None,
) -> dict[int, str]:
    """Say that runs failed; return the status of each id that moved. ``delay`` is the backoff in seconds."""
    n = len(held)
    found = send(
        connection, endings.FAIL, worker_id, *_split(held), [float(ago)] * n, [float(took)] * n,
        [outcome] * n, [code] * n, [message] * n, [permanent] * n, [float(delay)] * n, [traceback] * n,
        [output] * n, [note] * n, [most] * n, [300.0] * n, [group] * n, [template] * n, [frame] * n,
    )  # fmt: skip
    return {one[0]: one[2] for one in found}


def release(
    connection: Connection, *held: Held, worker_id: str = "w1", started: bool = True, note: str | None = None
) -> dict[int, str]:
    """Give runs back; return the status of each id that moved."""
    n = len(held)
    found = send(
        connection, endings.RELEASE, worker_id, *_split(held), [0.0] * n, [1.0] * n, [None] * n, [note] * n,
        [started] * n,
    )  # fmt: skip
    return {one[0]: one[2] for one in found}


def reap(
    connection: Connection,
    *held: Held,
    delay: float = 60,
    most: int = 10,
    why: str = "worker w1 was silent",
    job_type: str = "mail",
) -> dict[int, str]:
    """Take runs whose leases have ended from their owners; return the status of each id that moved."""
    n = len(held)
    group = lost_group(job_type)
    found = send(
        connection, reaping.REAP, *_split(held), [float(delay)] * n, [most] * n, why, [group.id] * n,
        group.template,
    )  # fmt: skip
    return {one[0]: one[1] for one in found}


def end_lease(connection: Connection, run_id: int) -> None:
    """Let a running run's lease have ended a second ago."""
    connection.execute(
        "UPDATE wakeboard.job_runs SET locked_until = now() - interval '1 second' WHERE id = %s", (run_id,)
    )


def make_due(connection: Connection, run_id: int) -> None:
    """Let a waiting run be due since a second."""
    connection.execute(
        "UPDATE wakeboard.job_runs SET run_at = now() - interval '1 second' WHERE id = %s", (run_id,)
    )


def _split(held: Sequence[Held]) -> tuple[list[int], list[int]]:
    return [run_id for run_id, _ in held], [epoch for _, epoch in held]
