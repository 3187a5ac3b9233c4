"""Whether the thing that a verb is about is there: its confirm page asks about nothing that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import abort
from sqlalchemy import TextClause, text

from dashboard.connection import reading
from worker.states import Verb


class _Kind(NamedTuple):
    """How a kind of thing is found by what an address says of it, and the sentence where there is none."""

    found: TextClause
    sentence: str


def _kind(table: str, column: str, sentence: str) -> _Kind:
    return _Kind(text(f"SELECT 1 FROM wakeboard.{table} WHERE {column} = :given"), sentence)


# By the argument of the path; a name says of what kind it is by the verb's own action.
_KINDS = {
    "run_id": _kind("job_runs", "id", "There is no run {}: it never was, or retention has removed it."),
    "effect_id": _kind(
        "effects",
        "id",
        "There is no effect {}: somebody has settled it as not made, or retention has removed it.",
    ),
    "operation_id": _kind("operations", "id", "There is no operation {}; ended ones are kept for 90 days."),
    "schedule": _kind("job_definitions", "name", "There is no schedule “{}”; it may have been removed."),
    "type": _kind("job_types", "name", "There is no job type “{}”: no worker has ever registered it."),
    "worker": _kind(
        "workers", "id", "There is no worker “{}”: who stopped or fell silent is forgotten after a week."
    ),
}


def require_existing(verb: Verb, arguments: Mapping[str, Any]) -> None:
    """Abort with 404 and a sentence where the thing that the path ``arguments`` name is not there."""
    noun = verb.action.partition(".")[0]
    for argument, given in arguments.items():
        kind = _KINDS.get(noun if argument == "name" else argument)
        if kind and reading().execute(kind.found, {"given": given}).first() is None:
            abort(404, kind.sentence.format(str(given)[:100]))
