"""Handlers that end as a program does: by ``sys.exit()``, or by ``Exit`` of click and Typer.

Exit status 0 is a success; another number, or text, is a failure. Pure.
"""

from __future__ import annotations

import sys

from wakeboard.core.errors.exceptions import call_or_none, message_of
from wakeboard.core.text.sanitize import clean_text

_CODE_CHARACTERS = 100


def is_exit(exception: BaseException) -> bool:
    """Return whether ``exception`` ends a program with a status of its own."""
    return issubclass(type(exception), SystemExit) or _is_of_click(exception)


def is_success(exception: BaseException) -> bool:
    """Return whether ``exception`` ends a program with status 0."""
    if not is_exit(exception):
        return False
    argument = _exit_argument(exception)
    return argument is None or (_is_number(argument) and argument == 0)


def status_of(exception: BaseException) -> int:
    """Return the exit status of the process: 0 to 255, and 1 for text.

    A number other than 0 whose last eight bits are 0 is a failure all the same: 255.
    """
    argument = _exit_argument(exception)
    if argument is None:
        return 0
    if not _is_number(argument):
        return 1
    number = int(argument)  # type: ignore[call-overload]
    return number & 0xFF or (255 if number else 0)


def code_of_exit(exception: BaseException) -> str:
    """Return the error code of a failed exit: ``exit_3``, as for a ``command``."""
    own = call_or_none(lambda: getattr(exception, "error_code", None))
    if isinstance(own, str) and own.strip():
        return clean_text(own, _CODE_CHARACTERS)
    return f"exit_{status_of(exception)}"


def message_of_exit(exception: BaseException) -> str:
    """Return the text passed to ``sys.exit()``, or the status in words."""
    if _is_number(_exit_argument(exception)):
        return f"exit status {status_of(exception)}"
    return message_of(exception)


def _exit_argument(exception: BaseException) -> object:
    """Return the argument of ``sys.exit()``: None, a number, or anything whose text is the message."""
    if issubclass(type(exception), SystemExit):
        return vars(SystemExit)["code"].__get__(exception)
    return call_or_none(lambda: getattr(exception, "exit_code", 1))


def _is_number(argument: object) -> bool:
    return issubclass(type(argument), int)


def _is_of_click(exception: BaseException) -> bool:
    """Whether it is click's ``Exit``, which Typer uses too. Code that raises one has loaded click."""
    kind = getattr(sys.modules.get("click.exceptions"), "Exit", None)
    return isinstance(kind, type) and issubclass(type(exception), kind)
