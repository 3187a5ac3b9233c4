"""What waits in a pool: ready jobs in their order, those that their type's limit holds back, and those that
are due later. Plain memory without a lock or a clock: the board has both.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict

from wakeboard.handlers.pool.future import Ticket


class Waiting:
    """The waiting jobs. `len()` counts all of them; a job that waits for its time holds no thread."""

    def __init__(self) -> None:
        self._ready: OrderedDict[int, Ticket] = OrderedDict()
        self._held: dict[str, OrderedDict[int, Ticket]] = {}
        self._later: list[tuple[int, int, Ticket]] = []
        self._busy: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.ready + len(self._later)

    @property
    def ready(self) -> int:
        """How many could start now, were there a thread and room under their type's limit."""
        return len(self._ready) + sum(map(len, self._held.values()))

    @property
    def later(self) -> int:
        """How many wait for their time, retries above all."""
        return len(self._later)

    def next_due_ns(self) -> int | None:
        """When the next of those that wait for their time is due."""
        return self._later[0][0] if self._later else None

    def add(self, ticket: Ticket) -> None:
        """Put a job at the end of the line."""
        self._ready[ticket.id] = ticket

    def add_later(self, ticket: Ticket) -> None:
        """Keep a job aside until its `due_ns`."""
        heapq.heappush(self._later, (ticket.due_ns, ticket.id, ticket))

    def wake(self, now_ns: int) -> int:
        """Put what is due by now in line; returns how many."""
        count = 0
        while self._later and self._later[0][0] <= now_ns:
            self.add(heapq.heappop(self._later)[2])
            count += 1
        return count

    def take(self) -> Ticket | None:
        """Take the first ready job whose type has room under its `max_running`."""
        while self._ready:
            _, ticket = self._ready.popitem(last=False)
            limit = ticket.type.max_running
            if limit is None:
                return ticket
            if self._busy[ticket.job_type] < limit:
                self._busy[ticket.job_type] += 1
                return ticket
            self._held.setdefault(ticket.job_type, OrderedDict())[ticket.id] = ticket
        return None

    def free(self, ticket: Ticket) -> bool:
        """A handler has returned: its room under the type's limit is free. Returns whether one moves up."""
        if ticket.type.max_running is None:
            return False
        self._busy[ticket.job_type] -= 1
        held = self._held.get(ticket.job_type)
        if not held:
            return False
        id_, first = held.popitem(last=False)
        self._ready[id_] = first
        self._ready.move_to_end(id_, last=False)
        return True

    def remove(self, ticket: Ticket) -> bool:
        """Take one particular job out; False when it does not wait."""
        for line in (self._ready, self._held.get(ticket.job_type)):
            if line is not None and ticket.id in line:
                del line[ticket.id]
                return True
        before = len(self._later)
        self._later = [entry for entry in self._later if entry[1] != ticket.id]
        heapq.heapify(self._later)
        return len(self._later) < before

    def clear(self) -> list[Ticket]:
        """Take everything out, in the order in which it would have come up."""
        held = [ticket for line in self._held.values() for ticket in line.values()]
        later = [entry[2] for entry in sorted(self._later)]
        everything = sorted([*held, *self._ready.values()], key=lambda ticket: ticket.id) + later
        self._ready.clear()
        self._held.clear()
        self._later.clear()
        return everything
