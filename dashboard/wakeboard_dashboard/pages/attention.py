"""How many things need a person: the number in the title and in the bar of every page.

It is the overview's number. Each process counts at most every two seconds. Where counting fails the page is
shown without the number.
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
from wakeboard_dashboard.text.verdict import Counts, other_rules
from wakeboard_dashboard.web.connection import as_of, may_query_for_frame, reading

log = logging.getLogger("wakeboard.web")

COUNT_AGE = timedelta(seconds=2)


@dataclass(slots=True)
class LastCount:
    """The last number, and when it was counted by the database's clock."""

    at: datetime | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionState:
    """What needs a person at one moment: numbers, rising failures, firing alert rules, and the types of which
    runs have run far longer than usual."""

    counts: Counts
    rising: Finding
    alerts: Sequence[RowMapping]
    overlong: Sequence[OverlongRuns] = ()

    @property
    def firing(self) -> list[str]:
        """The kinds of the rules that fire."""
        return [rule.kind for rule in self.alerts]

    @property
    def count(self) -> int:
        """How many things need a person: ``Counts.attention``, rising failures, and other firing rules."""
        return (
            self.counts.attention
            + self.rising.firing
            + len(other_rules(self.counts, self.rising, self.firing))
        )


def read_by_type() -> AttentionLines:
    """Return what needs a person by type, queried once in a request.

    Called before ``read_state``, it spares counting the same runs there.
    """
    if "troubles" not in g:
        g.troubles = read_attention_lines(reading())
    found = g.troubles
    assert isinstance(found, AttentionLines)
    return found


def read_state() -> AttentionState:
    """Return what needs a person at the moment of this request, queried once in a request."""
    if "attention_state" not in g:
        known = g.troubles.counted if "troubles" in g else None
        counts = overview.read_counts(reading(), known)
        # Nothing runs for long nearly always: the usual times are not queried then.
        longer = list_overlong(reading(), as_of()) if counts.long else []
        g.attention_state = AttentionState(
            replace(counts, overlong=sum(each.count for each in longer)),
            check_rising_failures(reading()),
            alerts.list_firing_rules(reading()),
            longer,
        )
    state = g.attention_state
    assert isinstance(state, AttentionState)
    return state


def store_count(count: int) -> int:
    """Store a number that a page has counted, so that its frame need not count again; return it."""
    last = _last_count()
    last.count, last.at = count, as_of()
    return count


def count_for_frame() -> int | None:
    """Return the number for a page being rendered, at most COUNT_AGE old; None when it cannot be counted.

    A page that may not query the database, as an error page, gets the last number. It is of all types: tokens
    for some types get none.
    """
    actor = g.get("actor")
    if actor is not None and actor.job_types is not None:
        return None
    last = _last_count()
    if not may_query_for_frame():
        return last.count
    try:
        if last.at is None or not timedelta() <= as_of() - last.at < COUNT_AGE:
            # Within a savepoint: a statement that fails takes nothing else of the page with it.
            with reading().begin_nested():
                store_count(read_state().count)
    except (SQLAlchemyError, DatabaseError, psycopg.Error):
        log.warning("what needs attention was not counted", exc_info=True)
        return None
    return last.count


def _last_count() -> LastCount:
    last = current_app.extensions.setdefault("wakeboard_attention", LastCount())
    assert isinstance(last, LastCount)
    return last
