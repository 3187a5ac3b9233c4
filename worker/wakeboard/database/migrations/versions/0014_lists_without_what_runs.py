"""The indexes of lists leave out what runs: a claim enters two indexes less."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
LARGE_INDEXES = {
    "job_runs_listed_by_status": "job_runs (status, id) WHERE status <> 'running'",
    "job_runs_listed_by_type": "job_runs (job_type, id) WHERE status <> 'running'",
}
# What runs is in job_runs_leased.
REPLACED = ("job_runs_by_status", "job_runs_by_type")


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
    for name in REPLACED:
        op.execute(f"DROP INDEX IF EXISTS {SCHEMA}.{name}")
