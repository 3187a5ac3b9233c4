"""Schedules and the fires that made no run."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.base import JOB_TYPE_IS_PRINTABLE, finite_times, id_column, metadata, timestamp

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
