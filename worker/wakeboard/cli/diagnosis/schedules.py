"""The schedules: which of them cannot fire."""

from __future__ import annotations

from collections.abc import Iterator

from wakeboard.cli.diagnosis.finding import Finding
from wakeboard.cli.reach import Connection
from wakeboard.reporting.broken_schedules import MOST, broken_schedules

# So many are told with their reason.
NAMED = 5


def schedules(connection: Connection) -> Iterator[Finding]:
    """Name the enabled schedules that cannot fire, with the reason of each."""
    found = broken_schedules(connection)
    for one in found[:NAMED]:
        where = f"Correct it on /schedules/{one.name}/edit"
        correct = "Let the database take its run" if one.is_refused else where
        mend = f"{correct}, or run: wakeboard schedule pause {one.name}"
        yield Finding("schedules", "fail", f"{one.name} cannot fire. {one.error}", mend)
    if len(found) > NAMED:
        count = f"More than {MOST - NAMED}" if len(found) > MOST else str(len(found) - NAMED)
        yield Finding("schedules", "fail", f"{count} others cannot either.", "See: wakeboard schedule list")
    if not found:
        yield Finding("schedules", "ok", "All that are enabled can fire.")
