"""Messages between the supervisor, the fork server and the children, and their bytes.

- Fork server and supervisor exchange JSON, one message a packet: `Order` one way, the others the other way.
- Supervisor and child exchange frames: four bytes of length and a body. A child runs foreign code, so nothing
  it sends is trusted: an answer is a row of whole numbers, or JSON where there is more to say. Assignments,
  which the supervisor alone writes, are marshalled.
- `Event` is what `Children.collect` returns to the supervisor's loop.

Times are in nanoseconds on the clock of `shared_slot.boottime_ns`.
"""

from __future__ import annotations

import json
import marshal
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple

from wakeboard.core.outcome import KINDS, PLAIN, AttemptResult, Kind
from wakeboard.core.process.assignment import Assignment, assignment_of

# ---- fork server and supervisor ------------------------------------------------------------------------

PACKET_BYTES = 128 * 1024


class Order(NamedTuple):
    """What the fork server is to do with the child of a slot: fork it, or send TERM or KILL.

    `run` (id, lease epoch): KILL only while the child executes this run. *ping* asks for a receipt only.
    """

    action: Literal["fork", "terminate", "kill", "ping"]
    slot: int = -1
    run: tuple[int, int] | None = None


class OrderReceipt(NamedTuple):
    """The fork server has carried out an order."""


class AppTypes(NamedTuple):
    """The handlers' module is imported. `policies`: the policy of each job type that can run here.

    The fork server sends them in parts; `is_complete`: this is the last one.
    """

    policies: list[dict[str, Any]]
    is_complete: bool = True


class AppFailure(NamedTuple):
    """The handlers' module cannot be imported: one sentence, then the traceback. The fork server ends."""

    message: str


class Notice(NamedTuple):
    """One line that an operator should read."""

    message: str


class ChildStart(NamedTuple):
    """The child of a slot was forked. `pidfd`: its descriptor, which travels beside the message."""

    slot: int
    pid: int
    pidfd: int | None = None


class ChildStatus(NamedTuple):
    """The child of a slot has ended, or could not be started: then `text` says why."""

    slot: int
    status: int | None
    text: str | None = None


class ForkServerExit(NamedTuple):
    """The fork server has ended and its children too; a `ChildExit` follows for each slot that held work."""

    text: str


ServerMessage = OrderReceipt | AppTypes | AppFailure | Notice | ChildStart | ChildStatus
_SERVER_MESSAGES: dict[str, type[ServerMessage]] = {
    kind.__name__: kind for kind in (OrderReceipt, AppTypes, AppFailure, Notice, ChildStart, ChildStatus)
}


def encode_order(order: Order) -> bytes:
    """Return the packet of an order."""
    return json.dumps(order).encode()


def decode_order(data: bytes) -> Order:
    """Return the order in a packet."""
    action, slot, run = json.loads(data)
    return Order(action, slot, None if run is None else (run[0], run[1]))


def encode_server_message(message: ServerMessage) -> bytes:
    """Return the packet of a message of the fork server."""
    return json.dumps([type(message).__name__, *message], ensure_ascii=False).encode("utf-8", "replace")


def decode_server_message(data: bytes) -> ServerMessage:
    """Return the message in a packet of the fork server."""
    name, *values = json.loads(data)
    return _SERVER_MESSAGES[name](*values)


# ---- children and the supervisor's loop ----------------------------------------------------------------


class AttemptEnd(NamedTuple):
    """An attempt ended and its child answered."""

    slot: int
    assignment: Assignment
    answer: AttemptResult
    started_ns: int
    finished_ns: int


