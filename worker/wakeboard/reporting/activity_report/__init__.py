"""What is asked about a night by its page and by the report of each morning: one SQL, so one set of numbers.

Every question takes a connection, the page's or the report's (``database.read``), and a window. Reads only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Window(Protocol):
    """A span of time: from ``since`` to before ``until``, both aware."""

    @property
    def since(self) -> datetime:
        """Its first moment."""

    @property
    def until(self) -> datetime:
        """The first moment after it."""
