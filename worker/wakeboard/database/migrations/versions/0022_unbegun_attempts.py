"""A list of claimed attempts that have not begun, so that runs with a single try can be claimed ahead."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# Unlogged: whoever strikes an attempt off waits for no disk. See worker/wakeboard/queue/engine/unbegun.py.
UNBEGUN = """
CREATE UNLOGGED TABLE wakeboard.unbegun_attempts (
    run_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    CONSTRAINT unbegun_attempts_pkey PRIMARY KEY (run_id, lease_epoch)
)
"""


def upgrade() -> None:
    op.execute(UNBEGUN)
