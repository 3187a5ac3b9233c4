-- The shop's history: a week of orders, and of runs with their attempts, error groups and statistics. Reads the
-- temporary tables prices and failures and the definitions of the schedules; takes no parameters.

SELECT setseed(0.7);

-- How many runs of each type were enqueued an hour, how long they took, and the options of the handler.
CREATE TEMP TABLE habits (job_type, per_hour, seconds, max_attempts, timeout_seconds) ON COMMIT DROP AS VALUES
    ('checkout', 4, 0.05, 3, 30), ('check_address', 3, 0.02, 3, 20), ('charge_card', 4, 0.09, 8, 30),
    ('send_invoice', 4, 0.2, 10, 60), ('tell_team', 4, 0.04, 5, 30), ('sync_stock', 4, 0.03, 8, 30),
    ('resize_photo', 6, 0.01, 5, 20), ('render_newsletter', 0.4, 0.01, 2, 20),
    ('import_catalogue', 0, 62, 3, 300), ('nightly_cleanup', 0, 0.6, 5, 120),
    ('weekly_reports', 0, 0.03, 5, 120);

-- What the schedules made. The last runs have ended by now; before the last two hours people checked out.
CREATE TEMP TABLE fires (job_type, at) ON COMMIT DROP AS
SELECT 'checkout', generate_series(
    date_trunc('minute', now()) - interval '2 hours', now() - interval '3 minutes', '1 minute')
UNION ALL SELECT 'import_catalogue', generate_series(
    date_trunc('hour', now()) - interval '167 hours', now() - interval '7 minutes', '15 minutes')
UNION ALL SELECT 'nightly_cleanup', generate_series(
    date_trunc('day', now()) - interval '6 days' + interval '3 hours', now() - interval '4 minutes', '1 day')
UNION ALL SELECT 'weekly_reports',
    date_trunc('week', now() - interval '6 hours 4 minutes') + interval '6 hours';

-- The n-th try of a run comes so long after the first, with the backoff 5s,15s,45s,2m.
CREATE TEMP TABLE tries (attempt, after) ON COMMIT DROP AS
SELECT attempt, CASE
    WHEN attempt < 4 THEN ('{0,5,20}'::int[])[attempt] ELSE 65 + 120 * (attempt - 4)
END * interval '1 second'
FROM generate_series(1, 10) AS attempt;

INSERT INTO shop.orders (customer_id, sku, cents, status, charge, placed_at, paid_at)
SELECT c.id, p.sku, p.cents, 'INVOICED', 'past-' || number, placed_at, placed_at
FROM generate_series(0, 899) AS number
CROSS JOIN LATERAL (SELECT now() - interval '7 days' * (1 - number / 900.0) AS placed_at) AS placed
JOIN (
    SELECT *, row_number() OVER (ORDER BY sku) - 1 AS place, count(*) OVER () AS size FROM prices
) AS p ON p.place = number % p.size
JOIN (
    SELECT id, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS size FROM shop.customers
) AS c ON c.place = number % c.size
ORDER BY number;

