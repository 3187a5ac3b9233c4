"""Pauses of types that end by themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
YEARS = "BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'"


def upgrade() -> None:
    op.add_column("job_types", sa.Column("paused_until", sa.DateTime(timezone=True)), schema=SCHEMA)
    op.create_check_constraint(
        "job_types_times_are_finite",
        "job_types",
        f"(paused_until IS NULL OR paused_until {YEARS})",
        schema=SCHEMA,
    )
