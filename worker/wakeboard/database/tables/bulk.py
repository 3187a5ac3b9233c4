"""Operations: one move on many runs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.base import id_column, metadata, timestamp

operations = Table(
    "operations",
    metadata,
    id_column(),
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
    timestamp("created_at", now=True),
    timestamp("finished_at"),
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
    timestamp("handled_at"),
    PrimaryKeyConstraint("operation_id", "run_id", name="operation_runs_pkey"),
    CheckConstraint("result IN ('moved', 'asked', 'skipped')", name="operation_runs_result_is_known"),
    Index(
        "operation_runs_unjudged",
        "operation_id",
        "run_id",
        postgresql_where=text("result = 'moved' AND outcome IS NULL"),
    ),
)
