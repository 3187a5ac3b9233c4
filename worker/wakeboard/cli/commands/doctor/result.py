"""The result of a check of ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = ("ok", "warning", "fail")
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``mend`` says what to do when it is not ok."""

    check: str
    level: str
    says: str
    mend: str | None = None


def some_of(names: Sequence[str]) -> str:
    """Return the first of ``names``, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
