"""What the code has said of the schedule of its type so far, and whether a worker says it still.

A saying is remembered with the type once it was applied, or was left for good because of a person. So it is
known again whichever worker brings it, and whatever has become of the schedule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wakeboard.core.time.clock_skew import is_since
from wakeboard.queue.operator import Connection

# The newest so many are known again.
MOST_REMEMBERED = 50
# Who was not seen for so long says nothing any more; a tick comes and goes, as its crontab has it.
WORKER_SECONDS, TICK_SECONDS = 180, 900

REMEMBERED = (
    "SELECT name, said_in_code FROM wakeboard.job_types WHERE name = ANY(%s) AND said_in_code IS NOT NULL"
)
REMEMBER = """
INSERT INTO wakeboard.job_types AS t (name, said_in_code) VALUES (%(name)s, %(said)s::jsonb)
ON CONFLICT (name) DO UPDATE SET said_in_code = excluded.said_in_code
"""
# A worker that speaks of the type and not of a schedule says that it has none.
IS_SAID = f"""
SELECT EXISTS (
    SELECT FROM wakeboard.workers AS w
    WHERE %(name)s = ANY(w.job_types) AND w.code_schedules IS NOT NULL
        AND w.code_schedules -> %(name)s IS NOT DISTINCT FROM %(said)s::jsonb
        AND CASE WHEN w.is_tick THEN {is_since("w.seen_at", TICK_SECONDS)}
            ELSE w.stopped_at IS NULL AND {is_since("w.seen_at", WORKER_SECONDS)} END
)
"""


class Said(NamedTuple):
    """What the code says of a type's schedule: cron text, and the zone if it names one."""

    schedule: str | None
    timezone: str | None = None


NOTHING_SAID = Said(None)


def of_policies(policies: Sequence[Mapping[str, Any]]) -> dict[str, Said]:
    """Return what the code says of each type that it registers."""
    return {each["name"]: Said(each.get("schedule"), each.get("timezone")) for each in policies}


def as_published(policies: Sequence[Mapping[str, Any]]) -> str:
    """Return as JSON what a worker's row tells of its code: each type with a schedule, and what it says."""
    said = of_policies(policies)
    return json.dumps({name: one for name, one in said.items() if one.schedule is not None})


def remembered(connection: Connection, names: Sequence[str]) -> dict[str, list[Said]]:
    """Return by type what its code has said, latest last; types of which nothing is known are not in it."""
    found = connection.execute(REMEMBERED, (list(names),)).fetchall()
    return {name: [Said(*one) for one in said] for name, said in found}


def remember(connection: Connection, name: str, said: Said, before: Sequence[Said]) -> None:
    """Note that ``said`` is what the code of the type ``name`` has said last, after ``before``."""
    others = [one for one in before if one != said]
    kept = [*others, said][-MOST_REMEMBERED:]
    connection.execute(REMEMBER, {"name": name, "said": json.dumps(kept)})


def is_said(connection: Connection, name: str, said: Said) -> bool:
    """Return whether a worker that lives, or a tick of the last quarter of an hour, says so of ``name``."""
    told = None if said.schedule is None else json.dumps(said)
    row = connection.execute(IS_SAID, {"name": name, "said": told}).fetchone()
    return bool(row and row[0])
