"""The past of an installation, written into an empty database: runs, their attempts, what is beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import psycopg

from benchmarks import bench
from wakeboard.reporting.hourly_rollups import STATISTICS_DAYS

TYPES, CODES, SCHEDULES, WORKERS, RUNNING = 60, 30, 500, 20, 8
AT_ONCE = 1_000_000
LARGE = ("job_runs", "job_attempts", "statistics_rollups")

_SURROUNDINGS = (
    """INSERT INTO wakeboard.job_types (name, seen_at, max_running)
    SELECT 'type_' || n, now(), CASE WHEN n %% 10 = 0 THEN 5 END FROM generate_series(1, %(types)s) AS n""",
    # The next fires are far off, so that a worker that looks in leaves the past as it is.
    """INSERT INTO wakeboard.job_definitions (name, job_type, payload, schedule, timezone, enabled,
        next_fire_at)
    SELECT 'schedule-' || n, 'type_' || 1 + n %% %(types)s, jsonb_build_object('customer', n),
        (ARRAY['*/5 * * * *', '0 * * * *', '30 2 * * *', '0 8 * * 1-5'])[1 + n %% 4],
        (ARRAY['UTC', 'Europe/Berlin', 'America/New_York'])[1 + n %% 3], n %% 10 > 0,
        CASE WHEN n %% 10 > 0 THEN now() + interval '30 days' + n * interval '1 minute' END
    FROM generate_series(1, %(schedules)s) AS n""",
    """INSERT INTO wakeboard.workers (id, name, hostname, pid, job_types, concurrency, started_at, seen_at,
        stopped_at, memory_bytes, version)
    SELECT 'worker-' || n, 'shop-' || n, 'host-' || n %% 5, 1000 + n,
        ARRAY(SELECT name FROM wakeboard.job_types), 4, now() - age, now(),
        CASE WHEN n > %(workers)s THEN now() - 2 * age / 3 END, 90000000, '0.1.0'
    FROM generate_series(1, 10 * %(workers)s) AS n,
        make_interval(secs => least(3 * 86400, %(seconds)s::float8)) AS age""",
)
# Shares fall as 1/n from the first type, and from the first code, on. Runs come one by one up to now, a fifth
# of them fires, of which one in a hundred starts late and one in two hundred dies at once; what waits came in
# the last ten minutes, and what will be tried again is among the newest.
_RUNS = """
INSERT INTO wakeboard.job_runs (job_type, definition_id, scheduled_for, payload, priority, run_at, status,
    attempts, failures, lease_epoch, locked_by, locked_until, started_at, finished_at, failed_at, late_by,
    error_code, last_error, error_group, idempotency_key, enqueued_by, created_at, updated_at)
SELECT 'type_' || kind, definition,
    CASE WHEN definition IS NOT NULL THEN date_trunc('second', at - delay) END,
    jsonb_build_object('invoice_id', n, 'customer', n %% 5000, 'note', 'please send by mail'),
    2, CASE status WHEN 'failed' THEN now() + interval '1 day' ELSE at - delay END, status,
    tries, fails, tries,
    CASE status WHEN 'running' THEN 'worker-' || 1 + n %% %(workers)s END,
    CASE status WHEN 'running' THEN now() + interval '1 day' END,
    CASE WHEN tries > 0 THEN at END,
    CASE WHEN status IN ('succeeded', 'dead', 'cancelled') THEN at + interval '1 second' END,
    CASE WHEN fails > 0 THEN at + interval '1 second' END,
    CASE WHEN tries > 0 AND definition IS NOT NULL THEN date_part('epoch', delay) END,
    CASE WHEN fails > 0 THEN 'error_' || code END,
    CASE WHEN fails > 0 THEN 'The other side answered ' || n || ' and then nothing more' END,
    CASE WHEN fails > 0 THEN 100 * kind + code END,
    CASE WHEN n %% 4 = 0 THEN 'invoice-' || n END,
    CASE WHEN definition IS NULL THEN 'shop' ELSE 'schedule:schedule-' || definition END, at - delay, at
