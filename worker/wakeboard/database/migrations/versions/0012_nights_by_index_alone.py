"""The fires of a night, and the runs that failed in it, are read from an index alone."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
LARGE_INDEXES = {
    "job_runs_fires": "job_runs (definition_id, scheduled_for)"
    " INCLUDE (id, status, attempts, started_at, finished_at) WHERE scheduled_for IS NOT NULL",
    "job_attempts_failed_runs": "job_attempts (finished_at, error_code)"
    " INCLUDE (job_type, error_group, run_id, lease_epoch, outcome)"
    " WHERE outcome IN ('failed', 'timed_out', 'lost')",
}
# One run for each fire.
UNIQUE = ("job_runs_fires",)
# The two above have all that these had.
REPLACED = ("job_runs_fire_key", "job_attempts_failed")


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        kind = "UNIQUE INDEX" if name in UNIQUE else "INDEX"
        op.execute(f"CREATE {kind} IF NOT EXISTS {name} ON {SCHEMA}.{place}")
    for name in REPLACED:
        op.execute(f"DROP INDEX IF EXISTS {SCHEMA}.{name}")
