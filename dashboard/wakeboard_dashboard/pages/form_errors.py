"""A page whose two times cannot be: the sentence, and its form with what was typed, to be mended.

Wraps the query function of a page; what the page shows and refuses is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from flask import abort, make_response, render_template, request

from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.live import Query
from wakeboard_dashboard.web.params import readable
from wakeboard_dashboard.web.responses import wanted

LONGEST = 200
TIMES = ("since", "until")
AS_TYPED = "%Y-%m-%dT%H:%M"


def mending(
    query: Query, path: str, title: str, *, keeps: Sequence[str], instead: Sequence[tuple[str, str]]
) -> Query:
    """Return ``query``, whose FilterError is answered on the page ``path`` with a form for its two times.

    The form brings along the filters that ``keeps`` names; ``instead`` are other ways on, as (words, path).
    """

    @wraps(query)
    def asked(**arguments: Any) -> Any:
        try:
            return query(**arguments)
        except FilterError as wrong:
            if request.path != path or wanted() != "page":
                raise
            typed = {name: readable(text)[:LONGEST] for name, text in request.args.items()}
            page = render_template(
                "mend.html",
                path=path,
                title=title,
                sentence=str(wrong),
                times=[(name, *_control(typed.get(name, ""))) for name in TIMES],
                kept={name: text for name, text in typed.items() if name in keeps and name not in TIMES},
                instead=instead,
            )
            abort(make_response(page, 400))

    return asked


def _control(text: str) -> tuple[str, str]:
    """Return the kind of control that shows ``text`` as it was typed, and ``text``."""
    try:
        datetime.strptime(text, AS_TYPED)
    except ValueError:
        return ("text" if text else "datetime-local"), text
    return "datetime-local", text
