"""What the pages tell of failures is read from indexes alone, however many runs are dead."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
FAILING = "WHERE status IN ('failed', 'dead')"
LARGE_INDEXES = {
    "job_runs_failing": f"job_runs (status, id) INCLUDE (job_type, error_code, error_group, failed_at) {FAILING}",
    "job_runs_failing_by_type": f"job_runs (job_type, status, id) INCLUDE (error_code, error_group) {FAILING}",
    "job_runs_failing_by_error": f"job_runs (error_code, id) INCLUDE (status, job_type, error_group) {FAILING}",
    "job_attempts_failed": "job_attempts (finished_at, error_code) INCLUDE (job_type, error_group)"
    " WHERE outcome IN ('failed', 'timed_out', 'lost')",
}
# The two above have all that these had.
REPLACED = ("job_runs_by_error", "job_attempts_failures")


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
    for name in REPLACED:
        op.execute(f"DROP INDEX IF EXISTS {SCHEMA}.{name}")
