"""The job type ``http``: sends one request; its status decides how the run ends.

``{"url": "https://…", "method": "POST", "headers": {…}, "json": …, "body": "…"}``. The run's idempotency key
travels as the header ``Idempotency-Key``, the same for every attempt.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any
from urllib.parse import quote, urlsplit

from wakeboard import __version__
from wakeboard.core.builtin_payloads import (
    HTTP_FIELDS,
    SCHEMES,
    Instructions,
    body_of,
    check_headers,
    method_of,
    texts_of,
    url_of,
)
from wakeboard.core.http_response import TruncatedResponse, read_body
from wakeboard.core.outcome import Permanent, Retryable
from wakeboard.core.text.sanitize import clean_text
from wakeboard.handlers.builtin.instructions import read_instructions
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job

RETRYABLE = frozenset({408, 409, 425, 429})
_HEAD_BYTES = 2_048
_MOST_BYTES = 16 * 1024 * 1024
_LONGEST_WAIT_SECONDS = 86_400.0
_MARGIN_SECONDS = 0.5
# The headers that a redirect to another host keeps: none that identifies us.
_ANONYMOUS_HEADERS = frozenset({"accept", "accept-language", "user-agent"})


@job("http")
def http_request(context: Context) -> dict[str, int]:
    """Send the definition's request and return ``{"status": n}`` for a whole answer below 400.

    Raises Permanent or Retryable with ``http_<status>``, Retryable with ``http_timeout``,
    ``http_unreachable`` or ``http_cut_off`` (the answer ended within its first _MOST_BYTES).
    ``Retry-After`` is honoured up to a day.
    """
    request = _request(context, read_instructions(context, HTTP_FIELDS))
    context.check()
    timeout = max(0.1, context.seconds_left - _MARGIN_SECONDS)
    try:
        with _opener().open(request, timeout=timeout) as answer:
            try:
                head = read_body(answer, request.get_method(), _MOST_BYTES, _HEAD_BYTES)
            except TruncatedResponse as cut:
                _print_answer(answer.status, answer.reason, cut.head)
                raise
            _print_answer(answer.status, answer.reason, head)
            return {"status": int(answer.status)}
    except TruncatedResponse as cut:
        raise Retryable("http_cut_off", f"{_host(request)} took the request, but {cut}.") from cut
    except urllib.error.HTTPError as refused:
        with refused:
            raise _refusal(request.full_url, refused) from None
    except TimeoutError as late:
        raise Retryable("http_timeout", f"{_host(request)} did not answer within {timeout:.0f} s.") from late
    except (OSError, http.client.HTTPException) as failure:
        raise _unreachable(request, failure) from failure


def _request(context: Context, payload: Instructions) -> urllib.request.Request:
    data, content_type = body_of(payload)
    headers = {
        "User-Agent": f"wakeboard/{__version__}",
        "Idempotency-Key": _as_header(context.key) if context.key else f"run-{context.run_id}",
        **({"Content-Type": content_type} if data is not None else {}),
        **texts_of(payload, "headers"),
    }
    check_headers(headers)
    return urllib.request.Request(url_of(payload), data, headers, method=method_of(payload))


def _as_header(key: str) -> str:
    """Return ``key``, percent-encoded where a header cannot hold it."""
    return key if all(ord(c) <= 0xFF for c in key) else quote(key, safe="")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects that are safe to repeat, to http(s) alone, and sends no secret to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request; None makes the redirect itself the answer."""
        if urlsplit(newurl).scheme not in SCHEMES or (
            req.get_method() not in ("GET", "HEAD") and code != 303
        ):
            return None
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            following.headers = {
                k: v for k, v in following.headers.items() if k.lower() in _ANONYMOUS_HEADERS
            }
        return following


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    handlers: tuple[Callable[[], urllib.request.BaseHandler], ...] = (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _SafeRedirects,
    )
    for handler in handlers:
        opener.add_handler(handler())
    return opener


def _print_answer(status: int, reason: str, head: bytes) -> str:
    """Print the answer and return the first line of its body."""
    text = clean_text(head.decode("utf-8", "replace"), _HEAD_BYTES)
    sys.stdout.write(f"{status} {reason}\n{text}\n")
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")


def _refusal(url: str, answer: urllib.error.HTTPError) -> Permanent | Retryable:
    head = b""
    with contextlib.suppress(OSError, http.client.HTTPException):
        head = answer.read(_HEAD_BYTES)
    line = _print_answer(answer.code, answer.reason, head)
    sentence = f"{urlsplit(url).hostname} answered {answer.code} {answer.reason}"
    sentence += f": {line}" if line else "."
    if 400 <= answer.code < 500 and answer.code not in RETRYABLE:
        return Permanent(f"http_{answer.code}", sentence)
    wait = retry_after(answer.headers.get("Retry-After"), _answered_at(answer.headers.get("Date")))
    return Retryable(f"http_{answer.code}", sentence, after=wait)


def _answered_at(date: str | None) -> datetime | None:
    """Return when the server answered, by its own clock, which its Retry-After uses."""
    try:
        at = email.utils.parsedate_to_datetime(date or "")
    except (TypeError, ValueError, OverflowError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a Retry-After header asks for (a number or a date), at most a day."""
    if value is None:
        return None
    try:
        seconds = float(value) if value.strip().isdigit() else _seconds_until(value, now or datetime.now(UTC))
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), _LONGEST_WAIT_SECONDS)


def _seconds_until(date: str, now: datetime) -> float:
    at = email.utils.parsedate_to_datetime(date)
    return (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()


def _host(request: urllib.request.Request) -> str:
    return urlsplit(request.full_url).netloc.rpartition("@")[2]


def _unreachable(request: urllib.request.Request, failure: Exception) -> Retryable:
    reason = failure.reason if isinstance(failure, urllib.error.URLError) else failure
    if isinstance(reason, TimeoutError):
        return Retryable("http_timeout", f"{_host(request)} did not answer in time.")
    return Retryable("http_unreachable", f"{_host(request)} cannot be reached: {reason}.")
