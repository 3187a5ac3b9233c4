"""People, the audit log, operations on many runs, and alerts."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.columns import ALL_ROLES, id_column, metadata, timestamp

audit_log = Table(
    "audit_log",
    metadata,
    id_column(),
    timestamp("at", now=True),
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

users = Table(
    "users",
    metadata,
    id_column(),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    timestamp("created_at", now=True),
    timestamp("disabled_at"),
    timestamp("password_changed_at", now=True),
    UniqueConstraint("name", name="users_name_key"),
    CheckConstraint(f"role IN ({ALL_ROLES})", name="users_role_is_known"),
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
    timestamp("created_at", now=True),
    timestamp("seen_at", now=True),
    timestamp("expires_at", required=True),
    CheckConstraint(f"role IN ({ALL_ROLES})", name="sessions_role_is_known"),
)

login_links = Table(
    "login_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    timestamp("created_at", now=True),
    timestamp("expires_at", required=True),
    timestamp("used_at"),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("failures", Integer, nullable=False, server_default=text("1")),
    timestamp("last_failed_at", now=True),
)

tokens = Table(
    "tokens",
    metadata,
    id_column(),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("created_by", Text),
    # The job types that it is for; NULL: for everything that its role may do.
    Column("job_types", ARRAY(Text)),
    timestamp("created_at", now=True),
    timestamp("expires_at"),
    timestamp("revoked_at"),
    timestamp("used_at"),
    UniqueConstraint("name", name="tokens_name_key"),
    UniqueConstraint("token_hash", name="tokens_hash_key"),
    CheckConstraint(f"role IN ({ALL_ROLES})", name="tokens_role_is_known"),
)

saved_views = Table(
    "saved_views",
    metadata,
    id_column(),
    Column("name", Text, nullable=False),
    Column("page", Text, nullable=False),
    Column("query", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    timestamp("created_at", now=True),
    UniqueConstraint("page", "name", name="saved_views_name_key"),
)

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

alert_rules = Table(
    "alert_rules",
    metadata,
    id_column(),
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
    timestamp("checked_at"),
    timestamp("silenced_until"),
    timestamp("fired_at"),
    timestamp("recovered_at"),
    timestamp("sent_at"),
    timestamp("created_at", now=True),
    timestamp("updated_at", now=True),
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
    id_column(),
    Column("rule_id", BigInteger, ForeignKey(alert_rules.c.id, ondelete="CASCADE")),
    Column("kind", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("run_id", BigInteger),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("answer", Text),
    timestamp("created_at", now=True),
    timestamp("claimed_until"),
    timestamp("sent_at"),
    timestamp("gave_up_at"),
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
