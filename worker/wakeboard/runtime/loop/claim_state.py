"""What the parts of the loop tell the claimer: that there may be work, or that nothing can run for now."""

from __future__ import annotations

from time import monotonic

NEVER = -1


class ClaimState:
    """Whether the next claim is wanted, may be sent, and would be of use. Only the loop's thread calls it."""

    def __init__(self, *, is_tick: bool = False) -> None:
        """``is_tick``: the worker ends when nothing is left, so it looks again after each run that ends."""
        self._is_tick = is_tick
        # Whether somebody said that there may be work.
        self.is_hungry = True
        # The round of the duties after which a claim came back empty, NEVER when something has ended since.
        self.empty_since_round = NEVER
        # Why claims cannot be made, and why what is claimed could not run.
        self.error: str | None = None
        self.hindrance: str | None = None
        self._hindered_at = 0.0
        self.not_before = 0.0

    def wake(self) -> None:
        """Somebody said that there may be work."""
        self.is_hungry = True

    def run_ended(self, *, makes_room: bool) -> None:
        """A run is written. A drained table must be looked at once more; room under a limit may be filled."""
        self.empty_since_round = NEVER
        self.is_hungry = self.is_hungry or makes_room or self._is_tick

    def pause(self, seconds: float) -> None:
        """Claim nothing for a while."""
        self.not_before = max(self.not_before, monotonic() + seconds)

    def hinder(self, why: str, seconds: float) -> None:
        """Claim nothing for ``seconds``: what is claimed cannot run. Until ``unhinder`` no claim counts as a
        success."""
        if self.hindrance is None:
            self._hindered_at = monotonic()
        self.hindrance = why
        self.pause(seconds)

    def unhinder(self) -> None:
        """What is claimed can run again."""
        self.hindrance, self.not_before = None, 0.0

    @property
    def hindered_seconds(self) -> float:
        """For how long nothing that was claimed could run, 0 when it can."""
        return 0.0 if self.hindrance is None else monotonic() - self._hindered_at