FROM (
    SELECT *, CASE status WHEN 'queued' THEN 0 WHEN 'cancelled' THEN 0 WHEN 'running' THEN 1
            WHEN 'failed' THEN 3 WHEN 'dead' THEN deadly ELSE 1 + is_second::int END AS tries,
        CASE status WHEN 'failed' THEN 3 WHEN 'dead' THEN deadly ELSE is_second::int END AS fails,
        CASE WHEN definition IS NULL THEN floor(power(%(types)s, random()))::int
            ELSE 1 + definition %% %(types)s END AS kind,
        CASE WHEN definition IS NOT NULL AND n %% 505 = 5 THEN interval '3 minutes' ELSE '0' END AS delay
    FROM (
        SELECT n, now() - CASE WHEN n <= %(runs)s
                THEN make_interval(secs => 10 + %(seconds)s * (1 - n / %(runs)s::float8))
                ELSE make_interval(secs => 600 * (%(all)s - n) / (%(all)s - %(runs)s)::float8) END AS at,
            floor(power(%(codes)s, random()))::int AS code,
            CASE WHEN n %% 5 = 0 AND n <= %(runs)s THEN 1 + n / 5 %% %(schedules)s END AS definition,
            CASE WHEN n > %(all)s - %(running)s THEN 'running' WHEN n > %(runs)s THEN 'queued'
                WHEN n %% 10 = 7 OR n %% 1015 = 15 THEN 'dead' WHEN n %% 100 = 3 THEN 'cancelled'
                WHEN n > %(runs)s - least(50000, %(runs)s / 20) AND n %% 25 = 4 THEN 'failed'
                ELSE 'succeeded' END AS status,
            n %% 10 = 1 AND n <= %(runs)s AS is_second, CASE WHEN n %% 5 = 0 THEN 1 ELSE 10 END AS deadly
        FROM generate_series(%(first)s, %(last)s) AS n
    ) AS fated
) AS tried ORDER BY n
"""
# An attempt took four times as long at most as its type's quickest, and waited up to 8 ms.
_ATTEMPTS = """
INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome, error_code, error, error_group, traceback, max_attempts, timeout_seconds)
SELECT id, attempt, attempt, job_type, 'worker-' || 1 + id %% %(workers)s, began - wait, began, began + took,
    CASE WHEN is_bad THEN 'failed' ELSE 'succeeded' END, CASE WHEN is_bad THEN error_code END,
    CASE WHEN is_bad THEN last_error END, CASE WHEN is_bad THEN error_group END,
    CASE WHEN is_bad THEN
        E'Traceback (most recent call last):\\n  File "/srv/shop/crm.py", line 71, in send\\n'
        '    answer = session.post(address, json=invoice, timeout=10)\\nConnectionError: ' || last_error END,
    10, 300
