"""Filters as one line of text and back: ``status:failed since:24h "no answer"``. Pure.

The line is what an operator types; the address bar keeps the canonical query string.
"""

from __future__ import annotations

import re

from werkzeug.datastructures import MultiDict

from dashboard.params import Filters, WrongFilter

_TOKEN = re.compile(r'(?:([a-zA-Z_][\w.-]*):)?(?:"([^"]*)"|([^\s"]+))')


def read_line(line: str) -> MultiDict[str, str]:
    """Return the query arguments that ``line`` means; words without a name are the filter ``q``.

    Quotes keep spaces and colons: ``"http://crm"`` is text. Raises WrongFilter for an open quote.
    """
    if line.count('"') % 2:
        raise WrongFilter(f"The filter “{line[:100]}” opens a quote and does not close it.")
    arguments: MultiDict[str, str] = MultiDict()
    words: list[str] = []
    for name, quoted, bare in _TOKEN.findall(line):
        value = quoted or bare
        if name:
            arguments.add(name, value)
        elif value:
            words.append(value)
    if words:
        arguments.add("q", " ".join([*arguments.poplist("q"), *words]))
    return arguments


def write_line(filters: Filters) -> str:
    """Return the line that means ``filters``: read again, it gives the same query string."""
    parts = [f"{name}:{_quoted(value)}" for name, value in filters.texts.items() if name != "q"]
    words = filters.texts.get("q")
    return " ".join([*parts, *([_quoted(words, alone=True)] if words else [])])


def _quoted(value: str, *, alone: bool = False) -> str:
    """Return ``value`` so that it is read as one word; a quote in it cannot be written and becomes ``'``."""
    value = value.replace('"', "'")
    needed = re.search(r":|\s\s|^\s|\s$|[^\S ]", value) if alone else re.search(r"\s", value)
    return f'"{value}"' if needed or not value else value
