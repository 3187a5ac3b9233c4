"""What travels between the supervisor and a child: frames of four bytes of length and JSON. Never pickle: a
child runs strangers' code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from worker.outcome import KINDS, PLAIN, Answer

ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Assignment:
    """One claimed run on its way to a child. `payload` is JSON text (decoded in the child); times are ISO
    texts."""

    run_id: int
    lease_epoch: int
    attempt: int
    job_type: str
    payload: str
    key: str | None
    definition_id: int | None
    scheduled_for: str | None
    enqueued_at: str | None
    timeout_seconds: float
    traceparent: str | None
    worker_id: str


@dataclass(frozen=True, slots=True)
class Reported:
    """One answer as a child sent it. Times in nanoseconds on the clock of `slotpage.boottime_ns`."""

    run_id: int
    lease_epoch: int
    started_ns: int
    finished_ns: int
    answer: Answer


class Frames:
    """Bytes as they arrive → whole frames."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: the longest frame in bytes that is accepted."""
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that `data` completes. ValueError when one says it is longer than the
        limit."""
        buffer = self._buffer
        buffer += data
        position, held = 0, len(buffer)
        try:
            while held - position >= 4:
                length = int.from_bytes(buffer[position : position + 4], "big")
                if self._limit is not None and length > self._limit:
                    raise ValueError(f"A frame of {length:,} bytes came where {self._limit:,} is the most.")
                if held - position - 4 < length:
                    break
                body = bytes(buffer[position + 4 : position + 4 + length])
                position += 4 + length
                yield body
        finally:
            del buffer[:position]


def frame(body: bytes) -> bytes:
    """`body` with its length in front."""
    return len(body).to_bytes(4, "big") + body


_ASSIGNMENT_FIELDS = tuple(field.name for field in fields(Assignment))
_ANSWER_DEFAULTS = {field.name: field.default for field in fields(Answer) if field.name != "kind"}
_TEXTS = ("error_code", "message", "traceback", "result", "output_tail", "note")


def assignments_frame(assignments: Sequence[Assignment]) -> bytes:
    """The frame that hands `assignments` to a child, in order."""
    rows = [[getattr(assignment, name) for name in _ASSIGNMENT_FIELDS] for assignment in assignments]
    return frame(json.dumps(rows, separators=(",", ":")).encode("ascii"))


def read_assignments(body: bytes) -> list[Assignment]:
    """The assignments of one frame, in order."""
    return [Assignment(*row) for row in json.loads(body)]


def answer_frame(reported: Reported) -> bytes:
    """The frame that reports one answer; fields at their default do not travel."""
    answer = reported.answer
    row: list[Any] = [
        reported.run_id,
        reported.lease_epoch,
        reported.started_ns,
        reported.finished_ns,
        answer.kind,
    ]
    if answer is not PLAIN[answer.kind]:
        row.append(
            {
                name: value
                for name in _ANSWER_DEFAULTS
                if (value := getattr(answer, name)) != _ANSWER_DEFAULTS[name]
            }
        )
    return frame(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def read_answer(body: bytes) -> Reported:
    """One reported answer. ValueError when the frame is anything else: the sender's process runs strangers'
    code."""
    try:
        row = json.loads(body)
        run_id, lease_epoch, started_ns, finished_ns, kind = row[:5]
        extras = row[5] if len(row) > 5 else {}
        whole = all(type(number) is int for number in (run_id, lease_epoch, started_ns, finished_ns))
        if not whole or kind not in KINDS or not _fit(extras):
            raise ValueError(body[:80])
        return Reported(
            run_id, lease_epoch, started_ns, finished_ns, Answer(kind, **extras) if extras else PLAIN[kind]
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"A child sent something that is not an answer: {error}") from None


def _fit(extras: dict[str, Any]) -> bool:
    after = extras.get("retry_after_seconds")
    return (
        extras.keys() <= _ANSWER_DEFAULTS.keys()
        and all(isinstance(extras.get(name), str | None) for name in _TEXTS)
        and isinstance(extras.get("permanent", False), bool)
        and (after is None or type(after) in (int, float))
    )
