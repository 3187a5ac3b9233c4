"""The latest runs of a schedule as a strip of marks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from markupsafe import Markup, escape

from wakeboard_dashboard.text.formats import clip, local, visible
from wakeboard_dashboard.text.oddities import Odd


def marks(runs: Sequence[Mapping[Any, Any]], odd: Mapping[int, Sequence[Odd]], zone: tzinfo) -> Markup:
    """Return a link for each of ``runs`` (``fires.read``) that tells what is ``odd`` about it.

    Classes draw a mark, its title says the same: a shape and a word for each state. An empty link takes its
    accessible name from the title, and a page has a thousand of them.
    """
    links = []
    for run in runs:
        number, status, found = run["id"], run["status"], odd.get(run["id"], ())
        code = run["error_code"] if status in ("failed", "dead") else None
        why = f" ({escape(clip(visible(code), 60))})" if code else ""
        what = "".join([f", {one.word}" for one in found])
        due = local(run["scheduled_for"] or run["run_at"], zone)
        says = f"Run {number}: {status}{why}{what}, {due}"
        classes = f"{status} odd" if found else status
        links.append(f'<a class="{classes}" href="/runs/{number}" title="{says}"></a>')
    return Markup("".join(links))
