"""Finds hot indexes that are much larger than their entries need, and half-built indexes.

Every run enters and leaves the hot indexes. While a snapshot is held open, VACUUM may not remove the entries
that left. It removes them afterwards, but gives no page back, and a page that is not quite empty stays where
it is (PostgreSQL's manual, "Routine Reindexing"). All other indexes grow with their table. Reads the
catalogues only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row

HOT = ("job_runs_claimable", "job_runs_leased", "job_runs_by_status", "job_runs_under_way_of_definition")
# An index of this many times its fresh size is bloated.
TOO_LARGE = 3.0
# A rebuild reads its whole table, and some growth is usual: autovacuum comes when 2 % of job_runs are dead,
# which at ten million runs is reckoned to put some 6 MB of ended runs into the index of what waits.
FLOOR_BYTES = 16 * 1024 * 1024
# An entry of a fresh index. Entries are larger where the names of job types are long: the size right after a
# rebuild tells.
ENTRY_BYTES = 64.0
# What was written since the last ANALYZE may have entered the index; so a backlog that has just come makes no
# index look bloated. REINDEX takes the owner, or since PostgreSQL 17 whoever may MAINTAIN the table.
SIZES = """
SELECT c.relname::text AS name, t.relname::text AS on_table, pg_relation_size(c.oid) AS bytes,
    c.reltuples::float8 + coalesce(s.n_mod_since_analyze, 0) AS entries, current_user::text AS role,
    CASE WHEN current_setting('server_version_num')::int >= 170000 THEN has_table_privilege(t.oid, 'MAINTAIN')
        ELSE pg_has_role(t.relowner, 'USAGE') END AS may_rebuild
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
LEFT JOIN pg_stat_all_tables AS s ON s.relid = t.oid
WHERE c.relnamespace = 'wakeboard'::regnamespace AND c.relname = ANY (%(hot)s) AND i.indisvalid
    AND c.reltuples >= 0 AND pg_relation_size(c.oid) >= %(floor)s
ORDER BY 3 DESC
"""
# DROP INDEX takes the owner.
HALF_BUILT = """
SELECT c.relname::text AS name, t.relname::text AS on_table, current_user::text AS role,
    pg_has_role(c.relowner, 'USAGE') AS may_drop
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relnamespace = 'wakeboard'::regnamespace AND NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$'
ORDER BY 1
"""


@dataclass(slots=True)
class HotIndex:
    """A hot index: its size, at most how many entries it has, and whether ``role`` may rebuild it."""

    name: str
    on_table: str
    bytes: int
    entries: float
    role: str
    may_rebuild: bool
    entry_bytes: float = ENTRY_BYTES

    @property
    def needed_bytes(self) -> float:
        """The size of a fresh index with the same entries."""
        return self.entries * self.entry_bytes

    @property
    def is_bloated(self) -> bool:
        """Whether the index is TOO_LARGE times as large as its entries need."""
        return self.bytes > TOO_LARGE * self.needed_bytes

    @property
    def rebuild_statement(self) -> str:
        """The statement that rebuilds the index."""
        return f"REINDEX INDEX CONCURRENTLY wakeboard.{self.name}"

    @property
    def sentence(self) -> str:
        """What is wrong with the index."""
        return f"{self.name} takes {megabytes(self.bytes)} where {megabytes(self.needed_bytes)} would do."


@dataclass(frozen=True, slots=True)
class HalfBuiltIndex:
    """An index whose rebuild is under way or was interrupted, and whether ``role`` may drop it."""

    name: str
    on_table: str
    role: str
    may_drop: bool

    @property
    def drop_statement(self) -> str:
        """The statement that drops the index."""
        return f"DROP INDEX CONCURRENTLY wakeboard.{self.name}"


def find_bloated(
    connection: Connection, entry_bytes: Mapping[str, float], *, floor_bytes: int = FLOOR_BYTES
) -> list[HotIndex]:
    """Return the bloated hot indexes of ``floor_bytes`` or more, the largest first.

    ``entry_bytes``: what an entry took right after the last rebuild, by the name of the index. An index that
    nobody has analyzed yet is left out.
    """
    with connection.cursor(row_factory=class_row(HotIndex)) as cursor:
        large = cursor.execute(SIZES, {"hot": list(HOT), "floor": floor_bytes}).fetchall()
    for index in large:
        index.entry_bytes = max(ENTRY_BYTES, entry_bytes.get(index.name, 0.0))
    return [index for index in large if index.is_bloated]


def find_half_built(connection: Connection) -> list[HalfBuiltIndex]:
    """Return the invalid indexes that REINDEX CONCURRENTLY has named: under way, or left behind."""
    with connection.cursor(row_factory=class_row(HalfBuiltIndex)) as cursor:
        return cursor.execute(HALF_BUILT).fetchall()


def megabytes(size: float) -> str:
    """Return ``size`` in bytes as people read it, such as ``98.6 MB``."""
    return f"{size / 1024**2:.1f} MB"
