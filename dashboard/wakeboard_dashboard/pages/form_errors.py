"""The answer to a page whose times cannot be read: what is wrong, and a form with what was typed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import wraps

from flask import abort, make_response, render_template, request

from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.live import Context, Query
from wakeboard_dashboard.web.params import readable
from wakeboard_dashboard.web.responses import wanted

LONGEST = 200
TIMES = ("since", "until")
AS_TYPED = "%Y-%m-%dT%H:%M"


def with_times_form(
    query: Query, path: str, title: str, *, keeps: Sequence[str], instead: Sequence[tuple[str, str]]
) -> Query:
    """Return the ``query`` of page ``path``; a FilterError of it is answered with a form for the two times.

    The form brings along the filters that ``keeps`` names. ``instead`` are links beside it, as (words, path).
    """

    @wraps(query)
    def checked_query(**arguments: int | str) -> Context:
        try:
            return query(**arguments)
        except FilterError as error:
            if request.path != path or wanted() != "page":
                raise
            typed = {name: readable(text)[:LONGEST] for name, text in request.args.items()}
            page = render_template(
                "times_form.html",
                path=path,
                title=title,
                sentence=str(error),
                times=[(name, *_control(typed.get(name, ""))) for name in TIMES],
                kept={name: text for name, text in typed.items() if name in keeps and name not in TIMES},
                instead=instead,
            )
            abort(make_response(page, 400))

    return checked_query


def _control(text: str) -> tuple[str, str]:
    """Return the kind of control that shows ``text`` as it was typed, and ``text``."""
    try:
        datetime.strptime(text, AS_TYPED)
    except ValueError:
        return ("text" if text else "datetime-local"), text
    return "datetime-local", text
