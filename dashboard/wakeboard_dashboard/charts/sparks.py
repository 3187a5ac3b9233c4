"""Small drawings in a table's cell: a trend, and the latest runs of a schedule as marks. Pure.

Lists have thousands of columns, so a colour is one path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import Protocol

from markupsafe import Markup, escape

from wakeboard_dashboard.text.formats import clip, local, visible
from wakeboard_dashboard.text.oddities import LatestRun, Oddity

WIDTH, HEIGHT, AXIS = 4, 19, 20
LEAST = 1.5


class CountedBar(Protocol):
    """The counts of one column."""

    @property
    def total(self) -> int:
        """How many."""

    @property
    def bad(self) -> int:
        """How many of them failed."""


def sparkline(bars: Sequence[CountedBar], title: str) -> Markup:
    """Return a column for each of ``bars``, what failed on top."""
    return _stacked(tuple([(bar.total, bar.bad) for bar in bars]), title)


# A page has fifty; each is some 2 kB with its numbers, and changes only when a run ends.
@lru_cache(256)
def _stacked(counts: tuple[tuple[int, int], ...], title: str) -> Markup:
    return _svg(*layers(counts), len(counts), title)


def trend(counts: Sequence[int], title: str) -> Markup:
    """Return a sparkline of ``counts`` of failures."""
    top = max(counts, default=0)
    heights = [(place, _height(count, top)) for place, count in enumerate(counts) if count]
    path = "".join([_column(place * WIDTH, height, height) for place, height in heights])
    return _svg(path, path, len(counts), title)


def _svg(whole: str, failed: str, columns: int, title: str) -> Markup:
    width = columns * WIDTH
    ok = f'<path class="ok" d="{whole}"/>' if whole else ""
    bad = f'<path class="bad" d="{failed}"/>' if failed else ""
    return Markup(
        f'<svg class="chart small" viewBox="0 0 {width} {AXIS}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(title)}">{ok}{bad}'
        f'<line class="axis" x1="0" x2="{width}" y1="{AXIS}" y2="{AXIS}"/></svg>'
    )


def layers(counts: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """Return two SVG paths of (how many, how many of them failed): a column for all, and one on top of it for
    what failed."""
    top = max([total for total, _ in counts], default=0)
    whole, failed = [], []
    for place, (total, bad) in enumerate(counts):
        if total:
            x, height = place * WIDTH, _height(total, top)
            whole.append(_column(x, height, height))
            if bad:
                failed.append(_column(x, height, _height(bad, top)))
    return "".join(whole), "".join(failed)


def _height(count: int, top: int) -> float:
    return round(max(count / top * HEIGHT, LEAST), 1)


# Few shapes make all columns: a page draws thousands, and where all failed each twice.
@lru_cache(8192)
def _column(x: int, top: float, height: float) -> str:
    """Return a column that hangs from ``top`` units above the axis."""
    return f"M{x} {AXIS - top:g}h{WIDTH - 1}v{height:g}h{1 - WIDTH}z"


def marks(runs: Sequence[LatestRun], odd: Mapping[int, Sequence[Oddity]], zone: tzinfo) -> Markup:
    """Return a link for each of ``runs`` that tells what is ``odd`` about it.

    Classes draw a mark, its title says the same: a shape and a word for each state. An empty link takes its
    accessible name from the title, and a page has a thousand of them.
    """
    links = []
    for run in runs:
        number, status, found = run.id, run.status, odd.get(run.id, ())
        code = run.error_code if status in ("failed", "dead") else None
        why = f" ({escape(clip(visible(code), 60))})" if code else ""
        what = "".join([f", {one.word}" for one in found])
        due = local(run.scheduled_for or run.run_at, zone)
        says = f"Run {number}: {status}{why}{what}, {due}"
        classes = f"{status} odd" if found else status
        links.append(f'<a class="{classes}" href="/runs/{number}" title="{says}"></a>')
    return Markup("".join(links))
