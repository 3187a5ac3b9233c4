"""Pages of two indexes keep room for what claims and finishes add: a backlog is worked off without tidying them."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# A run is in the primary key three times, and twice in the list by type, until vacuum comes. Pages that a backlog
# had filled to nine tenths were searched for dead entries again and again: a tenth of what PostgreSQL did for a run
# (benchmarks/PROFILE.md). For pages that are written from now on; a rebuild fills the others so.
FILLFACTORS = {"job_runs_pkey": 40, "job_runs_listed_by_type": 50}


def upgrade() -> None:
    for name, percent in FILLFACTORS.items():
        op.execute(f"ALTER INDEX wakeboard.{name} SET (fillfactor = {percent})")
