"""Frames as they arrive in pieces, and the assignments in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.processes.wire import Assignment, Frames, assignments_frame, frame, read_assignments

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
