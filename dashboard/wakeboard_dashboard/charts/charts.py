"""The charts of a window as SVG: a week is 168 steps, and a template would take ten times as long. Pure.

The numbers of a step are in its tooltip; a table beside the chart has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from markupsafe import Markup, escape

from wakeboard_dashboard.charts.sparks import CountedBar
from wakeboard_dashboard.charts.spreads import HEIGHT, Spread, Tick
from wakeboard_dashboard.text.formats import duration, number, plural

STEP = 10
# An axis has a label for each so many units of height.
ROOM_OF_LABEL = 25
# Smaller parts are drawn so high, so that they are seen.
LEAST = 1.5
# Room above the largest bar.
ABOVE = 4
# Steps that are over look the same at the next request: those of three weeks are cached, 0.5 kB each.
CACHE_SIZE = 512


class ChartStep(CountedBar, Protocol):
    """A step of a chart: its counts and its label."""

    @property
    def label(self) -> str:
        """When it began, in the reader's zone."""


def bar_chart(bars: Sequence[ChartStep], title: str, height: int = HEIGHT) -> Markup:
    """Return a bar for each of ``bars``, the failed ones on top; ``height`` in units of the picture."""
    top = max((bar.total for bar in bars), default=0) or 1
    scale = (height - ABOVE) / top
    drawn = [
        _bar(place * STEP, bar.label, bar.total, bar.bad, scale, height) for place, bar in enumerate(bars)
    ]
    most = height // ROOM_OF_LABEL
    ticks = [Tick(round(height - count * scale, 2), number(count)) for count in _counts(top, most)]
    return _chart("chart", drawn, ticks, len(bars) * STEP, height, title)


def spread_chart(spread: Spread, title: str) -> Markup:
    """Return a block from the half to 95 % for each step of ``spread``, and a line on to 99 %."""
    width = len(spread.columns) * STEP
    drawn = [
        _block(place * STEP, each.label, each.p50, each.p95, each.p99, each.y50, each.y95, each.y99)
        for place, each in enumerate(spread.columns)
        if each.count
    ]
    return _chart("chart spread", drawn, spread.ticks, width, HEIGHT, title)


def _chart(
    kind: str, drawn: Sequence[str], ticks: Sequence[Tick], width: int, height: int, title: str
) -> Markup:
    """Return the picture of ``drawn``, as wide as there is room, with the labels of ``ticks`` left of it."""
    # Labels keep their shape: only the picture inside is stretched.
    labels = [f'<text x="-6" y="{y / height:.1%}">{label}</text>' for y, label in ticks if label]
    lines = [
        f'<line class="grid" x1="0" x2="{width}" y1="{y:g}" y2="{y:g}"/>' for y, _ in ticks if y < height
    ]
    return Markup(
        f'<svg class="{kind} scaled" role="img" aria-label="{escape(title)}">{"".join(labels)}'
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none">{"".join(lines)}{"".join(drawn)}'
        f'<line class="axis" x1="0" x2="{width}" y1="{height}" y2="{height}"/></svg></svg>'
    )


def _counts(top: int, most: int) -> range:
    """Return the whole, round numbers from 0 to ``top`` that an axis with ``most`` steps shows."""
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if factor * 10**power * most >= top
    )
    return range(0, top + 1, step)


@lru_cache(CACHE_SIZE)
def _bar(x: int, label: str, total: int, failed: int, scale: float, height: int) -> str:
    whole = round(total * scale, 2)
    bad = max(round(failed * scale, 2), LEAST) if failed else 0
    text = f"{label}: {plural(total, 'run')}, {number(failed)} failed"
    good_part = _rect("ok", x + 1, height - whole, 8, whole) if total else ""
    bad_part = _rect("bad", x + 1, height - max(whole, bad), 8, bad) if bad else ""
    return _with_tooltip(text, x, height, good_part + bad_part)


@lru_cache(CACHE_SIZE)
def _block(
    x: int,
    label: str,
    p50: float | None,
    p95: float | None,
    p99: float | None,
    y50: float,
    y95: float,
    y99: float,
) -> str:
    half, most, nearly_all = (duration(each) for each in (p50, p95, p99))
    rest = _rect("rest", x + 4, y99, 2, max(y50 - y99, LEAST))
    block = _rect("ok", x + 1, min(y95, HEIGHT - LEAST), 8, max(y50 - y95, LEAST))
    text = f"{label}: p50 {half}, p95 {most}, p99 {nearly_all}"
    return _with_tooltip(text, x, HEIGHT, rest + block)


def _with_tooltip(text: str, x: int, height: int, drawn: str) -> str:
    """Return a step with its tooltip, which covers its whole height."""
    return f"<g><title>{escape(text)}</title>{_rect('hit', x, 0, STEP, height)}{drawn}</g>"


def _rect(kind: str, x: int, y: float, width: int, height: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{round(y, 2):g}" width="{width}" height="{round(height, 2):g}"/>'
