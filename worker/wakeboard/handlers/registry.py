"""What a job type is, and which ones this process knows. It runs nothing and opens nothing."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from wakeboard.core import job_options
from wakeboard.core.builtin_payloads import USER_PREFIX
from wakeboard.core.retry import DEFAULT_BACKOFF

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class JobType:
    """One kind of work: the function that does it and the policy its author chose. Durations in seconds."""

    name: str
    function: Callable[..., Any]
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

    def policy(self) -> dict[str, Any]:
        """Everything but the function, in JSON's types; exceptions by name."""
        return {
            "name": self.name,
            "max_attempts": self.max_attempts,
            "timeout_seconds": self.timeout_seconds,
            "backoff": self.backoff,
            "permanent": [exception.__name__ for exception in self.permanent],
            "max_running": self.max_running,
            "lease_seconds": self.lease_seconds,
            "memory_mb": self.memory_mb,
            "schedule": self.schedule,
            "timezone": self.timezone,
            "fresh": self.fresh,
        }


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
) -> Callable[[_Function], _Function]:
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

    def register(function: _Function) -> _Function:
        _check_function(name, function)
        _add(JobType(name, function, **policy))
        return function

    return register


def add_builtin(job_type: JobType) -> None:
    """Register a type of our own, whose name authors cannot take."""
    _add(job_type)


def type_of(handler: str | JobType | Callable[..., Any]) -> JobType:
    """Return the job type that `handler` (its name, or the decorated function itself) was registered as.

    A JobType is its own answer, registered or not. LookupError, in a sentence, when this process knows none.
    """
    if isinstance(handler, JobType):
        return handler
    if isinstance(handler, str):
        found = JOB_TYPES.get(handler)
        if found is not None:
            return found
        known = ", ".join(sorted(JOB_TYPES)) or "none"
        raise LookupError(
            f"No handler is registered for {handler!r}; known: {known}. Import its module first."
        )
    for found in JOB_TYPES.values():
        if found.function is handler:
            return found
    raise LookupError(
        f"{_place(handler)} is not a handler; decorate it, for example with @job('send_invoice')."
    )


def load_app(module: str | None) -> int:
    """Import the built-in handlers, then the handlers in `module` (None: none), the working folder on the
    path; return how many job types `module` added.

    Built in are also the commands of the OS users as whom this process may run them. Whatever the import
    raises goes on to the caller.
    """
    importlib.import_module("wakeboard.handlers.builtin.command").register_users()
    if module is None:
        return 0
    before = len(JOB_TYPES)
    with contextlib.suppress(OSError):  # the folder was removed
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.insert(_after_the_standard_library(), folder)
    importlib.import_module(module)
    return len(JOB_TYPES) - before


def _after_the_standard_library() -> int:
    """Where on the path the working folder goes: before all that is installed, so that its modules are found
    first, but after the standard library, whose `queue` the database driver needs beside a `queue.py`."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {f"{folder}/lib-dynload" for folder in standard}
    return max((place for place, folder in enumerate(sys.path, 1) if folder in standard), default=0)


def without_handlers(module: str) -> str:
    """Say that `module` was imported and no handler was found in it: most likely it is another module."""
    place = getattr(sys.modules[module], "__file__", None) or "a folder without __init__.py"
    return (
        f"The handlers' module {module!r} ({place}) has no handler. Decorate one with @job('its_type'), or "
        "name another module with --app or WAKEBOARD_APP."
    )


def _add(job_type: JobType) -> None:
    other = JOB_TYPES.get(job_type.name)
    if other is not None and _is_another(other.function, job_type.function):
        raise ValueError(
            f"Two handlers are called {job_type.name!r}: {_place(other.function)} and "
            f"{_place(job_type.function)}. Give one of them another name."
        )
    JOB_TYPES[job_type.name] = job_type


def _is_another(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether `new` is a handler beside `old`, and not what became of it: a module that is reloaded, or a
    notebook's cell that is run again, defines its handlers once more.

    Then `old` is no part of any code that is being run now. Defined twice in one go, both are.
    """
    if _name(old) != _name(new):
        return True
    code = _code(old)
    return code is not None and code is not _code(new) and _is_being_run(code)


def _is_being_run(code: CodeType) -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        if _holds(frame.f_code, code):
            return True
        frame = frame.f_back
    return False


def _holds(outer: CodeType, code: CodeType) -> bool:
    inner = [constant for constant in outer.co_consts if isinstance(constant, CodeType)]
    return any(each is code or _holds(each, code) for each in inner)


def _code(function: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _place(function: Callable[..., Any]) -> str:
    code = _code(function)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{_name(function)}{where}"


def _check_function(name: str, function: Callable[..., Any]) -> None:
    """Refuse what would be called and do nothing, or fail at each call."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"Job type {name!r}: {_place(function)} has a `yield`, so a call runs none of it; write a "
            "`def` or `async def` that returns."
        )
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # Code in C may not tell.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(
            f"Job type {name!r}: {_place(function)} cannot be called with a context alone ({error}); "
            "write `def f(ctx)`."
        ) from None
