"""The tables (schema ``wakeboard``) as typed SQLAlchemy Core objects, and nothing else.

The whole contract with producers, workers and pages is here; migrations must end in exactly this
(a test compares them). Times are ``timestamptz`` and finite, ids are ``bigint`` identity columns.
Never imported by the supervisor: its statements are text in ``wakeboard.queue``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.core.states import CLAIMABLE, ENDED, FAILING, FAILURES, Outcome, Role, Status, sql_list
from wakeboard.database.index_predicates import (
    HAS_ERROR,
    IS_LATER_SUCCESS,
    IS_LISTED_BY_STATUS,
    IS_UNDER_WAY,
)

SCHEMA = "wakeboard"
NAMING = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "ix": "%(table_name)s_%(column_0_name)s",
}
metadata = MetaData(schema=SCHEMA, naming_convention=NAMING)

_ALL_STATUSES = sql_list(tuple(Status))
_ALL_OUTCOMES = sql_list(tuple(Outcome))
_ALL_ROLES = sql_list(tuple(Role))
_FAILING = f"status IN ({sql_list(FAILING)})"
_FAILED = f"outcome IN ({sql_list(FAILURES)})"
# A counted repetition in one pattern says the same and costs 15 µs a row instead of 0.6.
_JOB_TYPE = "length(job_type) BETWEEN 1 AND 200 AND job_type !~ '[[:cntrl:]]'"


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=False), primary_key=True)


def _at(name: str, *, now: bool = False, required: bool = False) -> Column[object]:
    """Return a ``timestamptz`` column; ``now`` gives it the database's clock as default."""
    default = text("now()") if now else None
    return Column(name, DateTime(timezone=True), server_default=default, nullable=not (now or required))


def _finite(table: str, *names: str) -> CheckConstraint:
    """Refuse ``infinity`` and years that programs cannot read back."""
    years = "BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'"
    return CheckConstraint(
        " AND ".join(f"({name} IS NULL OR {name} {years})" for name in names),
        name=f"{table}_times_are_finite",
    )


def _while_claimable(rule: str) -> str:
    """Return ``rule`` as it is judged of a run that may still be claimed.

    A claim and a finish change nothing that it speaks of, and PostgreSQL judges all rules of a table at each
    change of a row: 6 µs of the 90 that a run cost it.
    """
    return f"locked_by IS NOT NULL OR finished_at IS NOT NULL OR ({rule})"