FROM (
    SELECT r.*, a.attempt, a.attempt < r.attempts OR r.status IN ('dead', 'failed') AS is_bad,
        r.started_at - (r.attempts - a.attempt) * interval '20 minutes' AS began,
        (0.003 * power(1.15, r.kind) * power(4, random())) * interval '1 second' AS took,
        0.001 * power(8, random()) * interval '1 second' AS wait
    FROM (
        SELECT *, right(job_type, -5)::int AS kind FROM wakeboard.job_runs
        WHERE id BETWEEN %(first)s AND %(last)s AND status <> 'running'
    ) AS r
    CROSS JOIN LATERAL generate_series(1, r.attempts) AS a (attempt)
) AS made WHERE is_bad = %(is_bad)s
"""
_BUCKET = "least(260, ceil(4 * ln(greatest(0.001, {0})) / ln(2.0) + 140))::smallint"
_BEHIND = (
    f"""INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket,
        runs, duration_ms, duration_max_ms, wait_ms, wait_max_ms)
    SELECT minute, job_type, outcome, {_BUCKET.format("took")}, {_BUCKET.format("wait")}, count(*), sum(took),
        max(took), sum(wait), max(wait)
    FROM (
        SELECT date_trunc('minute', finished_at) AS minute, job_type, outcome,
            date_part('epoch', finished_at - started_at) * 1000 AS took,
            date_part('epoch', started_at - due_at) * 1000 AS wait
        FROM wakeboard.job_attempts WHERE finished_at > now() - make_interval(days => %(kept_days)s)
    ) AS timed
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1""",
    """INSERT INTO wakeboard.error_groups (id, fingerprint, error_code, job_type, template, frame,
        first_run_id, first_seen_at, last_seen_at)
    SELECT error_group, lpad(to_hex(error_group), 13, '0'), max(error_code), max(job_type),
        'The other side answered <n> and then nothing more', 'crm.py in send', min(id), min(failed_at),
        max(failed_at)
    FROM wakeboard.job_runs WHERE error_group IS NOT NULL GROUP BY error_group""",
    """INSERT INTO wakeboard.effects (scope, key, run_id, attempt, lease_epoch, status, result, created_at,
        finished_at)
    SELECT 'run:' || n, 'mail', n, 1, 1, CASE WHEN n %% 100000 = 20 THEN 'started' ELSE 'done' END,
        '{"id": 1}', at, at
    FROM (SELECT n, now() - make_interval(secs => %(seconds)s * (1 - n / %(runs)s::float8)) AS at
        FROM generate_series(20, %(runs)s, 20) AS n) AS timed""",
    """INSERT INTO wakeboard.missed_fires (definition_id, scheduled_for, reason, noted_at)
    SELECT 1 + n %% %(schedules)s, now() - n * interval '20 minutes',
        (ARRAY['misfire', 'overlap', 'capped'])[1 + n %% 3], now() - n * interval '20 minutes'
    FROM generate_series(1, 6000) AS n
    WHERE n * 1200 <= %(seconds)s""",
    """INSERT INTO wakeboard.audit_log (at, actor, role, source, action, target_type, target_id, reason,
        before, after, result, request_id, ip)
    SELECT now() - make_interval(secs => %(seconds)s * (1 - n / (%(runs)s / 50)::float8)),
        'person-' || n %% 25, 'operator', 'web',
        (ARRAY['run.retry', 'run.cancel', 'login', 'schedule.pause'])[1 + n %% 4],
        (ARRAY['run', 'run', 'user', 'schedule'])[1 + n %% 4],
        CASE n %% 4 WHEN 2 THEN 'person-' || n %% 25 WHEN 3 THEN 'schedule-' || 1 + n %% %(schedules)s
            ELSE (n * 50)::text END,
        CASE WHEN n %% 3 = 0 THEN 'the customer called again' END,
        '{"status": "dead"}', '{"status": "queued"}',
        CASE WHEN n %% 90 = 0 THEN 'denied' ELSE 'done' END, 'r' || n, '192.0.2.7'
    FROM generate_series(1, greatest(200, %(runs)s / 50)) AS n""",
    """WITH made AS (
        INSERT INTO wakeboard.operations
            (verb, filter, as_of, status, total, done, actor, is_open, finished_at)
        SELECT 'retry', '{"status": "dead"}', now(), 'finished', 200, 200, 'person-1', false, now()
        FROM generate_series(1, 50) RETURNING id)
    INSERT INTO wakeboard.operation_runs (operation_id, run_id, result, outcome)
    SELECT id, n, 'moved', 'succeeded' FROM made CROSS JOIN generate_series(1, 200) AS n""",
)


def fill(connection: psycopg.Connection, runs: int, *, seconds: float, waiting: int) -> None:
    """Write the past of ``runs`` runs, and everything beside it, into an empty database.

    They came evenly in the ``seconds`` before now. So many more are ``waiting``, and RUNNING are under way.
    """
    total = runs + waiting + RUNNING if runs else 0
    values = {
        "runs": runs, "all": total, "running": RUNNING, "types": TYPES, "codes": CODES,
        "schedules": SCHEDULES, "workers": WORKERS, "seconds": seconds, "kept_days": STATISTICS_DAYS - 1,
    }  # fmt: skip
    began, cursor = monotonic(), psycopg.ClientCursor(connection)
    with _bare(connection):
        for statement in _SURROUNDINGS if runs else ():
            cursor.execute(statement.encode(), values)
        for first in range(1, total + 1, AT_ONCE):
            part = values | {"first": first, "last": min(first + AT_ONCE - 1, total)}
            cursor.execute(_RUNS.encode(), part)
            # Failed attempts are the larger ones. What they leave of their pages is found by the others, as
            # in a table that has been vacuumed all along; else whatever is added later would be scattered.
            for is_bad in (True, False):
                cursor.execute(_ATTEMPTS.encode(), part | {"is_bad": is_bad})
                connection.execute("VACUUM wakeboard.job_attempts")
            bench.say(f"{part['last']:,} of {total:,} runs written, {monotonic() - began:.0f} s")
        for statement in _BEHIND if runs else ():
            cursor.execute(statement.encode(), values)
        bench.say(f"what is beside them written, {monotonic() - began:.0f} s")
    connection.execute("VACUUM (FREEZE, ANALYZE)")
    connection.execute("CHECKPOINT")
    bench.say(f"indexed and analyzed, {monotonic() - began:.0f} s")


@contextmanager
def _bare(connection: psycopg.Connection) -> Iterator[None]:
    """Take triggers and indexes from the large tables meanwhile; keys stay."""
    connection.execute("SET maintenance_work_mem = '512MB'")
    connection.execute("SET work_mem = '256MB'")
    indexes = connection.execute(
        """SELECT c.oid::regclass::text, pg_get_indexdef(c.oid) FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
        WHERE t.relnamespace = 'wakeboard'::regnamespace AND t.relname = ANY(%s)
            AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = c.oid)""",
        (list(LARGE),),
    ).fetchall()
    connection.execute("ALTER TABLE wakeboard.job_runs DISABLE TRIGGER USER")
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}".encode())
    yield
    for _, definition in indexes:
        connection.execute(definition.encode())
    connection.execute("ALTER TABLE wakeboard.job_runs ENABLE TRIGGER USER")
