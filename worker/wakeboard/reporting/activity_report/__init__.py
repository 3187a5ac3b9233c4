"""What is asked about a night by its page and by the report of each morning: one SQL, so one set of numbers.

Every question takes ``ask``, which runs a statement with ``:names`` and returns its rows by column. The page
asks by SQLAlchemy, the report by psycopg; neither is known here. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

Row = Mapping[str, Any]
Ask = Callable[[str, Mapping[str, Any]], list[Row]]


class Window(Protocol):
    """A span of time: from ``since`` to before ``until``, both aware."""

    @property
    def since(self) -> datetime:
        """Its first moment."""

    @property
    def until(self) -> datetime:
        """The first moment after it."""
