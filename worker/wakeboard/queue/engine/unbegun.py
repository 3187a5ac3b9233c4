"""Which claimed attempts have not begun: what lets runs with a single try be claimed ahead of need.

A claim lists them, each one's process strikes it off before it begins, and whoever takes a run from a worker
that has gone strikes it off too, if it still stands there: then no handler has seen the run. Of two who
strike, one succeeds.

The table is unlogged, so that to strike off waits for no disk. A server that crashes and a standby that takes
over lose the whole list, never a part of it: what stands on no list counts as begun.
"""

from __future__ import annotations

from functools import cache


@cache
def listing(claim: str, place: int) -> str:
    """Return ``claim`` (a statement of ``claims``) as one that lists what it claims of some types.

    ``place``: the number of its parameter that names them, text[].
    """
    return f"""
WITH claimed AS ({claim}), listed AS (
    INSERT INTO wakeboard.unbegun_attempts (run_id, lease_epoch)
    SELECT id, lease_epoch FROM claimed WHERE job_type = ANY (${place:d}::text[])
)
SELECT * FROM claimed"""


# Sent by the process that is about to begin; the attempt is its own when a row was removed. $1 run, $2 epoch.
STRIKE_OFF = "DELETE FROM wakeboard.unbegun_attempts WHERE run_id = $1 AND lease_epoch = $2"

# Of a run r: that it stands on no list.
MAY_HAVE_BEGUN = """NOT EXISTS (
            SELECT FROM wakeboard.unbegun_attempts AS u
            WHERE u.run_id = r.id AND u.lease_epoch = r.lease_epoch
        )"""

# What was given back unbegun, or was listed by a claim whose answer was lost.
FORGET_ENDED = """
DELETE FROM wakeboard.unbegun_attempts AS u WHERE NOT EXISTS (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.id = u.run_id AND r.lease_epoch = u.lease_epoch AND r.status = 'running'
)
"""
