"""Reads the body of an HTTP response in chunks, and notices where it is cut off.

``http.client`` reports that only to a caller who reads the body in one piece.
"""

from __future__ import annotations

import http.client
from time import monotonic

_CHUNK_BYTES = 65_536
_STATUSES_WITHOUT_BODY = (204, 304)
# A server that streams without end has taken the request: what comes later is not read.
_READ_SECONDS = 10.0


class TruncatedResponse(http.client.HTTPException):
    """The connection ended within the body: after ``read`` bytes of ``expected`` (None: not announced).

    ``head`` is how the body began.
    """

    def __init__(self, read: int, expected: int | None, head: bytes = b"") -> None:
        of = "" if expected is None else f" of {expected:,}"
        super().__init__(f"its answer broke off after {read:,}{of} bytes")
        self.head = head


def read_body(response: http.client.HTTPResponse, method: str, most: int, head: int = 0) -> bytes:
    """Read the body of ``response``, to a ``method``, up to ``most`` bytes; return its first ``head`` bytes.

    What is beyond is not read, nor what takes longer than _READ_SECONDS, nor, behind the head, a body that
    does not say where it ends. Raises TruncatedResponse when the connection ends before the length that was
    announced, or within chunks; OSError when it breaks otherwise.
    """
    expected = _content_length(response, method)
    has_end = expected is not None or bool(response.headers.get("Transfer-Encoding"))
    start, read = b"", 0
    deadline = monotonic() + _READ_SECONDS
    try:
        while read < (most if has_end else head) and (chunk := response.read1(_CHUNK_BYTES)):
            start, read = (start + chunk)[:head], read + len(chunk)
            if read >= head and monotonic() > deadline:
                return start
    except http.client.IncompleteRead as failure:
        raise TruncatedResponse(read + len(failure.partial), expected, start) from failure
    except ConnectionResetError as failure:
        raise TruncatedResponse(read, expected, start) from failure
    if expected is not None and read < min(expected, most):
        raise TruncatedResponse(read, expected, start)
    return start


def _content_length(response: http.client.HTTPResponse, method: str) -> int | None:
    """Return the announced length of the body in bytes, None without one; chunks carry their own end."""
    length = (response.headers.get("Content-Length") or "").strip()
    has_no_body = method == "HEAD" or response.status in _STATUSES_WITHOUT_BODY
    if has_no_body or response.headers.get("Transfer-Encoding") or not length.isdecimal():
        return None
    return int(length)
