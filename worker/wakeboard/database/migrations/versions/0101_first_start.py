"""The first start of a run: how late it was, and whether another run of its schedule was under way.

Runs that started before are told as neither late nor overlapping.
"""

from alembic import op

revision = "0101"
down_revision = "0100"

STATEMENTS = """
ALTER TABLE wakeboard.job_runs
    ADD COLUMN late_by double precision,
    ADD COLUMN overlapped boolean DEFAULT false NOT NULL;
"""


def upgrade() -> None:
    """Add the columns."""
    # Without parameters the driver sends many statements at once, and takes a % as it stands.
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(STATEMENTS)