class SuccessBatch(NamedTuple):
    """Several attempts of one slot ended, in this order, and their handlers returned with nothing to add.

    `attempts`: of each its assignment, when it started and when it finished.
    """

    slot: int
    attempts: list[tuple[Assignment, int, int]]


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A slot's child has ended with every process below it; the next `send` forks another.

    `running`: the assignment that it had started and not ended; its attempt ends with `answer` and began at
    `started_ns`. `unstarted`: what it was sent and never began, in order. `has_begun`: it had begun a run at
    all. `is_unconditional_kill`: the supervisor killed it whatever ran there, perhaps for another run's sake.
    `is_clean`: it ended by itself between two runs.
    """

    slot: int
    text: str
    running: Assignment | None
    answer: AttemptResult
    unstarted: list[Assignment]
    started_ns: int = 0
    is_unconditional_kill: bool = False
    is_clean: bool = False
    has_begun: bool = False


Event = AppTypes | AppFailure | Notice | AttemptEnd | SuccessBatch | ChildExit | ForkServerExit

# ---- frames between supervisor and child ---------------------------------------------------------------

ANSWER_BYTES = 1024 * 1024
_length = struct.Struct(">I").unpack_from
# Of a plain answer: the index of its kind in KINDS, run, epoch, when it started and when it finished.
_plain = struct.Struct(">Bqqqq")
_framed_plain = struct.Struct(">IBqqqq").pack
# A whole frame that says "returned" and nothing more: its beginning, and the four numbers that follow.
_RETURNED = struct.pack(">IB", _plain.size, KINDS.index("returned"))
_returned = struct.Struct(f">{len(_RETURNED)}xqqqq")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode
_ANSWER_DEFAULTS = {field.name: field.default for field in fields(AttemptResult) if field.name != "kind"}
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_PLAIN_ANSWERS = [PLAIN[kind] for kind in KINDS]
_TEXTS = ("error_code", "message", "traceback", "result", "output_tail", "note")


class Answer(NamedTuple):
    """How one attempt ended, as its child sends it."""

    run_id: int
    lease_epoch: int
    started_ns: int
    finished_ns: int
    result: AttemptResult


_answer_of: Callable[[Iterable[object]], Answer] = partial(tuple.__new__, Answer)


class Frames:
    """Splits bytes, as they arrive, into whole frames."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: the longest frame in bytes that is accepted."""
        self._buffer = bytearray()
        self._limit = limit

    @property
    def is_at_boundary(self) -> bool:
        """Whether no part of a frame waits for its rest."""
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies of the frames that `data` completes.

        Raises ValueError for a frame that is longer than the limit.
        """
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        position, end = 0, len(buffer)
        try:
            while end - position >= 4:
                (length,) = _length(buffer, position)
                if self._limit is not None and length > self._limit:
                    raise ValueError(f"A frame of {length:,} bytes came where {self._limit:,} is the most.")
                if end - position - 4 < length:
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
    """Return `body` with its length in front."""
    return len(body).to_bytes(4, "big") + body


def assignments_frame(assignments: Sequence[Assignment]) -> bytes:
    """Return the frame that hands `assignments` to a child, in order."""
    return frame(marshal.dumps(list(map(tuple, assignments))))


def read_assignments(body: bytes) -> list[Assignment]:
    """Return the assignments of one frame, in order."""
    return list(map(assignment_of, marshal.loads(body)))


def answer_frame(answer: Answer) -> bytes:
    """Return the frame of one answer; fields at their default are left out."""
    run_id, lease_epoch, started_ns, finished_ns, result = answer
    kind = result.kind
    if result is PLAIN[kind]:
        return _framed_plain(_plain.size, _NUMBERS[kind], run_id, lease_epoch, started_ns, finished_ns)
    values = ((name, getattr(result, name)) for name in _ANSWER_DEFAULTS)
    extras = {name: value for name, value in values if value != _ANSWER_DEFAULTS[name]}
    head = f'[{run_id},{lease_epoch},{started_ns},{finished_ns},"{kind}"'
    return frame(f"{head},{_encode(extras)}]".encode("utf-8", "replace"))


def read_answer(body: bytes) -> Answer:
    """Return one answer. Raises ValueError when the frame is anything else: its sender runs foreign code."""
    try:
        if body[0] < len(KINDS):
            number, run_id, lease_epoch, started_ns, finished_ns = _plain.unpack(body)
            return _answer_of((run_id, lease_epoch, started_ns, finished_ns, _PLAIN_ANSWERS[number]))
        row: list[Any] = _decode(body.decode("utf-8"))[0]
        run_id, lease_epoch, started_ns, finished_ns, kind = row[:5]
        if not type(run_id) is type(lease_epoch) is type(started_ns) is type(finished_ns) is int:
            raise ValueError("its numbers are none")
        result = PLAIN[kind] if len(row) == 5 else _read_result(kind, row[5])
        return _answer_of((run_id, lease_epoch, started_ns, finished_ns, result))
    except (
        ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"A child sent something that is not an answer: {error!r:.200}") from None


def read_plain_returns(data: bytes) -> Iterator[tuple[int, int, int, int]] | None:
    """Return run, epoch, start and finish of each answer in `data`, all of which say "returned" and no more.

    None when `data` is anything but whole frames of this kind.
    """
    size = _returned.size
    count, rest = divmod(len(data), size)
    if rest or any(data[place::size].count(byte) != count for place, byte in enumerate(_RETURNED)):
        return None
    return _returned.iter_unpack(data)


def _read_result(kind: Kind, extras: dict[str, Any]) -> AttemptResult:
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
