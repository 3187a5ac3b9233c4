"""Pictures and the table of the README, from the figures that ``run all`` left in ``results/``.

    python -m benchmarks.pictures

Writes ``docs/benchmarks/NAME.svg`` and ``NAME-dark.svg`` and the lines between the two marks in README.md. A
benchmark that left nothing is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.drawing import Bar, Curve, bars, curves, small

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: python -m benchmarks.pictures -->", "<!-- end of figures -->"
# "10,000 finished runs": a point of the curve of its table.
POINT = re.compile(r"^([\d,]+) finished runs$")
# What a page may take, 95 times of a hundred.
PAGE_MS = 50.0
COLUMNS = ("Wakeboard", "raw", "PgQueuer", "Chancy", "Procrastinate")
# How cases of ours are called in the tables of the programs.
OURS = ("Wakeboard", "enqueue()", "enqueue_many()")
Values = Mapping[str, Sequence[float]]


def kept(name: str) -> dict[str, Any]:
    """Return what a benchmark left, nothing of one that left nothing."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {"measured": "", "tables": {}}


def table(name: str, which: str) -> Values:
    """Return the values of the table of ``name`` whose title has ``which`` in it, none when there is none."""
    for title, found in kept(name)["tables"].items():
        if which in title:
            return found["values"]  # type: ignore[no-any-return]
    return {}


def late(values: Sequence[float]) -> float:
    """Return what 99 % stay below."""
    return quantiles(values, n=100, method="inclusive")[98]


def column(case: str) -> str:
    """Return whose figure a case is."""
    if case.startswith(OURS):
        return "Wakeboard"
    return next((name for name in COLUMNS if case.startswith(name)), "")


def throughput() -> list[tuple[str, list[Bar]]]:
    """Return a panel for one worker and one for two."""
    return [
        (heading, [Bar(name, median(values), column(name)) for name, values in found.items()])
        for heading, which in (("One worker", ": one"), ("Two workers", ": two"))
        if (found := table("throughput", which))
    ]


def latency() -> list[tuple[str, list[Bar]]]:
    """Return a panel for the middle and one for the late ones; a poll of seconds would hide the rest."""
    told = {name: values for name, values in table("latency", "Pick-up").items() if "NOTIFY" in name}
    measures: tuple[tuple[str, Callable[[Sequence[float]], float]], ...] = (
        ("Half of all runs start within", median),
        ("99 % start within", late),
    )
    return [
        (heading, [Bar(name, measure(values), column(name)) for name, values in told.items()])
        for heading, measure in measures
        if told
    ]


def growth(name: str) -> list[Curve]:
    """Return a curve for each table of a benchmark in its picture's unit whose cases are sizes."""
    found, unit = [], {"growth": "runs/s", "pages": "ms"}[name]
    for title, told in kept(name)["tables"].items():
        if told["unit"] != unit:
            continue
        sized = ((POINT.match(case), values) for case, values in told["values"].items() if values)
        points = sorted((float(size[1].replace(",", "")), median(values)) for size, values in sized if size)
        if len(points) > 1:
            found.append(Curve(title.removeprefix("Claim and finish, "), points))
    return found


def pages() -> list[Curve]:
    """Return a curve for each page as it is opened, without a filter."""
    return sorted((curve for curve in growth("pages") if "?" not in curve.label), key=lambda each: each.label)


PICTURES: dict[str, tuple[str, Callable[[bool], str]]] = {
    "throughput": (
        "Runs per second beside raw SQL and other queues",
        lambda dark: bars("No-op runs per second", throughput(), dark=dark),
    ),
    "latency": (
        "Milliseconds from a commit to the start of its handler",
        lambda dark: bars("Milliseconds from commit to start", latency(), dark=dark),
    ),
    "growth": (
        "Runs per second at 10 thousand to 10 million finished runs",
        lambda dark: curves("Runs per second by finished runs", growth("growth"), dark=dark),
    ),
    "pages": (
        "Milliseconds of each page at 10 thousand to 10 million runs",
        lambda dark: small("Milliseconds of each page by finished runs", pages(), PAGE_MS, dark=dark),
    ),
}


def has_figures(name: str) -> bool:
    """Return whether there is something to draw."""
    return bool({"throughput": throughput, "latency": latency}.get(name, lambda: growth(name))())


def rows() -> list[tuple[str, dict[str, str], str]]:
    """Return the lines of the README's table: the words of each, its cells, and whose is the best."""
    found = []
    for words, values, measure, best in (
        ("runs/s, one worker", table("throughput", ": one"), median, max),
        ("runs/s, two workers", table("throughput", ": two"), median, max),
        ("commit to start, ms, p50", table("latency", "Pick-up"), median, min),
        ("commit to start, ms, p99", table("latency", "Pick-up"), late, min),
        ("enqueue/s, one client", table("enqueue", "1 client"), median, max),
        ("enqueue/s, 8 clients", table("enqueue", "8 clients"), median, max),
        ("enqueue/s, in bulk with keys", table("enqueue", "at once"), median, max),
    ):
        figures: dict[str, float] = {}
        for case, each in values.items():
            if column(case) and "poll" not in case:
                figures.setdefault(column(case), measure(each))
        queues = {name: figure for name, figure in figures.items() if name != "raw"}
        if queues:
            cells = {name: _figure(figure) for name, figure in figures.items()}
            found.append((words, cells, best(queues, key=queues.__getitem__)))
    return found


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def section() -> str:
    """Return the lines of the README between the marks."""
    told = rows()
    if not told:
        return "Nothing was measured yet."
    lines = []
    for name, (alt, _) in PICTURES.items():
        if has_figures(name):
            lines += [
                "<picture>",
                f'  <source media="(prefers-color-scheme: dark)" srcset="docs/benchmarks/{name}-dark.svg">',
                f'  <img alt="{alt}" src="docs/benchmarks/{name}.svg">',
                "</picture>",
                "",
            ]
    lines += ["| | Wakeboard | raw SQL | PgQueuer | Chancy | Procrastinate |", "|---|--:|--:|--:|--:|--:|"]
    for words, cells, best in told:
        shown = [f"**{cells[name]}**" if name == best else cells.get(name, "–") for name in COLUMNS]
        lines.append(f"| {words} | {' | '.join(shown)} |")
    moments = {name: kept(name).get("measured") for name in ("throughput", "latency", "enqueue")}
    measured = [f"- {name}: {moment}" for name, moment in moments.items() if moment]
    return "\n".join([*lines, "", "Medians; bold is the best of the four queues. Measured:", "", *measured])


def with_section(readme: str) -> str:
    """Return the README with the lines between its marks made anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def main() -> None:
    """Write the pictures, and the section of the README."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (_, draw) in PICTURES.items():
        if has_figures(name):
            (FOLDER / f"{name}.svg").write_text(draw(False))
            (FOLDER / f"{name}-dark.svg").write_text(draw(True))
    README.write_text(with_section(README.read_text()))


if __name__ == "__main__":
    main()
