"""The rehearsal: a hundred receipts by real workers, real mail and real signals, on a database of its own.

``scenario`` holds the steps in their order. Reads no settings, and so never reaches
the configured database; whatever it starts or writes is gone when it returns.
"""

from wakeboard.demo.rehearsal.findings import RehearsalFinding, RehearsalReport
from wakeboard.demo.rehearsal.scenario import rehearse
from wakeboard.demo.rehearsal.waiting import RehearsalError

__all__ = ["RehearsalError", "RehearsalFinding", "RehearsalReport", "rehearse"]
