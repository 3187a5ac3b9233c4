"""A rule that tells each morning how the night was; off until somebody switches it on."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = "alert_messages_kind_is_known"
KINDS = "kind IN ('firing', 'recovered', 'reminder', 'report', 'test')"


def upgrade() -> None:
    op.execute(
        f"ALTER TABLE wakeboard.alert_messages DROP CONSTRAINT {NAME}, ADD CONSTRAINT {NAME} CHECK ({KINDS})"
    )
    op.execute(
        "INSERT INTO wakeboard.alert_rules (name, kind, enabled)"
        " VALUES ('morning_report', 'morning_report', false) ON CONFLICT (name) DO NOTHING"
    )
