"""Reads the query string of a request as filters.

``wakeboard.reporting.filters`` says what filters may be. What is unknown or malformed raises FilterError,
which ``web.errors`` shows as a 400 with its sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from flask import g, request
from werkzeug.datastructures import MultiDict

from wakeboard.reporting.filters.values import (
    ID,
    LARGEST_ID,
    LONGEST_TEXT,
    MOMENT,
    STATUS,
    TEXT,
    Field,
    FilterError,
    Moment,
    identifier,
    in_zone,
    moment,
    one_of,
    read_pairs,
    text,
    whole,
)
from wakeboard_dashboard.queries.query_string import LARGEST_EXPORT, LARGEST_PAGE, PAGE_SIZE, Filters

__all__ = [
    "ID",
    "LARGEST_ID",
    "LARGEST_PAGE",
    "LONGEST_TEXT",
    "MOMENT",
    "STATUS",
    "TEXT",
    "Field",
    "Filters",
    "Moment",
    "from_request",
    "identifier",
    "moment",
    "one_of",
    "read_filters",
    "read_here",
    "read_text",
    "read_whole",
    "readable",
    "refuse_unknown",
    "text",
    "whole",
]


def readable(value: str) -> str:
    """Return ``value`` without halves of characters: JSON spells them, no answer or database holds one."""
    return value.encode("utf-8", "replace").decode()


def read_filters(
    arguments: MultiDict[str, str],
    fields: Mapping[str, Field],
    *,
    largest: int = LARGEST_PAGE,
    is_form: bool = False,
) -> Filters:
    """Return the filters in ``arguments``; a field named ``payload.`` reads every ``payload.<path>``.

    Where a form may have sent them (``is_form``) empty values count as not given. Raises FilterError with a
    sentence.
    """
    pairs = [pair for pair in arguments.items(multi=True) if pair[0] not in ("cursor", "limit")]
    asked = read_pairs(pairs, fields, is_form=is_form)
    return Filters(
        asked.values,
        asked.texts,
        arguments.get("cursor") or None,
        _page_size(arguments.get("limit"), largest),
    )


def _page_size(value: str | None, largest: int) -> int:
    if largest == LARGEST_EXPORT and not value:
        return LARGEST_EXPORT
    if not value:
        return PAGE_SIZE
    try:
        return int(whole(1, LARGEST_PAGE).read(value))
    except ValueError as error:
        raise FilterError(
            f"The limit is “{value[:100]}”; it must be a whole number from 1 to {LARGEST_PAGE}."
        ) from error


def from_request(fields: Mapping[str, Field] | None = None) -> Filters:
    """Return the filters of the current request. Raises FilterError for anything but ``fields``.

    Forms lead to pages: a program, which asks for their twins, leaves out what it does not mean.
    """
    largest = LARGEST_EXPORT if request.path.endswith(".csv") else LARGEST_PAGE
    is_form = not request.path.endswith((".json", ".csv"))
    return read_here(request.args, fields or {}, largest=largest, is_form=is_form)


def refuse_unknown(fields: Mapping[str, Field] | None = None) -> None:
    """Raise FilterError where the address names anything but ``fields``, ``cursor`` and ``limit``."""
    from_request(fields)


def read_here(
    arguments: MultiDict[str, str],
    fields: Mapping[str, Field],
    *,
    largest: int = LARGEST_PAGE,
    is_form: bool = False,
) -> Filters:
    """Return the filters in ``arguments``, whose times without an offset are in the operator's zone."""
    return read_filters(arguments, in_zone(fields, g.zone), largest=largest, is_form=is_form)


def read_whole(arguments: MultiDict[str, str], fields: Mapping[str, Field]) -> Filters:
    """Return the filters in ``arguments`` that mean all that match: neither a page of them nor so many.

    Raises FilterError.
    """
    for name in ("cursor", "limit"):
        if name in arguments:
            raise FilterError(
                f"“{name}” is for a page of a list; here a filter means all that match: leave it out."
            )
    return read_here(arguments, fields)


def read_text(query: str, fields: Mapping[str, Field]) -> Filters:
    """Return the filters of a query string such as ``status=dead&type=mail``. Raises FilterError."""
    return read_whole(MultiDict(parse_qsl(readable(query), keep_blank_values=True)), fields)
