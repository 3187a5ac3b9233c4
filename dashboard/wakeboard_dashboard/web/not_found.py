"""Whether a thing is there that an address names, and the sentence about one that is not."""

from __future__ import annotations

from typing import NamedTuple

from flask import abort
from sqlalchemy import Connection, TextClause, text

from wakeboard.bulk import control
from wakeboard_dashboard.web.connection import reading


class _Kind(NamedTuple):
    """A kind of thing: the query that finds one by its id or name, and the sentence where there is none."""

    query: TextClause
    sentence: str


def _kind(table: str, column: str, sentence: str) -> _Kind:
    return _Kind(text(f"SELECT 1 FROM wakeboard.{table} WHERE {column} = :given"), sentence)


# By the noun of a verb, see ``core.states.Verb``. Views of errors, alerts and saved views check themselves.
KINDS = {
    "run": _kind("job_runs", "id", "There is no run {}: it never was, or retention has removed it."),
    "effect": _kind(
        "effects",
        "id",
        "There is no effect {}: somebody has settled it as not made, or retention has removed it.",
    ),
    "operation": _kind("operations", "id", control.MISSING),
    "schedule": _kind("job_definitions", "name", "There is no schedule “{}”; it may have been removed."),
    "type": _kind("job_types", "name", "There is no job type “{}”: no worker has ever registered it."),
    "worker": _kind(
        "workers", "id", "There is no worker “{}”: who stopped or fell silent is forgotten after a week."
    ),
}


def missing(noun: str, given: object) -> str:
    """Return the sentence about a ``noun`` (run, schedule, type, worker …) that is not there."""
    return KINDS[noun].sentence.format(str(given)[:100])


def is_there(connection: Connection, noun: str, given: object) -> bool:
    """Return whether there is a ``noun`` (run, schedule, type, worker …) whose id or name is ``given``."""
    return connection.execute(KINDS[noun].query, {"given": given}).first() is not None


def require_existing(noun: str, given: object) -> None:
    """Abort with 404 and a sentence where there is no ``noun`` whose id or name is ``given``."""
    if noun in KINDS and not is_there(reading(), noun, given):
        abort(404, missing(noun, given))
