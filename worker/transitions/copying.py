"""Many runs by COPY, for which their ids are taken beforehand: it returns none. No import of SQLAlchemy.

COPY takes PostgreSQL less time than an INSERT of the same rows: it fills a page of the table at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from psycopg import Connection
from psycopg.rows import tuple_row

# A NewRun, or what its columns() returns.
Row = tuple[Any, ...]

# The trigger that wakes workers is given the rows of a whole statement: they fit into a few megabytes.
AT_ONCE = 10_000
# So many lines are sent at a time: the server is at work on them while the next are made.
LINES = 200
# An id that a run does not get is missed by nobody. Who may insert may not therefore take ids.
_RESERVE = """
SELECT now(), CASE WHEN has_sequence_privilege('wakeboard.job_runs_id_seq', 'USAGE') THEN (
    SELECT array_agg(nextval('wakeboard.job_runs_id_seq'))::text FROM generate_series(1, %s)
) END"""
_COPY = """
COPY wakeboard.job_runs
    (id, payload, idempotency_key, job_type, run_at, priority, max_attempts, enqueued_by, origin_run_id)
FROM STDIN"""


class Reserved(NamedTuple):
    """The ids that are taken for rows, and the database's clock."""

    ids: list[str]
    now: datetime


def reserve(target: Connection[Any], count: int) -> Reserved | None:
    """Take ``count`` ids; None for a role that may not. A ``target`` that begins transactions begins one."""
    cursor = target.cursor(row_factory=tuple_row)
    ((now, ids),) = cursor.execute(_RESERVE, [count]).fetchall()
    return None if ids is None else Reserved(ids[1:-1].split(","), now.astimezone(UTC))


def copy(target: Connection[Any], rows: Iterable[Row], reserved: Reserved) -> list[int]:
    """Insert ``rows``, as many as ids are ``reserved`` and made one by one meanwhile; return their ids.

    Raises UniqueViolation when somebody has a key, and whatever making ``rows`` raises: then some may have
    been written, for the caller's savepoint to take back.
    """
    lines = _lines(rows, reserved)
    for start in range(0, len(reserved.ids), AT_ONCE):
        part = islice(lines, min(AT_ONCE, len(reserved.ids) - start))
        with target.cursor().copy(_COPY) as stream:
            while some := "".join(islice(part, LINES)):
                stream.write(some)
    return list(map(int, reserved.ids))


def _lines(rows: Iterable[Row], reserved: Reserved) -> Iterator[str]:
    """Yield each row as a line of COPY's text format."""

    @lru_cache(LINES)
    def others(job_type: str, run_at: datetime | None, delay: float, *more: Any) -> str:
        """Return the end of a line, which many runs share."""
        due_at = run_at or reserved.now + timedelta(seconds=delay)
        return "\t".join(map(_field, (job_type, due_at.isoformat(), *more))) + "\n"

    for id_, (job_type, payload, run_at, delay, key, *more) in zip(reserved.ids, rows, strict=True):
        yield f"{id_}\t{_field(payload)}\t{_field(key)}\t{others(job_type, run_at, delay, *more)}"


def _field(value: Any) -> str:
    """Return a value of a line. Texts of runs have no control characters, JSON writes them as escapes."""
    if value is None:
        return "\\N"
    text = str(value)
    return text.replace("\\", "\\\\") if "\\" in text else text
