"""Job types, and those that this process has registered. It runs nothing and opens nothing."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from wakeboard.core import job_options
from wakeboard.core.builtin_payloads import USER_PREFIX
from wakeboard.core.retry import DEFAULT_BACKOFF

Handler = Callable[..., object]
_Handler = TypeVar("_Handler", bound=Handler)


@dataclass(frozen=True, slots=True)
class JobType:
    """One kind of work: its handler and the policy that its author chose. Durations in seconds."""

    name: str
    function: Handler
    max_attempts: int = 10
    timeout_seconds: float = 300.0
    backoff: str = DEFAULT_BACKOFF
    permanent: tuple[type[BaseException], ...] = field(default=())
    max_running: int | None = None
    lease_seconds: float | None = None
    memory_mb: int | None = None
    schedule: str | None = None
    timezone: str | None = None
    fresh: bool = False

    def policy(self) -> dict[str, object]:
        """Return everything but the function, as JSON; exceptions by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "function"}
        return values | {"permanent": [exception.__name__ for exception in self.permanent]}


JOB_TYPES: dict[str, JobType] = {}


def job(
    name: str,
    *,
    max_attempts: int = 10,
    timeout: float | str = 300,
    backoff: str = DEFAULT_BACKOFF,
    permanent: tuple[type[BaseException], ...] = (),
    max_running: int | None = None,
    lease: float | str | None = None,
    memory_mb: int | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    fresh: bool = False,
) -> Callable[[_Handler], _Handler]:
    """Register the decorated `def f(ctx)` or `async def f(ctx)` as the handler of job type `name`.

    `timeout` and `lease` are seconds or text such as "5m"; `backoff` is the retry rule; exceptions in
    `permanent` are not tried again; `max_running` bounds how many run at once over all workers; `memory_mb`
    is what one run may allocate; `schedule` is cron text, by the clock of `timezone` (a name such as
    "Europe/Paris"; None: UTC); `fresh` gives each run a process of its own, in a worker. The function stays
    callable. ValueError, in a sentence, when a value cannot be, or the function is none that can be called
    with a context and awaited or returned from.
    """
    job_options.check_name(name)
    if name.startswith(USER_PREFIX):
        raise ValueError(
            f"A job type cannot be called {name!r}: names that begin with {USER_PREFIX!r} are kept for the "
            "commands of an OS user."
        )
    policy: dict[str, Any] = {
        "max_attempts": job_options.check_count(name, "max_attempts", max_attempts),
        "timeout_seconds": job_options.check_seconds(name, "timeout", timeout),
        "backoff": job_options.check_backoff(name, backoff),
        "permanent": job_options.check_exceptions(name, permanent),
        "max_running": None
        if max_running is None
        else job_options.check_count(name, "max_running", max_running),
        "lease_seconds": None if lease is None else job_options.check_seconds(name, "lease", lease),
        "memory_mb": None if memory_mb is None else job_options.check_count(name, "memory_mb", memory_mb),
        "schedule": job_options.check_schedule(name, schedule),
        "timezone": job_options.check_schedule_zone(name, schedule, timezone),
        "fresh": job_options.check_flag(name, "fresh", fresh),
    }

    def register(function: _Handler) -> _Handler:
        _check_handler(name, function)
        _add(JobType(name, function, **policy))
        return function

    return register


def add_builtin(job_type: JobType) -> None:
    """Register a built-in type, whose name authors cannot use."""
    _add(job_type)


def type_of(handler: str | JobType | Handler) -> JobType:
    """Return the job type that `handler` (its name, or the decorated function itself) was registered as.

    A JobType is returned as it is, registered or not. Raises LookupError, in a sentence, for an unknown one.
    """
    if isinstance(handler, JobType):
        return handler
    if isinstance(handler, str):
        if (registered := JOB_TYPES.get(handler)) is not None:
            return registered
        names = ", ".join(sorted(JOB_TYPES)) or "none"
        raise LookupError(
            f"No handler is registered for {handler!r}; known: {names}. Import its module first."
        )
    for job_type in JOB_TYPES.values():
        if job_type.function is handler:
            return job_type
    raise LookupError(
        f"{_location(handler)} is not a handler; decorate it, for example with @job('send_invoice')."
    )


def load_app(module: str | None) -> int:
    """Import the built-in handlers, then those in `module` (None: none), with the working folder on the path.

    Returns how many job types `module` added. Commands of the OS users as whom this process may run them are
    built in. What the import raises goes on to the caller.
    """
    importlib.import_module("wakeboard.handlers.builtin.command").register_users()
    if module is None:
        return 0
    before = len(JOB_TYPES)
    with contextlib.suppress(OSError):  # the folder was removed
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.insert(_position_after_standard_library(), folder)
    importlib.import_module(module)
    return len(JOB_TYPES) - before


def _position_after_standard_library() -> int:
    """Return where the working folder goes on the path.

    Before installed packages, so that its modules are found first; after the standard library, because the
    database driver needs the standard `queue` also beside a `queue.py`.
    """
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{folder}/lib-dynload" for folder in standard}
    return max((position for position, folder in enumerate(sys.path, 1) if folder in standard), default=0)


def without_handlers(module: str) -> str:
    """Return the sentence that `module` was imported and has no handler: most likely it is the wrong one."""
    file = getattr(sys.modules[module], "__file__", None) or "a folder without __init__.py"
    return (
        f"The handlers' module {module!r} ({file}) has no handler. Decorate one with @job('its_type'), or "
        "name another module with --app or WAKEBOARD_APP."
    )


def _add(job_type: JobType) -> None:
    other = JOB_TYPES.get(job_type.name)
    if other is not None and _is_another_handler(other.function, job_type.function):
        raise ValueError(
            f"Two handlers are called {job_type.name!r}: {_location(other.function)} and "
            f"{_location(job_type.function)}. Give one of them another name."
        )
    JOB_TYPES[job_type.name] = job_type


def _is_another_handler(old: Handler, new: Handler) -> bool:
    """Return whether `new` is a second handler, not a new definition of `old`.

    A reloaded module, or a notebook's cell that runs again, defines its handlers anew; then no code that runs
    now contains `old`. Code that defines a name twice contains both.
    """
    if _qualified_name(old) != _qualified_name(new):
        return True
    code = _code(old)
    return code is not None and code is not _code(new) and _is_on_the_stack(code)


def _is_on_the_stack(code: CodeType) -> bool:
    """Return whether a function that is being called contains the definition of `code`."""
    frame = inspect.currentframe()
    while frame is not None:
        if _contains(frame.f_code, code):
            return True
        frame = frame.f_back
    return False


def _contains(outer: CodeType, code: CodeType) -> bool:
    inner = [constant for constant in outer.co_consts if isinstance(constant, CodeType)]
    return any(each is code or _contains(each, code) for each in inner)


def _code(function: Handler) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _qualified_name(function: Handler) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _location(function: Handler) -> str:
    code = _code(function)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{_qualified_name(function)}{where}"


def _check_handler(name: str, function: Handler) -> None:
    """Raise ValueError for a function whose call would do nothing or always fail."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"Job type {name!r}: {_location(function)} has a `yield`, so a call runs none of it; write a "
            "`def` or `async def` that returns."
        )
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # A function in C may have no signature.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(
            f"Job type {name!r}: {_location(function)} cannot be called with a context alone ({error}); "
            "write `def f(ctx)`."
        ) from None
