"""The check of each kind of alert rule: is it firing, with numbers and a sentence. Reads only.

All times are by the database's clock. Each statement is cheap on a table of ten million runs: it goes by an
index, and counting stops at CAP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.alerts.finding import MOST_NAMES, Finding, short_name
from wakeboard.core.builtin_payloads import command_user, workers_for
from wakeboard.core.rule_types import JOB_TYPE
from wakeboard.core.states import FAILURES, Status, sql_list
from wakeboard.core.time.clock_skew import is_since
from wakeboard.core.time.durations import format_duration
from wakeboard.database.index_predicates import EACH_PRIORITY, IS_CLAIMABLE, IS_SET_ASIDE, TYPES_WITH_WORK
from wakeboard.queue.engine.claims import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from wakeboard.reporting import worker_states
from wakeboard.reporting.broken_schedules import broken_schedules
from wakeboard.reporting.heartbeats import SILENCE_SECONDS, is_abandoned, late_loops

CAP = 10_000
HOUR = 3600.0

RuleSettings = Mapping[str, float]
T = TypeVar("T")


def check_rule(connection: Connection, kind: str, settings: RuleSettings) -> Finding:
    """Return what is found now for a rule of ``kind`` with the values of ``RuleType.values``."""
    return CHECKS[kind](connection, settings)


class NameCount(NamedTuple):
    """How often one job type or schedule was found, and how often all of them were."""

    name: str
    number: int
    total: int


def _rows(connection: Connection, row: type[T], statement: str, settings: RuleSettings) -> list[T]:
    with connection.cursor(row_factory=class_row(row)) as cursor:
        return cursor.execute(statement.encode(), dict(settings)).fetchall()


def _list_counts(rows: Sequence[NameCount | RefusedRuns]) -> str:
    """Return ``mail 12, report 3``."""
    return ", ".join(f"{short_name(row.name)} {row.number}" for row in rows)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 run``, ``2 runs``, and ``10000+ runs`` where counting stopped."""
    return f"{count}{'+' if count >= CAP else ''} {one if count == 1 else many or one + 's'}"


def _compare_total(
    rows: Sequence[NameCount], limit: float, sentence: Callable[[int], str], sentence_if_none: str
) -> Finding:
    total = rows[0].total if rows else 0
    names = tuple(row.name for row in rows) if total >= limit else ()
    return Finding(
        total >= limit, sentence(total) if total else sentence_if_none, total, limit, "count", names
    )


# -- no_worker ---------------------------------------------------------------------------------------------

# The first due run of every type and priority. The job type of alerts and paused types are left out.
WAITING = f"""
WITH oldest AS (
    SELECT w.job_type, min(first.run_at) AS due_at
    FROM ({TYPES_WITH_WORK}) AS w CROSS JOIN {EACH_PRIORITY}
    CROSS JOIN LATERAL (
        SELECT r.run_at FROM wakeboard.job_runs r
        WHERE r.{IS_CLAIMABLE} AND r.job_type = w.job_type
          AND r.priority = each.priority AND r.run_at <= now()
        ORDER BY r.run_at LIMIT 1
    ) first
    WHERE w.job_type <> '{JOB_TYPE}'
      AND NOT EXISTS (SELECT FROM wakeboard.job_types t WHERE t.name = w.job_type AND t.paused_at IS NOT NULL)
    GROUP BY w.job_type
)
"""
# A tick lives for a moment each minute. One late heartbeat is no alarm.
LATE_SECONDS = 5
# draining: types that a draining worker defines, which is a click away from taking them. unregistered: types
# that no worker has ever registered, so nothing can be paused.
WORKERLESS = f"""{WAITING}, workerless AS (
    SELECT job_type, due_at FROM oldest
    WHERE due_at < now() - make_interval(secs => %(waited_seconds)s) AND NOT EXISTS (
        SELECT FROM wakeboard.workers w WHERE {worker_states.runs_type("w", "oldest.job_type")} AND CASE
            WHEN w.is_tick THEN {is_since("w.seen_at", SILENCE_SECONDS)}
            ELSE {worker_states.is_claiming("w", LATE_SECONDS)}
        END
    )
)
SELECT job_type AS name, extract(epoch FROM now() - due_at)::float8 AS waited_seconds,
    count(*) OVER () AS types,
    count(*) FILTER (WHERE EXISTS (
        SELECT FROM wakeboard.workers w
        WHERE {worker_states.runs_type("w", "workerless.job_type")} AND {worker_states.is_draining("w")}
    )) OVER () AS draining,
    count(*) FILTER (WHERE NOT EXISTS (
        SELECT FROM wakeboard.job_types t WHERE t.name = workerless.job_type
    )) OVER () AS unregistered
FROM workerless ORDER BY due_at LIMIT {MOST_NAMES}
"""


