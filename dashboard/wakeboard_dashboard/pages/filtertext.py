"""The typed line of filters as query arguments; ``reporting.filters.line`` reads and writes the line itself.

The line is what an operator types; the address bar keeps the canonical query string.
"""

from __future__ import annotations

from collections.abc import Collection

from werkzeug.datastructures import MultiDict

from wakeboard.reporting.filters import line as lines
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.web.params import Filters, WrongFilter


def read_line(line: str, names: Collection[str] = ()) -> MultiDict[str, str]:
    """Return the query arguments that ``line`` means, ``names`` being the filters there are.

    Raises WrongFilter.
    """
    try:
        return MultiDict(lines.read_line(line, names))
    except FilterError as wrong:
        raise WrongFilter(str(wrong)) from wrong


def write_line(filters: Filters) -> str:
    """Return the line that means ``filters``: read again, it gives the same query string."""
    return lines.write_line(filters.texts)
