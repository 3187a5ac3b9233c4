"""What one check of ``doctor`` found. Data only."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("ok", "warning", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``mend`` says what to do when it is not ok."""

    check: str
    level: str
    says: str
    mend: str | None = None
