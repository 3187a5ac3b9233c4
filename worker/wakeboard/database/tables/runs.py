"""Runs, their attempts and output, effects of ``once()``, and the groups of their errors."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.core.states import ENDED, FAILING, sql_list
from wakeboard.database.index_predicates import (
    HAS_ERROR,
    IS_CLAIMABLE,
    IS_LATER_SUCCESS,
    IS_LISTED_BY_STATUS,
    IS_UNDER_WAY,
)
from wakeboard.database.tables.columns import (
    ALL_OUTCOMES,
    ALL_STATUSES,
    IS_FAILING,
    IS_FAILURE,
    JOB_TYPE_IS_PRINTABLE,
    SCHEMA,
    finite_times,
    id_column,
    metadata,
    timestamp,
)


def _while_claimable(rule: str) -> str:
    """Return ``rule`` as it is judged of a run that may still be claimed.

    A claim and a finish change nothing that it speaks of, and PostgreSQL judges all rules of a table at each
    change of a row: 6 µs of the 90 that a run cost it.
    """
    return f"locked_by IS NOT NULL OR finished_at IS NOT NULL OR ({rule})"


job_runs = Table(
    "job_runs",
    metadata,
    id_column(),
    # No foreign key: a run outlives its definition, and must be able to say that it is gone.
    Column("definition_id", BigInteger),
    timestamp("scheduled_for"),
    Column("job_type", Text, nullable=False),
    Column("payload", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("priority", SmallInteger, nullable=False, server_default=text("2")),
    timestamp("run_at", now=True),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Double),
    Column("lease_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("locked_by", Text),
    timestamp("locked_until"),
    timestamp("started_at"),
    timestamp("finished_at"),
    timestamp("failed_at"),
    # Of a fire: seconds from its time to its first start. Of any run of a schedule: whether another run of
    # it was under way at its first start. The first claim writes both (wakeboard.queue.engine.claims).
    Column("late_by", Double),
    Column("overlapped", Boolean, nullable=False, server_default=text("false")),
    Column("error_code", Text),
    Column("last_error", Text),
    Column("error_group", BigInteger),
    timestamp("cancel_requested_at"),
    Column("idempotency_key", Text),
    Column("enqueued_by", Text),
    Column("origin_run_id", BigInteger),
    Column("traceparent", Text),
    Column("progress_done", BigInteger),
    Column("progress_total", BigInteger),
    timestamp("created_at", now=True),
    timestamp("updated_at", now=True),
    CheckConstraint(f"status IN ({ALL_STATUSES})", name="job_runs_status_is_known"),
    CheckConstraint(_while_claimable(JOB_TYPE_IS_PRINTABLE), name="job_runs_job_type_is_printable"),
    CheckConstraint(_while_claimable("priority BETWEEN 0 AND 4"), name="job_runs_priority_is_0_to_4"),
    CheckConstraint("attempts >= 0 AND failures >= 0", name="job_runs_counts_are_not_negative"),
    # A claim adds one to attempts and lease_epoch: a single row without room would make it fail for its whole
    # type. PostgreSQL checks the row as the claim leaves it, so what was never started has to stay far below.
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
        f"(status IN ({sql_list(ENDED)})) = (finished_at IS NOT NULL)", name="job_runs_only_ended_is_finished"
    ),
    CheckConstraint(
        f"status NOT IN ({sql_list(FAILING)}) OR error_code IS NOT NULL", name="job_runs_failure_has_a_code"
    ),
    finite_times(
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
    # Claim and poll; types with work, oldest due run, how many wait (overview, /types, /runs/<id>, alerts):
    # the runs of one type that may be claimed, in the order of a claim.
    Index(
        "job_runs_claimable",
        "job_type",
        "priority",
        "run_at",
        "id",
        postgresql_where=text(IS_CLAIMABLE),
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
        postgresql_where=text(IS_FAILING),
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
        "job_runs_by_group", "error_group", "status", "id", postgresql_where=text("error_group IS NOT NULL")
    ),
    # /schedules, /schedules/<name>, /runs?schedule=: the newest runs of a schedule.
    Index(
        "job_runs_by_definition", "definition_id", "id", postgresql_where=text("definition_id IS NOT NULL")
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
def _leave_room_in_primary_key(_: Table, connection: Connection, **_options: object) -> None:
    """Give the primary key its fill factor, which SQLAlchemy cannot declare."""
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
    timestamp("due_at", required=True),
    timestamp("started_at", required=True),
    timestamp("finished_at", required=True),
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
    timestamp("next_run_at"),
    timestamp("refused_at"),
    Column("refused_outcome", Text),
    PrimaryKeyConstraint("run_id", "lease_epoch", name="job_attempts_pkey"),
    CheckConstraint(f"outcome IN ({ALL_OUTCOMES})", name="job_attempts_outcome_is_known"),
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
        postgresql_where=text(IS_FAILURE),
    ),
    # What failed with one code: a rare one is found without walking past all others.
    Index(
        "job_attempts_failed_by_code",
        "error_code",
        "finished_at",
        postgresql_include=["job_type", "error_group"],
        postgresql_where=text(IS_FAILURE),
    ),
    # What failed in one error group, and when.
    Index(
        "job_attempts_by_group",
        "error_group",
        "finished_at",
        postgresql_where=text("error_group IS NOT NULL"),
    ),
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
    timestamp("updated_at", now=True),
)

effects = Table(
    "effects",
    metadata,
    id_column(),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("run_id", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease_epoch", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("result", JSONB),
    Column("settled_by", Text),
    timestamp("created_at", now=True),
    timestamp("finished_at"),
    UniqueConstraint("scope", "key", name="effects_scope_key"),
    CheckConstraint("status IN ('started', 'done')", name="effects_status_is_known"),
    Index("effects_by_run", "run_id"),
    Index("effects_started", "created_at", postgresql_where=text("status = 'started'")),
)

# ``id`` is what job_runs.error_group and job_attempts.error_group hold; core.errors.error_groups makes it.
error_groups = Table(
    "error_groups",
    metadata,
    id_column(),
    Column("fingerprint", Text, nullable=False),
    Column("error_code", Text, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("template", Text, nullable=False),
    # Where the author's own code raised: ``crm.py in send_invoice``.
    Column("frame", Text),
    Column("first_run_id", BigInteger),
    timestamp("first_seen_at", now=True),
    # Up to a minute old: see wakeboard.runtime.loop.result_queue.
    timestamp("last_seen_at", now=True),
    # When it was last seen again after a long silence, and since when it had been silent.
    timestamp("returned_at"),
    timestamp("quiet_from_at"),
    timestamp("muted_until"),
    timestamp("muted_at"),
    Column("muted_by", Text),
    Column("muted_reason", Text),
    UniqueConstraint("fingerprint", name="error_groups_fingerprint_key"),
    # The same failure of other types.
    Index("error_groups_by_words", "error_code", "template"),
    Index("error_groups_muted", "muted_until", postgresql_where=text("muted_until IS NOT NULL")),
)