-- One row a run, in the order of their ids: when it was due, how its tries fail, and how many.
CREATE TEMP TABLE planned_runs ON COMMIT DROP AS
WITH due AS MATERIALIZED (
    SELECT h.job_type, NULL::bigint AS definition_id, hour + random() * interval '58 minutes' AS due_at
    FROM habits AS h
    CROSS JOIN generate_series(now() - interval '7 days', now() - interval '1 hour', '1 hour') AS hour
    CROSS JOIN LATERAL generate_series(1, floor(
        h.per_hour * CASE WHEN extract(hour FROM hour) BETWEEN 8 AND 19 THEN 1.6 ELSE 0.5 END + random()
    )::int)
    WHERE h.job_type <> 'checkout' OR hour < now() - interval '2 hours'
    UNION ALL
    SELECT f.job_type, d.id, f.at
    FROM fires AS f
    LEFT JOIN wakeboard.job_definitions AS d ON d.name = f.job_type AND d.job_type = f.job_type
), drawn AS MATERIALIZED (
    SELECT due.*, row_number() OVER (ORDER BY due_at, job_type) AS number, random() AS luck,
        random() < 0.002 AS is_cancelled, exp(0.4 * random_normal()) AS slowness
    FROM due
), decided AS (
    SELECT d.number, d.job_type, d.definition_id, d.due_at, d.is_cancelled, h.max_attempts, h.timeout_seconds,
        least(h.timeout_seconds, h.seconds * d.slowness) AS took, f.outcome, f.code, f.message, f.error_group,
        f.traceback, f.is_permanent,
        CASE
            WHEN d.is_cancelled OR f.job_type IS NULL THEN 0
            WHEN f.outage_until IS NOT NULL THEN (
                SELECT count(*) FROM tries AS t
                WHERE t.attempt <= h.max_attempts AND d.due_at + t.after < f.outage_until
            )
            -- What failed a moment ago might have a try that is still to come.
            WHEN d.due_at > now() - interval '20 minutes' OR d.luck >= f.share THEN 0
            WHEN f.is_permanent OR d.luck >= f.share ^ 2 THEN 1
            ELSE 2
        END AS failures
    FROM drawn AS d
    JOIN habits AS h USING (job_type)
    LEFT JOIN LATERAL (
        SELECT * FROM failures AS f
        WHERE f.job_type = d.job_type
            AND (f.outage_from IS NULL OR (d.due_at >= f.outage_from AND d.due_at < f.outage_until))
        ORDER BY f.outage_from LIMIT 1
    ) AS f ON true
), ended AS (
    SELECT decided.*, CASE
        WHEN is_cancelled THEN 'cancelled'
        WHEN failures >= max_attempts OR (failures > 0 AND is_permanent) THEN 'dead'
        ELSE 'succeeded'
    END AS status
    FROM decided
), numbered AS (
    -- A retry gets through: the orders are in the shop, and only newsletters that gave up lack a name.
    SELECT e.*, CASE
        WHEN job_type IN ('check_address', 'send_invoice', 'tell_team') THEN jsonb_build_object('order', o.id)
        WHEN job_type = 'charge_card' THEN jsonb_build_object('order', o.id, 'cents', o.cents)
        WHEN job_type = 'sync_stock' THEN jsonb_build_object('sku', o.sku)
        WHEN job_type = 'resize_photo' THEN jsonb_build_object('photo', number % 200)
        WHEN job_type = 'render_newsletter' AND e.status = 'succeeded' THEN '{"customer": {"name": "Alice"}}'
        WHEN job_type = 'render_newsletter' THEN '{"customer": {}}'
        ELSE '{}'
    END AS payload
    FROM ended AS e
    JOIN (
        SELECT *, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS size FROM shop.orders
    ) AS o ON o.place = e.number % o.size
    ORDER BY number
)
SELECT nextval(pg_get_serial_sequence('wakeboard.job_runs', 'id')) AS id, numbered.*,
    failures + (status <> 'dead')::int AS attempts,
    CASE WHEN outcome = 'timed_out' THEN timeout_seconds ELSE took END AS failure_took
FROM numbered;

INSERT INTO wakeboard.workers (id, name, hostname, pid, concurrency, started_at, seen_at, stopped_at, version)
VALUES ('demo-past-worker', 'shop-1', 'shop-1', 4242, 4, now() - interval '7 days', now(), now(), '0.1.0')
ON CONFLICT DO NOTHING;

INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome, error_code, error, error_group, traceback, max_attempts, timeout_seconds,
    next_run_at)
SELECT id, attempt, lease_epoch, job_type, 'demo-past-worker', due_at, due_at + waited,
    due_at + waited + took, outcome, error_code, error, error_group, traceback, max_attempts, timeout_seconds,
    lead(due_at) OVER (PARTITION BY id ORDER BY attempt)
