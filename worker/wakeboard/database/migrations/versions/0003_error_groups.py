"""What error groups need: where they were raised, their silences, who muted them, and the way to their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
NEW_COLUMNS = (
    ("frame", sa.Text()),
    ("first_run_id", sa.BigInteger()),
    ("returned_at", sa.DateTime(timezone=True)),
    ("quiet_from_at", sa.DateTime(timezone=True)),
    ("muted_at", sa.DateTime(timezone=True)),
    ("muted_reason", sa.Text()),
)
# Nothing has written ``error_group`` before this revision: they are empty when they are made.
LARGE_INDEXES = {
    "job_runs_by_group": "job_runs (error_group, status, id) WHERE error_group IS NOT NULL",
    "job_attempts_by_group": "job_attempts (error_group, finished_at) WHERE error_group IS NOT NULL",
}


def upgrade() -> None:
    for name, kind in NEW_COLUMNS:
        op.add_column("error_groups", sa.Column(name, kind), schema=SCHEMA)
    op.create_index("error_groups_by_words", "error_groups", ["error_code", "template"], schema=SCHEMA)
    op.create_index(
        "error_groups_muted",
        "error_groups",
        ["muted_until"],
        schema=SCHEMA,
        postgresql_where=sa.text("muted_until IS NOT NULL"),
    )
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
