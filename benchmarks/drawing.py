"""Bars and curves as SVG, in the colours of a light or a dark page. Pure: figures in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL, RIGHT = 230, 90
BAR, GAP, HEADING, TOP = 22, 8, 34, 44
PLOT_HEIGHT, BOTTOM, LEFT = 260, 70, 60
# Of many small plots beside each other: how many in a row, how high each, and what is kept free around it.
ABREAST, CELL_HEIGHT, FREE = 4, 104, 20
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\""
# Background, text, quiet text, lines; ours, raw SQL, others.
LIGHT = ("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#8c959f", "#c4ccd4")
DARK = ("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4493f8", "#7d8590", "#484f58")
# Told apart by those who see colours differently, and on both backgrounds.
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of ``value``; ``whose`` decides its colour."""

    label: str
    value: float
    whose: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through ``points``, both axes tenfold from line to line."""

    label: str
    points: Sequence[tuple[float, float]]


def figure(value: float) -> str:
    """Return a figure with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text(x: float, y: float, words: str, colour: str, *, size: int = 14, more: str = "") -> str:
    """Return words at a place."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'


def _page(title: str, height: float, parts: Iterable[str], colours: Sequence[str]) -> str:
    head = text(20, 28, title, colours[1], size=17, more='font-weight="600"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" {FONT}>\n<title>{escape(title)}</title>\n'
        f'<rect width="100%" height="100%" rx="6" fill="{colours[0]}"/>\n'
        + "\n".join([head, *parts])
        + "\n</svg>\n"
    )


def bars(title: str, panels: Sequence[tuple[str, Sequence[Bar]]], *, dark: bool) -> str:
    """Return panels of bars below each other, all from zero and each panel to its own largest value."""
    colours = DARK if dark else LIGHT
    parts, y = [], float(TOP)
    for heading, each in panels:
        parts.append(text(20, y + 20, heading, colours[2], size=13))
        y += HEADING
        most = max(bar.value for bar in each)
        for bar in each:
            width = max(2.0, bar.value / most * (WIDTH - LABEL - RIGHT))
            fill = {"Wakeboard": colours[4], "raw": colours[5]}.get(bar.whose, colours[6])
            weight = 'font-weight="600"' if bar.whose == "Wakeboard" else ""
            parts += [
                text(LABEL - 10, y + 16, bar.label, colours[1], more=f'text-anchor="end" {weight}'),
                f'<rect x="{LABEL}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="3" fill="{fill}"/>',
                text(LABEL + width + 8, y + 16, figure(bar.value), colours[1], more=weight),
            ]
            y += BAR + GAP
        y += GAP
    return _page(title, y + GAP, parts, colours)


def curves(title: str, each: Sequence[Curve], *, dark: bool) -> str:
    """Return curves in one plot, both axes by tens, with a legend below."""
    colours = DARK if dark else LIGHT
    xs = [x for curve in each for x, _ in curve.points]
    ys = [y for curve in each for _, y in curve.points]
    left, right = math.log10(min(xs)), math.log10(max(xs))
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 0.001)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - left) / max(right - left, 1e-9)
        up = (math.log10(y) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - 40), TOP + PLOT_HEIGHT * (1 - up)

    parts = []
    for ten in range(low, high + 1):
        _, y = place(10**left, 10.0**ten)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 40}" stroke="{colours[3]}"/>')
        parts.append(
            text(LEFT - 8, y + 4, f"{10.0**ten:,.10g}", colours[2], size=12, more='text-anchor="end"')
        )
    for size in sorted(set(xs)):
        x, _ = place(size, 10.0**low)
        parts.append(
            text(x, TOP + PLOT_HEIGHT + 20, f"{size:,.0f}", colours[2], size=12, more='text-anchor="middle"')
        )
    for number, curve in enumerate(each):
        colour = CURVES[number % len(CURVES)]
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in curve.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        across, down = 20 + number % 3 * 240, TOP + PLOT_HEIGHT + 46 + number // 3 * 22
        parts.append(f'<rect x="{across}" y="{down - 10}" width="14" height="10" rx="2" fill="{colour}"/>')
        parts.append(text(across + 20, down, curve.label, colours[1], size=13))
    return _page(title, TOP + PLOT_HEIGHT + BOTTOM + (len(each) - 1) // 3 * 22, parts, colours)


def small(title: str, each: Sequence[Curve], limit: float, *, dark: bool) -> str:
    """Return a small plot for each curve, all on one scale from zero; ``limit`` is what to stay below."""
    colours = DARK if dark else LIGHT
    xs = [x for curve in each for x, _ in curve.points]
    left, right = math.log10(min(xs)), math.log10(max(xs))
    most = max(limit * 1.25, *(y for curve in each for _, y in curve.points))
    width, height = (WIDTH - FREE) / ABREAST - FREE, CELL_HEIGHT - 48

    parts = []
    for number, curve in enumerate(each):
        x0 = FREE + number % ABREAST * (width + FREE)
        base = TOP + 34 + number // ABREAST * CELL_HEIGHT + height
        places = [
            (x0 + (math.log10(x) - left) / max(right - left, 1e-9) * width, base - y / most * height)
            for x, y in curve.points
        ]
        bound = base - limit / most * height
        colour = CURVES[0 if curve.points[-1][1] <= limit else 1]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts += [
            text(x0, base - height - 8, curve.label, colours[1], size=13),
            text(x0 + width, base - height - 8, figure(curve.points[-1][1]), colours[1], size=13,
                 more='text-anchor="end"'),
            f'<path d="M{x0:g} {base:g}h{width:g}" stroke="{colours[3]}"/>',
            f'<path d="M{x0:g} {bound:.1f}h{width:g}" stroke="{colours[2]}" stroke-dasharray="2 4"/>',
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places),
        ]  # fmt: skip
    foot = TOP + 34 + math.ceil(len(each) / ABREAST) * CELL_HEIGHT
    sizes = ", ".join(f"{x:,.0f}" for x in sorted(set(xs)))
    parts.append(text(FREE, foot, f"From left to right: {sizes}. Dotted: {limit:g}.", colours[2], size=12))
    return _page(title, foot + FREE, parts, colours)
