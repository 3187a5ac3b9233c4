"""The instructions of a built-in job: read from its definition at the start of each run.

An admin or the command line writes a definition; anybody who may enqueue can insert a run. So a run's own
payload counts only where WAKEBOARD_ALLOW_COMMANDS says that an INSERT may be a shell.
"""

from __future__ import annotations

import os

from wakeboard.core.builtin_payloads import Instructions, check_fields
from wakeboard.core.outcome import Permanent
from wakeboard.handlers.context import Context
from wakeboard.queue.handler_connection import own_connection

_DEFINITION = "SELECT name, job_type, payload FROM wakeboard.job_definitions WHERE id = %s"
_YES = ("1", "true", "on", "yes")


def read_instructions(context: Context, allowed: tuple[str, ...]) -> Instructions:
    """Return the definition's payload as it is now, or the run's own where that is allowed.

    Raises Permanent: ``definition_gone``, ``commands_not_allowed``, or ``instructions_unreadable`` for a
    field that is not one of ``allowed``.
    """
    if context.definition_id is not None:
        return check_fields(_read_definition(context), allowed)
    if os.environ.get("WAKEBOARD_ALLOW_COMMANDS", "").lower() not in _YES:
        raise Permanent(
            "commands_not_allowed",
            f"This run of '{context.job_type}' carries its own instructions, and only definitions may: "
            "add one with 'wakeboard schedule add', or start the workers with WAKEBOARD_ALLOW_COMMANDS=1.",
        )
    return check_fields(context.payload, allowed)


def _read_definition(context: Context) -> object:
    with own_connection() as connection:
        row = connection.execute(_DEFINITION, (context.definition_id,)).fetchone()
    if row is None:
        raise Permanent(
            "definition_gone",
            "The definition of this run was removed, and what to do stands only there. Add it again "
            "and run that.",
        )
    name, job_type, payload = row
    if job_type != context.job_type:
        raise Permanent(
            "definition_gone",
            f"The definition '{name}' is of type '{job_type}' now, so it no longer says what a run of type "
            f"'{context.job_type}' should do.",
        )
    return payload
