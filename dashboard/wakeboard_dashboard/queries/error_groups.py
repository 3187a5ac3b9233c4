"""Reads rows of error_groups, and the numbers of the page of one group. ``errors`` lists failures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ARRAY, BigInteger, Connection, RowMapping, any_, bindparam, func, select, text

from wakeboard.core.errors.error_groups import QUIET_DAYS
from wakeboard.core.states import Status
from wakeboard.database.tables import audit_log, error_groups, job_attempts, job_runs, workers

# A group is new for so long after its first failure, and back for so long after its return.
FRESH = timedelta(hours=24)
QUIET = timedelta(days=QUIET_DAYS)
STATES = ("new", "back", "ongoing", "quiet")
CAP, RUNS_CAP = 20_000, 10_000
# Counting by worker reads whole attempts, of most a page of the database each.
WORKERS_CAP = 1_000
MOST_WORKERS = 20
# Counting by schedule reads a run of each failure as well.
SCHEDULES_CAP = 200
MOST_SCHEDULES = 5
MOST_SAME = 20
MOST_MUTED = 100
MOST_MUTES = 10

groups = error_groups.c
attempts = job_attempts.c
runs = job_runs.c


@dataclass(frozen=True, slots=True)
class ErrorGroupRow:
    """One row of ``error_groups``."""

    id: int
    fingerprint: str
    error_code: str
    job_type: str
    template: str
    frame: str | None
    first_run_id: int | None
    first_seen_at: datetime
    last_seen_at: datetime
    returned_at: datetime | None
    quiet_from_at: datetime | None
    muted_until: datetime | None
    muted_at: datetime | None
    muted_by: str | None
    muted_reason: str | None

    @property
    def failure_key(self) -> FailureKey:
        """What it has in common with the same failure of other types."""
        return self.error_code, self.template, self.frame

    def state(self, now: datetime) -> str:
        """Return one of STATES: new, back again, ongoing, or quiet since QUIET."""
        if self.first_seen_at > now - FRESH:
            return "new"
        if self.returned_at is not None and self.returned_at > now - FRESH:
            return "back"
        return "quiet" if self.last_seen_at < now - QUIET else "ongoing"

    def is_muted(self, now: datetime) -> bool:
        """Whether somebody muted it until a moment after ``now``."""
        return self.muted_until is not None and self.muted_until > now


_COLUMNS = [groups[name] for name in ErrorGroupRow.__dataclass_fields__]
_BY_NUMBER = select(*_COLUMNS).where(groups.id == any_(bindparam("numbers", type_=ARRAY(BigInteger))))


# Code, message and place: groups of several types that share them are the same failure.
FailureKey = tuple[str, str, str | None]


def read_groups(connection: Connection, numbers: Collection[int]) -> dict[int, ErrorGroupRow]:
    """Return the rows of these groups by number; retention may have removed some."""
    if not numbers:
        return {}
    rows = connection.execute(_BY_NUMBER, {"numbers": sorted(numbers)})
    return {row.id: ErrorGroupRow(*row) for row in rows}


_NEW_GROUPS = text(f"""
SELECT of.number, {", ".join(f"g.{name}" for name in ErrorGroupRow.__dataclass_fields__)}
FROM unnest(CAST(:numbers AS bigint[])) AS of (number)
LEFT JOIN wakeboard.error_groups AS g ON g.id = of.number
WHERE g.id IS NULL OR g.first_seen_at >= :since OR of.number = ANY (CAST(:shown AS bigint[]))
""")


def read_new_groups(
    connection: Connection, numbers: Collection[int], since: datetime, shown: Collection[int]
) -> dict[int, ErrorGroupRow | None]:
    """Return the rows of the groups first seen at or after ``since``, and of all groups in ``shown``.

    None stands for a group without a row. Of hundreds of groups few are new: the others are not read.
    """
    values = {"numbers": list(numbers), "since": since, "shown": list(shown)}
    rows = connection.execute(_NEW_GROUPS, values).all() if numbers else []
    return {number: None if row[0] is None else ErrorGroupRow(*row) for number, *row in rows}


_MUTED = (
    select(*_COLUMNS)
    .where(groups.muted_until > func.now())
    .order_by(groups.muted_until, groups.id)
    .limit(MOST_MUTED)
)


def list_muted(connection: Connection) -> list[ErrorGroupRow]:
    """Return the groups that are muted now, in the order in which their mutes end, at most MOST_MUTED."""
    return [ErrorGroupRow(*row) for row in connection.execute(_MUTED)]


_TYPES_BY_FAILURE = text("""
SELECT error_code, template, frame, array_agg(job_type) FROM wakeboard.error_groups
WHERE id = ANY (CAST(:numbers AS bigint[])) GROUP BY error_code, template, frame
""")


def list_types_by_failure(connection: Connection, numbers: str | None) -> dict[FailureKey, list[str]]:
    """Return the sorted types of the groups ``numbers``, the text of a PostgreSQL array, by failure."""
    if numbers is None:
        return {}
    rows = connection.execute(_TYPES_BY_FAILURE, {"numbers": numbers})
    return {(code, template, frame): sorted(types) for code, template, frame, types in rows}


def find_group(connection: Connection, number: int) -> ErrorGroupRow | None:
    """Return the group with this number, None when there is none."""
    return read_groups(connection, [number]).get(number)


def list_same_failures(connection: Connection, group: ErrorGroupRow) -> list[ErrorGroupRow]:
    """Return the groups of other types with the same code, message and place, last seen first."""
    statement = (
        select(*_COLUMNS)
        .where(
            groups.error_code == group.error_code,
            groups.template == group.template,
            groups.frame.is_not_distinct_from(group.frame),
            groups.id != group.id,
        )
        .order_by(groups.last_seen_at.desc(), groups.id)
        .limit(MOST_SAME)
    )
    return [ErrorGroupRow(*row) for row in connection.execute(statement)]


# One branch per group and state: an index scan that stops at its cap, whatever the planner guesses.
_RUNS_BY_STATUS = text(f"""
SELECT each.status, counted.runs
FROM unnest(CAST(:statuses AS text[])) AS each (status)
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS r
        WHERE r.error_group = :number AND r.status = each.status LIMIT {RUNS_CAP}
    ) AS capped
) AS counted
""")


def count_runs(
    connection: Connection, number: int, states: Collection[Status] = tuple(Status)
) -> dict[str, int]:
    """Return by state how many runs failed last with this group, at most RUNS_CAP each."""
    values = {"number": number, "statuses": [status.value for status in states]}
    return {row.status: row.runs for row in connection.execute(_RUNS_BY_STATUS, values)}


_TREND = text(f"""
SELECT greatest(1, width_bucket(finished_at, CAST(:starts AS timestamptz[]))) AS step, count(*) AS failures
FROM (
    SELECT finished_at FROM wakeboard.job_attempts
    WHERE error_group = :number AND finished_at >= :since AND finished_at < :until
    ORDER BY finished_at DESC LIMIT {CAP}
) AS newest GROUP BY step
""")


def count_steps(
    connection: Connection, number: int, since: datetime, until: datetime, starts: Sequence[datetime]
) -> list[int]:
    """Return how many of a group's newest CAP failures are in each step; these begin at ``starts``."""
    values = {"number": number, "since": since, "until": until, "starts": starts}
    counted = {row.step: row.failures for row in connection.execute(_TREND, values)}
    return [counted.get(place, 0) for place in range(1, len(starts) + 1)]


