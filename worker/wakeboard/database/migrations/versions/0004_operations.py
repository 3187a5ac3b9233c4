"""What one operation on many runs needs: the runs it is bound to, its pace, and how the moved ones ended."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _moment(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _switch(name: str, default: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.text(default), nullable=False)


def _word(name: str, default: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text(f"'{default}'"), nullable=False)


def upgrade() -> None:
    for column in (
        _count("asked"),
        sa.Column("skips", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        _count("succeeded"),
        _count("failed"),
        _count("dropped"),
        _switch("canary", "false"),
        sa.Column("canary_outcome", sa.Text()),
        sa.Column("watched", sa.BigInteger()),
        _word("role", "operator"),
        _word("source", "web"),
        sa.Column("note", sa.Text()),
        _switch("is_open", "true"),
        _moment("look_at"),
        _moment("paced_at"),
    ):
        op.add_column("operations", column, schema=SCHEMA)
    # Nothing has ever moved what may stand here.
    op.execute(
        f"UPDATE {SCHEMA}.operations SET status = 'aborted', is_open = false,"
        " finished_at = coalesce(finished_at, now())"
    )
    op.create_check_constraint(
        "operations_status_is_known",
        "operations",
        "status IN ('running', 'paused', 'finished', 'stopped', 'aborted')",
        schema=SCHEMA,
    )
    op.create_index(
        "operations_open", "operations", ["look_at"], schema=SCHEMA, postgresql_where=sa.text("is_open")
    )
    _create_operation_runs()


def _create_operation_runs() -> None:
    op.create_table(
        "operation_runs",
        sa.Column("operation_id", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("why", sa.Text()),
        sa.Column("watched_run_id", sa.BigInteger()),
        sa.Column("lease_epoch", sa.BigInteger()),
        sa.Column("outcome", sa.Text()),
        sa.Column("handled_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("operation_id", "run_id", name="operation_runs_pkey"),
        sa.CheckConstraint("result IN ('moved', 'asked', 'skipped')", name="operation_runs_result_is_known"),
        schema=SCHEMA,
    )
    op.create_index(
        "operation_runs_unjudged",
        "operation_runs",
        ["operation_id", "run_id"],
        schema=SCHEMA,
        postgresql_where=sa.text("result = 'moved' AND outcome IS NULL"),
    )
