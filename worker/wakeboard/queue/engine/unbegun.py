"""The list of claimed attempts that have not begun. It lets runs with a single try be claimed ahead.

A claim lists them, and the child strikes an attempt off before it begins. The reaper strikes off what it
takes from a worker that is gone: if the attempt was still listed, no handler has seen the run. Of two
processes that strike off the same attempt, one succeeds.

The table is unlogged, so that to strike off waits for no disk. A server that crashes and a standby that takes
over lose the whole list, never a part of it: an attempt that is not listed counts as begun.
"""

from __future__ import annotations

from functools import cache


@cache
def claim_and_list(claim: str, parameter: int) -> str:
    """Return ``claim`` (a statement of ``claims``) as one that also lists the attempts of some types.

    ``parameter``: the number of the parameter that names these types, text[].
    """
    return f"""
WITH claimed AS ({claim}), listed AS (
    INSERT INTO wakeboard.unbegun_attempts (run_id, lease_epoch)
    SELECT id, lease_epoch FROM claimed WHERE job_type = ANY (${parameter:d}::text[])
)
SELECT * FROM claimed"""


# Sent by the child before it begins; it may begin when a row was removed. $1 run, $2 epoch.
STRIKE_OFF = "DELETE FROM wakeboard.unbegun_attempts WHERE run_id = $1 AND lease_epoch = $2"

# That the attempt of a run r is not listed.
MAY_HAVE_BEGUN = """NOT EXISTS (
            SELECT FROM wakeboard.unbegun_attempts AS u
            WHERE u.run_id = r.id AND u.lease_epoch = r.lease_epoch
        )"""

# Removes what was released before it began, or was listed by a claim whose answer was lost.
REMOVE_ENDED = """
DELETE FROM wakeboard.unbegun_attempts AS u WHERE NOT EXISTS (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.id = u.run_id AND r.lease_epoch = u.lease_epoch AND r.status = 'running'
)
"""
