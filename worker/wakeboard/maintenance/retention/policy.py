"""For how many days rows are kept. Pure: the settings and the days of single job types are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wakeboard.config.settings import Settings

# Longer than runs, so that a repeated request with an old key is still known to be done.
EFFECTS_DAYS = 400
# Rows that only tell of the past: missed fires, messages sent, ended operations, dead tokens.
HISTORY_DAYS = 90


class TypePolicy(NamedTuple):
    """What an operator decided for one job type; None is the general number of days."""

    name: str
    succeeded_days: int | None
    dead_days: int | None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Days for which ended runs and audit rows are kept; None keeps them for ever.

    ``dead_days`` is for dead and cancelled runs. ``types`` are the job types with days of their own.
    """

    succeeded_days: int | None
    dead_days: int | None
    audit_days: int | None
    types: tuple[TypePolicy, ...] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> RetentionPolicy:
        """Return what the settings say; 0 there is for ever."""
        return cls(
            settings.keep_succeeded_days or None,
            settings.keep_dead_days or None,
            settings.keep_audit_days or None,
        )

    @property
    def shortest_days(self) -> int | None:
        """The fewest days after which any ended run may go; None when none ever may."""
        return min((days for days in self._all_days() if days is not None), default=None)

    @property
    def longest_days(self) -> int | None:
        """The days after which every ended run has gone; None when some are kept for ever."""
        all_days = self._all_days()
        return None if None in all_days else max(days for days in all_days if days is not None)

    def _all_days(self) -> list[int | None]:
        of_types = [days for each in self.types for days in (each.succeeded_days, each.dead_days)]
        return [self.succeeded_days, self.dead_days, *(days for days in of_types if days is not None)]
