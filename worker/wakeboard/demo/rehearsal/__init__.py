"""The rehearsal: a hundred receipts by real workers, real mail and real signals, on a database of its own.

``scenario`` has the steps in their order. Nothing here reads settings, so that the configured database is
never reached; whatever is started or written is gone at the end.
"""

from wakeboard.demo.rehearsal.findings import RehearsalFinding, RehearsalReport
from wakeboard.demo.rehearsal.scenario import rehearse
from wakeboard.demo.rehearsal.waiter import RehearsalError

__all__ = ["RehearsalError", "RehearsalFinding", "RehearsalReport", "rehearse"]
