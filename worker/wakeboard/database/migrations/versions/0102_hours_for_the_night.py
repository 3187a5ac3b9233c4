"""What the page of a night asks of each hour and type: all attempts, the lost ones, and when they ran."""

from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Add the columns; workers sum all hours anew, and pages read minutes until then."""
    op.execute("""
        ALTER TABLE wakeboard.statistics_hours_of_types
            ADD COLUMN attempts bigint DEFAULT 0 NOT NULL,
            ADD COLUMN lost bigint DEFAULT 0 NOT NULL,
            ADD COLUMN busy_ms double precision DEFAULT 0 NOT NULL,
            ADD COLUMN slice_minutes smallint[] DEFAULT '{}' NOT NULL,
            ADD COLUMN slice_starts integer[] DEFAULT '{}' NOT NULL,
            ADD COLUMN slice_ends smallint[] DEFAULT '{}' NOT NULL,
            ADD COLUMN slice_attempts bigint[] DEFAULT '{}' NOT NULL,
            ADD COLUMN slice_failed bigint[] DEFAULT '{}' NOT NULL
    """)
    op.execute("DELETE FROM wakeboard.statistics_hours")
