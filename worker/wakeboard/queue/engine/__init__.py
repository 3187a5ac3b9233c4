"""The worker's moves: claim, renew, succeed, fail, release, reap. One guarded statement each.

``claims`` starts attempts, ``fence`` renews leases, ``endings`` says how attempts ended, ``reaping`` takes
them from workers that have gone. ``fence`` and ``attempts`` are what their statements are made of, and
``wakeboard.database.db.PLANNING`` has the settings of the sessions that they are written for.

Every statement names ``id``, ``lease_epoch``, ``locked_by`` and ``status = 'running'``, the last one
written so that no index but the primary key fits (a plain comparison made the planner walk a status
index: five times the cost at batch 500). A row that somebody else holds for a moment is skipped, never
waited for, so one locked row cannot stop a batch; whoever is missing from the answer asks ``STANDING``.

Placeholders are PostgreSQL's own (``$1``): the supervisor sends these texts through libpq, tests and
the command line through ``psycopg.RawCursor``. Arrays run parallel, one entry per run; one that would hold
nothing but NULL may be empty.
"""
