"""What is asked about a night by its page and by the report of each morning: one SQL, so one set of numbers.

Every question takes ``ask``, which runs a statement with ``:names`` and returns its rows by column. The page
asks by SQLAlchemy, the report by psycopg; neither is known here. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

Row = Mapping[str, Any]
Ask = Callable[[str, Mapping[str, Any]], list[Row]]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A span of time: from ``since`` to before ``until``, both aware."""

    since: datetime
    until: datetime

    @property
    def query(self) -> str:
        """The window as a query string that means the same to every page and reader."""
        given = {"since": self.since, "until": self.until}
        texts = {name: f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}Z" for name, moment in given.items()}
        return urlencode(texts, safe=":")
