"""Hours of statistics that are over are summed once: pages of a day and a week read these."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"


def _sums() -> list[sa.Column[object]]:
    return [
        *(_number(name, sa.BigInteger()) for name in ("succeeded", "failed")),
        *(
            _number(name, sa.Double())
            for name in ("duration_ms", "duration_max_ms", "succeeded_max_ms", "wait_max_ms")
        ),
        *(
            sa.Column(name, sa.ARRAY(kind), server_default=sa.text("'{}'"), nullable=False)
            for name, kind in (
                ("duration_buckets", sa.SmallInteger()),
                ("duration_runs", sa.BigInteger()),
                ("duration_bucket_ms", sa.Double()),
                ("wait_buckets", sa.SmallInteger()),
                ("wait_runs", sa.BigInteger()),
            )
        ),
    ]


def _number(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[object]:
    return sa.Column(name, kind, server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "statistics_hours",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("summed_at", sa.DateTime(timezone=True)),
        *_sums(),
        sa.PrimaryKeyConstraint("hour", name="statistics_hours_pkey"),
        schema=SCHEMA,
    )
    op.create_table(
        "statistics_hours_of_types",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        *_sums(),
        sa.PrimaryKeyConstraint("hour", "job_type", name="statistics_hours_of_types_pkey"),
        sa.ForeignKeyConstraint(
            ["hour"],
            [f"{SCHEMA}.statistics_hours.hour"],
            name="statistics_hours_of_types_hour_fkey",
            ondelete="CASCADE",
        ),
        schema=SCHEMA,
    )
