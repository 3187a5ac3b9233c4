"""What is asked about a night by its page and by the report of each morning: one SQL, so one set of numbers.

Every question takes ``ask``, which runs a statement with ``:names`` and returns its rows, each as the type
that has its columns. The page asks by SQLAlchemy, the report by psycopg; neither is known here. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

Row = TypeVar("Row")


class Ask(Protocol):
    """Runs a statement and returns its rows, each of them what ``row`` makes of its columns by name."""

    def __call__(self, row: Callable[..., Row], sql: str, values: Mapping[str, object]) -> list[Row]:
        """Run ``sql`` with ``values``."""


class Window(Protocol):
    """A span of time: from ``since`` to before ``until``, both aware."""

    @property
    def since(self) -> datetime:
        """Its first moment."""

    @property
    def until(self) -> datetime:
        """The first moment after it."""
