"""The typed line of filters as query arguments; ``reporting.filters.line`` reads and writes the line itself.

The line is what an operator types; the address bar keeps the canonical query string.
"""

from __future__ import annotations

from collections.abc import Collection

from werkzeug.datastructures import MultiDict

from wakeboard.reporting.filters import line as lines
from wakeboard_dashboard.queries.filters import Filters


def read_line(line: str, names: Collection[str] = ()) -> MultiDict[str, str]:
    """Return the query arguments that ``line`` means, ``names`` being the filters there are.

    Raises FilterError.
    """
    return MultiDict(lines.read_line(line, names))


def write_line(filters: Filters) -> str:
    """Return the line that means ``filters``: read again, it gives the same query string."""
    return lines.write_line(filters.texts)
