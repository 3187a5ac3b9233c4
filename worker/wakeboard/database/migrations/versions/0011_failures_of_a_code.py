"""What failed with one code is read from its own end of an index, however rare the code is in its window."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LARGE_INDEXES = {
    "job_attempts_failed_by_code": "job_attempts (error_code, finished_at) INCLUDE (job_type, error_group)"
    " WHERE outcome IN ('failed', 'timed_out', 'lost')",
}


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON wakeboard.{place}")
