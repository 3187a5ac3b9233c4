"""What tells that retention has removed no run meanwhile. Reads only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from wakeboard.maintenance.retention.state import NAME, PROCESS_ID

Mark = tuple[Any, ...]
# Retention counts in days: of what ended less than one ago nothing is removed yet.
STAY = timedelta(days=1)

# Written with each removal, in its own transaction. Without a row nothing was removed for half a day: a new
# one stays at least as long.
_PASS = text("""
SELECT numbers ->> 'started_at', numbers ->> 'removed_runs', numbers ->> 'removed_attempts'
FROM wakeboard.loops WHERE process_id = :process_id AND name = :name
""")


def mark(connection: Connection, now: datetime) -> Mark:
    """Return what is another as soon as a run was removed, and with each hour: a row may come and go."""
    found = connection.execute(_PASS, {"process_id": PROCESS_ID, "name": NAME}).first()
    return now.replace(minute=0, second=0, microsecond=0), *(found or ())
