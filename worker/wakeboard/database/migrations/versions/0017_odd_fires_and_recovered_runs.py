"""What a night looks for has indexes of its own: fires under way, fires that ended oddly, runs that recovered."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
LARGE_INDEXES = {
    "job_runs_under_way_of_definition": "job_runs (definition_id, scheduled_for) INCLUDE (id, started_at)"
    " WHERE definition_id IS NOT NULL AND status IN ('queued', 'running', 'failed')",
    "job_runs_odd_fires": "job_runs (scheduled_for)"
    " INCLUDE (id, definition_id, status, attempts, started_at, finished_at)"
    " WHERE scheduled_for IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NOT NULL"
    " AND (attempts > 1 OR finished_at - scheduled_for > interval '1 minute')",
    "job_runs_recovered": "job_runs (finished_at) INCLUDE (id, attempts)"
    " WHERE status = 'succeeded' AND failed_at IS NOT NULL",
    "missed_fires_of_very_many": "missed_fires (until_at) WHERE until_at IS NOT NULL",
}
# The first has all that it had.
REPLACED = ("job_runs_active_of_definition",)


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
    for name in REPLACED:
        op.execute(f"DROP INDEX IF EXISTS {SCHEMA}.{name}")
