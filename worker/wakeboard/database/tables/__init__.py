"""The tables (schema ``wakeboard``) as typed SQLAlchemy Core objects, and nothing else.

The whole contract with producers, workers and pages is here; migrations must end in exactly this
(a test compares them). Times are ``timestamptz`` and finite, ids are ``bigint`` identity columns.
The supervisor never imports it: its statements are text in ``wakeboard.queue``.
"""

from wakeboard.database.tables.columns import SCHEMA, metadata
from wakeboard.database.tables.definitions import (
    installation,
    job_definitions,
    job_types,
    loops,
    missed_fires,
    workers,
)
from wakeboard.database.tables.operators import (
    alert_messages,
    alert_rules,
    audit_log,
    login_failures,
    login_links,
    operation_runs,
    operations,
    saved_views,
    sessions,
    tokens,
    users,
)
from wakeboard.database.tables.runs import (
    effects,
    error_groups,
    job_attempts,
    job_runs,
    run_output,
    unbegun_attempts,
)
from wakeboard.database.tables.statistics import (
    statistics_deltas,
    statistics_hours,
    statistics_hours_of_types,
    statistics_rollups,
)

__all__ = [
    "SCHEMA", "alert_messages", "alert_rules", "audit_log", "effects", "error_groups", "installation",
    "job_attempts", "job_definitions", "job_runs", "job_types", "login_failures", "login_links", "loops",
    "metadata", "missed_fires", "operation_runs", "operations", "run_output", "saved_views", "sessions",
    "statistics_deltas", "statistics_hours", "statistics_hours_of_types", "statistics_rollups", "tokens",
    "unbegun_attempts", "users", "workers",
]  # fmt: skip
