"""The rules of what a run may hold are judged while it may be claimed, and no more by each claim and finish."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

RULES = {
    "job_type_is_printable": "length(job_type) BETWEEN 1 AND 200 AND job_type !~ '[[:cntrl:]]'",
    "priority_is_0_to_4": "priority BETWEEN 0 AND 4",
    "origin_is_short": "length(traceparent) <= 200 AND length(enqueued_by) <= 200",
    "max_attempts_is_positive": "max_attempts > 0",
    "timeout_is_positive": "timeout_seconds > 0 AND timeout_seconds < 'Infinity'",
    "key_is_short": "length(idempotency_key) BETWEEN 1 AND 200",
    "payload_is_a_small_object": "jsonb_typeof(payload) = 'object' AND length(payload::text) <= 1048576",
}
# More rows than these are not read under the lock that all wait for. They have kept the stricter rules.
MOST_ROWS = 100_000


def upgrade() -> None:
    for name, rule in RULES.items():
        while_claimable = f"locked_by IS NOT NULL OR finished_at IS NOT NULL OR ({rule})"
        op.execute(
            f"ALTER TABLE wakeboard.job_runs DROP CONSTRAINT job_runs_{name},"
            f" ADD CONSTRAINT job_runs_{name} CHECK ({while_claimable}) NOT VALID"
        )
    some = f"SELECT 1 FROM wakeboard.job_runs OFFSET {MOST_ROWS} LIMIT 1"
    if op.get_bind().exec_driver_sql(some).first() is None:
        for name in RULES:
            op.execute(f"ALTER TABLE wakeboard.job_runs VALIDATE CONSTRAINT job_runs_{name}")
