"""Frames as they arrive in pieces, and the assignments in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard.core.outcome import KINDS, PLAIN, AttemptResult
from wakeboard.runtime.processes.protocol import (
    ANSWER_BYTES,
    Answer,
    Assignment,
    Frames,
    answer_frame,
    assignments_frame,
    frame,
    read_answer,
    read_assignments,
    read_plain_returns,
)

PAYLOAD = '{"note": "ä \u202e \\u0000 \\"quoted\\""}'


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30)))
def test_frames_are_the_same_in_whatever_pieces_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    sent, frames, read = b"".join(map(frame, bodies)), Frames(), []
    for cut in [*cuts, len(sent)]:
        read += frames.feed(sent[:cut])
        sent = sent[cut:]
    assert read == bodies


@pytest.mark.parametrize("before", [b"", b"\x00"])
def test_a_frame_that_says_it_is_too_long_is_refused(before: bytes) -> None:
    frames = Frames(limit=10)
    assert not list(frames.feed(before))
    with pytest.raises(ValueError, match="11 bytes"):
        list(frames.feed(frame(b"x" * 11)[len(before) :]))


def test_what_came_before_a_frame_that_is_too_long_is_read() -> None:
    bodies = Frames(limit=10).feed(frame(b"first") + frame(b"x" * 11))
    assert next(bodies) == b"first"
    with pytest.raises(ValueError, match="11 bytes"):
        next(bodies)


def test_assignments_travel_whole_and_in_order() -> None:
    first = Assignment(
        2**62, 3, 2, "mail", PAYLOAD, "kéy", 7, "2026-03-08 07:00:00+00[UTC]", "2026-03-08", 1.5, "00-1", "w"
    )
    second = Assignment(1, 1, 1, "mail", "[" * 5000, None, None, None, None, 300.0, None, "w")
    read = read_assignments(assignments_frame([first, second])[4:])
    assert read == [first, second]
    assert [type(one) for one in read] == [Assignment, Assignment]


NUMBERS = st.integers(-(2**63), 2**63 - 1)
ANSWERS = st.sampled_from([*map(PLAIN.get, KINDS), AttemptResult("returned", result="1")])
RETURNED = st.just(PLAIN["returned"])


def reported(answers: st.SearchStrategy[AttemptResult | None]) -> st.SearchStrategy[bytes]:
    one = st.builds(Answer, NUMBERS, NUMBERS, NUMBERS, NUMBERS, answers).map(answer_frame)
    return st.lists(one, max_size=5).map(b"".join)


@given(reported(RETURNED))
def test_answers_that_only_returned_are_read_at_once_as_one_by_one(data: bytes) -> None:
    singly = [read_answer(body)[:4] for body in Frames(ANSWER_BYTES).feed(data)]
    assert list(read_plain_returns(data) or ()) == singly


@given(st.one_of(reported(ANSWERS), st.binary(max_size=200)))
def test_what_is_read_at_once_is_what_would_have_been_read_singly(data: bytes) -> None:
    returns = read_plain_returns(data)
    if returns is not None:
        read = [read_answer(body) for body in Frames(ANSWER_BYTES).feed(data)]
        assert [(*numbers, PLAIN["returned"]) for numbers in returns] == read


@given(reported(RETURNED), st.integers(0, 4), st.integers(1, 255), st.integers(0, 5))
def test_one_byte_that_says_anything_else_leaves_all_to_be_read_singly(
    data: bytes, place: int, more: int, before: int
) -> None:
    whole = answer_frame(Answer(1, 1, 1, 1, PLAIN["returned"]))
    other = bytearray(whole)
    other[place] = (other[place] + more) % 256
    assert read_plain_returns(whole * before + bytes(other) + data) is None


def test_a_part_of_a_frame_is_not_read_at_once() -> None:
    whole = answer_frame(Answer(1, 1, 1, 1, PLAIN["returned"]))
    assert read_plain_returns(whole + whole[:-1]) is None
