"""What is said of a thing that is not there; a confirm page asks about nothing that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import abort
from sqlalchemy import Connection, TextClause, text

from wakeboard.bulk import control
from wakeboard.core.states import Verb
from wakeboard_dashboard.web.connection import reading


class _Kind(NamedTuple):
    """How a kind of thing is found by what an address says of it, and the sentence where there is none."""

    found: TextClause
    sentence: str


def _kind(table: str, column: str, sentence: str) -> _Kind:
    return _Kind(text(f"SELECT 1 FROM wakeboard.{table} WHERE {column} = :given"), sentence)


# By the noun that the path's argument has (run_id); of ``name`` the verb's own action tells it.
_KINDS = {
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
    return _KINDS[noun].sentence.format(str(given)[:100])


def is_there(connection: Connection, noun: str, given: object) -> bool:
    """Return whether there is a ``noun`` (run, schedule, type, worker …) that is called ``given``."""
    return connection.execute(_KINDS[noun].found, {"given": given}).first() is not None


def require_existing(verb: Verb, arguments: Mapping[str, Any]) -> None:
    """Abort with 404 and a sentence where the thing that the path ``arguments`` name is not there."""
    noun = verb.action.partition(".")[0]
    for argument, given in arguments.items():
        named = noun if argument == "name" else argument.removesuffix("_id")
        if named in _KINDS and not is_there(reading(), named, given):
            abort(404, missing(named, given))
