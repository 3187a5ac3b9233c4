"""What a built-in job is to do: read from its definition at the start of each run.

A definition is written by an admin or on the command line; a run can be inserted by anybody who may enqueue.
So a run's own payload counts only where WAKEBOARD_ALLOW_COMMANDS says that an INSERT may be a shell.
"""

from __future__ import annotations

import os
from typing import Any

from wakeboard.core.builtin_payloads import Instructions, check_fields
from wakeboard.core.outcome import Permanent
from wakeboard.handlers.context import Context
from wakeboard.queue.handler_connection import own_connection

_DEFINITION = "SELECT name, job_type, payload FROM wakeboard.job_definitions WHERE id = %s"
_YES = ("1", "true", "on", "yes")


def instructions(context: Context, allowed: tuple[str, ...]) -> Instructions:
    """Return the definition's payload as it is now, or the run's own where that is allowed.

    Raises Permanent: ``definition_gone``, ``commands_not_allowed``, or ``instructions_unreadable`` for a
    field that is not one of ``allowed``.
    """
    found = context.payload if context.definition_id is None else _of_definition(context)
    if context.definition_id is None and os.environ.get("WAKEBOARD_ALLOW_COMMANDS", "").lower() not in _YES:
        raise Permanent(
            "commands_not_allowed",
            f"This run of '{context.job_type}' carries its own instructions, and only definitions may: "
            "add one with 'wakeboard schedule add', or start the workers with WAKEBOARD_ALLOW_COMMANDS=1.",
        )
    return check_fields(found, allowed)


def _of_definition(context: Context) -> Any:
    with own_connection() as connection:
        row = connection.execute(_DEFINITION, (context.definition_id,)).fetchone()
    if row is None:
        raise Permanent(
            "definition_gone",
            "The definition of this run was removed, and what to do stands only there. Add it again "
            "and run that.",
        )
    if row[1] != context.job_type:
        raise Permanent(
            "definition_gone",
            f"The definition '{row[0]}' is of type '{row[1]}' now, so it no longer says what a run of type "
            f"'{context.job_type}' should do.",
        )
    return row[2]
