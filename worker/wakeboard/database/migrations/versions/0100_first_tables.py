"""First tables."""

from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    # Without parameters the driver sends many statements at once, and takes a % as it stands.
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text())
