"""Reads one run: its row, attempts, output, relatives and effects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import (
    CompoundSelect,
    Connection,
    RowMapping,
    Text,
    bindparam,
    case,
    func,
    literal,
    select,
    union_all,
)

from wakeboard.core import parent_run
from wakeboard.database.tables import (
    effects,
    job_attempts,
    job_definitions,
    job_runs,
    job_types,
    run_output,
    workers,
)
from wakeboard_dashboard.queries.effects import IS_UNCONFIRMED
from wakeboard_dashboard.queries.leases import IS_LEASE_ENDED, IS_SILENT, IS_STUCK
from wakeboard_dashboard.queries.runs import MOST_ATTEMPTS
from wakeboard_dashboard.queries.statements import Column, Statement

MOST_SHOWN = 50
# A payload's size as the table stores it.
SMALL_BYTES = 40_000
DEFAULT_BACKOFF = "exponential 10s cap 30m"
DEFAULT_TIMEOUT_SECONDS = 300

runs = job_runs.c


def find_run(connection: Connection, run_id: int, *, payload: bool = True) -> RowMapping | None:
    """Return run ``run_id``, None when there is none. Without ``payload``, one over SMALL_BYTES is None.

    Columns: those of job_runs, most_attempts, timeout (seconds in force), backoff, definition (its name),
    paused_at/by/reason and most_running of its type, is_type_known, worker_* of the worker that holds it,
    is_lease_ended, is_silent, is_stuck.
    """
    statement = _WITH_PAYLOAD if payload else _WITH_SMALL_PAYLOAD
    return connection.execute(statement, {"run_id": run_id}).mappings().one_or_none()


def _select_run(payload: Column) -> Statement:
    types, definitions = job_types.c, job_definitions.c
    return (
        select(
            *(payload if column.name == "payload" else column for column in runs),
            MOST_ATTEMPTS.label("most_attempts"),
            func.coalesce(runs.timeout_seconds, types.timeout_seconds, DEFAULT_TIMEOUT_SECONDS).label(
                "timeout"
            ),
            func.coalesce(types.backoff, DEFAULT_BACKOFF).label("backoff"),
            func.coalesce(types.max_running_operator, types.max_running).label("most_running"),
            types.name.is_not(None).label("is_type_known"),
            types.paused_at,
            types.paused_by,
            types.paused_reason,
            definitions.name.label("definition"),
            workers.c.name.label("worker_name"),
            workers.c.hostname.label("worker_hostname"),
            workers.c.seen_at.label("worker_seen_at"),
            IS_LEASE_ENDED.label("is_lease_ended"),
            IS_SILENT.label("is_silent"),
            IS_STUCK.label("is_stuck"),
        )
        .select_from(job_runs)
        .outerjoin(job_types, types.name == runs.job_type)
        .outerjoin(job_definitions, definitions.id == runs.definition_id)
        .outerjoin(workers, workers.c.id == runs.locked_by)
        .where(runs.id == bindparam("run_id"))
    )


# Making such a statement takes longer than executing it: each is made once.
_WITH_PAYLOAD = _select_run(runs.payload)
_WITH_SMALL_PAYLOAD = _select_run(
    case((func.pg_column_size(runs.payload) <= SMALL_BYTES, runs.payload)).label("payload")
)

_ATTEMPTS = (
    select(job_attempts, workers.c.name.label("worker_name"))
    .outerjoin(workers, workers.c.id == job_attempts.c.worker_id)
    .where(job_attempts.c.run_id == bindparam("run_id"))
)
_NEWEST_ATTEMPTS = _ATTEMPTS.order_by(job_attempts.c.lease_epoch.desc()).limit(MOST_SHOWN)
_ONE_ATTEMPT = _ATTEMPTS.where(job_attempts.c.lease_epoch == bindparam("lease_epoch"))


def list_attempts(connection: Connection, run_id: int) -> list[RowMapping]:
    """Return the newest ended attempts of a run, newest first, at most MOST_SHOWN, with worker_name."""
    return list(connection.execute(_NEWEST_ATTEMPTS, {"run_id": run_id}).mappings())


def read_output(connection: Connection, run_id: int, lease_epoch: int) -> str | None:
    """Return the end of the output of the running attempt, None when there is none."""
    statement = select(run_output.c.tail).where(
        run_output.c.run_id == run_id, run_output.c.lease_epoch == lease_epoch
    )
    return connection.execute(statement).scalar_one_or_none()


def find_attempt(connection: Connection, run_id: int, lease_epoch: int) -> RowMapping | None:
    """Return one ended attempt, with worker_name; None when there is none."""
    values = {"run_id": run_id, "lease_epoch": lease_epoch}
    return connection.execute(_ONE_ATTEMPT, values).mappings().one_or_none()


_CHILDREN = (
    select(
        runs.id,
        runs.status,
        runs.job_type,
        runs.enqueued_by.is_distinct_from(bindparam("maker", type_=Text())).label("is_again"),
    )
    .where(runs.origin_run_id == bindparam("run_id"))
    .order_by(runs.origin_run_id, runs.id)
    .limit(MOST_SHOWN + 1)
)


def list_children(
    connection: Connection, run_id: int, types: Sequence[str] | None = None
) -> list[RowMapping]:
    """Return the runs that originate from this one, oldest first, at most MOST_SHOWN + 1.

    Columns: id, status, job_type and is_again, which is true where a person ran this one again and false
    where its handler enqueued the run. With ``types`` only runs of these job types.
    """
    statement = _CHILDREN if types is None else _CHILDREN.where(runs.job_type.in_(types))
    values = {"run_id": run_id, "maker": parent_run.enqueuer_name(run_id)}
    return list(connection.execute(statement, values).mappings())


def find_neighbours(connection: Connection, run: RowMapping) -> dict[str, RowMapping]:
    """Return the "origin" of a run and its schedule's runs "before" and "after" it, as far as they exist.

    Columns: id, status, job_type, scheduled_for, idempotency_key.
    """
    has_origin, has_slot = bool(run["origin_run_id"]), bool(run["definition_id"] and run["scheduled_for"])
    if not (has_origin or has_slot):
        return {}
    values = {
        "origin": run["origin_run_id"],
        "definition": run["definition_id"],
        "slot": run["scheduled_for"],
    }
    rows = connection.execute(_select_neighbours(has_origin, has_slot), values).mappings()
    return {row["place"]: row for row in rows}


@lru_cache
def _select_neighbours(has_origin: bool, has_slot: bool) -> CompoundSelect[tuple[object, ...]]:
    parts = []
    if has_origin:
        parts.append(_neighbour("origin").where(runs.id == bindparam("origin")))
    if has_slot:
        of_schedule = runs.definition_id == bindparam("definition")
        slot = bindparam("slot", type_=runs.scheduled_for.type)
        before = _neighbour("before").where(of_schedule, runs.scheduled_for < slot)
        after = _neighbour("after").where(of_schedule, runs.scheduled_for > slot)
        parts.append(before.order_by(runs.scheduled_for.desc()).limit(1))
        parts.append(after.order_by(runs.scheduled_for).limit(1))
    return union_all(*[select(part.subquery()) for part in parts])


def _neighbour(place: str) -> Statement:
    return select(
        literal(place).label("place"), runs.id, runs.status, runs.job_type, runs.scheduled_for,
        runs.idempotency_key,
    )  # fmt: skip


_EFFECTS = (
    select(
        effects,
        case((effects.c.status == "done", "done"), (IS_UNCONFIRMED, "unconfirmed"), else_="running").label(
            "state"
        ),
    )
    .where(effects.c.run_id == bindparam("run_id"))
    .order_by(effects.c.id.desc())
    .limit(MOST_SHOWN)
)


def list_effects(connection: Connection, run_id: int) -> list[RowMapping]:
    """Return the effects of this run, newest first, at most MOST_SHOWN.

    Columns: those of effects, and state: done, running (its attempt still runs) or unconfirmed.
    """
    return list(connection.execute(_EFFECTS, {"run_id": run_id}).mappings())
