"""What PostgreSQL holds and Python cannot read: times beyond the calendar, JSON too deep, numbers too long.

Any producer may insert such a row. Pages and commands show it as closely as they can; it must not hide the
others.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.types.json import set_json_loads

# A day within the range of Python, so that every time zone can show them.
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
LONGEST_NUMBER = 400
UNREADABLE = {"unreadable": "This JSON is nested too deep to show; the row in the database has it whole."}


def make_readable(connection: psycopg.Connection, _record: object = None) -> None:
    """Teach ``connection`` to read every row that the tables can hold; listens to an engine's "connect"."""
    types = connection.adapters.types
    default_loader = (
        connection.adapters.get_loader(types["timestamptz"].oid, psycopg.pq.Format.TEXT) or Loader
    )

    class TimeLoader(Loader):
        """Reads a ``timestamptz``; one that Python has no date for becomes EARLIEST or LATEST."""

        def __init__(self, oid: int, context: psycopg.abc.AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._read = default_loader(oid, context).load

        def load(self, data: Buffer) -> datetime:
            try:
                moment: datetime = self._read(data)
            except psycopg.DataError:
                text = bytes(data)
                return EARLIEST if text.endswith(b" BC") or text.startswith(b"-") else LATEST
            return _clamp(moment)

    connection.adapters.register_loader("timestamptz", TimeLoader)
    set_json_loads(read_json, connection)


def read_time(text: str) -> datetime:
    """Return a time of PostgreSQL's JSON; one that Python has no date for is EARLIEST or LATEST."""
    try:
        return _clamp(datetime.fromisoformat(text))
    except ValueError:
        return EARLIEST if text.endswith(" BC") or text.startswith("-") else LATEST


def _clamp(moment: datetime) -> datetime:
    # A page has thousands of times: hardly one needs the full comparison.
    return moment if EARLIEST.year < moment.year < LATEST.year else min(max(moment, EARLIEST), LATEST)


def read_json(text: str | bytes) -> Any:
    """Return the value of JSON ``text``; numbers too long stay text, too deep JSON is UNREADABLE."""
    try:
        return json.loads(text)
    except RecursionError:
        return UNREADABLE
    except ValueError:
        return json.loads(text, parse_int=_read_integer)


def _read_integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= LONGEST_NUMBER else digits
