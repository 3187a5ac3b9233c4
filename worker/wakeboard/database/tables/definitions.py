"""Schedules, job types, the workers that run them, and the installation."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.columns import (
    JOB_TYPE_IS_PRINTABLE,
    finite_times,
    id_column,
    metadata,
    timestamp,
)

job_definitions = Table(
    "job_definitions",
    metadata,
    id_column(),
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
    timestamp("next_fire_at"),
    timestamp("last_fire_at"),
    # Fires up to here are settled. Where next_fire_at is NULL, the next fire is the first one after this.
    Column("settled_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    # What fell due by a rule that was edited before anybody fired it; a trigger writes it (migration 0100).
    Column("unsettled", JSONB),
    timestamp("created_at", now=True),
    timestamp("updated_at", now=True),
    UniqueConstraint("name", name="job_definitions_name_key"),
    CheckConstraint("name ~ '^[a-z0-9_-]{1,100}$'", name="job_definitions_name_is_plain"),
    CheckConstraint(JOB_TYPE_IS_PRINTABLE, name="job_definitions_job_type_is_printable"),
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
    finite_times("job_definitions", "next_fire_at", "last_fire_at", "settled_at"),
    Index("job_definitions_due", "next_fire_at", postgresql_where=text("enabled AND schedule IS NOT NULL")),
    Index("job_definitions_unsettled", "id", postgresql_where=text("unsettled IS NOT NULL")),
)

missed_fires = Table(
    "missed_fires",
    metadata,
    id_column(),
    # None once the schedule was removed; a trigger keeps its name then.
    Column("definition_id", BigInteger, ForeignKey(job_definitions.c.id)),
    Column("schedule_name", Text),
    timestamp("scheduled_for", required=True),
    Column("reason", Text, nullable=False),
    # Set where one row stands for very many fires: all from scheduled_for to before this.
    timestamp("until_at"),
    timestamp("noted_at", now=True),
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
    timestamp("paused_at"),
    Column("paused_by", Text),
    Column("paused_reason", Text),
    # When the pause ends by itself; NULL: when somebody resumes the type.
    timestamp("paused_until"),
    timestamp("seen_at"),
    timestamp("created_at", now=True),
    CheckConstraint("max_running >= 0", name="job_types_max_running_is_not_negative"),
    CheckConstraint("max_running_operator >= 0", name="job_types_operator_limit_is_not_negative"),
    CheckConstraint(
        "keep_succeeded_days BETWEEN 1 AND 36500 AND keep_dead_days BETWEEN 1 AND 36500",
        name="job_types_kept_days_are_bounded",
    ),
    finite_times("job_types", "paused_until"),
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
    timestamp("started_at", now=True),
    timestamp("seen_at", now=True),
    timestamp("idle_since"),
    timestamp("drain_requested_at"),
    timestamp("stop_requested_at"),
    timestamp("stopping_at"),
    timestamp("stopped_at"),
    # By type what the code of this worker says of its schedule: [text, zone].
    Column("code_schedules", JSONB),
    CheckConstraint(
        "heartbeat_seconds > 0 AND heartbeat_seconds < 'Infinity'", name="workers_heartbeat_is_positive"
    ),
    Index("workers_alive", "seen_at", postgresql_where=text("stopped_at IS NULL")),
)

loops = Table(
    "loops",
    metadata,
    Column("process_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("interval_seconds", Double, nullable=False),
    timestamp("last_success_at", now=True),
    Column("last_error", Text),
    timestamp("last_error_at"),
    Column("numbers", JSONB),
    PrimaryKeyConstraint("process_id", "name", name="loops_pkey"),
)

installation = Table(
    "installation",
    metadata,
    Column("id", Text, primary_key=True),
    timestamp("created_at", now=True),
    # The dead man's switch: when WAKEBOARD_HEARTBEAT_URL was last called, and what it answered.
    timestamp("pinged_at"),
    Column("ping_error", Text),
    timestamp("backed_up_at"),
)
