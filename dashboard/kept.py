"""What a process keeps from one request to the next of what cannot change any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from flask import current_app

from dashboard.connection import reading
from dashboard.replica import late_seconds

Kept = TypeVar("Kept")


def kept(name: str, make: Callable[[], Kept]) -> Kept:
    """Return what is kept under ``name``, of ``make()`` at first; a passing one for who reads a late replica.

    Such a replica may not have all that ended a while ago yet: it would leave holes for those who read later.
    """
    reading()
    if late_seconds() is not None:
        return make()
    return cast(Kept, current_app.extensions.setdefault(name, make()))
