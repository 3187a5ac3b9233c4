"""Whether an HTTP answer came whole. ``http.client`` tells that only to who reads it in one piece."""

from __future__ import annotations

import http.client
from time import monotonic

_PIECE_BYTES = 65_536
_BODILESS = (204, 304)
# Who streams without end has taken the request: what comes later is not looked at.
_LOOK_SECONDS = 10.0


class AnswerCutOff(http.client.HTTPException):
    """The connection ended within the answer: after ``read`` bytes of ``expected`` (None: not announced).

    The answer began with ``head``.
    """

    def __init__(self, read: int, expected: int | None, head: bytes = b"") -> None:
        of = "" if expected is None else f" of {expected:,}"
        super().__init__(f"its answer broke off after {read:,}{of} bytes")
        self.head = head


def read_whole(answer: http.client.HTTPResponse, method: str, most: int, head: int = 0) -> bytes:
    """Read ``answer``, to a ``method``, up to ``most`` bytes; return its first ``head`` bytes.

    What is beyond is not looked at, nor what takes longer than _LOOK_SECONDS, nor, behind the head, an answer
    that does not say where it ends. Raises AnswerCutOff when the connection ends before the length that was
    announced, or within chunks; OSError when it breaks otherwise.
    """
    expected = _announced(answer, method)
    says_its_end = expected is not None or bool(answer.headers.get("Transfer-Encoding"))
    kept, read = b"", 0
    until = monotonic() + _LOOK_SECONDS
    try:
        while read < (most if says_its_end else head) and (piece := answer.read1(_PIECE_BYTES)):
            kept, read = (kept + piece)[:head], read + len(piece)
            if read >= head and monotonic() > until:
                return kept
    except http.client.IncompleteRead as cut:
        raise AnswerCutOff(read + len(cut.partial), expected, kept) from cut
    except ConnectionResetError as cut:
        raise AnswerCutOff(read, expected, kept) from cut
    if expected is not None and read < min(expected, most):
        raise AnswerCutOff(read, expected, kept)
    return kept


def _announced(answer: http.client.HTTPResponse, method: str) -> int | None:
    """Return how many bytes the body has, None where that is not said; a body in chunks says its end."""
    length = (answer.headers.get("Content-Length") or "").strip()
    is_bare = method == "HEAD" or answer.status in _BODILESS
    if is_bare or answer.headers.get("Transfer-Encoding") or not length.isdecimal():
        return None
    return int(length)
