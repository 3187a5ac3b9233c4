"""What travels between the supervisor and a child: frames of four bytes of length and a body.

A child runs strangers' code, so nothing of what it sends is trusted: an answer is a row of whole numbers, or
JSON where there is more to tell. Assignments, which the supervisor alone writes, are marshalled.
"""

from __future__ import annotations

import json
import marshal
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from wakeboard.core.outcome import KINDS, PLAIN, AttemptResult, Kind
from wakeboard.core.process.assignment import Assignment, assignment_of

ANSWER_BYTES = 1024 * 1024
_length = struct.Struct(">I").unpack_from
# Of an answer with nothing to tell: where its kind stands in KINDS, run, epoch, when it started and finished.
_plain = struct.Struct(">Bqqqq")
_framed_plain = struct.Struct(">IBqqqq").pack
# A whole frame that says "returned" and nothing more: how it begins, and the four numbers that follow.
_RETURNED = struct.pack(">IB", _plain.size, KINDS.index("returned"))
_returned = struct.Struct(f">{len(_RETURNED)}xqqqq")


class Reported(NamedTuple):
    """One answer as a child sent it. Times in nanoseconds on the clock of `slotpage.boottime_ns`."""

    run_id: int
    lease_epoch: int
    started_ns: int
    finished_ns: int
    answer: AttemptResult


_reported_of: Callable[[Iterable[Any]], Reported] = partial(tuple.__new__, Reported)


class Frames:
    """Bytes as they arrive → whole frames."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: the longest frame in bytes that is accepted."""
        self._buffer = bytearray()
        self._limit = limit

    @property
    def is_between(self) -> bool:
        """Whether no part of a frame has arrived that waits for its rest."""
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that `data` completes. ValueError when one says it is longer than the
        limit."""
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        position, held = 0, len(buffer)
        try:
            while held - position >= 4:
                (length,) = _length(buffer, position)
                if self._limit is not None and length > self._limit:
                    raise ValueError(f"A frame of {length:,} bytes came where {self._limit:,} is the most.")
                if held - position - 4 < length:
                    break
                body = bytes(buffer[position + 4 : position + 4 + length])
                position += 4 + length
                yield body
        finally:
            if buffer is data:
                self._buffer += data[position:]
            else:
                del self._buffer[:position]


def frame(body: bytes) -> bytes:
    """`body` with its length in front."""
    return len(body).to_bytes(4, "big") + body


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode
_ANSWER_DEFAULTS = {field.name: field.default for field in fields(AttemptResult) if field.name != "kind"}
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_PLAIN_ANSWERS = [PLAIN[kind] for kind in KINDS]
_TEXTS = ("error_code", "message", "traceback", "result", "output_tail", "note")


def assignments_frame(assignments: Sequence[Assignment]) -> bytes:
    """The frame that hands `assignments` to a child, in order."""
    return frame(marshal.dumps(list(map(tuple, assignments))))


def read_assignments(body: bytes) -> list[Assignment]:
    """The assignments of one frame, in order."""
    return list(map(assignment_of, marshal.loads(body)))


def answer_frame(reported: Reported) -> bytes:
    """The frame that reports one answer; fields at their default do not travel."""
    run_id, lease_epoch, started_ns, finished_ns, answer = reported
    kind = answer.kind
    if answer is PLAIN[kind]:
        return _framed_plain(_plain.size, _NUMBERS[kind], run_id, lease_epoch, started_ns, finished_ns)
    values = ((name, getattr(answer, name)) for name in _ANSWER_DEFAULTS)
    extras = {name: value for name, value in values if value != _ANSWER_DEFAULTS[name]}
    head = f'[{run_id},{lease_epoch},{started_ns},{finished_ns},"{kind}"'
    return frame(f"{head},{_encode(extras)}]".encode("utf-8", "replace"))


def read_answer(body: bytes) -> Reported:
    """One reported answer. ValueError when the frame is anything else: its sender runs strangers' code."""
    try:
        if body[0] < len(KINDS):
            number, run_id, lease_epoch, started_ns, finished_ns = _plain.unpack(body)
            return _reported_of((run_id, lease_epoch, started_ns, finished_ns, _PLAIN_ANSWERS[number]))
        row: list[Any] = _decode(body.decode("utf-8"))[0]
        run_id, lease_epoch, started_ns, finished_ns, kind = row[:5]
        if not type(run_id) is type(lease_epoch) is type(started_ns) is type(finished_ns) is int:
            raise ValueError("its numbers are none")
        answer = PLAIN[kind] if len(row) == 5 else _answer(kind, row[5])
        return _reported_of((run_id, lease_epoch, started_ns, finished_ns, answer))
    except (
        ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"A child sent something that is not an answer: {error!r:.200}") from None


def read_returns(data: bytes) -> Iterator[tuple[int, int, int, int]] | None:
    """Run, epoch, when it started and finished, of each answer in `data`: whole frames, all of which say that
    a handler returned and nothing more. None when `data` is anything else."""
    size = _returned.size
    count, rest = divmod(len(data), size)
    if rest or any(data[place::size].count(byte) != count for place, byte in enumerate(_RETURNED)):
        return None
    return _returned.iter_unpack(data)


def _answer(kind: Kind, extras: dict[str, Any]) -> AttemptResult:
    after = extras.get("retry_after_seconds")
    if not (
        kind in KINDS
        and extras.keys() <= _ANSWER_DEFAULTS.keys()
        and all(isinstance(extras.get(name), str | None) for name in _TEXTS)
        and isinstance(extras.get("permanent", False), bool)
        and (after is None or type(after) in (int, float))
    ):
        raise ValueError("its fields are none of an answer's")
    return AttemptResult(kind, **extras)
