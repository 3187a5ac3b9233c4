"""The charts of a window, drawn whole: a week is 168 steps, and a template takes ten times as long. Pure.

Each step tells its numbers when pointed at; a table beside the chart has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from markupsafe import Markup, escape

from wakeboard_dashboard.charts.sparks import CountedBar
from wakeboard_dashboard.charts.spreads import HEIGHT, Spread
from wakeboard_dashboard.text.formats import duration, number, plural

STEP = 10
# What is there is seen.
LEAST = 1.5
# Room above the largest bar.
ABOVE = 4
# Steps that are over look the same at the next request: those of three weeks are remembered, 0.5 kB each.
REMEMBERED = 512


class ChartStep(CountedBar, Protocol):
    """What a bar stands for."""

    @property
    def label(self) -> str:
        """When it began, in the reader's words."""


def bar_chart(bars: Sequence[ChartStep], title: str, height: int = HEIGHT) -> Markup:
    """Return a bar for each of ``bars``, the failed ones on top; ``height`` in units of the picture."""
    top = max((bar.total for bar in bars), default=0) or 1
    scale = (height - ABOVE) / top
    drawn = [
        _bar(place * STEP, bar.label, bar.total, bar.bad, scale, height) for place, bar in enumerate(bars)
    ]
    return _chart("chart", drawn, len(bars) * STEP, height, title)


def spread_chart(spread: Spread, title: str) -> Markup:
    """Return a block from the half to 95 % for each step of ``spread``, and a line on to 99 %."""
    width = len(spread.columns) * STEP
    drawn = [f'<line class="tens" x1="0" x2="{width}" y1="{y:g}" y2="{y:g}"/>' for y in spread.lines]
    drawn += [
        _block(place * STEP, each.label, each.p50, each.p95, each.p99, each.y50, each.y95, each.y99)
        for place, each in enumerate(spread.columns)
        if each.count
    ]
    return _chart("chart spread", drawn, width, HEIGHT, title)


def _chart(kind: str, drawn: Sequence[str], width: int, height: int, title: str) -> Markup:
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(title)}">{"".join(drawn)}'
        f'<line class="axis" x1="0" x2="{width}" y1="{height}" y2="{height}"/></svg>'
    )


@lru_cache(REMEMBERED)
def _bar(x: int, label: str, total: int, failed: int, scale: float, height: int) -> str:
    whole = round(total * scale, 2)
    bad = max(round(failed * scale, 2), LEAST) if failed else 0
    says = f"{label}: {plural(total, 'run')}, {number(failed)} failed"
    good_part = _rect("ok", x + 1, height - whole, 8, whole) if total else ""
    bad_part = _rect("bad", x + 1, height - max(whole, bad), 8, bad) if bad else ""
    return _said(says, x, height, good_part + bad_part)


@lru_cache(REMEMBERED)
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
    says = f"{label}: half took at most {half}, 95 % {most}, 99 % {nearly_all}"
    return _said(says, x, HEIGHT, rest + block)


def _said(says: str, x: int, height: int, drawn: str) -> str:
    """Return a step with its words; it can be pointed at over its whole height."""
    return f"<g><title>{escape(says)}</title>{_rect('hit', x, 0, STEP, height)}{drawn}</g>"


def _rect(kind: str, x: int, y: float, width: int, height: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{round(y, 2):g}" width="{width}" height="{round(height, 2):g}"/>'
