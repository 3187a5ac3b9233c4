"""What each filter asks of one run: comparisons that an index serves, and those that look at the run itself.

Imports SQLAlchemy, so nothing that works on runs imports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
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

from wakeboard.database.tables import job_attempts, job_runs
from wakeboard.reporting.filters.named import workers_named
from wakeboard.reporting.filters.runs import FAILED
from wakeboard.reporting.filters.values import LARGEST_ID, FilterValues

# The filters that no index serves, beside those of payloads, and the columns that they look at.
WALKING = ("q", "attempts", "worker", "since", "until", *FAILED)
LOOKED_AT = (
    "id", "created_at", "attempts", "lease_epoch", "locked_by", "payload", "last_error", "error_code",
    "job_type", "failed_at",
)  # fmt: skip

runs = job_runs.c


class HiddenText(NamedTuple):
    """What a search must not tell, as regular expressions: payloads, messages, words before a hidden item."""

    payload: str
    error: str
    flag: str


def plain(asked: FilterValues, run: Any = runs) -> list[ColumnElement[bool]]:
    """Return the filters that are a comparison with an indexed column."""
    columns = {
        "type": run.job_type,
        "error": run.error_code,
        "group": run.error_group,
        "key": run.idempotency_key,
    }
    return [column == asked.get(name) for name, column in columns.items() if asked.get(name)]


def looked_at(
    run: Any,
    asked: FilterValues,
    now: datetime,
    ids_of: Callable[[Select[Any]], Sequence[Any]],
    hidden: HiddenText | None,
) -> list[ColumnElement[bool]]:
    """Return the filters that have to look at each ``run`` (columns LOOKED_AT)."""
    found: list[ColumnElement[bool]] = []
    if since := asked.get("since"):
        found.append(run.created_at >= since.at(now))
    if until := asked.get("until"):
        found.append(run.created_at < until.at(now))
    found += failed_between(run, asked, now)
    if attempts := asked.get("attempts"):
        low, high = attempts
        found.append(run.attempts >= low if high is None else run.attempts.between(low, high))
    if worker := asked.get("worker"):
        found.append(_worked_on_by(run, [worker, *map(str, ids_of(workers_named(worker)))]))
    for path, value in asked.starting("payload.").items():
        found.append(_holds(run, path.split("."), value, hidden))
    if words := asked.get("q"):
        found.append(_mentions(run, words, hidden))
    return found


def failed_between(run: Any, asked: FilterValues, now: datetime) -> list[ColumnElement[bool]]:
    """Return what the filters FAILED ask of the last failure of ``run``."""
    since, until = map(asked.get, FAILED)
    return [
        *([run.failed_at >= since.at(now)] if since else []),
        *([run.failed_at < until.at(now)] if until else []),
    ]


def _holds(run: Any, steps: list[str], value: str, hidden: HiddenText | None) -> ColumnElement[bool]:
    """Match payloads with ``value`` behind ``steps``, unless the word before it in a list hides it."""
    holds: list[ColumnElement[bool]] = [_at(run, steps) == value]
    if hidden is None:
        return holds[0]
    for place, step in enumerate(steps):
        if re.fullmatch("-?[0-9]{1,9}", step) and int(step):
            before = func.coalesce(_at(run, [*steps[:place], str(int(step) - 1)]), "")
            holds.append(~before.regexp_match(hidden.flag, flags="i"))
    return and_(*holds)


def _at(run: Any, steps: list[str]) -> Any:
    return cast(run.payload.op("#>>")(literal(steps, ARRAY(Text))), Text)


def _worked_on_by(run: Any, worker_ids: Sequence[str]) -> ColumnElement[bool]:
    """Match what one of the workers holds or has held."""
    ids = literal(list(worker_ids), ARRAY(Text))
    attempts = job_attempts.c
    # A scalar with a limit is probed once per run; EXISTS would be hashed, by reading every attempt there is.
    held = select(true()).where(attempts.run_id == run.id, attempts.worker_id == any_(ids)).limit(1)
    # What nobody has claimed yet, as all of a long queue, has none; each claim adds one to the epoch.
    has_held = and_(run.lease_epoch > 0, func.coalesce(held.scalar_subquery(), false()))
    return or_(run.locked_by == any_(ids), has_held)


def _mentions(run: Any, words: str, hidden: HiddenText | None) -> ColumnElement[bool]:
    """Match text in payload, error or type, and the run's own number."""
    payload, error = cast(run.payload, Text), run.last_error
    columns = (payload, error, run.error_code, run.job_type)
    places = [column.icontains(words, autoescape=True) for column in columns]
    if hidden is not None:
        places[0] = and_(places[0], ~payload.regexp_match(hidden.payload, flags="i"))
        places[1] = and_(places[1], ~error.regexp_match(hidden.error, flags="i"))
    if words.isascii() and words.isdecimal() and int(words) <= LARGEST_ID:
        places.append(run.id == int(words))
    return or_(*places)
