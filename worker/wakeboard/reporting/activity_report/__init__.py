"""What happened in a time window, for the page of a night and for the daily report: one source of numbers.

Every function takes a connection (of psycopg or SQLAlchemy, see ``database.read``) and a window, and only
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A span of time: from ``since`` to before ``until``, both aware."""

    since: datetime
    until: datetime

    @property
    def query(self) -> str:
        """The window as a query string in UTC, which means the same to every page and reader."""
        moments = {"since": self.since, "until": self.until}
        texts = {name: f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}Z" for name, moment in moments.items()}
        return urlencode(texts, safe=":")