class WorkerlessType(NamedTuple):
    """A job type with due work that no live worker takes; the last three numbers count all such types."""

    name: str
    waited_seconds: float
    types: int
    draining: int
    unregistered: int


def _no_worker(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, WorkerlessType, WORKERLESS, settings)
    limit, names = settings["waited_seconds"], tuple(row.name for row in rows)
    if rows:
        oldest = rows[0]
        sentence = (
            f"No live worker takes {plural(oldest.types, 'type')} with due work: "
            f"{', '.join(map(short_name, names))}. "
            f"The oldest waits {format_duration(oldest.waited_seconds)}. "
            f"{_advise_on_workers(names, oldest.types, oldest.draining, oldest.unregistered)}"
        )
        return Finding(True, sentence, oldest.waited_seconds, limit, "seconds", names)
    if is_abandoned(connection):
        sentence = "Schedules are enabled and no worker or tick came for 3 minutes: nothing fires. Start one."
        return Finding(True, sentence, SILENCE_SECONDS, SILENCE_SECONDS, "seconds", ("schedules",))
    sentence = f"No work has been due for {format_duration(limit)} without a live worker that takes it."
    return Finding(False, sentence, 0, limit, "seconds")


def _advise_on_workers(names: Sequence[str], types: int, draining: int, unregistered: int) -> str:
    """Return what gives ``types`` job types a worker.

    A worker drains of ``draining`` of them. No worker has ever registered ``unregistered`` of them, so these
    cannot be paused. ``names`` are the first of them.
    """
    users = [user for name in names if (user := command_user(name)) is not None]
    if users and len(users) == types and not draining:
        return f"Start {workers_for(users)}."
    them = "it" if types == 1 else "them"
    if unregistered == types:
        name = "its name" if types == 1 else "each name"
        return f"None has ever registered {them}: is {name} right? Start a worker whose app defines {them}."
    if not draining:
        return f"Start a worker whose app defines {them}, or pause the type."
    if types == 1:
        return "A draining worker defines it: undrain it, start another, or pause the type."
    if draining == types:
        return "Draining workers define them: undrain those, start others, or pause the types."
    return (
        f"Draining workers define {draining} of them: undrain those, start others for the rest, or pause "
        "the types."
    )


# -- late_loop ---------------------------------------------------------------------------------------------


def _late_loop(connection: Connection, _settings: RuleSettings) -> Finding:
    late = sorted(late_loops(connection), key=lambda loop: -loop.ago_seconds)
    if not late:
        return Finding(False, "Every loop of every live process is on time.", 0, 1, "loops")
    names = tuple(f"{loop.name} of {loop.process_id}" for loop in late[:MOST_NAMES])
    listed = ", ".join(
        f"{short_name(loop.name)} of {short_name(loop.process_id)} ({format_duration(loop.ago_seconds)} ago)"
        for loop in late[:MOST_NAMES]
    )
    sentence = (
        f"{plural(len(late), 'loop is', 'loops are')} late; last success: {listed}. Look at that process, "
        "and restart it if it hangs."
    )
    return Finding(True, sentence, len(late), 1, "loops", names)


# -- queue_age ---------------------------------------------------------------------------------------------

