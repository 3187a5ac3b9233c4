"""What is asked about a night by its page and by the report of each morning: one SQL, so one set of numbers.

Every question takes a connection, the page's or the report's (``database.read``), and a window. Reads only.
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
        """The window as a query string that means the same to every page and reader."""
        given = {"since": self.since, "until": self.until}
        texts = {name: f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}Z" for name, moment in given.items()}
        return urlencode(texts, safe=":")
