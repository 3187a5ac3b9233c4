"""What a pool says when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.handlers.pool.future import Ticket
from wakeboard.handlers.pool.metrics import Running


@dataclass(frozen=True, slots=True)
class Report:
    """How a pool ended: `finished` counts the jobs that came to an end of their own after `stop()`, `dropped`
    are those that did not and can be submitted again, `handed_off` counts those that went to the table,
    `still_running` are handlers that heeded no cancel and that the end of the process will cut."""

    finished: int
    dropped: tuple[Ticket, ...]
    handed_off: int
    still_running: tuple[Running, ...]

    @property
    def is_clean(self) -> bool:
        """Whether no job was lost and no handler was left behind."""
        return not self.dropped and not self.still_running
