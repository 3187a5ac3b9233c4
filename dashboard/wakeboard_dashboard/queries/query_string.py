"""The filters of a list and its page size, as the query string of a request has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from wakeboard.reporting.filters.line import write_line
from wakeboard.reporting.filters.values import FilterValues

PAGE_SIZE = 50
LARGEST_PAGE = 200
LARGEST_EXPORT = 10_000


@dataclass(frozen=True, slots=True)
class Filters(FilterValues):
    """The filters of a query string, and which page it wants of what matches them."""

    cursor_text: str | None = None
    limit: int = PAGE_SIZE

    @property
    def query(self) -> str:
        """The canonical query string of the filters alone: no cursor, no page size."""
        return _encode(self.texts)

    @property
    def line(self) -> str:
        """The filters as an operator types them: read again, the line gives the same query string."""
        return write_line(self.texts)

    @property
    def full_query(self) -> str:
        """The canonical query string of exactly this page, cursor included."""
        extra = {"limit": str(self.limit)} if self.limit not in (PAGE_SIZE, LARGEST_EXPORT) else {}
        cursor = {"cursor": self.cursor_text} if self.cursor_text else {}
        return _encode({**self.texts, **extra, **cursor})

    def link(self, path: str, **changes: str | None) -> str:
        """Return ``path`` with these filters, ``changes`` applied (None removes one)."""
        merged = {**self.texts, **changes}
        query = _encode({name: value for name, value in merged.items() if value is not None})
        return f"{path}?{query}" if query else path

    def chips(self, path: str) -> list[tuple[str, str, str]]:
        """Return (name, text, link without it) for each filter that is set."""
        return [(name, value, self.link(path, **{name: None})) for name, value in self.texts.items()]


def _encode(pairs: Mapping[str, str]) -> str:
    return urlencode(pairs, quote_via=quote, safe=":,")
