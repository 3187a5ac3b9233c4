"""Who may sign in and who did what."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from wakeboard.database.tables.base import ALL_ROLES, id_column, metadata, timestamp

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
