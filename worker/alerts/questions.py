"""One SQL question for each kind of rule, all by the database's clock: is it so, with numbers and a sentence.

Cheap on a table of ten million runs: each goes by an index that was made for it, and counting stops at CAP.
Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from worker import fleet
from worker.alerts.finding import NAMED, Finding, name_of
from worker.alerts.kinds import JOB_TYPE
from worker.durations import format_duration
from worker.indexed import IS_SET_ASIDE
from worker.liveness import SILENCE_SECONDS, is_abandoned, late_loops
from worker.states import CLAIMABLE, FAILURES, Status, sql_list
from worker.transitions.engine.refused import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from worker.unfireable import UNFIREABLE

Connection = psycopg.Connection[Any]
CAP = 10_000
HOUR = 3600.0

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
            WHEN w.is_tick THEN w.seen_at > now() - make_interval(secs => {SILENCE_SECONDS})
            ELSE {fleet.is_claiming("w", LATE_SECONDS)}
        END
    )
)
SELECT job_type, extract(epoch FROM now() - due_at)::float8 AS waited, count(*) OVER (),
    count(*) FILTER (WHERE EXISTS (
        SELECT FROM wakeboard.workers w
        WHERE unmanned.job_type = ANY(w.job_types) AND {fleet.is_draining("w")}
    )) OVER (),
    count(*) FILTER (WHERE NOT EXISTS (
        SELECT FROM wakeboard.job_types t WHERE t.name = unmanned.job_type
    )) OVER ()
FROM unmanned ORDER BY due_at LIMIT {NAMED}
"""
# What people have muted for now: few, and by an index of their own.
MUTED_GROUPS = "SELECT id FROM wakeboard.error_groups WHERE muted_until > now()"
# Newest first along job_runs_failing, which has all that is asked for: no row is read. With a plain equality
# and a limit the planner may walk the whole table by its primary key. The newest CAP dead runs are read; one
# that died lately but was made long ago may be past them.
DEAD = f"""
WITH newest AS (
    SELECT job_type, failed_at AS died_at, error_group FROM wakeboard.job_runs
    WHERE status = ANY ('{{{Status.DEAD}}}') ORDER BY status DESC, id DESC LIMIT {CAP}
)
SELECT job_type, count(*), sum(count(*)) OVER ()::bigint FROM newest
WHERE died_at > now() - make_interval(secs => %(within_seconds)s) AND job_type <> '{JOB_TYPE}'
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

Settings = Mapping[str, float]


def ask(connection: Connection, kind: str, settings: Settings) -> Finding:
    """Return what is found now for a rule of ``kind`` with the values of ``Kind.values``."""
    return QUESTIONS[kind](connection, settings)


def _rows(connection: Connection, statement: str, settings: Settings) -> Sequence[tuple[Any, ...]]:
    return connection.execute(statement.encode(), dict(settings)).fetchall()


def _listed(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return ``mail 12, report 3`` of rows of (name, count, …)."""
    return ", ".join(f"{name_of(row[0])} {row[1]}" for row in rows)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 run``, ``2 runs``, and ``10000+ runs`` where counting stopped."""
    return f"{count}{'+' if count >= CAP else ''} {one if count == 1 else many or one + 's'}"


def _no_worker(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, UNMANNED, settings)
    limit, names = settings["waited_seconds"], tuple(row[0] for row in rows)
    if rows:
        what = ", ".join(name_of(name) for name in names)
        sentence = (
            f"No live worker takes {plural(rows[0][2], 'type')} with due work: {what}. "
            f"The oldest waits {format_duration(rows[0][1])}. {_manned_by(*rows[0][2:5])}"
        )
        return Finding(True, sentence, rows[0][1], limit, "seconds", names)
    if is_abandoned(connection):
        sentence = "Schedules are enabled and no worker or tick came for 3 minutes: nothing fires. Start one."
        return Finding(True, sentence, SILENCE_SECONDS, SILENCE_SECONDS, "seconds", ("schedules",))
    sentence = f"No work has been due for {format_duration(limit)} without a live worker that takes it."
    return Finding(False, sentence, 0, limit, "seconds")


def _manned_by(types: int, draining: int, unknown: int) -> str:
    """Return what gives so many types a worker: a worker drains of ``draining`` of them, and of ``unknown``
    there never was one, so they cannot be paused.
    """
    them = "it" if types == 1 else "them"
    if unknown == types:
        names = "its name" if types == 1 else "each name"
        return f"None has ever registered {them}: is {names} right? Start a worker whose app defines {them}."
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


def _late_loop(connection: Connection, _settings: Settings) -> Finding:
    late = sorted(late_loops(connection), key=lambda loop: -loop.ago_seconds)
    names = tuple(f"{loop.name} of {loop.process_id}" for loop in late[:NAMED])
    if not late:
        return Finding(False, "Every loop of every live process is on time.", 0, 1, "loops")
    listed = ", ".join(
        f"{name_of(loop.name)} of {name_of(loop.process_id)} ({format_duration(loop.ago_seconds)} ago)"
        for loop in late[:NAMED]
    )
    sentence = (
        f"{plural(len(late), 'loop is', 'loops are')} late; last success: {listed}. Look at that process, "
        "and restart it if it hangs."
    )
    return Finding(True, sentence, len(late), 1, "loops", names)


def _queue_age(connection: Connection, settings: Settings) -> Finding:
    rows, refused = _rows(connection, OLDEST, settings), _rows(connection, SET_ASIDE, settings)
    limit, waited = settings["waited_seconds"], rows[0][1] if rows else 0.0
    late = [row for row in rows if row[1] > limit]
    sentences = []
    if late:
        listed = ", ".join(f"{name_of(name)} {format_duration(seconds)}" for name, seconds in late)
        wait = format_duration(limit)
        sentences.append(f"Due runs wait longer than {wait}: {listed}. Add workers or slots, or look why.")
    if refused:
        waited = max(waited, refused[0][3])
        sentences.append(
            f"The database refuses to let {plural(refused[0][2], 'run')} start: {_listed(refused)}. "
            "The page of each says which rule it is."
        )
    if sentences:
        names = dict.fromkeys(row[0] for row in (*late, *refused))
        return Finding(True, " ".join(sentences), waited, limit, "seconds", tuple(names)[:NAMED])
    words = f"The oldest due run waits {format_duration(waited)}." if rows else "No due run waits."
    return Finding(False, words, waited, limit, "seconds")


def _dead_runs(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, DEAD, settings)
    within = format_duration(settings["within_seconds"])
    found = _counted(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'run')} died in the last {within}: {_listed(rows)}. "
            "Look at them, and retry what can be mended."
        ),
        f"No run died in the last {within}{_unless_muted(settings)}.",
    )
    return replace(found, within_seconds=settings["within_seconds"])


def _unless_muted(settings: Settings) -> str:
    return ", muted errors left out" if settings["muted"] else ""


def _failures_rise(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, FAILED, settings)
    usual, days = connection.execute(USUAL.encode()).fetchone() or (0.0, 0)
    total = int(rows[0][2]) if rows else 0
    limit = max(settings["count"], settings["factor"] * usual)
    against = f"usual at this time: {usual:g}" if days else "no day before to compare with"
    counted = f"{plural(total, 'attempt')} failed in the last hour ({against})"
    if total < settings["count"] or total <= settings["factor"] * usual:
        return Finding(False, f"{counted}.", total, limit, "attempts")
    sentence = f"{counted}: {_listed(rows)}. Look at the errors before the runs are dead."
    return Finding(True, sentence, total, limit, "attempts", tuple(row[0] for row in rows), HOUR)


def _missed_runs(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, MISSED, settings)
    within = format_duration(settings["within_seconds"])
    return _counted(
        rows,
        1,
        lambda total: (
            f"{plural(total, 'fire was', 'fires were')} missed in the last {within}: {_listed(rows)}. "
            "Run the schedule now if its work is still wanted."
        ),
        f"No fire was missed in the last {within}.",
    )


def _stuck_leases(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, STUCK, settings)
    ended = format_duration(settings["ended_seconds"])
    return _counted(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'lease')} ended more than {ended} ago and nobody took the run back: "
            f"{_listed(rows)}. Look at the workers, or release the leases."
        ),
        f"No lease ended more than {ended} ago.",
    )


def _counted(
    rows: Sequence[tuple[Any, ...]], limit: float, says: Callable[[int], str], nothing: str
) -> Finding:
    total = int(rows[0][2]) if rows else 0
    names = tuple(row[0] for row in rows)
    if total >= limit:
        return Finding(True, says(total), total, limit, "count", names)
    return Finding(False, says(total) if total else nothing, total, limit, "count")


def _cannot_fire(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, UNFIREABLE, settings)
    if not rows:
        return Finding(False, "All enabled schedules can fire.", 0, 1, "count")
    names = tuple(row[0] for row in rows[:NAMED])
    listed = ", ".join(name_of(name) for name in names)
    others = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    sentence = (
        f"{plural(len(rows), 'schedule')} cannot fire: {listed}{others}. The page of each says why: correct "
        "its text or zone, or the rule of the database that refuses its run; or pause what need not run."
    )
    return Finding(True, sentence, len(rows), 1, "count", names)


QUESTIONS: dict[str, Callable[[Connection, Settings], Finding]] = {
    "no_worker": _no_worker,
    "late_loop": _late_loop,
    "queue_age": _queue_age,
    "dead_runs": _dead_runs,
    "failures_rise": _failures_rise,
    "missed_runs": _missed_runs,
    "cannot_fire": _cannot_fire,
    "stuck_leases": _stuck_leases,
}
