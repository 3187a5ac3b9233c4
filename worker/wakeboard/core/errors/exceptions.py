"""The name, message, code and traceback of an exception. Pure.

Handlers are other people's code: every attribute of an exception may raise or lie, so each read is guarded.
"""

from __future__ import annotations

import re
import traceback as traceback_module
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, TracebackType
from typing import TypeVar

from wakeboard.core.text.sanitize import clean_text, cut_middle

MESSAGE_CHARACTERS = 2_000
CODE_CHARACTERS = 100
TRACEBACK_CHARACTERS = 32_000
TRACEBACK_BYTES = 32_768
_CHAIN_LINKS = 16
_GROUP_PARTS, _SHOWN_PARTS = 1_000, 10
_FRAMES_EACH_END = 24
# Their frames are left out at the head of a traceback, which begins with the handler's own code.
_CALLING_MODULES = (
    "wakeboard.handlers.invoke", "wakeboard.runtime.processes.child", "wakeboard.handlers.pool.future",
    "wakeboard.handlers.event_loop", "contextlib", "asyncio.runners", "asyncio.base_events",
    "concurrent.futures.thread", "concurrent.futures._base",
)  # fmt: skip

# The position of a frame: the id of its code object, and the index of an instruction in it.
Position = tuple[int, int]
# The lines of recent tracebacks by their positions, with the code objects: while these are referenced, no
# other code has their ids.
_lines_cache: dict[tuple[Position, ...], tuple[str, list[CodeType]]] = {}
_MOST_POSITIONS, _MOST_CACHED = 20, 100

_T = TypeVar("_T")


def call_or_none(read: Callable[[], _T]) -> _T | None:
    """Return what ``read`` returns, None when it raises."""
    try:
        return read()
    except BaseException:
        return None


def name_of(exception: BaseException) -> str:
    """Return the name of its class."""
    return call_or_none(lambda: clean_text(type(exception).__name__, CODE_CHARACTERS)) or "exception"


def message_of(exception: BaseException, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return its own text, of at most ``limit`` characters."""
    try:
        return clean_text(str(exception), limit)
    except BaseException as error:
        return f"(the exception's own text could not be read: {name_of(error)})"


def code_of(exception: BaseException) -> str:
    """Return its `error_code`, else the SQLSTATE or the HTTP status that it bears, else its name."""
    for read in (_own_code, _sqlstate, _http_status):
        code = call_or_none(partial(read, exception))
        if code:
            return code
    return name_of(exception)


def leaf_exceptions(exception: BaseException) -> list[BaseException]:
    """Return what failed: the exception itself, or the exceptions of a group, those of inner groups in their
    places. Of a group with more than a thousand the first thousand."""
    leaves: list[BaseException] = []
    stack = [exception]
    visited = 0
    while stack and visited < _GROUP_PARTS:
        visited += 1
        node = stack.pop()
        if issubclass(type(node), BaseExceptionGroup):
            # Read from the base class: the exception's own class may override the attribute.
            stack.extend(reversed(vars(BaseExceptionGroup)["exceptions"].__get__(node)))
        else:
            leaves.append(node)
    return leaves or [exception]


def representative_of(exception: BaseException) -> BaseException:
    """Return the exception whose code, message and traceback stand for ``exception``: of a group the first
    one in it, unless the group's class has an `error_code` of its own."""
    if not issubclass(type(exception), BaseExceptionGroup):
        return exception
    own_code = call_or_none(partial(_own_code, exception))
    return exception if own_code is not None else leaf_exceptions(exception)[0]


def _own_code(exception: BaseException) -> str | None:
    code = getattr(exception, "error_code", None)
    if isinstance(code, bool) or not isinstance(code, str | int):
        return None
    return clean_text(f"{code}", CODE_CHARACTERS).strip() or None


def _sqlstate(exception: BaseException) -> str | None:
    for source in (exception, getattr(exception, "orig", None)):
        code = getattr(source, "sqlstate", None)
        if isinstance(code, str) and re.fullmatch("[0-9A-Z]{5}", code):
            return str(code)
    return None


def _http_status(exception: BaseException) -> str | None:
    response = getattr(exception, "response", None)
    for source, name in ((exception, "status_code"), (exception, "code"), (response, "status_code")):
        status = getattr(source, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return f"http_{int(status)}"
    return None


def traceback_of(exception: BaseException) -> str:
    """Return the text of its traceback and its causes', both ends of what is long."""
    return call_or_none(lambda: _traceback(exception)) or "(the traceback could not be read)"


def _traceback(exception: BaseException) -> str:
    parts = [_format_link(link, transition) for link, transition in _chain(exception)]
    text = clean_text("".join(reversed(parts)).rstrip("\n"), TRACEBACK_CHARACTERS, keep="ends")
    return cut_middle(text, TRACEBACK_BYTES)


def _chain(exception: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield the exception and its causes, newest first, each with the line that leads on to the newer one."""
    seen: set[int] = set()
    link: BaseException | None = exception
    transition = ""
    while link is not None and id(link) not in seen and len(seen) < _CHAIN_LINKS:
        seen.add(id(link))
        yield link, transition
        # Read from the base class: the exception's own class may override the attribute.
        cause: BaseException | None = vars(BaseException)["__cause__"].__get__(link)
        if cause is not None:
            link, transition = (
                cause,
                "\nThe above exception was the direct cause of the following exception:\n\n",
            )
        elif not link.__suppress_context__:
            link, transition = (
                link.__context__,
                "\nDuring handling of the above exception, another exception occurred:\n\n",
            )
        else:
            link = None


def _format_link(exception: BaseException, transition: str, *, is_inner: bool = False) -> str:
    """Return the traceback of one link of the chain."""
    frames = call_or_none(lambda: _frames(exception.__traceback__)) or ""
    text = f"{frames}{name_of(exception)}: {message_of(exception)}\n"
    if issubclass(type(exception), BaseExceptionGroup):
        text += call_or_none(lambda: _format_group(exception, is_inner=is_inner)) or ""
    return text + transition


def _format_group(group: BaseException, *, is_inner: bool) -> str:
    """Return the lines below a group: each exception in it, then the whole traceback of the first.

    ``is_inner``: within another traceback none is written, for a group may be the cause of what it holds.
    """
    parts = leaf_exceptions(group)
    text = "".join(f"  + {name_of(part)}: {message_of(part, 300)}\n" for part in parts[:_SHOWN_PARTS])
    if is_inner or parts[0] is group:
        return text
    links = [_format_link(link, transition, is_inner=True) for link, transition in _chain(parts[0])]
    first = "".join(reversed(links))
    return f"{text}\nThe first of them:\n\n{first}"


def _frames(trace: TracebackType | None) -> str:
    """Return the lines of a traceback. What fails by the thousand fails in one place: they are cached."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _CALLING_MODULES:
        trace = trace.tb_next
    if trace is None:
        return ""
    # By id: the hash of a code object reads all of it.
    codes: list[CodeType] = []
    positions: list[Position] = []
    step: TracebackType | None = trace
    while step is not None and len(codes) < _MOST_POSITIONS:
        code = step.tb_frame.f_code
        codes.append(code)
        positions.append((id(code), step.tb_lasti))
        step = step.tb_next
    if step is not None:
        return _lines(trace)
    entry = _lines_cache.get(tuple(positions))
    if entry is None:
        if len(_lines_cache) >= _MOST_CACHED:
            _lines_cache.clear()
        entry = _lines_cache[tuple(positions)] = _lines(trace), codes
    return entry[0]


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
