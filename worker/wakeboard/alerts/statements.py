"""The SQL that rules ask, all by the database's clock.

Cheap on a table of ten million runs: each goes by an index that was made for it, and counting stops at CAP.
"""

from __future__ import annotations

from wakeboard.alerts.finding import NAMED
from wakeboard.core.rule_types import JOB_TYPE
from wakeboard.core.states import CLAIMABLE, FAILURES, Status, sql_list
from wakeboard.core.time.clock_skew import is_since
from wakeboard.database.index_predicates import IS_SET_ASIDE
from wakeboard.queue.engine.claims import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from wakeboard.reporting import worker_states
from wakeboard.reporting.heartbeats import SILENCE_SECONDS

CAP = 10_000

# The first due run of every type and priority, by jumping along job_runs_claimable: as many probes as there
# are types with work, however long the queue is. Messengers and paused types are none of its business.
WAITING = f"""
WITH RECURSIVE waiting(job_type) AS (
    (SELECT r.job_type FROM wakeboard.job_runs r
     WHERE r.status IN ({sql_list(CLAIMABLE)}) ORDER BY r.job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT r.job_type FROM wakeboard.job_runs r
            WHERE r.status IN ({sql_list(CLAIMABLE)}) AND r.job_type > w.job_type
            ORDER BY r.job_type LIMIT 1)
    FROM waiting w WHERE w.job_type IS NOT NULL
), oldest AS (
    SELECT w.job_type, min(first.run_at) AS due_at
    FROM waiting w CROSS JOIN generate_series(0, 4) AS priorities(priority)
    CROSS JOIN LATERAL (
        SELECT r.run_at FROM wakeboard.job_runs r
        WHERE r.status IN ({sql_list(CLAIMABLE)}) AND r.job_type = w.job_type
          AND r.priority = priorities.priority AND r.run_at <= now()
        ORDER BY r.run_at LIMIT 1
    ) first
    WHERE w.job_type <> '{JOB_TYPE}'
      AND NOT EXISTS (SELECT FROM wakeboard.job_types t WHERE t.name = w.job_type AND t.paused_at IS NOT NULL)
    GROUP BY w.job_type
)
"""
OLDEST = f"""{WAITING}
SELECT job_type, extract(epoch FROM now() - due_at)::float8 AS waited FROM oldest
ORDER BY due_at LIMIT {NAMED}
"""
# What the database refuses to let start is due each time only for a moment, and waits longer after each: as
# long as it has waited before, and FIRST_PAUSE_SECONDS; but no longer than LONGEST_PAUSE_SECONDS.
SET_ASIDE = f"""
WITH refused AS (
    SELECT job_type, extract(epoch FROM run_at - updated_at)::float8 - {FIRST_PAUSE_SECONDS} AS waited
    FROM wakeboard.job_runs WHERE {IS_SET_ASIDE} ORDER BY job_type, updated_at LIMIT {CAP}
)
SELECT job_type, count(*), (sum(count(*)) OVER ())::bigint, max(max(waited)) OVER () FROM refused
WHERE waited > least(%(waited_seconds)s, {LONGEST_PAUSE_SECONDS - FIRST_PAUSE_SECONDS - 1})
    AND job_type <> '{JOB_TYPE}'
    AND NOT EXISTS (SELECT FROM wakeboard.job_types t WHERE t.name = job_type AND t.paused_at IS NOT NULL)
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {NAMED}
"""
# A tick is there for a moment each minute. One heartbeat that comes late is no alarm.
LATE_SECONDS = 5
# Of how many of them there are draining workers: those are a click away from taking it. How many of them
# nobody has ever registered: there is nothing that could be paused.
UNMANNED = f"""{WAITING}, unmanned AS (
    SELECT job_type, due_at FROM oldest
    WHERE due_at < now() - make_interval(secs => %(waited_seconds)s) AND NOT EXISTS (
        SELECT FROM wakeboard.workers w WHERE oldest.job_type = ANY(w.job_types) AND CASE
            WHEN w.is_tick THEN {is_since("w.seen_at", SILENCE_SECONDS)}
            ELSE {worker_states.is_claiming("w", LATE_SECONDS)}
        END
    )
)
SELECT job_type, extract(epoch FROM now() - due_at)::float8 AS waited, count(*) OVER (),
    count(*) FILTER (WHERE EXISTS (
        SELECT FROM wakeboard.workers w
        WHERE unmanned.job_type = ANY(w.job_types) AND {worker_states.is_draining("w")}
    )) OVER (),
    count(*) FILTER (WHERE NOT EXISTS (
        SELECT FROM wakeboard.job_types t WHERE t.name = unmanned.job_type
    )) OVER ()
FROM unmanned ORDER BY due_at LIMIT {NAMED}
"""
# What people have muted for now: few, and by an index of their own.
MUTED_GROUPS = "SELECT id FROM wakeboard.error_groups WHERE muted_until > now()"
# Newest first along job_runs_by_status, which has all that is asked for: no row is read. With a plain
# equality and a limit the planner may walk the whole table by its primary key. The newest CAP dead runs are
# read; one that died lately but was made long ago may be past them.
DEAD = f"""
WITH newest AS (
    SELECT job_type, failed_at AS died_at, error_group FROM wakeboard.job_runs
    WHERE status = ANY ('{{{Status.DEAD}}}') ORDER BY status DESC, id DESC LIMIT {CAP}
)
SELECT job_type, count(*), sum(count(*)) OVER ()::bigint FROM newest
WHERE {is_since("died_at", "%(within_seconds)s")} AND job_type <> '{JOB_TYPE}'
    AND NOT (%(muted)s > 0 AND coalesce(error_group = ANY (ARRAY({MUTED_GROUPS})), false))
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {NAMED}
"""
# Statistics know no groups: the muted ones' attempts are taken off, of each at most CAP. The usual is not
# corrected: a group that was loud last week merely makes the rule a little less eager.
# The hour that ends now, and the seven that ended 1 … 7 days ago, as far back as there are statistics.
FAILED = f"""
WITH both_tables AS (
    SELECT minute, job_type, outcome, runs FROM wakeboard.statistics_deltas
    WHERE minute > now() - interval '1 hour'
    UNION ALL
    SELECT minute, job_type, outcome, runs FROM wakeboard.statistics_rollups
    WHERE minute > now() - interval '1 hour'
    UNION ALL
    SELECT now(), muted.job_type, muted.outcome, -1
    FROM ({MUTED_GROUPS}) AS groups
    CROSS JOIN LATERAL (
        SELECT a.job_type, a.outcome FROM wakeboard.job_attempts AS a
        WHERE a.error_group = groups.id
            AND a.finished_at >= date_trunc('minute', now() - interval '59 minutes')
        LIMIT {CAP}
    ) AS muted
    WHERE %(muted)s > 0
)
SELECT job_type, sum(runs)::bigint, (sum(sum(runs)) OVER ())::bigint FROM both_tables
WHERE outcome IN ({sql_list(FAILURES)}) AND job_type <> '{JOB_TYPE}'
GROUP BY job_type HAVING sum(runs) > 0 ORDER BY sum(runs) DESC, job_type LIMIT {NAMED}
"""
USUAL = f"""
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY failed), 0)::float8, count(*)
FROM (
    SELECT (
        SELECT coalesce(sum(s.runs), 0) FROM wakeboard.statistics_rollups s
        WHERE s.minute > now() - make_interval(days => day, hours => 1)
          AND s.minute <= now() - make_interval(days => day)
          AND s.outcome IN ({sql_list(FAILURES)}) AND s.job_type <> '{JOB_TYPE}'
    ) AS failed
    FROM generate_series(1, 7) AS day
    WHERE now() - make_interval(days => day, hours => 1) >= (
        SELECT s.minute FROM wakeboard.statistics_rollups s ORDER BY s.minute LIMIT 1
    )
) AS days
"""
MISSED = f"""
SELECT d.name, count(*), (sum(count(*)) OVER ())::bigint FROM (
    SELECT definition_id FROM wakeboard.missed_fires
    WHERE noted_at > now() - make_interval(secs => %(within_seconds)s)
      AND (reason IN ('misfire', 'capped') OR reason = 'overlap' AND %(overlaps)s > 0)
    ORDER BY noted_at DESC LIMIT {CAP}
) AS m JOIN wakeboard.job_definitions d ON d.id = m.definition_id
GROUP BY d.name ORDER BY count(*) DESC, d.name LIMIT {NAMED}
"""
STUCK = f"""
SELECT job_type, count(*), (sum(count(*)) OVER ())::bigint FROM (
    SELECT job_type FROM wakeboard.job_runs
    WHERE status = 'running' AND locked_until < now() - make_interval(secs => %(ended_seconds)s) LIMIT {CAP}
) AS stuck
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {NAMED}
"""
