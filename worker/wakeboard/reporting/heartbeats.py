"""The heartbeats of every loop of every process, by the database's clock; and whether any worker is there.

A healthy-looking process whose listener or scheduler died silently is the commonest outage of job systems.
Here it is a row that grows old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from wakeboard.core.leases import IS_ALIVE, is_alive
from wakeboard.core.time.clock_skew import is_ahead, is_before, is_since, latest
from wakeboard.database.read import read_all, read_flag

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# A loop is late after missing three rounds and this much more, so that one slow statement is no alarm.
MARGIN_SECONDS = 5
# A silent process counts as gone after this long, once another has worked since then.
GONE_SECONDS = 600
# Without a heartbeat for so long no worker is there.
SILENCE_SECONDS = 180

# A silent worker is replaced when, since it was last seen, as many workers of the same host, name and types
# were started as fell silent: a service that was killed and started again, not one of two that is missing.
# Workers that stopped since then were started too. Of a worker and its successor only one counts, so the most
# workers at a time are compared.


def _is_same_service(other: str) -> str:
    return f"""{other}.hostname = w.hostname AND {other}.name IS NOT DISTINCT FROM w.name
            AND {other}.job_types @> w.job_types AND NOT {other}.is_tick"""


_AT_A_TIME = f"""(
            SELECT count(*) FROM wakeboard.workers AS beside
            WHERE {_is_same_service("beside")}
                AND beside.started_at > w.seen_at AND beside.started_at <= same.started_at
                AND (beside.stopped_at IS NULL OR beside.stopped_at > same.started_at)
        )"""
REPLACED = f"""NOT {IS_ALIVE} AND NOT w.is_tick AND (
        SELECT max({_AT_A_TIME}) FILTER (WHERE same.started_at > w.seen_at)
            >= count(*) FILTER (WHERE same.stopped_at IS NULL AND NOT {is_alive("same")})
        FROM wakeboard.workers AS same WHERE {_is_same_service("same")} AND same.seen_at >= w.seen_at
    ) IS TRUE"""

# A stopped process has no rows. A silent one is late until it is replaced or gone; the last process of all is
# never gone, because then nothing works. Rows without a worker are read for GONE_SECONDS.
LOOPS = f"""
SELECT l.process_id, w.hostname, w.pid, l.name, l.interval_seconds, l.last_success_at,
    extract(epoch FROM now() - l.last_success_at)::float8 AS ago_seconds,
    {is_before("l.last_success_at", f"3 * l.interval_seconds + {MARGIN_SECONDS}")} AS late,
    l.last_error, l.last_error_at, l.numbers, {is_ahead("l.last_success_at")} AS is_ahead
FROM wakeboard.loops AS l LEFT JOIN wakeboard.workers AS w ON w.id = l.process_id
WHERE CASE
    WHEN w.id IS NULL THEN l.last_success_at > now() - make_interval(secs => {GONE_SECONDS})
    WHEN w.stopped_at IS NOT NULL THEN false
    WHEN w.seen_at > now() - make_interval(secs => {GONE_SECONDS}) THEN NOT ({REPLACED})
    ELSE NOT EXISTS (
        SELECT FROM wakeboard.workers AS later
        WHERE later.seen_at > w.seen_at + make_interval(secs => {GONE_SECONDS})
            AND later.seen_at <= {latest()}
    ) AND NOT ({REPLACED})
END
ORDER BY l.process_id, l.name
"""
LATE_LOOPS = f"SELECT * FROM ({LOOPS}) AS loop WHERE late"
ABANDONED = f"""
SELECT EXISTS (
        SELECT FROM wakeboard.job_definitions
        WHERE enabled AND schedule IS NOT NULL
            AND {is_before("updated_at", SILENCE_SECONDS)}
    ) AND NOT EXISTS (
        SELECT FROM wakeboard.workers WHERE {is_since("seen_at", SILENCE_SECONDS)}
    )
"""


@dataclass(frozen=True, slots=True)
class Beat:
    """The state of one loop: seconds between its steps, seconds since it last succeeded, its last error."""

    name: str
    interval_seconds: float
    ago_seconds: float
    error: str | None = None
    numbers: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of one process, and how long ago it last succeeded.

    ``is_ahead``: that time lies ahead of the database's clock, so the loop counts as late.
    """

    process_id: str
    hostname: str | None
    pid: int | None
    name: str
    interval_seconds: float
    last_success_at: datetime
    ago_seconds: float
    late: bool
    last_error: str | None
    last_error_at: datetime | None
    numbers: Mapping[str, object] | None
    is_ahead: bool


def loops(connection: Connection) -> list[Loop]:
    """Return the loops of every process that is not gone, by process and name."""
    return read_all(connection, LOOPS, Loop)


def late_loops(connection: Connection) -> list[Loop]:
    """Return the loops that missed three rounds, of processes that are not gone."""
    return read_all(connection, LATE_LOOPS, Loop)


def is_abandoned(connection: Connection) -> bool:
    """Return whether schedules are enabled and no worker or tick came for three minutes."""
    return read_flag(connection, ABANDONED)
