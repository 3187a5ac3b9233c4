"""What a handler's return or exception means: (returned | raised) → AttemptResult. Pure: no clock, no
process, no database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from wakeboard.core.errors.exceptions import (
    MESSAGE_CHARACTERS,
    call_or_none,
    code_of,
    leaf_exceptions,
    message_of,
    name_of,
    representative_of,
    traceback_of,
)
from wakeboard.core.process.exits import code_of_exit, is_exit, is_success, message_of_exit
from wakeboard.core.text.plain_json import explain_json_error, plain, result_text
from wakeboard.core.text.sanitize import clean_text
from wakeboard.core.time.durations import LONGEST_SECONDS, parse_duration

RESULT_BYTES = 8_192
OUTPUT_BYTES = 8_192

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
    """Raise it to be tried again by the type's backoff, and not before `after` has passed: seconds, a
    timedelta, or text such as "5m". None, or what is below 0 or over ten years: the backoff alone decides.
    TypeError or ValueError, in a sentence, for what is no duration."""

    def __init__(self, code: str, message: str = "", after: float | timedelta | str | None = None) -> None:
        super().__init__(message or code)
        self.error_code = code
        self.after = None if after is None else _seconds_of(after)


def _seconds_of(after: object) -> float:
    """Return `after` in seconds: what is no duration must not become a retry that comes too early."""
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
class AttemptResult:
    """How one attempt ended. Texts are cut and safe for a screen; `result` is JSON text or None.

    `unbegun`: the handler did not begin, so that it is no attempt; a message says what stood in the way.
    `committed`: the handler's own `transaction()` has finished the run already; the rest is for the log only.
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


PLAIN: dict[str, AttemptResult] = {kind: AttemptResult(kind) for kind in KINDS}

# In order of precedence: a person's cancel, then the deadline that may have passed as well.
_STOPS: tuple[tuple[Kind, type[BaseException]], ...] = (
    ("cancelled", Cancelled),
    ("timed_out", DeadlineExceeded),
)
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def result_of_return(value: object) -> AttemptResult:
    """Return the result of a handler that returned `value`: its JSON text when it has such a form
    (`wakeboard.core.text.plain_json`) and is short, else a note that says why not."""
    if value is None:
        return PLAIN["returned"]
    result, note = _json_text(value)
    return AttemptResult("returned", result=result, note=note)


def result_of_exception(
    exception: BaseException, permanent_types: tuple[type[BaseException], ...] = ()
) -> AttemptResult:
    """Return the result of a handler that raised. `permanent_types` are the exceptions that the job type does
    not try again.

    `sys.exit()` with 0 or nothing is a success. Of a group the first exception counts, unless one in it says
    that the run was stopped.
    """
    parts = [part for part in leaf_exceptions(exception) if not is_success(part)]
    if not parts:
        return PLAIN["returned"]
    for kind, stop in _STOPS:
        for part in parts:
            if issubclass(type(part), stop):
                return AttemptResult(kind, kind, message_of(part), traceback=traceback_of(exception))
    representative = exception if representative_of(exception) is exception else parts[0]
    delays = [seconds for part in parts if (seconds := _retry_after(part)) is not None]
    return AttemptResult(
        "raised",
        error_code=code_of_exit(representative) if is_exit(representative) else code_of(representative),
        message=_message_of(representative, 0 if representative is exception else len(parts) - 1),
        permanent=_are_permanent(exception, parts, permanent_types),
        retry_after_seconds=max(delays, default=None),
        traceback=traceback_of(exception),
    )


def _message_of(exception: BaseException, others: int) -> str:
    """Return the sentence of ``exception``, and how many failed beside it."""
    message = message_of_exit(exception) if is_exit(exception) else message_of(exception)
    if not others:
        return message
    more = f" (and {others:,} more)"
    return message[: MESSAGE_CHARACTERS - len(more)] + more


def _json_text(value: object) -> tuple[str | None, str | None]:
    try:
        text = result_text(value)
        size = len(text.encode("utf-8"))
    except BaseException as error:
        fallback = f"{name_of(error)}: {message_of(error, 200)}"
        why = call_or_none(lambda: explain_json_error(value, "result", fallback, plain)) or fallback
        return None, f"The result was not kept: it is not JSON ({clean_text(why, 300)})."
    if size > RESULT_BYTES:
        return None, f"The result was not kept: {size:,} bytes, and {RESULT_BYTES:,} is the most."
    if _ESCAPED_NUL.search(text):
        return None, "The result was not kept: it holds a NUL character, which PostgreSQL cannot store."
    return text, None


def _are_permanent(
    exception: BaseException,
    parts: list[BaseException],
    permanent_types: tuple[type[BaseException], ...],
) -> bool:
    """Return whether trying again is useless: all of a group must be permanent, or the group's own class.

    Of a mixed group a retry may mend some, and what is left then is permanent.
    """
    is_group_permanent = _is_permanent(exception, permanent_types)
    return is_group_permanent or all(_is_permanent(part, permanent_types) for part in parts)


def _is_permanent(exception: BaseException, permanent_types: tuple[type[BaseException], ...]) -> bool:
    if issubclass(type(exception), Permanent):
        return True
    if issubclass(type(exception), Retryable):
        return False
    return bool(call_or_none(lambda: issubclass(type(exception), permanent_types)))


def _retry_after(exception: BaseException) -> float | None:
    if not issubclass(type(exception), Retryable):
        return None
    seconds = call_or_none(lambda: float(vars(exception)["after"]))
    return None if seconds is None or not 0 <= seconds <= LONGEST_SECONDS else seconds
