"""The retry rule: which delays an operator's line of text stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard.core.retry import DEFAULT_BACKOFF, LONGEST_SECONDS, Backoff

RULES = ["fixed 30s", DEFAULT_BACKOFF, "exponential 10s", "quadratic 10s", "1m,5m,30m,2h", "1s", "0.01s,30d"]


def nominal(text: str, failures: list[int]) -> list[float]:
    rule = Backoff.parse(text)
    return [rule.delay_seconds(failure, jitter=0.5) for failure in failures]


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("fixed 30s", [30, 30, 30, 30, 30]),
        ("exponential 10s cap 10m", [10, 20, 40, 80, 160]),
        ("exponential 10s", [10, 20, 40, 80, 160]),
        ("quadratic 10s", [10, 40, 90, 160, 250]),
        ("1m,5m,30m,2h", [60, 300, 1800, 7200, 7200]),
        ("1s", [1, 1, 1, 1, 1]),
    ],
)
def test_each_rule_waits_as_it_reads(text: str, delays: list[float]) -> None:
    assert nominal(text, [1, 2, 3, 4, 5]) == pytest.approx(delays)


def test_jitter_spreads_twenty_percent_both_ways() -> None:
    rule = Backoff.parse("1m,5m")
    assert rule.delay_seconds(1, jitter=0) == pytest.approx(48)
    assert rule.delay_seconds(1, jitter=1) == pytest.approx(72)
    assert len({rule.delay_seconds(2) for _ in range(50)}) > 40


def test_a_fixed_rule_has_no_jitter() -> None:
    assert {Backoff.parse("fixed 30s").delay_seconds(7) for _ in range(50)} == {30}


def test_the_cap_holds_after_jitter_and_delays_at_the_cap_still_spread() -> None:
    rule = Backoff.parse(DEFAULT_BACKOFF)
    assert rule.delay_seconds(50, jitter=1) == 1800
    assert rule.delay_seconds(50, jitter=0) == pytest.approx(1440)


@given(st.sampled_from(RULES), st.integers(1, 2**31), st.floats(0, 1))
def test_no_count_of_failures_overflows_or_passes_the_bounds(text: str, failures: int, jitter: float) -> None:
    assert 0 < Backoff.parse(text).delay_seconds(failures, jitter) <= LONGEST_SECONDS


def test_an_absurd_count_of_failures_waits_the_cap() -> None:
    for text in ("exponential 10s", "quadratic 10s"):
        assert Backoff.parse(text).delay_seconds(10**4000, jitter=1) == LONGEST_SECONDS


@pytest.mark.parametrize("failures", [0, -1])
def test_the_failure_just_recorded_is_counted(failures: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Backoff.parse("1s").delay_seconds(failures)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_a_jitter_outside_its_range_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        Backoff.parse("1s").delay_seconds(1, jitter)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fixed 0s", "retry at once"),
        ("0", "retry at once"),
        ("1m,0s,5m", "retry at once"),
        ("exponential 0.001s", "retry at once"),
        ("fixed 31d", "longer than 30d"),
        ("exponential 10s cap 31d", "longer than 30d"),
        ("exponential 10m cap 10s", "below its first delay"),
        ("fixed 10s cap 1m", "only exponential"),
        ("1m,,5m", "cannot be read"),
        ("1m,", "cannot be read"),
        ("fixed soon", "cannot be read"),
        ("linear 10s", "not a backoff"),
        ("fixed", "not a backoff"),
        ("", "not a backoff"),
        ("-5s", "not a backoff"),
        ("1s," * 5000, "too long"),
    ],
)
def test_a_wrong_rule_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        Backoff.parse(text)
    assert str(refused.value).endswith(".")
    assert len(str(refused.value)) < 300


def test_the_rule_is_kept_as_written_apart_from_case_and_spaces() -> None:
    assert Backoff.parse("  Exponential  10s   CAP 30m ").text == DEFAULT_BACKOFF
    assert Backoff.parse("1m, 5m ,30m").text == "1m,5m,30m"
    assert all(Backoff.parse(Backoff.parse(text).text) == Backoff.parse(text) for text in RULES)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fixed 30s", "30 s each time"),
        (DEFAULT_BACKOFF, "10 s, 20 s, 40 s and so on, doubling, at most 30 m (±20 %)"),
        ("quadratic 10s", "10 s, 40 s, 1 m 30 s and so on, failures² × 10 s, at most 30 d (±20 %)"),
        ("1m,5m,2h", "1 m, 5 m, 2 h, then always the last (±20 %)"),
        ("1s", "1 s each time (±20 %)"),
    ],
)
def test_one_line_tells_an_operator_what_will_happen(text: str, line: str) -> None:
    assert Backoff.parse(text).describe() == line
