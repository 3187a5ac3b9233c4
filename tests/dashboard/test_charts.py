"""Pictures that are drawn whole: what stands where, what they say, and text of others in them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from wakeboard.reporting.statistics import DurationHistogram
from wakeboard_dashboard.charts.charts import bar_chart, spread_chart
from wakeboard_dashboard.charts.sparks import layers, sparkline, trend
from wakeboard_dashboard.charts.spreads import spread
from wakeboard_dashboard.queries.throughput import WindowBar

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "<b>\"'&"


def test_a_small_trend_has_failures_over_all_that_ended() -> None:
    assert layers([(19, 0), (0, 0), (19, 10), (19, 19), (19, 1)]) == (
        "M0 1h3v19h-3zM8 1h3v19h-3zM12 1h3v19h-3zM16 1h3v19h-3z",
        "M8 1h3v10h-3zM12 1h3v19h-3zM16 1h3v1.5h-3z",
    )


def test_a_small_trend_of_nothing_draws_nothing() -> None:
    assert layers([]) == layers([(0, 0), (0, 0)]) == ("", "")


def test_a_little_among_much_is_seen() -> None:
    whole, failed = layers([(10_000, 0), (1, 1)])
    assert whole.endswith("M4 18.5h3v1.5h-3z") and failed == "M4 18.5h3v1.5h-3z"


def test_a_trend_of_failures_is_that_of_bars_that_all_failed() -> None:
    counts = (0, 3, 19, 0, 10_000)
    svg = trend(counts, HOSTILE)
    assert svg == sparkline([WindowBar(AT, bad=count) for count in counts], HOSTILE)
    assert 'viewBox="0 0 20 20"' in svg and svg.count("<path") == 2
    assert 'aria-label="&lt;b&gt;&#34;&#39;&amp;"' in svg and "<b>" not in svg
    assert "<path" not in trend((0, 0), "none") + trend((), "none")


def test_a_chart_of_bars_says_each_number_and_escapes_words() -> None:
    svg = bar_chart([WindowBar(AT, 1500, 500, label=HOSTILE), WindowBar(AT, label="12:00")], HOSTILE)
    assert re.findall("<title>(.*?)</title>", svg) == [
        "&lt;b&gt;&#34;&#39;&amp;: 2\u202f000 runs, 500 failed",
        "12:00: 0 runs, 0 failed",
    ]
    assert 'aria-label="&lt;b&gt;&#34;&#39;&amp;"' in svg and "<b>" not in svg
    assert '<rect class="ok" x="1" y="4" width="8" height="96"/>' in svg
    assert '<rect class="bad" x="1" y="4" width="8" height="24"/>' in svg
    assert svg.count('class="hit"') == 2 and svg.count("<rect") == 4


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (4, ["0", "1", "2", "3", "4"]),
        (19, ["0", "5", "10", "15"]),
        (2000, ["0", "500", "1\u202f000", "1\u202f500", "2\u202f000"]),
    ],
)
def test_the_axis_of_counts_has_whole_round_numbers(most: int, labels: list[str]) -> None:
    assert re.findall("<text.*?>(.*?)</text>", bar_chart([WindowBar(AT, most)], "Attempts")) == labels


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.002, ["1 ms", "10 ms"]),
        (50.0, ["10 s", "1 min"]),
        (4000.0, ["1 h", "10 h"]),
        (9e9, ["10 d", "100 d"]),
    ],
)
def test_the_axis_of_times_has_the_units_that_people_count_in(seconds: float, labels: list[str]) -> None:
    found = spread([WindowBar(AT)], [DurationHistogram({63: 1}, seconds)])
    assert [tick.label for tick in found.ticks] == labels


def test_a_chart_of_nothing_has_its_axis_alone() -> None:
    assert bar_chart([], "none").count("<rect") == 0
    assert 'class="axis"' in bar_chart([], "none")


def test_a_chart_of_times_says_its_percentiles() -> None:
    bars = [WindowBar(AT, label="11:00"), WindowBar(AT, label="12:00")]
    svg = spread_chart(
        spread(bars, [DurationHistogram(), DurationHistogram({20: 90, 40: 10}, 1.0)]), "Run time"
    )
    assert re.findall("<title>(.*?)</title>", svg) == ["12:00: p50 1 ms, p95 1 s, p99 1 s"]
    assert [re.findall(f'class="{kind}" x="(\\d+)"', svg) for kind in ("hit", "rest", "ok")] == [
        ["10"],
        ["14"],
        ["11"],
    ]
