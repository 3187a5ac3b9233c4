"""The latest runs of a schedule as a strip of marks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from dashboard.formats import clip, local, visible
from dashboard.words.oddities import Odd


def marks(
    runs: Sequence[Mapping[Any, Any]], odd: Mapping[int, Sequence[Odd]], zone: tzinfo
) -> Iterator[tuple[int, str, str]]:
    """Yield (run id, classes, words) for each of ``runs`` (``fires.latest``) and what is ``odd`` about it.

    The classes draw the mark, the words say the same: a shape and a word for each state.
    """
    for run in runs:
        number, status, found = run["id"], run["status"], odd.get(run["id"], ())
        code = run["error_code"] if status in ("failed", "dead") else None
        why = f" ({clip(visible(code), 60)})" if code else ""
        what = "".join([f", {one.word}" for one in found])
        due = local(run["scheduled_for"] or run["run_at"], zone)
        yield number, f"{status} odd" if found else status, f"Run {number}: {status}{why}{what}, {due}"