def count_by_worker(
    connection: Connection, number: int, since: datetime, until: datetime
) -> list[RowMapping]:
    """Return worker_id, name, failures, last_at of the workers on which a group failed, most failures first.

    Counts its newest WORKERS_CAP failures in the window. Returns at most MOST_WORKERS rows; each has the
    number of all failures (``counted``) and of all workers (``among``).
    """
    newest = (
        select(attempts.worker_id, attempts.finished_at)
        .where(attempts.error_group == number, attempts.finished_at >= since, attempts.finished_at < until)
        .order_by(attempts.finished_at.desc())
        .limit(WORKERS_CAP)
        .subquery()
    )
    counted = (
        select(
            newest.c.worker_id,
            func.count().label("failures"),
            func.max(newest.c.finished_at).label("last_at"),
            func.sum(func.count()).over().label("counted"),
            func.count().over().label("among"),
        )
        .group_by(newest.c.worker_id)
        .order_by(func.count().desc(), newest.c.worker_id)
        .limit(MOST_WORKERS)
        .subquery()
    )
    statement = (
        select(counted, workers.c.name)
        .outerjoin(workers, workers.c.id == counted.c.worker_id)
        .order_by(counted.c.failures.desc(), counted.c.worker_id)
    )
    return list(connection.execute(statement).mappings())


_BY_SCHEDULE = text(f"""
SELECT r.definition_id, d.name, count(DISTINCT r.id) AS runs, count(*) OVER () AS among,
    sum(count(*)) OVER () AS counted
FROM (
    SELECT a.run_id FROM wakeboard.job_attempts AS a
    WHERE a.error_group = :number AND a.finished_at >= :since AND a.finished_at < :until
    ORDER BY a.finished_at DESC LIMIT {SCHEDULES_CAP}
) AS newest
JOIN wakeboard.job_runs AS r ON r.id = newest.run_id
LEFT JOIN wakeboard.job_definitions AS d ON d.id = r.definition_id
GROUP BY r.definition_id, d.name
ORDER BY r.definition_id IS NULL, runs DESC, d.name, r.definition_id LIMIT {MOST_SCHEDULES}
""")


def count_by_schedule(
    connection: Connection, number: int, since: datetime, until: datetime
) -> list[RowMapping]:
    """Return definition_id, name and runs of the schedules whose runs failed with a group, most runs first.

    Counts its newest SCHEDULES_CAP failures in the window. Returns at most MOST_SCHEDULES rows; each has the
    number of all failures (``counted``) and of all rows (``among``). Of runs without a schedule both are
    None, of a removed schedule the name. Empty where no failure is of a schedule.
    """
    values = {"number": number, "since": since, "until": until}
    rows = list(connection.execute(_BY_SCHEDULE, values).mappings())
    return rows if any(row["definition_id"] for row in rows) else []


def find_last_failure(connection: Connection, number: int) -> RowMapping | None:
    """Return run_id, finished_at and worker_id of a group's newest failure, None when there is none."""
    statement = (
        select(attempts.run_id, attempts.finished_at, attempts.worker_id)
        .where(attempts.error_group == number)
        .order_by(attempts.finished_at.desc())
        .limit(1)
    )
    return connection.execute(statement).mappings().one_or_none()


def has_run(connection: Connection, run_id: int | None) -> bool:
    """Return whether that run is still there."""
    if run_id is None:
        return False
    return connection.execute(select(runs.id).where(runs.id == run_id)).first() is not None


def list_mutes(connection: Connection, fingerprint: str) -> Sequence[RowMapping]:
    """Return the audit rows of who muted and unmuted the group, newest first, at most MOST_MUTES."""
    columns = [audit_log.c[name] for name in ("id", "at", "actor", "action", "reason", "result")]
    statement = (
        select(*columns, audit_log.c.after)
        .where(audit_log.c.target_type == "error", audit_log.c.target_id == fingerprint)
        .order_by(audit_log.c.id.desc())
        .limit(MOST_MUTES)
    )
    return connection.execute(statement).mappings().all()
