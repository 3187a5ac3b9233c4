"""What a look at one rule found: what is shown, stored and sent. Data only; ``questions`` looks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look found. ``value`` against ``limit`` in ``unit``; ``names`` are the types, schedules or loops
    that it is about, worst first, at most NAMED. It was so within ``within_seconds`` before the look."""

    firing: bool
    sentence: str
    value: float
    limit: float
    unit: str
    names: tuple[str, ...] = ()
    within_seconds: float | None = None

    def stored(self) -> dict[str, Any]:
        """Return it as ``alert_rules.found`` keeps it."""
        return asdict(self) | {"names": list(self.names)}


def name_of(text: str) -> str:
    """Return a foreign name as one short line."""
    line = "".join(c if c.isprintable() else "·" for c in text)
    return line if len(line) <= 60 else f"{line[:59]}…"
