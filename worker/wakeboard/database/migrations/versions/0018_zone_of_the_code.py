"""The code may say in which time zone its schedule is."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE wakeboard.job_types ADD COLUMN timezone text")
