"""Checks of the indexes: missing, invalid, half built or bloated ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wakeboard.cli.commands.doctor.result import CheckResult
from wakeboard.cli.connection import Connection, read_rows
from wakeboard.database import migrations
from wakeboard.maintenance.indexes import bloat, state

INDEXES = """
SELECT c.relname AS name, i.indisvalid AND i.indisready AS valid
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'wakeboard'
"""


def indexes(connection: Connection) -> Iterator[CheckResult]:
    """Name the indexes that are missing, invalid, half built or bloated."""
    is_valid = {row["name"]: row["valid"] for row in read_rows(connection, INDEXES)}
    half_built = bloat.find_half_built(connection)
    invalid = sorted(
        {name for name, valid in is_valid.items() if not valid} - {index.name for index in half_built}
    )
    if "job_runs_claimable" not in is_valid:
        yield CheckResult(
            "indexes",
            "fail",
            "job_runs_claimable, which claims need, is missing.",
            migrations.upgrade_advice(migrations.current_revision(connection)) or migrations.RUN_UPGRADE,
        )
    elif invalid:
        mend = f"REINDEX INDEX CONCURRENTLY wakeboard.{invalid[0]}"
        yield CheckResult("indexes", "fail", f"Not valid: {', '.join(invalid)}.", mend)
    elif not (troubles := [*_half_built(half_built), *bloated_ones(connection)]):
        yield CheckResult("indexes", "ok", f"All {len(is_valid)} are valid, and none is bloated.")
    else:
        yield from troubles


def _half_built(indexes: Iterable[bloat.HalfBuiltIndex]) -> Iterator[CheckResult]:
    """Name the indexes that a rebuild creates now, or left when it was interrupted."""
    for index in indexes:
        says = f"{index.name} is being built, or was left by a rebuild that was cut short."
        mend = "If nothing builds it, the next look of a worker at the indexes drops it (each half hour)."
        yield CheckResult(
            "indexes", "warning", says, mend if index.may_drop else f"As its owner: {index.drop_statement}"
        )


def bloated_ones(connection: Connection, floor_bytes: int = bloat.FLOOR_BYTES) -> Iterator[CheckResult]:
    """Name the hot indexes of ``floor_bytes`` or more that a long transaction left bloated."""
    last, _ = state.read(connection)
    for index in bloat.find_bloated(connection, last.entry_bytes, floor_bytes=floor_bytes):
        yield CheckResult(
            "indexes", "warning", index.sentence, f"{_who_rebuilds(index)}: {index.rebuild_statement}"
        )


def _who_rebuilds(index: bloat.HotIndex) -> str:
    """Say who should, or will, rebuild ``index``, before the statement that does."""
    if not index.may_rebuild:
        return f"The role {index.role} may not rebuild it. As the owner of its table"
    hours, days = state.REST_SECONDS / 3600, state.POSTPONED_SECONDS / 86_400
    return (
        f"A worker rebuilds it, at the latest {hours:g} hours after the last try "
        f"({days:g} days after one that took too long), unless a transaction stays open; or"
    )
