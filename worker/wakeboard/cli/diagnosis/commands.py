"""Commands of a crontab: whose are they, and who runs them."""

from __future__ import annotations

from collections.abc import Iterator

from wakeboard.cli.crontabs import IS_OF_UNKNOWN_USER
from wakeboard.cli.diagnosis.finding import Finding, some_of
from wakeboard.cli.reach import Connection, rows
from wakeboard.core.builtin_payloads import COMMAND_TYPE, command_type
from wakeboard.reporting import worker_states

# A worker that registers the commands of root is one.
OF_ROOT = f"""
SELECT d.name FROM wakeboard.job_definitions AS d
WHERE {IS_OF_UNKNOWN_USER} AND EXISTS (
    SELECT FROM wakeboard.workers AS w
    WHERE w.job_types @> ARRAY['{COMMAND_TYPE}', '{command_type("root")}']
        AND {worker_states.is_claiming("w")}
)
ORDER BY d.name
"""


def commands(connection: Connection) -> Iterator[Finding]:
    """Name the commands that were imported from a crontab without their user and that root runs."""
    names = [row["name"] for row in rows(connection, OF_ROOT)]
    if not names:
        yield Finding("commands", "ok", "None was imported without its user and is run by root.")
        return
    yield Finding(
        "commands",
        "warning",
        f"Imported from a crontab without their user, and run by a worker of root: {some_of(names)}.",
        "Import that crontab again with --system: each gets the user of its line.",
    )
