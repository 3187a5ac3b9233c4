"""The result of a check of one rule: what is shown, stored and sent. Data only; ``checks`` makes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MOST_NAMES = 5
LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: ``value`` against ``limit`` in ``unit``.

    ``names`` are the job types, schedules or loops that it is about, worst first, at most MOST_NAMES. It was
    so within ``within_seconds`` before the check.
    """

    firing: bool
    sentence: str
    value: float
    limit: float
    unit: str
    names: tuple[str, ...] = ()
    within_seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the finding as ``alert_rules.found`` holds it."""
        return asdict(self) | {"names": list(self.names)}


def short_name(text: str) -> str:
    """Return a name that others chose as one short printable line."""
    line = "".join(c if c.isprintable() else "·" for c in text)
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"
