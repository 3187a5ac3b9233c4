"""The filters of the audit log and the statement that finds its rows, for the page and the command line.

One filter is served by an index; the others are checked row by row, for WINDOW rows a request, newest first.
A range of time is a range of ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import BigInteger, ColumnElement, DateTime, bindparam, select, text

from wakeboard.core.answer import HTTP_STATUSES
from wakeboard.database.tables import audit_log
from wakeboard.reporting.filters.conditions import Columns, Condition
from wakeboard.reporting.filters.search import WINDOW, Search, Start
from wakeboard.reporting.filters.values import (
    LONGEST_TEXT,
    MOMENT,
    TEXT,
    Field,
    FilterError,
    FilterValues,
    one_of,
    refuse_reversed,
)
from wakeboard.reporting.ids_by_time import ID_SLACK, last_id_before

RESULTS = (*HTTP_STATUSES, "refused")
# The results of requests that were not carried out.
UNDONE = ("forbidden", "locked", "denied", "refused", "missing", "invalid")
SOURCES = ("web", "api", "cli", "engine")
_KIND = r"[a-z_]{1,30}"

rows = audit_log.c

_LAST_ID_BEFORE = text(last_id_before("audit_log", "at", ":moment"))
# Makes the conditions of one filter on the columns of a row.
Conditions = Callable[[Columns], list[Condition]]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of thing, one thing of a kind, or (``kind`` None) a name whose kind is in another filter."""

    kind: str | None
    name: str | None


def _target(value: str) -> Target:
    """Read ``run:48210``, ``run 48210``, a kind alone such as ``schedule``, or a name alone."""
    match = re.fullmatch(rf"({_KIND})(?:[: ](.{{1,500}}))?", value, re.DOTALL)
    if match:
        return Target(match[1], match[2])
    if not 0 < len(value) <= LONGEST_TEXT:
        raise ValueError
    return Target(None, value)


def _kind(value: str) -> str:
    if not re.fullmatch(_KIND, value):
        raise ValueError
    return value


FIELDS: dict[str, Field] = {
    "who": TEXT,
    "what": TEXT,
    "kind": Field(_kind, "a kind of thing such as run, schedule or type"),
    "target": Field(_target, "a kind such as schedule, or one thing such as run:48210"),
    "result": one_of(RESULTS, many=True),
    "source": one_of(SOURCES),
    "since": MOMENT,
    "until": MOMENT,
    "q": TEXT,
}


def search(
    filters: FilterValues, now: datetime, *, start: Start | None = None, hidden: str | None = None
) -> Search:
    """Return the search for the rows of ``filters`` (of FIELDS) at ``now``, the database's clock.

    Its statement selects whole rows. ``start`` is where a walk begins. The filter ``q`` finds no reason that
    matches the regular expression ``hidden``. Raises FilterError.
    """
    refuse_reversed(filters, now, "act can lie")
    conditions = _conditions(filters, hidden)
    indexed = next((name for name in ("target", "undone", "who", "what") if name in conditions), None)
    ahead = select(audit_log).where(*_time_conditions(filters, now))
    if indexed:
        ahead = ahead.where(*conditions.pop(indexed)(rows))
    if not conditions:
        return Search(ahead, rows.id)
    order = rows.id.desc()
    if start is not None:
        ahead = ahead.where(rows.id > start.id if start.newer else rows.id < start.id)
        order = rows.id.asc() if start.newer else order
    near = ahead.order_by(order).limit(WINDOW).subquery()
    matching = select(near).where(*(each for make in conditions.values() for each in make(near.c)))
    end = ahead.with_only_columns(rows.id).order_by(order).offset(WINDOW - 1).limit(1)
    return Search(matching, near.c.id, end)


def target_of(filters: FilterValues) -> Target | None:
    """Return the thing that ``kind`` and ``target`` name together. Raises FilterError."""
    kind: str | None = filters.get("kind")
    target: Target | None = filters.get("target")
    if target is None:
        return Target(kind, None) if kind else None
    if kind is None:
        if target.kind is None:
            raise FilterError(
                f"The filter “target” is “{filters.texts['target'][:100]}”; it must be "
                f"{FIELDS['target'].allowed}."
            )
        return target
    if target.kind == kind and target.name is not None:
        return target
    # With the kind chosen beside it, the text is the name: of a schedule "nightly", of a type "mail:out".
    return Target(kind, filters.texts["target"])


def _conditions(filters: FilterValues, hidden: str | None) -> dict[str, Conditions]:
    """Return the conditions of ``filters`` by name, but for the time."""
    conditions: dict[str, Conditions] = {}
    if target := target_of(filters):
        if target.name is None:
            conditions["kind"] = lambda row: [row.target_type == target.kind]
        else:
            conditions["target"] = lambda row: [
                row.target_type == target.kind, row.target_id == target.name,
            ]  # fmt: skip
    if results := filters.get("result"):
        # "Not done" is written out: the index of such rows fits whatever the planner knows of the values.
        undone = "done" not in results
        conditions["undone" if undone else "result"] = lambda row: [
            row.result.in_(results),
            *([row.result != text("'done'")] if undone else []),
        ]
    for name, column in (("who", "actor"), ("what", "action"), ("source", "source")):
        if value := filters.get(name):
            conditions[name] = partial(_equals, column, value)
    if words := filters.get("q"):
        conditions["q"] = lambda row: [
            row.reason.icontains(words, autoescape=True),
            *([] if hidden is None else [~row.reason.regexp_match(hidden, flags="i")]),
        ]
    return conditions


def _equals(column: str, value: str, row: Columns) -> list[Condition]:
    return [row[column] == value]


def _time_conditions(filters: FilterValues, now: datetime) -> list[Condition]:
    conditions: list[Condition] = []
    if since := filters.get("since"):
        moment = since.at(now)
        conditions += [rows.at >= moment, rows.id > _last_id_before(moment - ID_SLACK)]
    if until := filters.get("until"):
        moment = until.at(now)
        conditions += [rows.at < moment, rows.id <= _last_id_before(moment + ID_SLACK)]
    return conditions


def _last_id_before(moment: datetime) -> ColumnElement[int]:
    bound = bindparam("moment", moment, type_=DateTime(timezone=True), unique=True)
    return _LAST_ID_BEFORE.bindparams(bound).columns(id=BigInteger).scalar_subquery()
