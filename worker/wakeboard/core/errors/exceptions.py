"""What an exception says of itself: its name, its message, its code, its traceback. Pure.

Handlers are strangers' code: an exception may lie in every attribute, so each look at one is guarded.
"""

from __future__ import annotations

import re
import traceback as traceback_module
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, TracebackType
from typing import TypeVar

from wakeboard.core.text.sanitize import clean_text, ends_within

MESSAGE_CHARACTERS = 2_000
CODE_CHARACTERS = 100
TRACEBACK_CHARACTERS = 32_000
TRACEBACK_BYTES = 32_768
_CHAIN_LINKS = 16
_GROUP_PARTS, _SHOWN_PARTS = 1_000, 10
_FRAMES_EACH_END = 24
# A traceback begins with the handler's own code.
_OUR_ROOMS = (
    "wakeboard.handlers.invoke", "wakeboard.runtime.processes.child", "wakeboard.handlers.pool.future",
    "wakeboard.handlers.event_loop", "contextlib", "asyncio.runners", "asyncio.base_events",
    "concurrent.futures.thread", "concurrent.futures._base",
)  # fmt: skip

# Where a frame stands: the number that Python gives its code, an instruction of that.
Place = tuple[int, int]
# The lines of the tracebacks whose places have been met, and the codes there: while these are kept, no other
# code has their numbers.
_written: dict[tuple[Place, ...], tuple[str, list[CodeType]]] = {}
_MOST_PLACES, _MOST_WRITTEN = 20, 100

_T = TypeVar("_T")


def guarded(look: Callable[[], _T]) -> _T | None:
    """Return what ``look`` finds, None when it raises."""
    try:
        return look()
    except BaseException:
        return None


def name_of(exception: BaseException) -> str:
    """Return the name of its class."""
    return guarded(lambda: clean_text(type(exception).__name__, CODE_CHARACTERS)) or "exception"


def message_of(exception: BaseException, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return its own text, of at most ``limit`` characters."""
    try:
        return clean_text(str(exception), limit)
    except BaseException as error:
        return f"(the exception's own text could not be read: {name_of(error)})"


def code_of(exception: BaseException) -> str:
    """Return its `error_code`, else the SQLSTATE or the HTTP status that it bears, else its name."""
    for look in (_own_code, _sqlstate, _http_status):
        code = guarded(partial(look, exception))
        if code:
            return code
    return name_of(exception)


def parts_of(exception: BaseException) -> list[BaseException]:
    """Return what failed: the exception itself, or the exceptions of a group, those of inner groups in their
    places. Of a group with more than a thousand the first thousand."""
    found: list[BaseException] = []
    unseen = [exception]
    looks = 0
    while unseen and looks < _GROUP_PARTS:
        looks += 1
        one = unseen.pop()
        if issubclass(type(one), BaseExceptionGroup):
            unseen.extend(reversed(_real_parts(one)))
        else:
            found.append(one)
    return found or [exception]


def _real_parts(group: BaseException) -> tuple[BaseException, ...]:
    """Past a class that answers `exceptions` itself."""
    parts: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    return parts


def speaker_of(exception: BaseException) -> BaseException:
    """Return the exception whose code, message and traceback stand for ``exception``: of a group the first
    one in it, unless the group's class has an `error_code` of its own."""
    if not issubclass(type(exception), BaseExceptionGroup):
        return exception
    own_code = guarded(partial(_own_code, exception))
    return exception if own_code is not None else parts_of(exception)[0]


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
    response = getattr(exception, "response", None)
    for bearer, name in ((exception, "status_code"), (exception, "code"), (response, "status_code")):
        status = getattr(bearer, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return f"http_{int(status)}"
    return None


def traceback_of(exception: BaseException) -> str:
    """Return the text of its traceback and its causes', both ends of what is long."""
    return guarded(lambda: _traceback(exception)) or "(the traceback could not be read)"


def _traceback(exception: BaseException) -> str:
    parts = [_one_traceback(link, joint) for link, joint in _chain(exception)]
    text = clean_text("".join(reversed(parts)).rstrip("\n"), TRACEBACK_CHARACTERS, keep="ends")
    return ends_within(text, TRACEBACK_BYTES)


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


def _one_traceback(exception: BaseException, joint: str, *, is_inner: bool = False) -> str:
    frames = guarded(lambda: _frames(exception.__traceback__)) or ""
    text = f"{frames}{name_of(exception)}: {message_of(exception)}\n"
    if issubclass(type(exception), BaseExceptionGroup):
        text += guarded(lambda: _of_parts(exception, is_inner=is_inner)) or ""
    return text + joint


def _of_parts(group: BaseException, *, is_inner: bool) -> str:
    """The lines below a group: each exception in it, then the whole traceback of the first. No traceback
    within another one: a group may be the cause of what it holds."""
    parts = parts_of(group)
    text = "".join(f"  + {name_of(part)}: {message_of(part, 300)}\n" for part in parts[:_SHOWN_PARTS])
    if is_inner or parts[0] is group:
        return text
    links = [_one_traceback(link, joint, is_inner=True) for link, joint in _chain(parts[0])]
    first = "".join(reversed(links))
    return f"{text}\nThe first of them:\n\n{first}"


def _frames(trace: TracebackType | None) -> str:
    """The lines of a traceback. What fails by the thousand fails in the same place, and is written once."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OUR_ROOMS:
        trace = trace.tb_next
    if trace is None:
        return ""
    # A code's own hash would read all of it.
    codes: list[CodeType] = []
    places: list[Place] = []
    step: TracebackType | None = trace
    while step is not None and len(codes) < _MOST_PLACES:
        code = step.tb_frame.f_code
        codes.append(code)
        places.append((id(code), step.tb_lasti))
        step = step.tb_next
    if step is not None:
        return _lines(trace)
    written = _written.get(tuple(places))
    if written is None:
        if len(_written) >= _MOST_WRITTEN:
            _written.clear()
        written = _written[tuple(places)] = _lines(trace), codes
    return written[0]


def _lines(trace: TracebackType) -> str:
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