FROM (
    SELECT r.id, t.attempt, r.job_type, r.max_attempts, r.timeout_seconds,
        r.due_at + t.after + (t.attempt - 1) * r.failure_took * interval '1 second' AS due_at,
        -- The reaping of a lost attempt took an epoch of its own.
        t.attempt + CASE WHEN r.outcome = 'lost' THEN least(r.failures, t.attempt - 1) ELSE 0 END
            AS lease_epoch,
        (0.002 - 0.08 * ln(1 - random())) * interval '1 second' AS waited,
        CASE WHEN is_failed THEN r.failure_took ELSE r.took END * interval '1 second' AS took,
        CASE WHEN r.is_cancelled THEN 'cancelled' WHEN is_failed THEN r.outcome ELSE 'succeeded' END
            AS outcome,
        CASE WHEN r.is_cancelled THEN 'cancelled' WHEN is_failed THEN r.code END AS error_code,
        CASE
            WHEN r.is_cancelled THEN 'The run was asked to stop.'
            WHEN is_failed THEN replace(r.message, '{order}', coalesce(r.payload ->> 'order', ''))
        END AS error,
        CASE WHEN is_failed THEN r.error_group END AS error_group,
        CASE WHEN is_failed THEN r.traceback END AS traceback
    FROM planned_runs AS r
    JOIN tries AS t ON t.attempt <= r.attempts
    CROSS JOIN LATERAL (SELECT t.attempt <= r.failures AS is_failed) AS outcome
    OFFSET 0
) AS tried;

INSERT INTO wakeboard.job_runs (id, definition_id, scheduled_for, job_type, payload, idempotency_key, status,
    run_at, attempts, failures, lease_epoch, started_at, finished_at, failed_at, error_code, last_error,
    error_group, enqueued_by, created_at, updated_at)
SELECT r.id, r.definition_id, CASE WHEN r.definition_id IS NOT NULL THEN r.due_at END, r.job_type, r.payload,
    CASE WHEN r.job_type = 'charge_card' THEN 'charge:past:' || r.id END, r.status, last.due_at, r.attempts,
    r.failures, r.attempts + CASE WHEN r.outcome = 'lost' THEN r.failures ELSE 0 END, last.started_at,
    last.finished_at, failed.finished_at, failed.error_code, failed.error, failed.error_group, 'demo history',
    r.due_at, last.finished_at
FROM planned_runs AS r
JOIN wakeboard.job_attempts AS last ON last.run_id = r.id AND last.attempt = r.attempts
LEFT JOIN wakeboard.job_attempts AS failed ON failed.run_id = r.id AND failed.attempt = r.failures;

INSERT INTO wakeboard.error_groups (id, fingerprint, error_code, job_type, template, frame, first_run_id,
    first_seen_at, last_seen_at)
SELECT f.error_group, f.fingerprint, f.code, f.job_type, f.template, f.frame, min(a.run_id),
    min(a.finished_at), max(a.finished_at)
FROM failures AS f JOIN wakeboard.job_attempts AS a USING (error_group)
GROUP BY 1, 2, 3, 4, 5, 6;

-- The buckets of wakeboard.reporting.statistics: quarter powers of two of milliseconds.
INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket, runs,
    duration_ms, duration_max_ms, wait_ms, wait_max_ms)
SELECT minute, job_type, outcome, least(260, ceil(4 * ln(greatest(0.001, took)) / ln(2.0) + 140)),
    least(260, ceil(4 * ln(greatest(0.001, wait)) / ln(2.0) + 140)),
    count(*), sum(took), max(took), sum(wait), max(wait)
FROM (
    SELECT date_trunc('minute', finished_at) AS minute, job_type, outcome,
        extract(epoch FROM finished_at - started_at)::float8 * 1000 AS took,
        greatest(0, extract(epoch FROM started_at - due_at)::float8 * 1000) AS wait
    FROM wakeboard.job_attempts
) AS timed
GROUP BY 1, 2, 3, 4, 5;

UPDATE wakeboard.job_definitions AS d
SET last_fire_at = made.last_at, created_at = now() - interval '7 days'
FROM (SELECT definition_id, max(scheduled_for) AS last_at FROM wakeboard.job_runs GROUP BY 1) AS made
WHERE d.id = made.definition_id;
