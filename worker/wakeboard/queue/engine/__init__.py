"""The worker's moves: claim, renew, succeed, fail, release, reap. One guarded statement each.

``claims`` starts attempts, ``fence`` renews leases, ``endings`` records how attempts ended, ``reaping`` takes
runs from workers that are gone, ``unbegun`` lists claimed attempts that have not begun. ``fence`` and
``attempts`` have the parts that these statements share. ``wakeboard.database.db.PLANNING`` has the settings
of the sessions for which they are written.

Every statement names ``id``, ``lease_epoch``, ``locked_by`` and ``status = 'running'``, the last one
written so that no index but the primary key fits (a plain comparison made the planner walk a status
index: five times the cost at batch 500). A row that another transaction has locked is skipped, never waited
for, so one locked row cannot stop a batch; ``RUN_STATES`` reads the rows that are missing from the answer.

Placeholders are PostgreSQL's own (``$1``): the supervisor sends these texts through libpq, tests and
the command line through ``psycopg.RawCursor``. Arrays run parallel, one entry per run; an array of NULLs
alone may be empty.
"""
