"""What the code has said of a type's schedule is remembered, and which worker says what."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE wakeboard.job_types ADD COLUMN said_in_code jsonb")
    op.execute("ALTER TABLE wakeboard.workers ADD COLUMN code_schedules jsonb")
    # What was published last has been applied.
    op.execute(
        "UPDATE wakeboard.job_types SET said_in_code = jsonb_build_array(jsonb_build_array(schedule, timezone))"
        " WHERE schedule IS NOT NULL"
    )
