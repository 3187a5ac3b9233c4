"""The same past in the tables of each whose dashboard is measured, as its own code would have left it.

A past is a number of jobs that ended in the ninety days before now, of sixty names of very unequal shares,
of which a tenth failed, and QUEUED jobs that wait. What each keeps of it:

* Wakeboard: what ``benchmarks.history`` writes, the run and a row for each attempt, of which a failed run has
  ten; a few runs beside that are cancelled, running or to be tried again.
* PgQueuer: nothing of a finished job but its log, a row each for queued, picked and successful, exception or
  failed, and its statistics, a row for each name, outcome and second, both without an end. A failed job is
  gone too, but for the names with ``on_failure='hold'``, which every second one is here: those stay in its
  queue with the status failed. It does not try again by itself, so a job failed once.
* pg-boss: the job with what it was given and what it answered, until ``deleteAfterSeconds``, which is raised
  from seven days to a hundred; attempts are a number. A failed job had the three attempts of its default.
"""

from __future__ import annotations

import os
import subprocess

import psycopg

from benchmarks import ages, bench, history

DAYS, NAMES, QUEUED = 90, 60, 5_000
# What is searched for: one in 5,000 jobs was given it.
CUSTOMER = 77
_GIVEN = "jsonb_build_object('invoice_id', n, 'customer', n %% 5000, 'note', 'please send by mail')"
_MESSAGE = "'The other side answered ' || n || ' and then nothing more'"
_PAST = f"""SELECT n, now() - make_interval(secs => {DAYS * 86_400} * (1 - n / %(jobs)s::float8)) AS at,
    floor(power({NAMES}, random()))::int AS kind, n %% 10 = 7 AS is_bad
FROM generate_series(1, %(jobs)s) AS n"""
# One in the last hour for each that waits.
_WAITING = f"""SELECT n, now() - make_interval(secs => 3600 * (1 - n / {QUEUED}::float8)) AS at,
    floor(power({NAMES}, random()))::int AS kind
FROM generate_series(1, {QUEUED}) AS n"""

_OURS_WAITING = f"""INSERT INTO wakeboard.job_runs (job_type, payload, run_at, enqueued_by, created_at,
    updated_at)
SELECT 'type_' || kind, {_GIVEN}, at, 'shop', at, at FROM ({_WAITING}) AS waiting
ORDER BY n"""

