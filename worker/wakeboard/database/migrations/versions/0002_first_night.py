"""What the first night needs: alerts that are sent, days to keep, refused answers, the last backup."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
# The table is the contract: an edit by plain SQL counts as one by ours. What was due by the old rule is kept
# for the scheduler, which alone can read cron; a pause keeps it too, as what did not fire. The moment is the
# clock's, after the row's lock: the scheduler may have settled fires since this transaction began.
FOLLOW_EDITS = """
CREATE FUNCTION wakeboard.follow_schedule_edit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    goes_on boolean := NEW.enabled AND NEW.schedule IS NOT NULL;
BEGIN
    IF NOT goes_on THEN
        NEW.unsettled := (
            SELECT jsonb_agg(stretch || '{"fires": false}') FROM jsonb_array_elements(OLD.unsettled) AS stretch
        );
    END IF;
    IF OLD.enabled AND OLD.schedule IS NOT NULL AND OLD.error IS NULL
        AND (OLD.next_fire_at IS NULL OR OLD.next_fire_at <= moment)
    THEN
        NEW.unsettled := coalesce(NEW.unsettled, '[]') || jsonb_build_array(jsonb_build_object(
            'schedule', OLD.schedule, 'timezone', OLD.timezone, 'first', OLD.next_fire_at,
            'after', OLD.settled_at, 'until', moment, 'fires', goes_on
        ));
    END IF;
    NEW.settled_at := moment;
    NEW.updated_at := moment;
    IF NEW.next_fire_at IS NOT DISTINCT FROM OLD.next_fire_at AND (OLD.next_fire_at <= moment
        OR (OLD.schedule, OLD.timezone) IS DISTINCT FROM (NEW.schedule, NEW.timezone))
    THEN
        NEW.next_fire_at := NULL;
    END IF;
    IF NEW.error IS NOT DISTINCT FROM OLD.error THEN
        NEW.error := NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER job_definitions_edited BEFORE UPDATE OF schedule, timezone, enabled ON wakeboard.job_definitions
FOR EACH ROW
WHEN ((OLD.schedule, OLD.timezone, OLD.enabled) IS DISTINCT FROM (NEW.schedule, NEW.timezone, NEW.enabled))
EXECUTE FUNCTION wakeboard.follow_schedule_edit();
"""
FINITE = "({0} IS NULL OR {0} BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00')"

NEW_COLUMNS = {
    "job_definitions": (
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("unsettled", JSONB()),
    ),
    "missed_fires": (sa.Column("until_at", sa.DateTime(timezone=True)),),
    "job_types": (
        sa.Column("keep_succeeded_days", sa.Integer()),
        sa.Column("keep_dead_days", sa.Integer()),
    ),
    "workers": (sa.Column("lease_seconds", sa.Double()),),
    "alert_rules": (
        sa.Column("told", sa.Text(), server_default=sa.text("'quiet'"), nullable=False),
        sa.Column("turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("found", JSONB()),
        sa.Column("checked_at", sa.DateTime(timezone=True)),
        sa.Column("recovered_at", sa.DateTime(timezone=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    ),
    "installation": (
        sa.Column("pinged_at", sa.DateTime(timezone=True)),
        sa.Column("ping_error", sa.Text()),
        sa.Column("backed_up_at", sa.DateTime(timezone=True)),
    ),
}

# One rule of each kind, once: what an operator changes or removes afterwards stays so.
FIRST_RULES = (
    "no_worker",
    "late_loop",
    "queue_age",
    "dead_runs",
    "failures_rise",
    "missed_runs",
    "stuck_leases",
)
LARGE_INDEXES = {"job_attempts_refused": "job_attempts (refused_at) WHERE refused_at IS NOT NULL"}
JOB_TYPE = "length(job_type) BETWEEN 1 AND 200 AND job_type !~ '[[:cntrl:]]'"
RUN_RULES = {
    "job_runs_counts_have_room": (
        "attempts < 1000000000 AND failures < 1000000000 AND lease_epoch < 1000000000000000000"
    ),
    "job_runs_origin_is_short": "length(traceparent) <= 200 AND length(enqueued_by) <= 200",
}


def upgrade() -> None:
    for table, columns in NEW_COLUMNS.items():
        for column in columns:
            op.add_column(table, column, schema=SCHEMA)
    op.create_check_constraint(
        "job_types_kept_days_are_bounded",
        "job_types",
        "keep_succeeded_days BETWEEN 1 AND 36500 AND keep_dead_days BETWEEN 1 AND 36500",
        schema=SCHEMA,
    )
    op.create_check_constraint(
        "alert_rules_state_is_known",
        "alert_rules",
        "state IN ('quiet', 'firing') AND told IN ('quiet', 'firing')",
        schema=SCHEMA,
    )
    op.create_check_constraint(
        "alert_rules_settings_are_an_object",
        "alert_rules",
        "jsonb_typeof(settings) = 'object'",
        schema=SCHEMA,
    )
    for table in ("job_definitions", "job_runs"):
        name = f"{table}_job_type_is_printable"
        op.drop_constraint(name, table, schema=SCHEMA)
        op.create_check_constraint(name, table, JOB_TYPE, schema=SCHEMA)
    for name, rule in RUN_RULES.items():
        op.create_check_constraint(name, "job_runs", rule, schema=SCHEMA)
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
    _create_alert_messages()
    _follow_schedule_edits()
    for kind in FIRST_RULES:
        op.execute(
            f"INSERT INTO {SCHEMA}.alert_rules (name, kind) VALUES ('{kind}', '{kind}')"
            " ON CONFLICT (name) DO NOTHING"
        )


def _follow_schedule_edits() -> None:
    rules = {
        ("job_definitions", "times_are_finite"): " AND ".join(
            FINITE.format(name) for name in ("next_fire_at", "last_fire_at", "settled_at")
        ),
        ("missed_fires", "reason_is_known"): "reason IN ('misfire', 'overlap', 'capped', 'paused')",
    }
    for (table, name), rule in rules.items():
        op.drop_constraint(f"{table}_{name}", table, schema=SCHEMA)
        op.create_check_constraint(f"{table}_{name}", table, rule, schema=SCHEMA)
    op.create_check_constraint(
        "job_definitions_unsettled_is_a_list",
        "job_definitions",
        "jsonb_typeof(unsettled) = 'array'",
        schema=SCHEMA,
    )
    op.create_index(
        "job_definitions_unsettled",
        "job_definitions",
        ["id"],
        schema=SCHEMA,
        postgresql_where=sa.text("unsettled IS NOT NULL"),
    )
    op.execute(FOLLOW_EDITS)


def _create_alert_messages() -> None:
    op.create_table(
        "alert_messages",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("rule_id", sa.BigInteger()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", JSONB(), nullable=False),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("answer", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True)),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("gave_up_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "kind IN ('firing', 'recovered', 'reminder', 'test')", name="alert_messages_kind_is_known"
        ),
        sa.CheckConstraint("channel IN ('mail', 'webhook')", name="alert_messages_channel_is_known"),
        sa.ForeignKeyConstraint(
            ["rule_id"],
            [f"{SCHEMA}.alert_rules.id"],
            name="alert_messages_rule_id_fkey",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="alert_messages_pkey"),
        schema=SCHEMA,
    )
    op.create_index("alert_messages_by_rule", "alert_messages", ["rule_id", "id"], schema=SCHEMA)
    op.create_index(
        "alert_messages_waiting",
        "alert_messages",
        ["created_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("sent_at IS NULL AND gave_up_at IS NULL"),
    )
