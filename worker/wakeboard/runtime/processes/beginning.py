"""What a child does before a run that has a single try: it strikes the attempt off the list of those that
have not begun (`wakeboard.queue.engine.unbegun`).

Whoever takes the run from a dead worker knows by that list whether it may be tried.
"""

from __future__ import annotations

from time import monotonic

from wakeboard.core.outcome import PLAIN, AttemptResult
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.text.sanitize import clean_text

# So long the database may take, and so long it is not asked again when it took longer.
ANSWER_SECONDS, SILENT_SECONDS = 1.0, 30.0
_silent_until = 0.0
_why = ""


def strike_off(assignment: Assignment) -> AttemptResult | None:
    """Strike an attempt off; return None when it may begin, else the answer.

    It may not when it no longer stands there: somebody has taken the run back, or the server has lost the
    list. Nor where nobody knows, because the database does not answer; then the answer says why, and for a
    while nothing is asked: what waits behind goes back at once.
    """
    global _silent_until, _why
    if monotonic() < _silent_until:
        return AttemptResult("unbegun", message=_why)
    # A process that never runs such a type needs no driver.
    import psycopg

    from wakeboard.database.db import DatabaseError
    from wakeboard.database.timed_connection import answer_timeout
    from wakeboard.queue.engine.unbegun import STRIKE_OFF
    from wakeboard.queue.handler_connection import own_connection

    try:
        with own_connection() as connection, answer_timeout(connection, ANSWER_SECONDS):
            cursor = psycopg.RawCursor(connection)
            cursor.execute(STRIKE_OFF.encode(), assignment[:2], prepare=True)
            return None if cursor.rowcount else PLAIN["unbegun"]
    except (DatabaseError, psycopg.Error) as error:
        _silent_until, _why = monotonic() + SILENT_SECONDS, clean_text(str(error), 500)
        return AttemptResult("unbegun", message=_why)
