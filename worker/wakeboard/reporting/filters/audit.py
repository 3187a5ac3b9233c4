"""Filters of the audit log → the statement that finds its rows. Shared by the page and the command line.

One filter is served by an index of its own; what else is asked is looked at row by row, for WINDOW rows a
request, newest first. A stretch of time is a stretch of ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, DateTime, Select, bindparam, select, text

from wakeboard.core.answer import HTTP_STATUSES
from wakeboard.database.tables import audit_log
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
from wakeboard.reporting.ids_by_time import last_before

RESULTS = (*HTTP_STATUSES, "refused")
# Somebody asked and nothing came of it.
UNDONE = ("forbidden", "locked", "denied", "refused", "missing", "invalid")
SOURCES = ("web", "api", "cli", "engine")
# A row's time is when its transaction began, its id is given later: ids may run ahead by this much.
ID_SLACK = timedelta(minutes=10)
_KIND = r"[a-z_]{1,30}"

rows = audit_log.c

_LAST_BEFORE = last_before("audit_log", "at", ":moment")


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of thing, one thing of a kind, or (``kind`` None) a name whose kind is told apart from it."""

    kind: str | None
    name: str | None


def _target(value: str) -> Target:
    """Read ``run:48210``, ``run 48210``, a kind alone such as ``schedule``, or a name alone."""
    found = re.fullmatch(rf"({_KIND})(?:[: ](.{{1,500}}))?", value, re.DOTALL)
    if found:
        return Target(found[1], found[2])
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
    asked: FilterValues, now: datetime, *, start: Start | None = None, hidden: str | None = None
) -> Search:
    """Return the search that filters of FIELDS mean at ``now``, the database's clock.

    Its statement selects whole rows; ``start`` is where a walk begins; by its words no reason
    is found in which the regular expression ``hidden`` finds something. Raises FilterError.
    """
    refuse_reversed(asked, now, "act can lie")
    conditions = _conditions(asked, hidden)
    stretch = _stretch(asked, now)
    leading = next((name for name in ("target", "undone", "who", "what") if name in conditions), None)
    first = [*stretch, *(conditions.pop(leading)(rows) if leading else [])]
    if not conditions:
        return Search(select(audit_log).where(*first), rows.id)
    ahead = select(audit_log).where(*first)
    order: ColumnElement[Any] = rows.id.desc()
    if start is not None:
        ahead = ahead.where(rows.id > start.id if start.newer else rows.id < start.id)
        order = rows.id.asc() if start.newer else order
    near = ahead.order_by(order).limit(WINDOW).subquery()
    matching = select(near).where(*(each for tests in conditions.values() for each in tests(near.c)))
    end: Select[Any] = ahead.with_only_columns(rows.id).order_by(order).offset(WINDOW - 1).limit(1)
    return Search(matching, near.c.id, end)


def target_of(asked: FilterValues) -> Target | None:
    """Return the thing that ``kind`` and ``target`` name together. Raises FilterError."""
    kind: str | None = asked.get("kind")
    target: Target | None = asked.get("target")
    if target is None:
        return Target(kind, None) if kind else None
    if kind is None:
        if target.kind is None:
            raise FilterError(
                f"The filter “target” is “{asked.texts['target'][:100]}”; it must be "
                f"{FIELDS['target'].allowed}."
            )
        return target
    if target.kind == kind and target.name is not None:
        return target
    # With the kind chosen beside it, the text is the name: of a schedule "nightly", of a type "mail:out".
    return Target(kind, asked.texts["target"])


def _conditions(asked: FilterValues, hidden: str | None) -> dict[str, Any]:
    """Return {name: columns → conditions} of what is asked, but for the time."""
    found: dict[str, Any] = {}
    if target := target_of(asked):
        if target.name is None:
            found["kind"] = lambda row: [row.target_type == target.kind]
        else:
            found["target"] = lambda row: [row.target_type == target.kind, row.target_id == target.name]
    if results := asked.get("result"):
        # Said outright, so that the index of what was not done fits whatever the planner knows of the values.
        undone = "done" not in results
        found["undone" if undone else "result"] = lambda row: [
            row.result.in_(results),
            *([row.result != text("'done'")] if undone else []),
        ]
    for name, column in (("who", "actor"), ("what", "action"), ("source", "source")):
        if value := asked.get(name):
            found[name] = lambda row, column=column, value=value: [row[column] == value]
    if words := asked.get("q"):
        found["q"] = lambda row: [
            row.reason.icontains(words, autoescape=True),
            *([] if hidden is None else [~row.reason.regexp_match(hidden, flags="i")]),
        ]
    return found


def _stretch(asked: FilterValues, now: datetime) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if since := asked.get("since"):
        moment = since.at(now)
        found += [rows.at >= moment, rows.id > _last_before(moment - ID_SLACK)]
    if until := asked.get("until"):
        moment = until.at(now)
        found += [rows.at < moment, rows.id <= _last_before(moment + ID_SLACK)]
    return found


def _last_before(moment: datetime) -> ColumnElement[int]:
    bound = bindparam("moment", moment, type_=DateTime(timezone=True), unique=True)
    return text(_LAST_BEFORE).bindparams(bound).columns(low=BigInteger).scalar_subquery()
