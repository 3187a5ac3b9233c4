"""First tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


# Producers need INSERT only: the function runs with its owner's rights. The idle test comes first, so an
# enqueue with nobody idle does not read its own rows again.
WAKE = """
CREATE FUNCTION wakeboard.wake_idle_workers() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM wakeboard.workers
        WHERE idle_since IS NOT NULL AND stopped_at IS NULL
            AND seen_at > now() - make_interval(secs => 3 * heartbeat_seconds)
    ) THEN
        IF EXISTS (SELECT 1 FROM fresh WHERE status = 'queued' AND run_at <= now()) THEN
            PERFORM pg_notify('wakeboard_wake', '');
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_runs_wake AFTER INSERT ON wakeboard.job_runs
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION wakeboard.wake_idle_workers();
"""

# Rows of the audit log are never changed, and removed by retention alone.
APPEND_ONLY = """
CREATE FUNCTION wakeboard.refuse_audit_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('wakeboard.maintenance.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_log_rows BEFORE UPDATE OR DELETE ON wakeboard.audit_log
FOR EACH ROW EXECUTE FUNCTION wakeboard.refuse_audit_change();
CREATE TRIGGER audit_log_table BEFORE TRUNCATE ON wakeboard.audit_log
FOR EACH STATEMENT EXECUTE FUNCTION wakeboard.refuse_audit_change();
"""

# The queue is a small hot part of a table that grows: vacuum by what changed, not by a share of the whole.
VACUUM = """
ALTER TABLE wakeboard.job_runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, fillfactor = 90);
"""
INSTALLATION = """
INSERT INTO wakeboard.installation (id) VALUES (substr(md5(random()::text || clock_timestamp()::text), 1, 8));
"""


def upgrade() -> None:
    """Move the schema forward."""
    op.create_table(
        "alert_rules",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "settings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'quiet'"), nullable=False),
        sa.Column("silenced_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("alert_rules_pkey")),
        sa.UniqueConstraint("name", name="alert_rules_name_key"),
        schema="wakeboard",
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target_type", sa.Text(), nullable=True),
        sa.Column("target_id", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("before", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("after", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("result", sa.Text(), server_default=sa.text("'done'"), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("ip", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_log_pkey")),
        schema="wakeboard",
    )
    op.create_index("audit_log_by_actor", "audit_log", ["actor", "id"], unique=False, schema="wakeboard")
    op.create_index(
        "audit_log_by_target",
        "audit_log",
        ["target_type", "target_id", "id"],
        unique=False,
        schema="wakeboard",
    )
    op.create_table(
        "effects",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("settled_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('started', 'done')", name="effects_status_is_known"),
        sa.PrimaryKeyConstraint("id", name=op.f("effects_pkey")),
        sa.UniqueConstraint("scope", "key", name="effects_scope_key"),
        schema="wakeboard",
    )
    op.create_index("effects_by_run", "effects", ["run_id"], unique=False, schema="wakeboard")
    op.create_index(
        "effects_started",
        "effects",
        ["created_at"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("status = 'started'"),
    )
    op.create_table(
        "error_groups",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column(
            "first_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column(
            "last_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("muted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("muted_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("error_groups_pkey")),
        sa.UniqueConstraint("fingerprint", name="error_groups_fingerprint_key"),
        schema="wakeboard",
    )
    op.create_table(
        "installation",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("installation_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "job_attempts",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_group", sa.BigInteger(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("output_tail", sa.Text(), nullable=True),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refused_outcome", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'lost', 'released')",
            name="job_attempts_outcome_is_known",
        ),
        sa.PrimaryKeyConstraint("run_id", "lease_epoch", name="job_attempts_pkey"),
        schema="wakeboard",
    )
    op.create_index(
        "job_attempts_failures",
        "job_attempts",
        ["finished_at", "error_code"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("outcome IN ('failed', 'timed_out', 'lost')"),
    )
    op.create_table(
        "job_definitions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column(
            "payload",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("schedule", sa.Text(), nullable=True),
        sa.Column("timezone", sa.Text(), server_default=sa.text("'UTC'"), nullable=False),
        sa.Column("misfire", sa.Text(), server_default=sa.text("'one'"), nullable=False),
        sa.Column("grace_seconds", sa.Integer(), server_default=sa.text("60"), nullable=False),
        sa.Column("overlap", sa.Text(), server_default=sa.text("'skip'"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("2"), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("next_fire_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_fire_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "job_type ~ '^[^[:cntrl:]]{1,200}$'", name="job_definitions_job_type_is_printable"
        ),
        sa.CheckConstraint(
            "jsonb_typeof(payload) = 'object' AND length(payload::text) <= 1048576",
            name="job_definitions_payload_is_a_small_object",
        ),
        sa.CheckConstraint("misfire IN ('one', 'all', 'none')", name="job_definitions_misfire_is_known"),
        sa.CheckConstraint("name ~ '^[a-z0-9_-]{1,100}$'", name="job_definitions_name_is_plain"),
        sa.CheckConstraint("overlap IN ('skip', 'allow', 'wait')", name="job_definitions_overlap_is_known"),
        sa.CheckConstraint(
            "(next_fire_at IS NULL OR next_fire_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (last_fire_at IS NULL OR last_fire_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00')",
            name="job_definitions_times_are_finite",
        ),
        sa.CheckConstraint("grace_seconds BETWEEN 0 AND 31536000", name="job_definitions_grace_is_bounded"),
        sa.CheckConstraint("max_attempts > 0", name="job_definitions_max_attempts_is_positive"),
        sa.CheckConstraint("priority BETWEEN 0 AND 4", name="job_definitions_priority_is_0_to_4"),
        sa.CheckConstraint(
            "timeout_seconds > 0 AND timeout_seconds < 'Infinity'", name="job_definitions_timeout_is_positive"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_definitions_pkey")),
        sa.UniqueConstraint("name", name="job_definitions_name_key"),
        schema="wakeboard",
    )
    op.create_index(
        "job_definitions_due",
        "job_definitions",
        ["next_fire_at"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("enabled AND schedule IS NOT NULL"),
    )
    op.create_table(
        "job_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("definition_id", sa.BigInteger(), nullable=True),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), nullable=True),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column(
            "payload",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("2"), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("lease_epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("locked_by", sa.Text(), nullable=True),
        sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("error_group", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("enqueued_by", sa.Text(), nullable=True),
        sa.Column("origin_run_id", sa.BigInteger(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("progress_done", sa.BigInteger(), nullable=True),
        sa.Column("progress_total", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(status = 'running') = (locked_by IS NOT NULL) AND (locked_by IS NULL) = (locked_until IS NULL) AND (status <> 'running' OR started_at IS NOT NULL)",
            name="job_runs_only_running_holds_a_lease",
        ),
        sa.CheckConstraint(
            "(status IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL)",
            name="job_runs_only_ended_is_finished",
        ),
        sa.CheckConstraint("job_type ~ '^[^[:cntrl:]]{1,200}$'", name="job_runs_job_type_is_printable"),
        sa.CheckConstraint(
            "jsonb_typeof(payload) = 'object' AND length(payload::text) <= 1048576",
            name="job_runs_payload_is_a_small_object",
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'succeeded', 'failed', 'dead', 'cancelled')",
            name="job_runs_status_is_known",
        ),
        sa.CheckConstraint(
            "status NOT IN ('failed', 'dead') OR error_code IS NOT NULL", name="job_runs_failure_has_a_code"
        ),
        sa.CheckConstraint(
            "(scheduled_for IS NULL OR scheduled_for BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (run_at IS NULL OR run_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (locked_until IS NULL OR locked_until BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (started_at IS NULL OR started_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (finished_at IS NULL OR finished_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (failed_at IS NULL OR failed_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (cancel_requested_at IS NULL OR cancel_requested_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (created_at IS NULL OR created_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00') AND (updated_at IS NULL OR updated_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00')",
            name="job_runs_times_are_finite",
        ),
        sa.CheckConstraint("attempts >= 0 AND failures >= 0", name="job_runs_counts_are_not_negative"),
        sa.CheckConstraint("length(idempotency_key) BETWEEN 1 AND 200", name="job_runs_key_is_short"),
        sa.CheckConstraint("max_attempts > 0", name="job_runs_max_attempts_is_positive"),
        sa.CheckConstraint("priority BETWEEN 0 AND 4", name="job_runs_priority_is_0_to_4"),
        sa.CheckConstraint(
            "timeout_seconds > 0 AND timeout_seconds < 'Infinity'", name="job_runs_timeout_is_positive"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_runs_pkey")),
        schema="wakeboard",
    )
    op.create_index(
        "job_runs_by_origin",
        "job_runs",
        ["origin_run_id"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("origin_run_id IS NOT NULL"),
    )
    op.create_index(
        "job_runs_active_of_definition",
        "job_runs",
        ["definition_id"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("definition_id IS NOT NULL AND status IN ('queued', 'running', 'failed')"),
    )
    op.create_index(
        "job_runs_by_definition",
        "job_runs",
        ["definition_id", "id"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("definition_id IS NOT NULL"),
    )
    op.create_index(
        "job_runs_by_error",
        "job_runs",
        ["error_code", "id"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("status IN ('failed', 'dead')"),
    )
    op.create_index("job_runs_by_status", "job_runs", ["status", "id"], unique=False, schema="wakeboard")
    op.create_index("job_runs_by_type", "job_runs", ["job_type", "id"], unique=False, schema="wakeboard")
    op.create_index(
        "job_runs_claimable",
        "job_runs",
        ["job_type", "priority", "run_at", "id"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("status IN ('queued', 'failed')"),
    )
    op.create_index(
        "job_runs_fire_key",
        "job_runs",
        ["definition_id", "scheduled_for"],
        unique=True,
        schema="wakeboard",
        postgresql_where=sa.text("scheduled_for IS NOT NULL"),
    )
    op.create_index(
        "job_runs_idempotency_key",
        "job_runs",
        ["idempotency_key"],
        unique=True,
        schema="wakeboard",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "job_runs_leased",
        "job_runs",
        ["job_type", "locked_until"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "job_types",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default=sa.text("10"), nullable=False),
        sa.Column("timeout_seconds", sa.Double(), server_default=sa.text("300"), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=True),
        sa.Column("backoff", sa.Text(), server_default=sa.text("'exponential 10s cap 30m'"), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("max_running_operator", sa.Integer(), nullable=True),
        sa.Column("memory_mb", sa.Integer(), nullable=True),
        sa.Column("schedule", sa.Text(), nullable=True),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("max_running >= 0", name="job_types_max_running_is_not_negative"),
        sa.CheckConstraint("max_running_operator >= 0", name="job_types_operator_limit_is_not_negative"),
        sa.PrimaryKeyConstraint("name", name=op.f("job_types_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "login_failures",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "last_failed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("subject", name=op.f("login_failures_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "login_links",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("login_links_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "loops",
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("interval_seconds", sa.Double(), nullable=False),
        sa.Column(
            "last_success_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("last_error_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("numbers", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("process_id", "name", name="loops_pkey"),
        schema="wakeboard",
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("filter", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'running'"), nullable=False),
        sa.Column("total", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("per_minute", sa.Integer(), nullable=True),
        sa.Column("stop_above_percent", sa.Integer(), nullable=True),
        sa.Column("canary_run_id", sa.BigInteger(), nullable=True),
        sa.Column("cursor", sa.BigInteger(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("operations_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "saved_views",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("page", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("saved_views_pkey")),
        sa.UniqueConstraint("page", "name", name="saved_views_name_key"),
        schema="wakeboard",
    )
    op.create_table(
        "statistics_deltas",
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("duration_bucket", sa.SmallInteger(), nullable=False),
        sa.Column("wait_bucket", sa.SmallInteger(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.Double(), nullable=False),
        sa.Column("duration_max_ms", sa.Double(), nullable=False),
        sa.Column("wait_ms", sa.Double(), nullable=False),
        sa.Column("wait_max_ms", sa.Double(), nullable=False),
        schema="wakeboard",
    )
    op.create_index(
        "statistics_deltas_by_minute", "statistics_deltas", ["minute"], unique=False, schema="wakeboard"
    )
    op.create_table(
        "statistics_rollups",
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("duration_bucket", sa.SmallInteger(), nullable=False),
        sa.Column("wait_bucket", sa.SmallInteger(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.Double(), nullable=False),
        sa.Column("duration_max_ms", sa.Double(), nullable=False),
        sa.Column("wait_ms", sa.Double(), nullable=False),
        sa.Column("wait_max_ms", sa.Double(), nullable=False),
        schema="wakeboard",
    )
    op.create_index(
        "statistics_rollups_by_minute", "statistics_rollups", ["minute"], unique=False, schema="wakeboard"
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="tokens_role_is_known"),
        sa.PrimaryKeyConstraint("id", name=op.f("tokens_pkey")),
        sa.UniqueConstraint("name", name="tokens_name_key"),
        sa.UniqueConstraint("token_hash", name="tokens_hash_key"),
        schema="wakeboard",
    )
    op.create_table(
        "users",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "password_changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint("name ~ '^[^[:cntrl:][:space:]]{1,100}$'", name="users_name_is_plain"),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="users_role_is_known"),
        sa.PrimaryKeyConstraint("id", name=op.f("users_pkey")),
        sa.UniqueConstraint("name", name="users_name_key"),
        schema="wakeboard",
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("job_types", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("heartbeat_seconds", sa.Double(), server_default=sa.text("10"), nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("is_tick", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("running", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("idle_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("drain_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopping_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "heartbeat_seconds > 0 AND heartbeat_seconds < 'Infinity'", name="workers_heartbeat_is_positive"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
        schema="wakeboard",
    )
    op.create_index(
        "workers_alive",
        "workers",
        ["seen_at"],
        unique=False,
        schema="wakeboard",
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
    op.create_table(
        "missed_fires",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("definition_id", sa.BigInteger(), nullable=False),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("reason IN ('misfire', 'overlap', 'capped')", name="missed_fires_reason_is_known"),
        sa.ForeignKeyConstraint(
            ["definition_id"],
            ["wakeboard.job_definitions.id"],
            name=op.f("missed_fires_definition_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("missed_fires_pkey")),
        sa.UniqueConstraint("definition_id", "scheduled_for", name="missed_fires_fire_key"),
        schema="wakeboard",
    )
    op.create_index("missed_fires_by_time", "missed_fires", ["noted_at"], unique=False, schema="wakeboard")
    op.create_table(
        "run_output",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("tail", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["wakeboard.job_runs.id"], name=op.f("run_output_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("run_output_pkey")),
        schema="wakeboard",
    )
    op.create_table(
        "sessions",
        sa.Column("id_hash", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("ip", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="sessions_role_is_known"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["wakeboard.users.id"], name=op.f("sessions_user_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id_hash", name=op.f("sessions_pkey")),
        schema="wakeboard",
    )
    for statement in (WAKE, APPEND_ONLY, VACUUM, INSTALLATION):
        op.execute(statement)
