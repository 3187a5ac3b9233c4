"""When people are told: one message a window, nobody left with an old fear."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard.alerts.rule_state import RuleState, next_state

START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
WINDOW, REMIND = 900, 14_400


def told(looks: str, every: float = 300, *, window: float = WINDOW, remind: float = REMIND) -> str:
    """Return what is told at each look of ``looks`` (F fires, . quiet), one letter each: f r m or -."""
    state, letters = RuleState(), ""
    for number, look in enumerate(looks):
        state, notice = next_state(
            state,
            START + timedelta(seconds=number * every),
            firing=look == "F",
            window_seconds=window,
            remind_seconds=remind,
        )
        letters += {None: "-", "firing": "f", "recovered": "r", "reminder": "m"}[notice]
    return letters


@pytest.mark.parametrize(
    ("looks", "expected", "why"),
    [
        ("....", "----", "nothing is wrong"),
        ("FFFF", "f---", "it is told once"),
        ("..FFFFFF....", "--f-----r---", "the recovery is told when it comes after the window"),
        ("F.......", "f--r----", "a short scare is taken back once the window is over"),
        ("F.F.F.F.F.F.F", "f--r--f--r--f", "flapping costs one message a window"),
        ("F..FFFFF", "f-------", "back before the window ended: people believe what is so"),
    ],
)
def test_what_is_told(looks: str, expected: str, why: str) -> None:
    assert told(looks) == expected, why


def test_a_rule_that_still_fires_is_brought_to_mind() -> None:
    letters = told("F" * 100, every=600)
    assert [place for place, letter in enumerate(letters) if letter == "m"] == [24, 48, 72, 96]
    assert told("F" * 100, every=600, remind=0) == "f" + "-" * 99


def test_something_new_is_told_while_it_fires_but_not_within_the_window() -> None:
    state, notice = next_state(RuleState(), START, firing=True, window_seconds=WINDOW, remind_seconds=0)
    assert notice == "firing"
    for minutes, expected in ((5, None), (20, "reminder")):
        after, notice = next_state(
            state,
            START + timedelta(minutes=minutes),
            firing=True,
            has_new_names=True,
            window_seconds=WINDOW,
            remind_seconds=0,
        )
        assert notice == expected
    assert after.sent_at == START + timedelta(minutes=20)


def test_a_silenced_rule_changes_and_tells_nobody() -> None:
    state = RuleState(silenced_until=START + timedelta(hours=1))
    state, notice = next_state(state, START, firing=True, window_seconds=WINDOW, remind_seconds=REMIND)
    assert (state.state, state.told, notice) == ("firing", "quiet", None)
    later = START + timedelta(hours=1, seconds=1)
    state, notice = next_state(state, later, firing=True, window_seconds=WINDOW, remind_seconds=REMIND)
    assert (state.told, notice, state.fired_at) == ("firing", "firing", START)


def test_what_came_and_went_in_silence_is_never_told() -> None:
    state = RuleState(silenced_until=START + timedelta(hours=1))
    for minutes, firing in ((0, True), (30, False), (90, False)):
        at = START + timedelta(minutes=minutes)
        state, notice = next_state(state, at, firing=firing, window_seconds=WINDOW, remind_seconds=REMIND)
        assert notice is None


def test_without_a_channel_nothing_counts_as_told() -> None:
    state, notice = next_state(
        RuleState(), START, firing=True, window_seconds=WINDOW, remind_seconds=REMIND, can_tell=False
    )
    assert (state.state, state.told, state.sent_at, notice) == ("firing", "quiet", None, None)
    state, notice = next_state(
        state, START + timedelta(days=1), firing=True, window_seconds=WINDOW, remind_seconds=REMIND
    )
    assert (notice, state.fired_at) == ("firing", START)


def test_the_changes_since_the_last_message_are_counted() -> None:
    state = RuleState()
    for number, look in enumerate("F.F.F"):
        at = START + timedelta(seconds=number * 60)
        state, _ = next_state(state, at, firing=look == "F", window_seconds=WINDOW, remind_seconds=0)
    assert (state.turns, state.state) == (4, "firing")


@given(
    looks=st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=120),
    window=st.integers(60, 3600),
    remind=st.sampled_from([0, 60, 7200]),
)
def test_no_rule_tells_twice_in_a_window_and_people_come_to_believe_what_is_so(
    looks: list[tuple[int, bool]], window: int, remind: int
) -> None:
    state, now, sent = RuleState(), START, []
    for seconds, firing in looks:
        now += timedelta(seconds=seconds)
        state, notice = next_state(state, now, firing=firing, window_seconds=window, remind_seconds=remind)
        if notice is not None:
            sent.append(now)
    assert all((b - a).total_seconds() >= window for a, b in pairwise(sent))
    state, _ = next_state(
        state, now + timedelta(seconds=window), firing=firing, window_seconds=window, remind_seconds=remind
    )
    assert state.told == state.state


def test_an_hour_of_flapping_each_quarter_minute_sends_four_messages() -> None:
    letters = told("F." * 120, every=15)
    assert sum(letter != "-" for letter in letters) == 4
