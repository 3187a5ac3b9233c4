"""The fault suite's part of pytest: its options, a line per row while it runs, the table at the end.

What a row tells travels as the report's ``user_properties``, so it arrives from xdist's test processes too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.fault_rows import HEADINGS, FaultRow, as_markdown, in_order

VERDICTS = {"passed": "held", "failed": "BROKEN", "skipped": "not run"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that ``bin/faults`` gives."""
    group = parser.getgroup("faults")
    group.addoption("--faults-full", action="store_true", help="all repetitions of every fault row")
    group.addoption("--faults-seed", type=int, help="the seed of every row, as an earlier run printed it")
    group.addoption(
        "--faults-only", default="", help="rows by number, such as F02,F06; other tests are left out"
    )
    group.addoption("--faults-table", metavar="FILE", help="write the table as Markdown into FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the teller."""
    config.addinivalue_line("markers", "fault(number, injected, expected): a row of the fault table")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Teller(config), "fault-teller")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let every report of a row say which row it is."""
    marker = item.get_closest_marker("fault")
    if marker:
        item.user_properties.append(("fault", {"number": marker.args[0], **marker.kwargs}))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the rows that were asked for."""
    wanted = {name.strip().upper() for name in config.getoption("--faults-only").split(",") if name.strip()}
    if not wanted:
        return
    numbers = {id(item): marker.args[0] for item in items if (marker := item.get_closest_marker("fault"))}
    unknown = wanted - set(numbers.values())
    if unknown:
        known = ", ".join(sorted(set(numbers.values())))
        raise pytest.UsageError(f"There is no fault row {', '.join(sorted(unknown))}. There are: {known}.")
    config.hook.pytest_deselected(items=[item for item in items if numbers.get(id(item)) not in wanted])
    items[:] = [item for item in items if numbers.get(id(item)) in wanted]


class Teller:
    """Collects the rows of a run and tells them."""

    def __init__(self, config: pytest.Config) -> None:
        self._full = bool(config.getoption("--faults-full"))
        self._file: str | None = config.getoption("--faults-table")
        self._config = config
        self._rows: dict[str, FaultRow] = {}
        self._seconds: dict[str, float] = {}
        self._titles: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn what is to come (under xdist the test processes know it, and only the ends are told)."""
        for item in session.items:
            marker = item.get_closest_marker("fault")
            if marker:
                self._titles[item.nodeid] = f"{marker.args[0]}: {marker.kwargs['injected']}"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which row begins."""
        if self._full and nodeid in self._titles:
            begun = list(self._titles).index(nodeid) + 1
            self._say(f"{begun}/{len(self._titles)} {self._titles[nodeid]}")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no dot for a row that has a line of its own."""
        own_line = self._full and report.passed and report.when == "call"
        return ("passed", "", "PASSED") if own_line and _told(report) else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a row from its report, and tell it when it has ended."""
        told = _told(report)
        if not told:
            return
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            self._rows[report.nodeid] = FaultRow(
                **told["fault"],
                measured=str(told.get("measured", "–")) if report.outcome != "skipped" else _reason(report),
                verdict=VERDICTS[report.outcome],
                seconds=0.0,
                seed=str(told.get("seed", "–")),
            )
        if report.when == "teardown" and self._full:
            row = self._row(report.nodeid)
            self._say(f"  {row.verdict} after {row.seconds:.0f} s, seed {row.seed}: {row.measured}")

    def _row(self, nodeid: str) -> FaultRow:
        return replace(self._rows[nodeid], seconds=self._seconds[nodeid])

    def _say(self, words: str) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(words, flush=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table after a full run, one line otherwise; write it where it was asked for."""
        rows = in_order([self._row(nodeid) for nodeid in self._rows])
        if not rows:
            return
        if self._file:
            Path(self._file).write_text(as_markdown(rows))
        if self._full:
            terminalreporter.section("faults")
            for line in as_text(rows, max(100, terminalreporter._tw.fullwidth)):
                terminalreporter.write_line(line)
        broken = [row.number for row in rows if row.verdict == "BROKEN"]
        held = sum(row.verdict == "held" for row in rows)
        words = f", broken: {', '.join(broken)}" if broken else ""
        terminalreporter.write_line(f"{held} of {len(rows)} fault rows held{words}.")


def _told(report: pytest.TestReport) -> dict[str, Any]:
    """Return what a row's test told, nothing of any other test."""
    told: dict[str, Any] = dict(report.user_properties)
    return told if "fault" in told else {}


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "–"


def as_text(rows: Sequence[FaultRow], width: int) -> list[str]:
    """Return the table as lines of text that fit ``width`` characters; long cells run over several lines."""
    column = max(20, (width - 36) // 3)
    widths = (6, column, column, column, 8, 5, 7)
    headings = [heading.replace("seconds", "s") for heading in HEADINGS]
    lines = [_line(headings, widths), "─" * sum(widths)]
    for row in rows:
        cells = [textwrap.wrap(cell, size - 1) or [""] for cell, size in zip(row.cells, widths, strict=True)]
        for number in range(max(map(len, cells))):
            lines.append(_line([cell[number] if number < len(cell) else "" for cell in cells], widths))
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()
