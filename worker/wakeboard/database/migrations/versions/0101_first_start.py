"""The first start of a run: how late it was, and whether another run of its schedule was under way.

Runs that started before are told as neither late nor overlapping. The index of the fires holds both columns:
they are new, so it is made under the locks, in one scan of the table. Of the indexes of runs twelve stay.
"""

from alembic import op

revision = "0101"
down_revision = "0100"

LARGE_INDEXES = {
    "job_runs_by_status": "job_runs (status, id) INCLUDE (job_type, error_code, error_group, failed_at) "
    "WHERE status NOT IN ('running', 'succeeded')",
    "job_runs_by_error": "job_runs (error_code, id) INCLUDE (status, job_type, error_group) "
    "WHERE error_code IS NOT NULL AND status IN ('queued', 'failed', 'dead')",
    "job_attempts_later_successes": "job_attempts (finished_at) INCLUDE (run_id, attempt) "
    "WHERE outcome = 'succeeded' AND attempt > 1",
}
STATEMENTS = """
ALTER TABLE wakeboard.job_runs
    ADD COLUMN late_by double precision,
    ADD COLUMN overlapped boolean DEFAULT false NOT NULL;
DROP INDEX wakeboard.job_runs_fires, wakeboard.job_runs_odd_fires, wakeboard.job_runs_listed_by_status,
    wakeboard.job_runs_failing, wakeboard.job_runs_failing_by_error, wakeboard.job_runs_set_aside,
    wakeboard.job_runs_recovered;
CREATE UNIQUE INDEX job_runs_fires ON wakeboard.job_runs (definition_id, scheduled_for)
    INCLUDE (id, status, late_by, overlapped) WHERE scheduled_for IS NOT NULL;
"""


def upgrade() -> None:
    """Add the columns, and bring the indexes to what is asked."""
    # Without parameters the driver sends many statements at once, and takes a % as it stands.
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql(STATEMENTS)
    # A database of an earlier revision has them already (database.migrations.large_indexes).
    for name, place in LARGE_INDEXES.items():
        connection.exec_driver_sql(f"CREATE INDEX IF NOT EXISTS {name} ON wakeboard.{place}")
