"""Many runs by COPY, for which their ids are taken beforehand: it returns none. No import of SQLAlchemy.

COPY takes PostgreSQL less time than an INSERT of the same rows: it fills a page of the table at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from psycopg import Connection
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

# A NewRun, or what its columns() returns.
Row = tuple[Any, ...]

# So many characters are sent at a time: the server is at work on them while the next are made. And so many
# are one statement: the trigger that wakes workers keeps all rows of one, and a caller may limit its time.
MESSAGE, STATEMENT = 16_384, 1_048_576
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# An id that a run does not get is missed by nobody. Who may insert may not therefore take ids. The time is a
# number, which a caller's session reads in no way of its own.
_RESERVE = """
SELECT (extract(epoch FROM now()) * 1000000)::bigint, CASE
    WHEN has_sequence_privilege('wakeboard.job_runs_id_seq', 'USAGE') THEN (
        SELECT array_agg(nextval('wakeboard.job_runs_id_seq'))::text FROM generate_series(1, %s)
    ) END"""
_COPY = """
COPY wakeboard.job_runs
    (id, payload, idempotency_key, job_type, run_at, priority, max_attempts, enqueued_by, origin_run_id,
    traceparent)
FROM STDIN"""


class ReservedIds(NamedTuple):
    """The ids that are taken for rows, and the database's clock."""

    ids: list[str]
    now: datetime


def may_copy(target: Connection[Any]) -> bool:
    """Return whether ``target`` can: not in pipeline mode, and not where it has no encoding."""
    return target.pgconn.pipeline_status == PipelineStatus.OFF and target.info.encoding != "ascii"


def reserve(target: Connection[Any], count: int) -> ReservedIds | None:
    """Take ``count`` ids; None for a role that may not. A ``target`` that begins transactions begins one."""
    cursor = target.cursor(row_factory=tuple_row)
    ((now, ids),) = cursor.execute(_RESERVE, [count]).fetchall()
    return None if ids is None else ReservedIds(ids[1:-1].split(","), _EPOCH + timedelta(microseconds=now))


def copy(target: Connection[Any], rows: Iterable[Row], reserved: ReservedIds) -> list[int]:
    """Insert ``rows``, as many as ids are ``reserved`` and made one by one meanwhile; return their ids.

    Raises UniqueViolation when somebody has a key, and whatever making ``rows`` raises: then some may have
    been written, for the caller's savepoint to take back.
    """
    messages = _messages(_lines(rows, reserved))
    for first in messages:
        room = STATEMENT
        with target.cursor().copy(_COPY) as stream:
            for message in chain([first], messages):
                stream.write(message)
                room -= len(message)
                if room <= 0:
                    break
    return list(map(int, reserved.ids))


def _messages(lines: Iterable[str]) -> Iterator[str]:
    """Yield ``lines`` together, each time as many as have MESSAGE characters."""
    held: list[str] = []
    length = 0
    for line in lines:
        held.append(line)
        length += len(line)
        if length >= MESSAGE:
            yield "".join(held)
            held, length = [], 0
    if held:
        yield "".join(held)


def _lines(rows: Iterable[Row], reserved: ReservedIds) -> Iterator[str]:
    """Yield each row as a line of COPY's text format."""

    @lru_cache
    def others(job_type: str, run_at: datetime | None, delay: float, *more: Any) -> str:
        """Return the end of a line, which many runs share."""
        due_at = run_at or reserved.now + timedelta(seconds=delay)
        return "\t".join(map(_field, (job_type, due_at.isoformat(), *more))) + "\n"

    for id_, (job_type, payload, run_at, delay, key, *more) in zip(reserved.ids, rows, strict=True):
        yield f"{id_}\t{_field(payload)}\t{_field(key)}\t{others(job_type, run_at, delay, *more)}"


def _field(value: str | int | None) -> str:
    """Return a value of a line, of a class of somebody's own too: by what it is, and not by what it shows.

    Texts of runs have no control characters, JSON writes them as escapes.
    """
    if value is None:
        return "\\N"
    return value.replace("\\", "\\\\") if isinstance(value, str) else int.__repr__(value)
