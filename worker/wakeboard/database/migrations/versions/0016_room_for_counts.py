"""A run as it is inserted has counts from which no number of attempts comes near what a claim could not add to."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

NAME = "job_runs_counts_have_room"
ROOM = "attempts < 1000000000 AND failures < 1000000000 AND lease_epoch < 1000000000000000000"
HALF = "attempts < 500000000 AND failures < 500000000 AND lease_epoch < 500000000000000000"
# More rows than these are not read under the lock that all wait for. They have kept the wider rule.
MOST_ROWS = 100_000


def upgrade() -> None:
    op.execute(
        f"ALTER TABLE wakeboard.job_runs DROP CONSTRAINT {NAME},"
        f" ADD CONSTRAINT {NAME} CHECK ({ROOM} AND (started_at IS NOT NULL OR {HALF})) NOT VALID"
    )
    some = f"SELECT 1 FROM wakeboard.job_runs OFFSET {MOST_ROWS} LIMIT 1"
    if op.get_bind().exec_driver_sql(some).first() is None:
        op.execute(f"ALTER TABLE wakeboard.job_runs VALIDATE CONSTRAINT {NAME}")
