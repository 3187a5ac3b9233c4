"""Durations: what people may write, and what pages show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard.core.time.durations import LONGEST_SECONDS, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
        ("1h 30m", 5400),
        (" 5M ", 300),
        ("90", 90),
        ("2.5", 2.5),
        ("0.5s", 0.5),
        ("1.5h", 5400),
        ("0", 0),
        ("3650d", LONGEST_SECONDS),
    ],
)
def test_people_write_durations_with_units_or_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-5s",
        "+5s",
        "5x",
        "5 minutes",
        "30m1h",
        "5m5m",
        "1e3",
        "nan",
        "inf",
        "٣s",
        "5..5s",
        "1_000",
        "3651d",
        "9" * 40,
        "9" * 400,
        "9" * 5000 + "s",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.{10,200}\.$"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0001, "0 s"),
        (-0.0001, "0 s"),
        (0.004, "0.004 s"),
        (0.25, "0.25 s"),
        (4.23, "4.2 s"),
        (9.96, "10 s"),
        (45, "45 s"),
        (59.4, "59 s"),
        (59.6, "1 m"),
        (242, "4 m 2 s"),
        (3599.6, "1 h"),
        (7200, "2 h"),
        (7205, "2 h"),
        (86_399, "1 d"),
        (273_600, "3 d 4 h"),
        (LONGEST_SECONDS, "3650 d"),
        (-90, "-1 m 30 s"),
    ],
)
def test_pages_show_the_one_or_two_largest_units(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf")])
def test_a_length_that_is_no_number_is_not_shown(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        format_duration(seconds)


@given(st.floats(min_value=0, max_value=LONGEST_SECONDS))
def test_what_is_shown_can_be_read_back_and_is_close(seconds: float) -> None:
    read_back = parse_duration(format_duration(seconds).replace(" ", ""))
    assert abs(read_back - seconds) <= max(0.0006, seconds / 24)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        assert 0 <= parse_duration(text) <= LONGEST_SECONDS
    except ValueError as refused:
        assert str(refused).endswith(".")
