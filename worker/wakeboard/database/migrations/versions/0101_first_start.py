"""The first start of a run: how late it was, and whether another run of its schedule was under way.

The index of the fires holds both columns. They are new, so it is made under the locks, in one scan of the
table. Runs that started before are told as neither late nor overlapping.
"""

from alembic import op

revision = "0101"
down_revision = "0100"

STATEMENTS = """
ALTER TABLE wakeboard.job_runs
    ADD COLUMN late_by double precision,
    ADD COLUMN overlapped boolean DEFAULT false NOT NULL;
DROP INDEX wakeboard.job_runs_odd_fires;
DROP INDEX wakeboard.job_runs_fires;
CREATE UNIQUE INDEX job_runs_fires ON wakeboard.job_runs (definition_id, scheduled_for)
    INCLUDE (id, status, late_by, overlapped) WHERE scheduled_for IS NOT NULL;
"""


def upgrade() -> None:
    """Add the columns, and bring the indexes to them."""
    # Without parameters the driver sends many statements at once, and takes a % as it stands.
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(STATEMENTS)
