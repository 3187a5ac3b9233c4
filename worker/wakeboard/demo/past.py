"""A believable past for the first start: seven days of runs with their attempts and statistics, and one run
whose worker has gone. Everything written here says so: ``enqueued_by = 'demo history'``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from psycopg import Connection

from wakeboard.database.audit import ENGINE
from wakeboard.demo.lives import BY, DAYS, ORDERS, SCHEDULED, WORKER, lives, price_of, sku_of
from wakeboard.handlers.registry import type_of
from wakeboard.queue.definitions import Definition, add

GONE = "demo-gone-worker"

_IS_NEW = """
SELECT NOT EXISTS (SELECT 1 FROM wakeboard.job_runs) AND NOT EXISTS (SELECT 1 FROM wakeboard.job_attempts)
"""
_WORKER = """
INSERT INTO wakeboard.workers (id, name, hostname, pid, concurrency, started_at, seen_at, stopped_at, version)
VALUES (%s, 'shop-1', 'shop-1', 4242, 4, %s, %s, %s, '0.1.0') ON CONFLICT DO NOTHING
"""
# As many customers as there are have them in turn; new orders go on after the last one.
_ORDERS = """
INSERT INTO shop.orders (id, customer_id, sku, cents, status, charge, placed_at, paid_at)
SELECT told.id, known.customers[1 + told.id %% cardinality(known.customers)], told.sku, told.cents, 'PAID',
    'past-' || told.id, now() - make_interval(days => %(days)s), now() - make_interval(days => %(days)s)
FROM unnest(%(ids)s::int[], %(skus)s::text[], %(cents)s::int[]) AS told (id, sku, cents)
CROSS JOIN (SELECT array_agg(id ORDER BY id) AS customers FROM shop.customers) AS known
ON CONFLICT (id) DO NOTHING
"""
_NEXT_ORDER = """
SELECT setval(pg_get_serial_sequence('shop.orders', 'id'), (SELECT max(id) FROM shop.orders))
"""
_IDS = """
SELECT nextval(pg_get_serial_sequence('wakeboard.job_runs', 'id')) FROM generate_series(1, %s) ORDER BY 1
"""
_RUNS = """
COPY wakeboard.job_runs (id, definition_id, scheduled_for, job_type, payload, idempotency_key, status, run_at,
    attempts, failures, lease_epoch, started_at, finished_at, failed_at, error_code, last_error, error_group,
    enqueued_by, created_at, updated_at) FROM STDIN
"""
_DEFINITIONS = "SELECT job_type, id FROM wakeboard.job_definitions WHERE name = job_type AND name = ANY(%s)"
_FIRED = """
UPDATE wakeboard.job_definitions AS d SET last_fire_at = made.last_at, created_at = %(since)s
FROM (SELECT definition_id, max(scheduled_for) AS last_at FROM wakeboard.job_runs GROUP BY 1) AS made
WHERE d.id = made.definition_id
"""
_ATTEMPTS = """
COPY wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome, error_code, error, error_group, traceback, max_attempts, timeout_seconds,
    next_run_at) FROM STDIN
"""
_GROUPS = """
INSERT INTO wakeboard.error_groups (id, fingerprint, error_code, job_type, template, frame, first_run_id,
    first_seen_at, last_seen_at)
SELECT %(id)s, %(fingerprint)s, max(error_code), max(job_type), %(template)s, %(frame)s, min(run_id),
    min(finished_at), max(finished_at)
FROM wakeboard.job_attempts WHERE error_group = %(id)s
"""
# The buckets of wakeboard.reporting.statistics: half powers of two of milliseconds.
_ROLL_UPS = """
INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket, runs,
    duration_ms, duration_max_ms, wait_ms, wait_max_ms)
SELECT minute, job_type, outcome, least(63, greatest(0, ceil(2 * ln(greatest(0.001, took)) / ln(2.0) + 20))),
    least(63, greatest(0, ceil(2 * ln(greatest(0.001, wait)) / ln(2.0) + 20))),
    count(*), sum(took), max(took), sum(wait), max(wait)