job_definitions = Table(
    "job_definitions",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("payload", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("schedule", Text),
    Column("timezone", Text, nullable=False, server_default=text("'UTC'")),
    Column("misfire", Text, nullable=False, server_default=text("'one'")),
    Column("grace_seconds", Integer, nullable=False, server_default=text("60")),
    Column("overlap", Text, nullable=False, server_default=text("'skip'")),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Double),
    Column("priority", SmallInteger, nullable=False, server_default=text("2")),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("error", Text),
    _at("next_fire_at"),
    _at("last_fire_at"),
    # Fires up to here are settled. Where next_fire_at is NULL, the next fire is the first one after this.
    Column("settled_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    # What fell due by a rule that was edited before anybody fired it; a trigger writes it (migration 0100).
    Column("unsettled", JSONB),
    _at("created_at", now=True),
    _at("updated_at", now=True),
    UniqueConstraint("name", name="job_definitions_name_key"),
    CheckConstraint("name ~ '^[a-z0-9_-]{1,100}$'", name="job_definitions_name_is_plain"),
    CheckConstraint(_JOB_TYPE, name="job_definitions_job_type_is_printable"),
    CheckConstraint("misfire IN ('one', 'all', 'none')", name="job_definitions_misfire_is_known"),
    CheckConstraint("overlap IN ('skip', 'allow', 'wait')", name="job_definitions_overlap_is_known"),
    CheckConstraint("priority BETWEEN 0 AND 4", name="job_definitions_priority_is_0_to_4"),
    CheckConstraint("grace_seconds BETWEEN 0 AND 31536000", name="job_definitions_grace_is_bounded"),
    CheckConstraint("max_attempts > 0", name="job_definitions_max_attempts_is_positive"),
    CheckConstraint(
        "timeout_seconds > 0 AND timeout_seconds < 'Infinity'", name="job_definitions_timeout_is_positive"
    ),
    CheckConstraint(
        "jsonb_typeof(payload) = 'object' AND length(payload::text) <= 1048576",
        name="job_definitions_payload_is_a_small_object",
    ),
    CheckConstraint("jsonb_typeof(unsettled) = 'array'", name="job_definitions_unsettled_is_a_list"),
    _finite("job_definitions", "next_fire_at", "last_fire_at", "settled_at"),
    Index("job_definitions_due", "next_fire_at", postgresql_where=text("enabled AND schedule IS NOT NULL")),
    Index("job_definitions_unsettled", "id", postgresql_where=text("unsettled IS NOT NULL")),
)

job_runs = Table(
    "job_runs",
    metadata,
    _id(),
    # No foreign key: a run outlives its definition, and must be able to say that it is gone.
    Column("definition_id", BigInteger),
    _at("scheduled_for"),
    Column("job_type", Text, nullable=False),
    Column("payload", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("priority", SmallInteger, nullable=False, server_default=text("2")),
    _at("run_at", now=True),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Double),
    Column("lease_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("locked_by", Text),
    _at("locked_until"),
    _at("started_at"),
    _at("finished_at"),
    _at("failed_at"),
    # Of a fire: seconds from its time to its first start. Of any run of a schedule: whether another run of
    # it was under way at its first start. The first claim writes both (wakeboard.queue.engine.claims).
    Column("late_by", Double),
    Column("overlapped", Boolean, nullable=False, server_default=text("false")),
    Column("error_code", Text),
    Column("last_error", Text),
    Column("error_group", BigInteger),
    _at("cancel_requested_at"),
    Column("idempotency_key", Text),
    Column("enqueued_by", Text),
    Column("origin_run_id", BigInteger),
    Column("traceparent", Text),
    Column("progress_done", BigInteger),
    Column("progress_total", BigInteger),
    _at("created_at", now=True),
    _at("updated_at", now=True),
    CheckConstraint(f"status IN ({_ALL_STATUSES})", name="job_runs_status_is_known"),
    CheckConstraint(_while_claimable(_JOB_TYPE), name="job_runs_job_type_is_printable"),
    CheckConstraint(_while_claimable("priority BETWEEN 0 AND 4"), name="job_runs_priority_is_0_to_4"),
    CheckConstraint("attempts >= 0 AND failures >= 0", name="job_runs_counts_are_not_negative"),
    # A claim adds one to two of them: a single row without room would make it fail for its whole type. The
    # rule is asked of the row after it too, so what was never started has to stay far below.
    CheckConstraint(
        "attempts < 1000000000 AND failures < 1000000000 AND lease_epoch < 1000000000000000000"
        " AND (started_at IS NOT NULL OR"
        " attempts < 500000000 AND failures < 500000000 AND lease_epoch < 500000000000000000)",
        name="job_runs_counts_have_room",
    ),
    CheckConstraint(
        _while_claimable("length(traceparent) <= 200 AND length(enqueued_by) <= 200"),
        name="job_runs_origin_is_short",
    ),
    CheckConstraint(_while_claimable("max_attempts > 0"), name="job_runs_max_attempts_is_positive"),
    CheckConstraint(
        _while_claimable("timeout_seconds > 0 AND timeout_seconds < 'Infinity'"),
        name="job_runs_timeout_is_positive",
    ),
    CheckConstraint(
        _while_claimable("length(idempotency_key) BETWEEN 1 AND 200"), name="job_runs_key_is_short"
    ),
    CheckConstraint(
        _while_claimable("jsonb_typeof(payload) = 'object' AND length(payload::text) <= 1048576"),
        name="job_runs_payload_is_a_small_object",
    ),
    CheckConstraint(
        "(status = 'running') = (locked_by IS NOT NULL)"
        " AND (locked_by IS NULL) = (locked_until IS NULL)"
        " AND (status <> 'running' OR started_at IS NOT NULL)",
        name="job_runs_only_running_holds_a_lease",
    ),
    CheckConstraint(
        f"(status IN ({sql_list(ENDED)})) = (finished_at IS NOT NULL)",
        name="job_runs_only_ended_is_finished",
    ),
    CheckConstraint(
        f"status NOT IN ({sql_list(FAILING)}) OR error_code IS NOT NULL",
        name="job_runs_failure_has_a_code",
    ),
    _finite(
        "job_runs",
        "scheduled_for",
        "run_at",
        "locked_until",
        "started_at",
        "finished_at",
        "failed_at",
        "cancel_requested_at",
        "created_at",
        "updated_at",
    ),
    # Claim, oldest due run (overview, alerts): the due runs of one type in the order of a claim.
    Index(
        "job_runs_claimable",
        "job_type",
        "priority",
        "run_at",
        "id",
        postgresql_where=text(f"status IN ({sql_list(CLAIMABLE)})"),
    ),
    # Reaper, limited claim, /leases, and lists of running runs: a claim enters this index and no list.
    Index("job_runs_leased", "job_type", "locked_until", postgresql_where=text("status = 'running'")),
    # /runs by state, /errors, overview, alert on dead runs: newest first, and no row is read. Succeeded runs
    # are nearly all of the table, and are listed by the primary key.
    Index(
        "job_runs_by_status",
        "status",
        "id",
        postgresql_include=["job_type", "error_code", "error_group", "failed_at"],
        postgresql_where=text(IS_LISTED_BY_STATUS),
    ),
    # /runs?type=, /types/<name>, slow runs of the night page: newest first.
    Index(
        "job_runs_listed_by_type",
        "job_type",
        "id",
        postgresql_where=text("status <> 'running'"),
        postgresql_with={"fillfactor": 50},
    ),
    # /errors?type=, /types, /runs?type=&status=dead: what fails now of one type, newest first.
    Index(
        "job_runs_failing_by_type",
        "job_type",
        "status",
        "id",
        postgresql_include=["error_code", "error_group"],
        postgresql_where=text(_FAILING),
    ),
    # /errors/<code>, /runs?error=, alert on runs that were set aside: what has an error and did not end well.
    Index(
        "job_runs_by_error",
        "error_code",
        "id",
        postgresql_include=["status", "job_type", "error_group"],
        postgresql_where=text(HAS_ERROR),
    ),
    # /errors/<group>, /runs?group=: the runs of an error group in each state, newest first.
    Index(
        "job_runs_by_group",
        "error_group",
        "status",
        "id",
        postgresql_where=text("error_group IS NOT NULL"),
    ),
    # /schedules, /schedules/<name>, /runs?schedule=: the newest runs of a schedule.
    Index(
        "job_runs_by_definition",
        "definition_id",
        "id",
        postgresql_where=text("definition_id IS NOT NULL"),
    ),
    # /runs/<id>: the runs that came of a run; /schedules: what was run again.
    Index("job_runs_by_origin", "origin_run_id", postgresql_where=text("origin_run_id IS NOT NULL")),
    # Scheduler (has the last run of a schedule ended?), claim (does a run overlap another?).
    Index(
        "job_runs_under_way_of_definition",
        "definition_id",
        "scheduled_for",
        postgresql_include=["id", "started_at"],
        postgresql_where=text(f"definition_id IS NOT NULL AND {IS_UNDER_WAY}"),
    ),
    # Scheduler: one run for each fire. Night page: counts fires here and reads no row.
    Index(
        "job_runs_fires",
        "definition_id",
        "scheduled_for",
        unique=True,
        postgresql_include=["id", "status", "late_by", "overlapped"],
        postgresql_where=text("scheduled_for IS NOT NULL"),
    ),
    # Enqueue: one run for each key.
    Index(
        "job_runs_idempotency_key",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
)


@event.listens_for(job_runs, "after_create")
def _room_for_versions(_: Table, connection: Connection, **__: Any) -> None:
    """Fill the primary key as its list by type is: SQLAlchemy has no words for it."""
    connection.execute(text(f"ALTER INDEX {SCHEMA}.job_runs_pkey SET (fillfactor = 40)"))


job_attempts = Table(
    "job_attempts",
    metadata,
    # No foreign key: its check would run once per row of every finishing batch; attempts go with their run.
    Column("run_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease_epoch", BigInteger, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("worker_id", Text, nullable=False),
    _at("due_at", required=True),
    _at("started_at", required=True),
    _at("finished_at", required=True),
    Column("outcome", Text, nullable=False),
    Column("error_code", Text),
    Column("error", Text),
    Column("error_group", BigInteger),
    Column("traceback", Text),
    Column("output_tail", Text),
    Column("result", JSONB),
    Column("note", Text),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Double),
    _at("next_run_at"),
    _at("refused_at"),
    Column("refused_outcome", Text),
    PrimaryKeyConstraint("run_id", "lease_epoch", name="job_attempts_pkey"),
    CheckConstraint(f"outcome IN ({_ALL_OUTCOMES})", name="job_attempts_outcome_is_known"),
    # Night page, what succeeded only after a failure: as small as what needed another attempt.
    Index(
        "job_attempts_later_successes",
        "finished_at",
        postgresql_include=["run_id", "attempt"],
        postgresql_where=text(IS_LATER_SUCCESS),
    ),
    # Late answers of stale workers: as small as what was refused.
    Index("job_attempts_refused", "refused_at", postgresql_where=text("refused_at IS NOT NULL")),
    # What failed lately, by code and type, and in which runs: as small as what fails.
    Index(
        "job_attempts_failed_runs",
        "finished_at",
        "error_code",
        postgresql_include=["job_type", "error_group", "run_id", "lease_epoch", "outcome"],
        postgresql_where=text(_FAILED),
    ),
    # What failed with one code: a rare one is found without walking past all others.
    Index(
        "job_attempts_failed_by_code",
        "error_code",
        "finished_at",
        postgresql_include=["job_type", "error_group"],
        postgresql_where=text(_FAILED),
    ),
    # What failed in one error group, and when.
    Index(
        "job_attempts_by_group",
        "error_group",
        "finished_at",
        postgresql_where=text("error_group IS NOT NULL"),
    ),
)

job_types = Table(
    "job_types",
    metadata,
    Column("name", Text, primary_key=True),
    Column("max_attempts", Integer, nullable=False, server_default=text("10")),
    Column("timeout_seconds", Double, nullable=False, server_default=text("300")),
    Column("lease_seconds", Double),
    Column("backoff", Text, nullable=False, server_default=text("'exponential 10s cap 30m'")),
    Column("max_running", Integer),
    Column("max_running_operator", Integer),
    Column("memory_mb", Integer),
    # What the code says of its schedule. No zone: it says nothing of one, and is made in UTC.
    Column("schedule", Text),
    Column("timezone", Text),
    # What was applied of it or left to a person, as a list of [text, zone], the latest last.
    Column("said_in_code", JSONB),
    # How long ended runs are kept, where an operator wants other days than the settings' own.
    Column("keep_succeeded_days", Integer),
    Column("keep_dead_days", Integer),
    _at("paused_at"),
    Column("paused_by", Text),
    Column("paused_reason", Text),
    # When the pause ends by itself; NULL: when somebody resumes the type.
    _at("paused_until"),
    _at("seen_at"),
    _at("created_at", now=True),
    CheckConstraint("max_running >= 0", name="job_types_max_running_is_not_negative"),
    CheckConstraint("max_running_operator >= 0", name="job_types_operator_limit_is_not_negative"),
    CheckConstraint(
        "keep_succeeded_days BETWEEN 1 AND 36500 AND keep_dead_days BETWEEN 1 AND 36500",
        name="job_types_kept_days_are_bounded",
    ),
    _finite("job_types", "paused_until"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("job_types", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("concurrency", Integer, nullable=False),
    Column("heartbeat_seconds", Double, nullable=False, server_default=text("10")),
    Column("lease_seconds", Double),
    Column("version", Text),
    Column("is_tick", Boolean, nullable=False, server_default=text("false")),
    Column("running", Integer, nullable=False, server_default=text("0")),
    Column("memory_bytes", BigInteger),
    _at("started_at", now=True),
    _at("seen_at", now=True),
    _at("idle_since"),
    _at("drain_requested_at"),
    _at("stop_requested_at"),
    _at("stopping_at"),
    _at("stopped_at"),
    # By type what the code of this worker says of its schedule: [text, zone].
    Column("code_schedules", JSONB),
    CheckConstraint(
        "heartbeat_seconds > 0 AND heartbeat_seconds < 'Infinity'", name="workers_heartbeat_is_positive"
    ),
    Index("workers_alive", "seen_at", postgresql_where=text("stopped_at IS NULL")),
)

effects = Table(
    "effects",
    metadata,
    _id(),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("run_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease_epoch", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("result", JSONB),
    Column("settled_by", Text),
    _at("created_at", now=True),
    _at("finished_at"),
    UniqueConstraint("scope", "key", name="effects_scope_key"),
    CheckConstraint("status IN ('started', 'done')", name="effects_status_is_known"),
    Index("effects_by_run", "run_id"),
    Index("effects_started", "created_at", postgresql_where=text("status = 'started'")),
)

missed_fires = Table(
    "missed_fires",
    metadata,
    _id(),
    # None once the schedule was removed; a trigger keeps its name then.
    Column("definition_id", BigInteger, ForeignKey(job_definitions.c.id)),
    Column("schedule_name", Text),
    _at("scheduled_for", required=True),
    Column("reason", Text, nullable=False),
    # Set where one row stands for very many fires: all from scheduled_for to before this.
    _at("until_at"),
    _at("noted_at", now=True),
    UniqueConstraint("definition_id", "scheduled_for", name="missed_fires_fire_key"),
    CheckConstraint(
        "reason IN ('misfire', 'overlap', 'capped', 'paused')", name="missed_fires_reason_is_known"
    ),
    CheckConstraint(
        "(definition_id IS NULL) = (schedule_name IS NOT NULL)", name="missed_fires_have_a_schedule"
    ),
    Index("missed_fires_by_time", "noted_at"),
    Index("missed_fires_of_removed", "scheduled_for", postgresql_where=text("definition_id IS NULL")),
    Index("missed_fires_of_very_many", "until_at", postgresql_where=text("until_at IS NOT NULL")),
)

loops = Table(
    "loops",
    metadata,
    Column("process_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("interval_seconds", Double, nullable=False),
    _at("last_success_at", now=True),
    Column("last_error", Text),
    _at("last_error_at"),
    Column("numbers", JSONB),
    PrimaryKeyConstraint("process_id", "name", name="loops_pkey"),
)

# Claimed attempts that wait for their process and have not begun. See wakeboard.queue.engine.unbegun.
unbegun_attempts = Table(
    "unbegun_attempts",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("lease_epoch", BigInteger, primary_key=True, autoincrement=False),
    prefixes=["UNLOGGED"],
)

run_output = Table(
    "run_output",
    metadata,
    Column("run_id", BigInteger, ForeignKey(job_runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("lease_epoch", BigInteger, nullable=False),
    Column("tail", Text, nullable=False),
    _at("updated_at", now=True),
)

audit_log = Table(
    "audit_log",
    metadata,
    _id(),
    _at("at", now=True),
    Column("actor", Text, nullable=False),
    Column("role", Text),
    Column("source", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target_type", Text),
    Column("target_id", Text),
    Column("reason", Text),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("result", Text, nullable=False, server_default=text("'done'")),
    Column("request_id", Text),
    Column("ip", Text),
    Index("audit_log_by_target", "target_type", "target_id", "id"),
    Index("audit_log_by_actor", "actor", "id"),
    Index("audit_log_by_action", "action", "id"),
    Index("audit_log_undone", "id", postgresql_where=text("result <> 'done'")),
)


def _statistics(name: str, *indexes: Index) -> Table:
    """Counts of attempts per minute, type, outcome and duration; deltas and roll-ups share the columns.

    ``duration_bucket`` and ``wait_bucket`` are quarter powers of two of milliseconds (see
    ``wakeboard.reporting.statistics``), so percentiles of any window are a sum over few rows.
    """
    return Table(
        name,
        metadata,
        _at("minute", required=True),
        Column("job_type", Text, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("duration_bucket", SmallInteger, nullable=False),
        Column("wait_bucket", SmallInteger, nullable=False),
        Column("runs", BigInteger, nullable=False),
        Column("duration_ms", Double, nullable=False),
        Column("duration_max_ms", Double, nullable=False),
        Column("wait_ms", Double, nullable=False),
        Column("wait_max_ms", Double, nullable=False),
        *indexes,
    )


statistics_deltas = _statistics("statistics_deltas", Index("statistics_deltas_by_minute", "minute"))
statistics_rollups = _statistics("statistics_rollups", Index("statistics_rollups_by_minute", "minute"))


def _summed(name: str, hour: Column[object], *others: Column[Any]) -> Table:
    """What the minutes of an hour say together (see ``wakeboard.reporting.hourly_rollups``).

    ``failed`` counts failed, timed out and lost attempts; ``duration_ms`` and ``duration_max_ms`` are of
    these and of the successful ones. The ``duration_`` arrays are of the successful ones, the ``wait_``
    arrays of every attempt: buckets that hold any, ascending, with how many each holds.
    """
    return Table(
        name,
        metadata,
        hour,
        *others,
        *(
            Column(each, BigInteger, nullable=False, server_default=text("0"))
            for each in ("succeeded", "failed")
        ),
        *(
            Column(each, Double, nullable=False, server_default=text("0"))
            for each in ("duration_ms", "duration_max_ms", "succeeded_max_ms", "wait_max_ms")
        ),
        *(
            Column(each, ARRAY(kind), nullable=False, server_default=text("'{}'"))
            for each, kind in (
                ("duration_buckets", SmallInteger),
                ("duration_runs", BigInteger),
                ("duration_bucket_ms", Double),
                ("wait_buckets", SmallInteger),
                ("wait_runs", BigInteger),
            )
        ),
    )


# A row for each hour of which anything was merged, or that was found empty; ``summed_at`` is NULL until its
# sums are those of its minutes, and again as soon as a late delta changes these.
statistics_hours = _summed(
    "statistics_hours", Column("hour", DateTime(timezone=True), primary_key=True), _at("summed_at")
)
statistics_hours_of_types = _summed(
    "statistics_hours_of_types",
    Column(
        "hour",
        DateTime(timezone=True),
        ForeignKey("wakeboard.statistics_hours.hour", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("job_type", Text, primary_key=True),
    # All attempts, the cancelled and released ones too, and how long they held slots.
    Column("attempts", BigInteger, nullable=False, server_default=text("0")),
    Column("lost", BigInteger, nullable=False, server_default=text("0")),
    Column("busy_ms", Double, nullable=False, server_default=text("0")),
    # Parallel arrays, an entry for each slice in which attempts ended: the minute of the hour in which the
    # slice begins; the minutes in which the first of them began (below 0 before the hour) and after which the
    # last one had ended; how many they were, and how many failed.
    Column("slice_minutes", ARRAY(SmallInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_starts", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("slice_ends", ARRAY(SmallInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_attempts", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_failed", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
)

# ``id`` is what job_runs.error_group and job_attempts.error_group hold; core.errors.error_groups makes it.
error_groups = Table(
    "error_groups",
    metadata,
    _id(),
    Column("fingerprint", Text, nullable=False),
    Column("error_code", Text, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("template", Text, nullable=False),
    # Where the author's own code raised: ``crm.py in send_invoice``.
    Column("frame", Text),
    Column("first_run_id", BigInteger),
    _at("first_seen_at", now=True),
    # Up to a minute old: see wakeboard.runtime.loop.result_queue.
    _at("last_seen_at", now=True),
    # When it was last seen again after a long silence, and since when it had been silent.
    _at("returned_at"),
    _at("quiet_from_at"),
    _at("muted_until"),
    _at("muted_at"),
    Column("muted_by", Text),
    Column("muted_reason", Text),
    UniqueConstraint("fingerprint", name="error_groups_fingerprint_key"),
    # The same failure of other types.
    Index("error_groups_by_words", "error_code", "template"),
    Index("error_groups_muted", "muted_until", postgresql_where=text("muted_until IS NOT NULL")),
)

operations = Table(
    "operations",
    metadata,
    _id(),
    Column("verb", Text, nullable=False),
    Column("filter", JSONB, nullable=False),
    Column("as_of", DateTime(timezone=True), nullable=False),
    Column("status", Text, nullable=False, server_default=text("'running'")),
    Column("total", BigInteger, nullable=False, server_default=text("0")),
    # What was moved, a running one that was asked to stop among it; and how many of these were only asked.
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("asked", BigInteger, nullable=False, server_default=text("0")),
    # What was left as it was, and how many for which reason.
    Column("skipped", BigInteger, nullable=False, server_default=text("0")),
    Column("skips", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # How the moved ones ended: their first attempt afterwards; dropped were cancelled or removed before one.
    Column("succeeded", BigInteger, nullable=False, server_default=text("0")),
    Column("failed", BigInteger, nullable=False, server_default=text("0")),
    Column("dropped", BigInteger, nullable=False, server_default=text("0")),
    Column("per_minute", Integer),
    Column("stop_above_percent", Integer),
    Column("canary", Boolean, nullable=False, server_default=text("false")),
    Column("canary_run_id", BigInteger),
    Column("canary_outcome", Text),
    # The last run that was handled, and the last whose end was looked for.
    Column("cursor", BigInteger),
    Column("watched", BigInteger),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False, server_default=text("'operator'")),
    Column("source", Text, nullable=False, server_default=text("'web'")),
    Column("reason", Text),
    # Why it stopped by itself.
    Column("note", Text),
    # Whether a worker has to look at it, when next, and when the pace allows the next run.
    Column("is_open", Boolean, nullable=False, server_default=text("true")),
    Column("look_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("paced_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    _at("created_at", now=True),
    _at("finished_at"),
    CheckConstraint(
        "status IN ('running', 'paused', 'finished', 'stopped', 'aborted')", name="operations_status_is_known"
    ),
    Index("operations_open", "look_at", postgresql_where=text("is_open")),
)

# The runs that an operation was bound to when it was made, and what became of each.
operation_runs = Table(
    "operation_runs",
    metadata,
    Column("operation_id", BigInteger, nullable=False),
    Column("run_id", BigInteger, nullable=False),
    # NULL: not handled yet.
    Column("result", Text),
    Column("why", Text),
    # The run to watch afterwards (a new one where the old ran again), and the epoch it was moved at.
    Column("watched_run_id", BigInteger),
    Column("lease_epoch", BigInteger),
    Column("outcome", Text),
    _at("handled_at"),
    PrimaryKeyConstraint("operation_id", "run_id", name="operation_runs_pkey"),
    CheckConstraint("result IN ('moved', 'asked', 'skipped')", name="operation_runs_result_is_known"),
    Index(
        "operation_runs_unjudged",
        "operation_id",
        "run_id",
        postgresql_where=text("result = 'moved' AND outcome IS NULL"),
    ),
)

users = Table(
    "users",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    _at("created_at", now=True),
    _at("disabled_at"),
    _at("password_changed_at", now=True),
    UniqueConstraint("name", name="users_name_key"),
    CheckConstraint(f"role IN ({_ALL_ROLES})", name="users_role_is_known"),
    CheckConstraint("name ~ '^[^[:cntrl:][:space:]]{1,100}$'", name="users_name_is_plain"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_hash", Text, primary_key=True),
    Column("user_id", BigInteger, ForeignKey(users.c.id, ondelete="CASCADE")),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("ip", Text),
    _at("created_at", now=True),
    _at("seen_at", now=True),
    _at("expires_at", required=True),
    CheckConstraint(f"role IN ({_ALL_ROLES})", name="sessions_role_is_known"),
)

login_links = Table(
    "login_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    _at("created_at", now=True),
    _at("expires_at", required=True),
    _at("used_at"),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("failures", Integer, nullable=False, server_default=text("1")),
    _at("last_failed_at", now=True),
)

tokens = Table(
    "tokens",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("created_by", Text),
    # The job types that it is for; NULL: for everything that its role may do.
    Column("job_types", ARRAY(Text)),
    _at("created_at", now=True),
    _at("expires_at"),
    _at("revoked_at"),
    _at("used_at"),
    UniqueConstraint("name", name="tokens_name_key"),
    UniqueConstraint("token_hash", name="tokens_hash_key"),
    CheckConstraint(f"role IN ({_ALL_ROLES})", name="tokens_role_is_known"),
)

saved_views = Table(
    "saved_views",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("page", Text, nullable=False),
    Column("query", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    _at("created_at", now=True),
    UniqueConstraint("page", "name", name="saved_views_name_key"),
)

alert_rules = Table(
    "alert_rules",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("settings", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("state", Text, nullable=False, server_default=text("'quiet'")),
    # What people believe after the last message, and how often the state has changed since then.
    Column("told", Text, nullable=False, server_default=text("'quiet'")),
    Column("turns", Integer, nullable=False, server_default=text("0")),
    # What the last look found: numbers and the sentence that a person reads.
    Column("found", JSONB),
    _at("checked_at"),
    _at("silenced_until"),
    _at("fired_at"),
    _at("recovered_at"),
    _at("sent_at"),
    _at("created_at", now=True),
    _at("updated_at", now=True),
    UniqueConstraint("name", name="alert_rules_name_key"),
    CheckConstraint(
        "state IN ('quiet', 'firing') AND told IN ('quiet', 'firing')", name="alert_rules_state_is_known"
    ),
    CheckConstraint("jsonb_typeof(settings) = 'object'", name="alert_rules_settings_are_an_object"),
)

# What was told to people, or tried: one row per message and channel.
alert_messages = Table(
    "alert_messages",
    metadata,
    _id(),
    Column("rule_id", BigInteger, ForeignKey(alert_rules.c.id, ondelete="CASCADE")),
    Column("kind", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("run_id", BigInteger),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("answer", Text),
    _at("created_at", now=True),
    _at("claimed_until"),
    _at("sent_at"),
    _at("gave_up_at"),
    CheckConstraint(
        "kind IN ('firing', 'recovered', 'reminder', 'report', 'test')", name="alert_messages_kind_is_known"
    ),
    CheckConstraint("channel IN ('mail', 'webhook')", name="alert_messages_channel_is_known"),
    Index("alert_messages_by_rule", "rule_id", "id"),
    Index(
        "alert_messages_waiting",
        "created_at",
        postgresql_where=text("sent_at IS NULL AND gave_up_at IS NULL"),
    ),
)

installation = Table(
    "installation",
    metadata,
    Column("id", Text, primary_key=True),
    _at("created_at", now=True),
    # The dead man's switch: when WAKEBOARD_HEARTBEAT_URL was last called, and what it answered.
    _at("pinged_at"),
    Column("ping_error", Text),
    _at("backed_up_at"),
)

__all__ = [name for name, value in list(globals().items()) if isinstance(value, Table)] + [
    "SCHEMA",
    "metadata",
]