OLDEST = f"""{WAITING}
SELECT job_type AS name, extract(epoch FROM now() - due_at)::float8 AS waited_seconds FROM oldest
ORDER BY due_at LIMIT {MOST_NAMES}
"""
# A run whose start the database refuses is due only for a moment each time. Each pause is as long as all
# before it and FIRST_PAUSE_SECONDS, at most LONGEST_PAUSE_SECONDS.
SET_ASIDE = f"""
WITH refused AS (
    SELECT job_type, extract(epoch FROM run_at - updated_at)::float8 - {FIRST_PAUSE_SECONDS} AS waited
    FROM wakeboard.job_runs WHERE {IS_SET_ASIDE} ORDER BY job_type, updated_at LIMIT {CAP}
)
SELECT job_type AS name, count(*) AS number, (sum(count(*)) OVER ())::bigint AS total,
    max(max(waited)) OVER () AS waited_seconds
FROM refused
WHERE waited > least(%(waited_seconds)s, {LONGEST_PAUSE_SECONDS - FIRST_PAUSE_SECONDS - 1})
    AND job_type <> '{JOB_TYPE}'
    AND NOT EXISTS (SELECT FROM wakeboard.job_types t WHERE t.name = job_type AND t.paused_at IS NOT NULL)
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {MOST_NAMES}
"""


class WaitingType(NamedTuple):
    """A job type and how long its oldest due run waits."""

    name: str
    waited_seconds: float


class RefusedRuns(NamedTuple):
    """How many runs of a job type the database does not let start, and of all types."""

    name: str
    number: int
    total: int
    waited_seconds: float


def _queue_age(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, WaitingType, OLDEST, settings)
    refused = _rows(connection, RefusedRuns, SET_ASIDE, settings)
    limit, waited = settings["waited_seconds"], rows[0].waited_seconds if rows else 0.0
    late = [row for row in rows if row.waited_seconds > limit]
    sentences = []
    if late:
        listed = ", ".join(f"{short_name(row.name)} {format_duration(row.waited_seconds)}" for row in late)
        wait = format_duration(limit)
        sentences.append(f"Due runs wait longer than {wait}: {listed}. Add workers or slots, or look why.")
    if refused:
        waited = max(waited, refused[0].waited_seconds)
        sentences.append(
            f"The database refuses to let {plural(refused[0].total, 'run')} start: {_list_counts(refused)}. "
            "The page of each says which rule it is."
        )
    if sentences:
        names = dict.fromkeys([row.name for row in late] + [row.name for row in refused])
        return Finding(True, " ".join(sentences), waited, limit, "seconds", tuple(names)[:MOST_NAMES])
    sentence = f"The oldest due run waits {format_duration(waited)}." if rows else "No due run waits."
    return Finding(False, sentence, waited, limit, "seconds")


# -- dead_runs ---------------------------------------------------------------------------------------------

# Few, and found by an index of their own.
MUTED_GROUPS = "SELECT id FROM wakeboard.error_groups WHERE muted_until > now()"
# Newest first along job_runs_by_status, which has every column needed: no row is read. With a plain
# equality and a limit the planner may walk the whole table by its primary key. The newest CAP dead runs are
# read; one that died lately but was made long ago may be past them.
DEAD = f"""
WITH newest AS (
    SELECT job_type, failed_at AS died_at, error_group FROM wakeboard.job_runs
    WHERE status = ANY ('{{{Status.DEAD}}}') ORDER BY status DESC, id DESC LIMIT {CAP}
)
SELECT job_type AS name, count(*) AS number, (sum(count(*)) OVER ())::bigint AS total FROM newest
WHERE {is_since("died_at", "%(within_seconds)s")} AND job_type <> '{JOB_TYPE}'
    AND NOT (%(muted)s > 0 AND coalesce(error_group = ANY (ARRAY({MUTED_GROUPS})), false))
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {MOST_NAMES}
"""


def _dead_runs(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, NameCount, DEAD, settings)
    within = format_duration(settings["within_seconds"])
    but_muted = ", muted errors left out" if settings["muted"] else ""
    finding = _compare_total(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'run')} died in the last {within}: {_list_counts(rows)}. "
            "Look at them, and retry what can be fixed."
        ),
        f"No run died in the last {within}{but_muted}.",
    )
    return replace(finding, within_seconds=settings["within_seconds"])


# -- failures_rise -----------------------------------------------------------------------------------------