FROM (
    SELECT date_trunc('minute', finished_at) AS minute, job_type, outcome,
        extract(epoch FROM finished_at - started_at)::float8 * 1000 AS took,
        greatest(0, extract(epoch FROM started_at - due_at)::float8 * 1000) AS wait
    FROM wakeboard.job_attempts WHERE worker_id = %s
) AS timed
GROUP BY 1, 2, 3, 4, 5
"""
_GONE_WORKER = """
INSERT INTO wakeboard.workers (id, name, hostname, pid, job_types, concurrency, running, lease_seconds,
    started_at, seen_at, version)
VALUES (%s, 'shop-2', 'shop-2', 4243, '{export_report}', 2, 1, 420, now() - interval '1 day',
    now() - interval '4 minutes', '0.1.0')
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, started_at = excluded.started_at,
    running = excluded.running, lease_seconds = excluded.lease_seconds
"""
_STUCK = """
INSERT INTO wakeboard.job_runs (job_type, payload, status, run_at, attempts, lease_epoch, locked_by,
    locked_until, started_at, enqueued_by, created_at)
SELECT 'export_report', jsonb_build_object('customer', 1, 'since', current_date - 7, 'until', current_date),
    'running', now() - interval '5 minutes', 1, 1, %(gone)s, now() + interval '3 minutes',
    now() - interval '5 minutes', %(by)s, now() - interval '5 minutes'
WHERE NOT EXISTS (SELECT 1 FROM wakeboard.job_runs WHERE status = 'running' AND locked_by = %(gone)s)
"""


def write(connection: Connection[Any]) -> int:
    """Write the past, on an autocommit connection, unless this database has one; return how many runs.

    A database with any run of its own is left as it is: the demo never mixes into somebody's real history.
    """
    with connection.transaction():
        connection.execute("LOCK TABLE wakeboard.job_runs IN SHARE ROW EXCLUSIVE MODE")
        is_new, now = connection.execute(f"SELECT ({_IS_NEW}), now()".encode()).fetchone() or (False, None)
        if not is_new or now is None:
            return 0
        schedules = {name: schedule for name in SCHEDULED if (schedule := type_of(name).schedule)}
        definitions = _define(connection, schedules)
        told = sorted(lives(random.Random(7), now, schedules), key=lambda life: life.created_at)
        since = now - timedelta(days=DAYS)
        connection.execute(_WORKER, (WORKER, since, now, now))
        ids = [id_ for (id_,) in connection.execute(_IDS, (len(told),))]
        with connection.cursor() as cursor:
            with cursor.copy(_RUNS) as copy:
                for id_, life in zip(ids, told, strict=True):
                    copy.write_row(life.run(id_, definitions))
            with cursor.copy(_ATTEMPTS) as copy:
                for id_, life in zip(ids, told, strict=True):
                    for attempt in life.attempts(id_):
                        copy.write_row(attempt)
        for group in {one.group(life.job_type) for life in told for one in life.tries} - {None}:
            values = {name: getattr(group, name) for name in ("id", "fingerprint", "template", "frame")}
            connection.execute(_GROUPS, values)
        connection.execute(_ROLL_UPS, (WORKER,))
        connection.execute(_FIRED, {"since": since})
    return len(told)


def _define(connection: Connection[Any], schedules: Mapping[str, str]) -> dict[str, int]:
    """Make the schedules as a worker would that registers the types; return their ids by type.

    One that somebody has made already stays as it is.
    """
    known = {name for (name,) in connection.execute("SELECT name FROM wakeboard.job_definitions")}
    for name, schedule in schedules.items():
        if name not in known:
            add(connection, Definition(name, name, schedule), ENGINE, "registered in code")
    return dict(connection.execute(_DEFINITIONS, (list(schedules),)).fetchall())


def write_orders(connection: Connection[Any]) -> None:
    """Write the orders that the past speaks of, before the shop has any other; its tables must be there."""
    ids = range(1, ORDERS)
    columns = {"ids": list(ids), "skus": [*map(sku_of, ids)], "cents": [*map(price_of, ids)]}
    with connection.transaction():
        connection.execute(_ORDERS, columns | {"days": DAYS})
        connection.execute(_NEXT_ORDER)


def leave_stuck(connection: Connection[Any]) -> None:
    """Leave a run to a worker that is silent: its lease ends in three minutes, unless somebody acts first."""
    with connection.transaction():
        connection.execute(_GONE_WORKER, (GONE,))
        connection.execute(_STUCK, {"gone": GONE, "by": BY})
