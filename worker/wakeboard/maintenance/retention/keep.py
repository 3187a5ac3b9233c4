"""For how many days things are kept. Pure; the settings and the types' own days come from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wakeboard.config.settings import Settings

# Longer than runs, so that a repeated request with an old key is still known to be done.
EFFECTS_DAYS = 400
# What tells of the past and nothing else reads: missed fires, messages sent, ended operations, dead tokens.
TRACES_DAYS = 90


class OfType(NamedTuple):
    """What an operator decided for one type; None is the general number of days."""

    name: str
    succeeded_days: int | None
    dead_days: int | None


@dataclass(frozen=True, slots=True)
class Keep:
    """Days for which ended runs and audit rows are kept; None keeps them for ever.

    ``dead_days`` is for dead and cancelled runs. ``of_types`` are the types for which an operator wants
    something else.
    """

    succeeded_days: int | None
    dead_days: int | None
    audit_days: int | None
    of_types: tuple[OfType, ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Keep:
        """Return what the settings say; 0 there is for ever."""
        return cls(
            settings.keep_succeeded_days or None,
            settings.keep_dead_days or None,
            settings.keep_audit_days or None,
        )

    def with_types(self, of_types: Sequence[OfType]) -> Keep:
        """Return the same with the types' own days."""
        return Keep(self.succeeded_days, self.dead_days, self.audit_days, tuple(of_types))

    @property
    def shortest_days(self) -> int | None:
        """The fewest days after which any ended run may go; None when none ever may."""
        return min((days for days in self._all() if days is not None), default=None)

    @property
    def longest_days(self) -> int | None:
        """The days after which every ended run has gone; None when some are kept for ever."""
        found = self._all()
        return None if None in found else max(days for days in found if days is not None)

    def _all(self) -> list[int | None]:
        own = [days for each in self.of_types for days in (each.succeeded_days, each.dead_days)]
        return [self.succeeded_days, self.dead_days, *(days for days in own if days is not None)]
