"""Many runs by COPY. It returns no ids, so they are reserved before. It imports no SQLAlchemy.

COPY takes PostgreSQL less time than an INSERT of the same rows: it fills a page of the table at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from psycopg import Connection
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from wakeboard.core.run_spec import RunColumns

# So many characters are sent at a time: the server works on them while the next are made.
MESSAGE_CHARACTERS = 16_384
# So many are one statement: the trigger that wakes workers keeps all rows of one, and a caller may limit its
# time.
STATEMENT_CHARACTERS = 1_048_576
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Ids that are reserved and not used leave harmless gaps. A role that may insert need not have the right to
# reserve. The time is a number, for a caller's session may show times in a format of its own.
_RESERVE = """
SELECT (extract(epoch FROM now()) * 1000000)::bigint, CASE
    WHEN has_sequence_privilege('wakeboard.job_runs_id_seq', 'USAGE') THEN (
        SELECT array_agg(nextval('wakeboard.job_runs_id_seq'))::text FROM generate_series(1, %s)
    ) END"""
# In the order of ``_lines``: behind the key, the fifth field, all others in turn.
_COPY = f"""
COPY wakeboard.job_runs
    (id, payload, idempotency_key, job_type, run_at, {", ".join(RunColumns._fields[5:])})
FROM STDIN"""


class ReservedIds(NamedTuple):
    """The ids of the rows, and the database's time."""

    ids: list[str]
    now: datetime


def may_copy(target: Connection) -> bool:
    """Return whether ``target`` allows COPY: not in pipeline mode, and not in the encoding SQL_ASCII."""
    return target.pgconn.pipeline_status == PipelineStatus.OFF and target.info.encoding != "ascii"


def reserve(target: Connection, count: int) -> ReservedIds | None:
    """Reserve ``count`` ids; None for a role that may not. Begins a transaction outside of autocommit."""
    cursor = target.cursor(row_factory=tuple_row)
    ((now, ids),) = cursor.execute(_RESERVE, [count]).fetchall()
    return None if ids is None else ReservedIds(ids[1:-1].split(","), _EPOCH + timedelta(microseconds=now))


def copy(target: Connection, rows: Iterable[RunColumns], reserved: ReservedIds) -> list[int]:
    """Insert ``rows``, as many as ids are ``reserved``; return their ids.

    Raises UniqueViolation when somebody has a key, and what iterating over ``rows`` raises: then some may
    have been written, which the caller's savepoint takes back.
    """
    messages = _messages(_lines(rows, reserved))
    for first in messages:
        room = STATEMENT_CHARACTERS
        with target.cursor().copy(_COPY) as stream:
            for message in chain([first], messages):
                stream.write(message)
                room -= len(message)
                if room <= 0:
                    break
    return list(map(int, reserved.ids))


def _messages(lines: Iterable[str]) -> Iterator[str]:
    """Yield ``lines`` joined, each time as many as have MESSAGE_CHARACTERS."""
    buffer: list[str] = []
    length = 0
    for line in lines:
        buffer.append(line)
        length += len(line)
        if length >= MESSAGE_CHARACTERS:
            yield "".join(buffer)
            buffer, length = [], 0
    if buffer:
        yield "".join(buffer)


def _lines(rows: Iterable[RunColumns], reserved: ReservedIds) -> Iterator[str]:
    """Yield each row as a line of COPY's text format."""

    @lru_cache
    def line_end(job_type: str, run_at: datetime | None, delay: float, *others: str | int | None) -> str:
        """Return the end of a line, which many runs share."""
        due_at = run_at or reserved.now + timedelta(seconds=delay)
        return "\t".join(map(_field, (job_type, due_at.isoformat(), *others))) + "\n"

    for run_id, (job_type, payload, run_at, delay, key, *others) in zip(reserved.ids, rows, strict=True):
        yield f"{run_id}\t{_field(payload)}\t{_field(key)}\t{line_end(job_type, run_at, delay, *others)}"


def _field(value: str | int | None) -> str:
    """Return a value as COPY reads it; of a subclass (an enumeration) the plain text or number.

    Texts of runs have no control characters; JSON writes them as escapes.
    """
    if value is None:
        return "\\N"
    return value.replace("\\", "\\\\") if isinstance(value, str) else int.__repr__(value)