# The hour that ends now. Statistics have no error groups: the attempts of muted groups are subtracted, at
# most CAP of each.
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
SELECT job_type AS name, sum(runs)::bigint AS number, (sum(sum(runs)) OVER ())::bigint AS total
FROM both_tables
WHERE outcome IN ({sql_list(FAILURES)}) AND job_type <> '{JOB_TYPE}'
GROUP BY job_type HAVING sum(runs) > 0 ORDER BY sum(runs) DESC, job_type LIMIT {MOST_NAMES}
"""
# The median of the hours that ended 1 … 7 days ago, as far back as there are statistics. It counts muted
# groups: a group that was loud last week makes the rule a little less sensitive.
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


def _failures_rise(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, NameCount, FAILED, settings)
    usual, days = connection.execute(USUAL.encode()).fetchone() or (0.0, 0)
    total = rows[0].total if rows else 0
    limit = max(settings["count"], settings["factor"] * usual)
    comparison = f"usual at this time: {usual:g}" if days else "no day before to compare with"
    numbers = f"{plural(total, 'attempt')} failed in the last hour ({comparison})"
    if total < settings["count"] or total <= settings["factor"] * usual:
        return Finding(False, f"{numbers}.", total, limit, "attempts")
    sentence = f"{numbers}: {_list_counts(rows)}. Look at the errors before the runs are dead."
    return Finding(True, sentence, total, limit, "attempts", tuple(row.name for row in rows), HOUR)


# -- missed_runs -------------------------------------------------------------------------------------------

MISSED = f"""
SELECT d.name, count(*) AS number, (sum(count(*)) OVER ())::bigint AS total FROM (
    SELECT definition_id FROM wakeboard.missed_fires
    WHERE noted_at > now() - make_interval(secs => %(within_seconds)s)
      AND (reason IN ('misfire', 'capped') OR reason = 'overlap' AND %(overlaps)s > 0)
    ORDER BY noted_at DESC LIMIT {CAP}
) AS m JOIN wakeboard.job_definitions d ON d.id = m.definition_id
GROUP BY d.name ORDER BY count(*) DESC, d.name LIMIT {MOST_NAMES}
"""


def _missed_runs(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, NameCount, MISSED, settings)
    within = format_duration(settings["within_seconds"])
    return _compare_total(
        rows,
        1,
        lambda total: (
            f"{plural(total, 'fire was', 'fires were')} missed in the last {within}: {_list_counts(rows)}. "
            "Run the schedule now if its work is still wanted."
        ),
        f"No fire was missed in the last {within}.",
    )


# -- stuck_leases ------------------------------------------------------------------------------------------

STUCK = f"""
SELECT job_type AS name, count(*) AS number, (sum(count(*)) OVER ())::bigint AS total FROM (
    SELECT job_type FROM wakeboard.job_runs
    WHERE status = 'running' AND locked_until < now() - make_interval(secs => %(ended_seconds)s) LIMIT {CAP}
) AS stuck
GROUP BY job_type ORDER BY count(*) DESC, job_type LIMIT {MOST_NAMES}
"""


def _stuck_leases(connection: Connection, settings: RuleSettings) -> Finding:
    rows = _rows(connection, NameCount, STUCK, settings)
    ended = format_duration(settings["ended_seconds"])
    return _compare_total(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'lease')} ended more than {ended} ago and no worker took the run back: "
            f"{_list_counts(rows)}. Look at the workers, or release the leases."
        ),
        f"No lease ended more than {ended} ago.",
    )


# -- cannot_fire -------------------------------------------------------------------------------------------


def _cannot_fire(connection: Connection, _settings: RuleSettings) -> Finding:
    rows = broken_schedules(connection)
    if not rows:
        return Finding(False, "All enabled schedules can fire.", 0, 1, "count")
    names = tuple(row.name for row in rows[:MOST_NAMES])
    listed = ", ".join(map(short_name, names))
    others = f" and {len(rows) - MOST_NAMES} more" if len(rows) > MOST_NAMES else ""
    sentence = (
        f"{plural(len(rows), 'schedule')} cannot fire: {listed}{others}. The page of each says why: correct "
        "its text or zone, or the rule of the database that refuses its run; or pause what need not run."
    )
    return Finding(True, sentence, len(rows), 1, "count", names)


CHECKS: dict[str, Callable[[Connection, RuleSettings], Finding]] = {
    "no_worker": _no_worker,
    "late_loop": _late_loop,
    "queue_age": _queue_age,
    "dead_runs": _dead_runs,
    "failures_rise": _failures_rise,
    "missed_runs": _missed_runs,
    "cannot_fire": _cannot_fire,
    "stuck_leases": _stuck_leases,
}
