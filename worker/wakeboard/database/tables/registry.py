"""What workers register: job types, themselves and their loops; and the installation as a whole."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.base import finite_times, metadata, timestamp

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
