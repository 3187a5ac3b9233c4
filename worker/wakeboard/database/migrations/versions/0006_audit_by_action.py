"""The audit log is found by what was done, and by what was refused."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
LARGE_INDEXES = {
    "audit_log_by_action": "audit_log (action, id)",
    "audit_log_undone": "audit_log (id) WHERE result <> 'done'",
}


def upgrade() -> None:
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
