"""Alert rules, and the messages that were sent or tried."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
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

from wakeboard.database.tables.base import id_column, metadata, timestamp

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
