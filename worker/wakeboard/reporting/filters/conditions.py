"""The SQL conditions of filters on runs: those that an index serves, and those that read each run.

Imports SQLAlchemy, so no module that executes runs imports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnCollection,
    ColumnElement,
    Select,
    Text,
    and_,
    any_,
    cast,
    false,
    func,
    literal,
    or_,
    select,
    true,
)

from wakeboard.database.tables import audit_log, job_attempts, job_definitions, job_runs, workers
from wakeboard.reporting.filters.runs import FAILURE_TIMES
from wakeboard.reporting.filters.values import LARGEST_ID, FilterValues

# The filters that no index serves, beside those of payloads, and the columns that they read.
UNINDEXED = ("q", "attempts", "worker", "since", "until", *FAILURE_TIMES)
UNINDEXED_COLUMNS = (
    "id", "created_at", "attempts", "lease_epoch", "locked_by", "payload", "last_error", "error_code",
    "job_type", "failed_at",
)  # fmt: skip

# The columns of job_runs or of a subquery that has some of them.
Columns: TypeAlias = ColumnCollection[str, ColumnElement[Any]]
Condition: TypeAlias = ColumnElement[bool]
Statement: TypeAlias = Select[Any]
# Reads the ids that a statement selects: of workers texts, of all else numbers.
ReadIds: TypeAlias = Callable[[Statement], Sequence[Any]]

runs = job_runs.c


class HiddenText(NamedTuple):
    """Regular expressions of what a search must not reveal: payloads, errors, words before a hidden item."""

    payload: str
    error: str
    flag: str


def workers_named(name: str) -> Statement:
    """Select the ids of the workers with this name or on this host."""
    return select(workers.c.id).where(or_(workers.c.name == name, workers.c.hostname == name))


def schedules_named(name: str) -> Statement:
    """Select the id of the schedule ``name``."""
    return select(job_definitions.c.id).where(job_definitions.c.name == name)


def removed_schedules_named(name: str) -> Statement:
    """Select the id of the last removed schedule ``name``, from the audit log."""
    rows = audit_log.c
    removed = (rows.action == "schedule.remove", rows.result == "done", rows.before.has_key("id"))
    return (
        select(cast(rows.before["id"].astext, BigInteger).label("id"))
        .where(rows.target_type == "schedule", rows.target_id == name, *removed)
        .order_by(rows.id.desc())
        .limit(1)
    )


def indexed_conditions(filters: FilterValues, run: Columns = runs) -> list[Condition]:
    """Return the conditions that compare an indexed column."""
    columns = {
        "type": run.job_type,
        "error": run.error_code,
        "group": run.error_group,
        "key": run.idempotency_key,
    }
    return [column == filters.get(name) for name, column in columns.items() if filters.get(name)]


def unindexed_conditions(
    run: Columns, filters: FilterValues, now: datetime, read_ids: ReadIds, hidden: HiddenText | None
) -> list[Condition]:
    """Return the conditions that have to read each ``run``, of UNINDEXED_COLUMNS."""
    conditions: list[Condition] = []
    if since := filters.get("since"):
        conditions.append(run.created_at >= since.at(now))
    if until := filters.get("until"):
        conditions.append(run.created_at < until.at(now))
    conditions += failed_between(run, filters, now)
    if attempts := filters.get("attempts"):
        low, high = attempts
        conditions.append(run.attempts >= low if high is None else run.attempts.between(low, high))
    if worker := filters.get("worker"):
        conditions.append(_has_worker(run, [worker, *map(str, read_ids(workers_named(worker)))]))
    for path, value in filters.starting("payload.").items():
        conditions.append(_has_payload_value(run, path.split("."), value, hidden))
    if words := filters.get("q"):
        conditions.append(_contains(run, words, hidden))
    return conditions


def failed_between(run: Columns, filters: FilterValues, now: datetime) -> list[Condition]:
    """Return the conditions of the filters FAILURE_TIMES, on the last failure of ``run``."""
    since, until = map(filters.get, FAILURE_TIMES)
    return [
        *([run.failed_at >= since.at(now)] if since else []),
        *([run.failed_at < until.at(now)] if until else []),
    ]


def _has_payload_value(run: Columns, steps: list[str], value: str, hidden: HiddenText | None) -> Condition:
    """Match payloads with ``value`` behind ``steps``, unless the word before it in a list hides it."""
    holds: list[Condition] = [_payload_text(run, steps) == value]
    if hidden is None:
        return holds[0]
    for place, step in enumerate(steps):
        if re.fullmatch("-?[0-9]{1,9}", step) and int(step):
            before = func.coalesce(_payload_text(run, [*steps[:place], str(int(step) - 1)]), "")
            holds.append(~before.regexp_match(hidden.flag, flags="i"))
    return and_(*holds)


def _payload_text(run: Columns, steps: list[str]) -> ColumnElement[str]:
    return cast(run.payload.op("#>>")(literal(steps, ARRAY(Text))), Text)


def _has_worker(run: Columns, worker_ids: Sequence[str]) -> Condition:
    """Match runs that one of the workers has now or had before."""
    ids = literal(list(worker_ids), ARRAY(Text))
    attempts = job_attempts.c
    # A scalar with a limit is probed once per run; EXISTS would be hashed, by reading every attempt there is.
    had = select(true()).where(attempts.run_id == run.id, attempts.worker_id == any_(ids)).limit(1)
    # A run that was never claimed, as all of a long queue, has no attempt; each claim adds one to the epoch.
    has_attempt = and_(run.lease_epoch > 0, func.coalesce(had.scalar_subquery(), false()))
    return or_(run.locked_by == any_(ids), has_attempt)


def _contains(run: Columns, words: str, hidden: HiddenText | None) -> Condition:
    """Match words in payload, error or type, and the id of the run."""
    payload, error = cast(run.payload, Text), run.last_error
    columns = (payload, error, run.error_code, run.job_type)
    places = [column.icontains(words, autoescape=True) for column in columns]
    if hidden is not None:
        places[0] = and_(places[0], ~payload.regexp_match(hidden.payload, flags="i"))
        places[1] = and_(places[1], ~error.regexp_match(hidden.error, flags="i"))
    if words.isascii() and words.isdecimal() and int(words) <= LARGEST_ID:
        places.append(run.id == int(words))
    return or_(*places)