_PGQUEUER = (
    f"CREATE TEMP TABLE past AS {_PAST}",
    # Every second name holds what failed.
    f"""INSERT INTO pgqueuer_log (created, job_id, status, priority, entrypoint, traceback, aggregated)
    SELECT at + after, n, status::pgqueuer_status, 0, 'type_' || kind,
        CASE WHEN status IN ('exception', 'failed') THEN jsonb_build_object(
            'job_id', n, 'timestamp', at + after, 'exception_type', 'ConnectionError',
            'exception_message', {_MESSAGE}, 'traceback',
            E'Traceback (most recent call last):\\n  File "/srv/shop/crm.py", line 71, in send\\n'
            '    answer = session.post(address, json=invoice, timeout=10)\\nConnectionError: ' || {_MESSAGE},
            'additional_context', jsonb_build_object('entrypoint', 'type_' || kind,
                'queue_manager_id', '0b6ff7d4-6b7a-4e2c-9a55-5b8f0d8e6a01')) END,
        true
    FROM past CROSS JOIN LATERAL (VALUES (1, 'queued', interval '0'), (2, 'picked', interval '8 ms'),
        (3, CASE WHEN NOT is_bad THEN 'successful' WHEN kind %% 2 = 0 THEN 'failed' ELSE 'exception' END,
            interval '1 second')) AS moves (step, status, after)
    ORDER BY n, step""",
    f"""INSERT INTO pgqueuer (id, priority, created, updated, heartbeat, execute_after, status, entrypoint,
        payload)
    SELECT n, 0, at, at + interval '1 second', at + interval '8 ms', at, 'failed', 'type_' || kind,
        convert_to({_GIVEN}::text, 'UTF8')
    FROM past WHERE is_bad AND kind %% 2 = 0 ORDER BY n""",
    "SELECT setval(pg_get_serial_sequence('pgqueuer', 'id'), %(jobs)s)",
    f"""WITH added AS (
        INSERT INTO pgqueuer (priority, created, updated, heartbeat, execute_after, status, entrypoint,
            payload)
        SELECT 0, at, at, at, at, 'queued', 'type_' || kind, convert_to({_GIVEN}::text, 'UTF8')
        FROM ({_WAITING}) AS waiting ORDER BY n RETURNING id, created, entrypoint)
    INSERT INTO pgqueuer_log (created, job_id, status, priority, entrypoint, aggregated)
    SELECT created, id, 'queued', 0, entrypoint, true FROM added ORDER BY id""",
    """INSERT INTO pgqueuer_statistics (count, created, entrypoint, priority, status)
    SELECT count(*), date_trunc('sec', created), entrypoint, priority, status FROM pgqueuer_log
    GROUP BY entrypoint, priority, status, date_trunc('sec', created) ORDER BY 2""",
)
_PGBOSS = (
    f"""INSERT INTO pgboss.job (name, data, state, retry_count, start_after, created_on, started_on,
        completed_on, keep_until, deletion_seconds, policy, output)
    SELECT 'type_' || kind, {_GIVEN},
        CASE WHEN is_bad THEN 'failed' ELSE 'completed' END::pgboss.job_state,
        CASE WHEN is_bad THEN retry_limit ELSE 0 END, at, at, at + interval '8 ms', at + interval '1 second',
        at + make_interval(secs => retention_seconds), deletion_seconds, policy,
        CASE WHEN is_bad THEN jsonb_build_object('name', 'Error', 'message', {_MESSAGE}, 'stack',
            'Error: ' || {_MESSAGE} || E'\\n    at send (/srv/shop/crm.js:71:18)') END
    FROM ({_PAST}) AS past JOIN pgboss.queue ON name = 'type_' || kind ORDER BY n""",
    f"""INSERT INTO pgboss.job (name, data, start_after, created_on, keep_until, deletion_seconds, policy)
    SELECT 'type_' || kind, {_GIVEN}, at, at, at + make_interval(secs => retention_seconds), deletion_seconds,
        policy
    FROM ({_WAITING}) AS waiting JOIN pgboss.queue ON name = 'type_' || kind ORDER BY n""",
)


def fill_wakeboard(url: str, jobs: int) -> None:
    """Fill a database that has our schema."""
    with bench.session(url) as connection:
        history.fill(connection, jobs, seconds=DAYS * 86_400, waiting=0)
        connection.execute((_OURS_WAITING % ()).encode())
        ages.keep_awake(connection)
        _settle(connection)


def fill_pgqueuer(url: str, jobs: int) -> None:
    """Fill an empty database; PgQueuer makes its tables."""
    program = bench.PEERS / "pgqueuer_peer.py"
    _run(bench.peer("pgqueuer"), program, bench.peer_url(url), "prepare", 0)
    _write(url, _PGQUEUER, jobs)


def fill_pgboss(url: str, jobs: int) -> None:
    """Fill an empty database; pg-boss makes its tables, and counts what is in its queues."""
    node, folder = bench.node_peer("pgboss")
    program = bench.PEERS / "pgboss_peer.mjs"
    _run(node, program, folder, bench.peer_url(url), "prepare", NAMES)
    _write(url, _PGBOSS, jobs)
    _run(node, program, folder, bench.peer_url(url), "counted", 0)
    with bench.session(url) as connection:
        _settle(connection)


def _run(*command: object) -> None:
    subprocess.run([str(each) for each in command], env=os.environ, check=True, stdout=subprocess.DEVNULL)


def _write(url: str, statements: tuple[str, ...], jobs: int) -> None:
    with bench.session(url) as connection:
        connection.execute("SET search_path = public")
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute("SET work_mem = '256MB'")
        cursor = psycopg.ClientCursor(connection)
        for statement in statements:
            cursor.execute(statement.encode(), {"jobs": jobs})
        _settle(connection)


def _settle(connection: psycopg.Connection) -> None:
    connection.execute("VACUUM (FREEZE, ANALYZE)")
    connection.execute("CHECKPOINT")
