"""Times in the future that were written while the database's clock was ahead.

Such a time counts as past: at 09:00 a heartbeat of 15:00 is none. Code that compares a time with now(), to
learn whether something is fresh or still to come, takes the bound from here. The duty
``wakeboard.runtime.duties.clock`` corrects what can be written anew. Opens no connection.
"""

from __future__ import annotations

from datetime import datetime, timedelta

# Other sessions' now() is theirs, a replica's clock is its own, and NTP may set a clock back by a little.
MARGIN_SECONDS = 5
MARGIN = timedelta(seconds=MARGIN_SECONDS)
AHEAD = "The database's clock was ahead, and is right again"


def latest(seconds: str | float = 0) -> str:
    """Return the SQL of the latest time that can be right, for what lies at most ``seconds`` in the future.

    ``seconds`` is a number or SQL. It counts from the statement, not from now(): a transaction that has
    waited for a lock meets rows that are younger than itself.
    """
    longer = "" if seconds == 0 else f" + {seconds}"
    return f"statement_timestamp() + make_interval(secs => {MARGIN_SECONDS}{longer})"


def is_ahead(moment: str, seconds: str | float = 0) -> str:
    """Return the SQL that says whether ``moment`` lies further ahead than ``seconds`` allow, NULL of NULL."""
    return f"({moment} > {latest(seconds)})"


def is_since(moment: str, seconds: str | float) -> str:
    """Return the SQL that says whether ``moment`` is at most ``seconds`` ago, and not ahead."""
    return f"({moment} BETWEEN now() - make_interval(secs => {seconds}) AND {latest()})"


def is_before(moment: str, seconds: str | float) -> str:
    """Return the SQL that says whether ``moment`` is more than ``seconds`` ago, or ahead."""
    return f"({moment} < now() - make_interval(secs => {seconds}) OR {is_ahead(moment)})"


def was_ahead(moment: datetime, now: datetime) -> bool:
    """Return whether ``moment`` lies further ahead of the database's ``now`` than what has happened can."""
    return moment > now + MARGIN
