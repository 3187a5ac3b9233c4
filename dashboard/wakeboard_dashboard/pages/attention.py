"""How many things need a person: the number in every page's title, and its place in the bar.

It is the overview's number, counted at most every other second in each process. A page asks in passing:
a question that fails costs the number, never the page.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import psycopg
from flask import current_app, g
from sqlalchemy import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from wakeboard.alerts.finding import Finding
from wakeboard.database.db import DatabaseError
from wakeboard_dashboard.queries import alerts, overview
from wakeboard_dashboard.queries.overview import (
    AttentionLines,
    OverlongRuns,
    check_rising_failures,
    list_overlong,
    read_attention_lines,
)
from wakeboard_dashboard.text.verdict import Counts, untold
from wakeboard_dashboard.web.connection import as_of, may_ask_in_passing, reading

log = logging.getLogger("wakeboard.web")

KEPT = timedelta(seconds=2)


@dataclass(slots=True)
class LastCount:
    """The last number, and the moment of the database's clock it is of."""

    at: datetime | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionState:
    """How things are at one moment: the numbers, whether failures rise, the alert rules that fire, and the
    types of which runs have run far longer than usual."""

    counts: Counts
    rising: Finding
    alerts: Sequence[RowMapping]
    overlong: Sequence[OverlongRuns] = ()

    @property
    def firing(self) -> list[str]:
        """The kinds of the rules that fire."""
        return [rule.kind for rule in self.alerts]

    @property
    def needing(self) -> int:
        """How many things need a person: what ``Counts.attention`` has, rising, other alerts."""
        told_of = untold(self.counts, self.rising, self.firing)
        return self.counts.attention + self.rising.firing + len(told_of)


def by_type() -> AttentionLines:
    """Return what needs a person by type, asked once in a request.

    Asked before ``standing``, it spares counting the same runs there.
    """
    if "troubles" not in g:
        g.troubles = read_attention_lines(reading())
    found = g.troubles
    assert isinstance(found, AttentionLines)
    return found


def standing() -> AttentionState:
    """Return how things are at this request's moment; what says so in several places asks once."""
    if "standing" not in g:
        known = g.troubles.counted if "troubles" in g else None
        counts = overview.read_counts(reading(), known)
        # Where nothing runs for long, which is nearly always, nobody asks how long is usual.
        longer = list_overlong(reading(), as_of()) if counts.long else []
        g.standing = AttentionState(
            replace(counts, overlong=sum(each.count for each in longer)),
            check_rising_failures(reading()),
            alerts.list_firing_rules(reading()),
            longer,
        )
    found = g.standing
    assert isinstance(found, AttentionState)
    return found


def known() -> int | None:
    """Return the number, at most KEPT old; None when it cannot be had."""
    memory = _memory()
    try:
        if memory.at is None or not timedelta() <= as_of() - memory.at < KEPT:
            memory.count, memory.at = _ask(), as_of()
    except (SQLAlchemyError, DatabaseError, psycopg.Error):
        log.warning("what needs attention was not counted", exc_info=True)
        return None
    return memory.count


def remember(count: int) -> int:
    """Keep a number that a page counted for itself, so that its frame need not count again; return it."""
    memory = _memory()
    memory.count, memory.at = count, as_of()
    return count


def in_passing() -> int | None:
    """Return the number for a page being rendered; the last one known where it asks the database nothing,
    as an error page must not.

    It is of all types: who may see some alone is not told.
    """
    actor = g.get("actor")
    if actor is not None and actor.job_types is not None:
        return None
    return known() if may_ask_in_passing() else _memory().count


def _memory() -> LastCount:
    found = current_app.extensions.setdefault("wakeboard_attention", LastCount())
    assert isinstance(found, LastCount)
    return found


def _ask() -> int:
    """Count, within a savepoint: a statement that fails takes nothing else of the page with it."""
    with reading().begin_nested():
        return standing().needing
