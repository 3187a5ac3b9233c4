"""What a handler's return or exception means: (returned | raised) → Answer. Pure: no clock, no process, no
database.

Handlers are strangers' code: an exception may lie in every attribute, so each look at one is guarded.
"""

from __future__ import annotations

import json
import re
import traceback as traceback_module
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Literal, TypeVar

from worker.durations import LONGEST_SECONDS, parse_duration

MESSAGE_CHARACTERS = 2_000
CODE_CHARACTERS = 100
TRACEBACK_CHARACTERS = 32_000
TRACEBACK_BYTES = 32_768
RESULT_BYTES = 8_192
OUTPUT_BYTES = 8_192
_CHAIN_LINKS = 16
_FRAMES_EACH_END = 24
# A traceback begins with the handler's own code.
_OUR_ROOMS = ("worker.invoke", "worker.processes.child", "worker.pool.handling", "contextlib")

_T = TypeVar("_T")
Kind = Literal["returned", "raised", "timed_out", "cancelled", "unbegun", "crashed", "committed"]
KINDS: tuple[Kind, ...] = (
    "returned", "raised", "timed_out", "cancelled", "unbegun", "crashed", "committed",
)  # fmt: skip


class Permanent(Exception):
    """Raise it when trying again cannot help: the run is dead at once.

    `code` is the short text that groups such failures (`card_declined`), `message` the sentence an operator
    reads.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.error_code = code


class Retryable(Exception):
    """Raise it to be tried again, not before `after` has passed: seconds, a timedelta, or text such as "5m".
    None, or what is below 0 or over ten years: the type's own backoff decides. TypeError or ValueError, in a
    sentence, for what is no duration."""

    def __init__(self, code: str, message: str = "", after: float | timedelta | str | None = None) -> None:
        super().__init__(message or code)
        self.error_code = code
        self.after = None if after is None else _seconds_of(after)


def _seconds_of(after: object) -> float:
    """`after` in seconds: what is no duration must not become a retry that comes too early."""
    if isinstance(after, timedelta):
        return after.total_seconds()
    if isinstance(after, str):
        return parse_duration(after)
    if isinstance(after, bool) or not isinstance(after, int | float):
        raise TypeError(
            f"Retryable: after={after!r} is not a duration; write seconds (300), a timedelta or text ('5m')."
        )
    return after


class Cancelled(BaseException):
    """An operator asked this run to stop. Not an `Exception`, so that `except Exception` does not swallow
    it."""


class DeadlineExceeded(BaseException):
    """The run has used up its timeout. Not an `Exception`, so that `except Exception` does not swallow it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one attempt ended. Texts are cut and safe for a screen; `result` is JSON text or None.

    `unbegun`: cancelled before the handler began, which makes it no attempt. `committed`: the handler's own
    `transaction()` has finished the run already; the rest is for the log only.
    """

    kind: Kind
    error_code: str | None = None
    message: str | None = None
    permanent: bool = False
    retry_after_seconds: float | None = None
    traceback: str | None = None
    result: str | None = None
    output_tail: str | None = None
    note: str | None = None


PLAIN: dict[str, Answer] = {kind: Answer(kind) for kind in KINDS}

# Controls but tab and newline, lone surrogates, and the marks that reverse the direction of text on a screen.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def clean_text(text: str, limit: int, *, keep: Literal["head", "ends", "tail"] = "head") -> str:
    """`text` of at most `limit` characters, every character that a screen or PostgreSQL cannot hold replaced
    by U+FFFD.

    `keep` says which part of a longer text stays; the gap is marked.
    """
    length = str.__len__(text)
    if length <= limit:
        return _UNSAFE.sub("\ufffd", str.__str__(text))
    if keep == "head":
        return _UNSAFE.sub("\ufffd", str.__getitem__(text, slice(0, limit - 1))) + "…"
    if keep == "tail":
        return "…" + _UNSAFE.sub("\ufffd", str.__getitem__(text, slice(length - limit + 1, length)))
    gap = f"\n… {length - limit} characters left out …\n"
    half = max((limit - len(gap)) // 2, 0)
    head, tail = str.__getitem__(text, slice(0, half)), str.__getitem__(text, slice(length - half, length))
    return _UNSAFE.sub("\ufffd", head) + gap + _UNSAFE.sub("\ufffd", tail)


def answer_for_return(value: object) -> Answer:
    """The answer for a handler that returned `value`: kept as JSON text when it is JSON and short, else
    noted."""
    if value is None:
        return PLAIN["returned"]
    result, note = _json_text(value)
    return Answer("returned", result=result, note=note)


def answer_for_exception(
    exception: BaseException, permanent_types: tuple[type[BaseException], ...] = ()
) -> Answer:
    """The answer for a handler that raised. `permanent_types` are the type's exceptions that trying again
    cannot mend."""
    kind: Kind = "raised"
    if issubclass(type(exception), Cancelled):
        kind = "cancelled"
    elif issubclass(type(exception), DeadlineExceeded):
        kind = "timed_out"
    return Answer(
        kind,
        error_code=_error_code(exception, kind),
        message=_message(exception),
        permanent=_is_permanent(exception, permanent_types),
        retry_after_seconds=_retry_after(exception),
        traceback=_guarded(lambda: _traceback(exception)) or "(the traceback could not be read)",
    )


def _guarded(look: Callable[[], _T]) -> _T | None:
    try:
        return look()
    except BaseException:
        return None


def _json_text(value: object) -> tuple[str | None, str | None]:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode("utf-8"))
    except BaseException as error:
        return None, f"The result was not kept: it is not JSON ({_name(error)}: {_message(error, 200)})."
    if size > RESULT_BYTES:
        return None, f"The result was not kept: {size:,} bytes, and {RESULT_BYTES:,} is the most."
    if _ESCAPED_NUL.search(text):
        return None, "The result was not kept: it holds a NUL character, which PostgreSQL cannot store."
    return text, None


def _name(exception: BaseException) -> str:
    return _guarded(lambda: clean_text(type(exception).__name__, CODE_CHARACTERS)) or "exception"


def _message(exception: BaseException, limit: int = MESSAGE_CHARACTERS) -> str:
    try:
        return clean_text(str(exception), limit)
    except BaseException as error:
        return f"(the exception's own text could not be read: {_name(error)})"


def _error_code(exception: BaseException, kind: Kind) -> str:
    if kind != "raised":
        return kind
    for look in (_own_code, _sqlstate, _http_status):
        code = _guarded(partial(look, exception))
        if code:
            return code
    return _name(exception)


def _own_code(exception: BaseException) -> str | None:
    code = getattr(exception, "error_code", None)
    if isinstance(code, bool) or not isinstance(code, str | int):
        return None
    return clean_text(f"{code}", CODE_CHARACTERS).strip() or None


def _sqlstate(exception: BaseException) -> str | None:
    for bearer in (exception, getattr(exception, "orig", None)):
        code = getattr(bearer, "sqlstate", None)
        if isinstance(code, str) and re.fullmatch("[0-9A-Z]{5}", code):
            return str(code)
    return None


def _http_status(exception: BaseException) -> str | None:
    if isinstance(exception, SystemExit):
        return None
    response = getattr(exception, "response", None)
    for bearer, name in ((exception, "status_code"), (exception, "code"), (response, "status_code")):
        status = getattr(bearer, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return f"http_{int(status)}"
    return None


def _is_permanent(exception: BaseException, permanent_types: tuple[type[BaseException], ...]) -> bool:
    if issubclass(type(exception), Permanent):
        return True
    if issubclass(type(exception), Retryable):
        return False
    return bool(_guarded(lambda: issubclass(type(exception), permanent_types)))


def _retry_after(exception: BaseException) -> float | None:
    if not issubclass(type(exception), Retryable):
        return None
    seconds = _guarded(lambda: float(vars(exception)["after"]))
    return None if seconds is None or not 0 <= seconds <= LONGEST_SECONDS else seconds


def _traceback(exception: BaseException) -> str:
    parts = [_one_traceback(link, joint) for link, joint in _chain(exception)]
    text = clean_text("".join(reversed(parts)).rstrip("\n"), TRACEBACK_CHARACTERS, keep="ends")
    return _ends_within(text, TRACEBACK_BYTES)


def _ends_within(text: str, limit: int) -> str:
    """Both ends of `text`, of at most `limit` bytes together with the mark between them."""
    encoded = text.encode("utf-8")
    if len(encoded) <= limit:
        return text
    gap = "\n… the middle is left out …\n"
    half = (limit - len(gap.encode("utf-8"))) // 2
    return encoded[:half].decode("utf-8", "ignore") + gap + encoded[-half:].decode("utf-8", "ignore")


def _chain(exception: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The exception and its causes, newest first, each with the line that leads on to the newer one."""
    seen: set[int] = set()
    link: BaseException | None = exception
    joint = ""
    while link is not None and id(link) not in seen and len(seen) < _CHAIN_LINKS:
        seen.add(id(link))
        yield link, joint
        cause = _real_cause(link)
        if cause is not None:
            link, joint = cause, "\nThe above exception was the direct cause of the following exception:\n\n"
        elif not link.__suppress_context__:
            link, joint = (
                link.__context__,
                "\nDuring handling of the above exception, another exception occurred:\n\n",
            )
        else:
            link = None


def _real_cause(exception: BaseException) -> BaseException | None:
    """Past a class that answers `__cause__` itself."""
    cause: BaseException | None = vars(BaseException)["__cause__"].__get__(exception)
    return cause


def _one_traceback(exception: BaseException, joint: str) -> str:
    frames = _guarded(lambda: _frames(exception.__traceback__)) or ""
    text = f"{frames}{_name(exception)}: {_message(exception)}\n"
    parts = _guarded(lambda: exception.exceptions) if isinstance(exception, BaseExceptionGroup) else ()
    for part in (parts or ())[:10]:
        text += f"  + {_name(part)}: {_message(part, 300)}\n"
    return text + joint


def _frames(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OUR_ROOMS:
        trace = trace.tb_next
    if trace is None:
        return ""
    ends = _FRAMES_EACH_END
    first = traceback_module.extract_tb(trace, limit=ends)
    lines = ["Traceback (most recent call last):\n", *first.format()]
    skipped = sum(1 for _ in traceback_module.walk_tb(trace)) - 2 * ends
    if skipped > 0:
        lines.append(f"  … {skipped} frames left out …\n")
    if skipped > -ends:
        last = traceback_module.extract_tb(trace, limit=-min(ends, ends + skipped))
        lines += last.format()
    return "".join(lines)
