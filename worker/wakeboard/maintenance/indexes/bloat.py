"""Which of our indexes are much larger than their entries need, and what a rebuild that was cut short left.

What comes and goes while a snapshot is held open fills an index with entries that nothing may remove. VACUUM
removes them afterwards, but gives no page back, and a page that is not quite empty stays where it is
(PostgreSQL's manual, "Routine Reindexing"). Asks the catalogues, then counts; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

Connection = psycopg.Connection[Any]

# An index of this many times its fresh size is bloated.
TOO_LARGE = 3.0
# A rebuild reads its whole table, and some growth is usual: autovacuum comes when 2 % of job_runs are dead,
# which at ten million runs is reckoned to put some 6 MB of ended runs into the index of what waits.
FLOOR_BYTES = 16 * 1024 * 1024
# What CREATE INDEX fills the pages of a B-tree to, in percent, where the index says nothing else.
FILLFACTOR = 90
PAGE_BYTES = 8192
COUNT_SECONDS = 5
# An entry is its line pointer (4), its header (8) and its columns, each with what aligns it to eight bytes at
# most: an upper bound, and equal entries share a header. A column of unknown width makes the entry unknown.
# REINDEX takes the owner, or since PostgreSQL 17 whoever may MAINTAIN the table; DROP INDEX takes the owner.
LARGE = f"""
SELECT c.relname::text AS name, t.relname::text AS on_table, pg_relation_size(c.oid) AS bytes,
    greatest(c.reltuples, CASE WHEN i.indpred IS NULL THEN s.n_live_tup END)::float8 AS entries,
    i.indisunique AS is_unique, e.bytes::float8 AS entry_bytes,
    coalesce((
        SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = 'fillfactor'
    )::int, {FILLFACTOR}) AS fillfactor,
    pg_get_expr(i.indpred, i.indrelid) AS condition,
    current_user::text AS role,
    CASE WHEN current_setting('server_version_num')::int >= 170000 THEN has_table_privilege(t.oid, 'MAINTAIN')
        ELSE pg_has_role(t.relowner, 'USAGE') END AS may_rebuild
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_am AS m ON m.oid = c.relam LEFT JOIN pg_stat_all_tables AS s ON s.relid = t.oid
CROSS JOIN LATERAL (
    SELECT CASE WHEN count(width) = count(*) THEN 12 + 8 * sum(ceil(width / 8.0)) END AS bytes
    FROM (
        SELECT CASE WHEN a.attlen > 0 THEN a.attlen ELSE p.avg_width END AS width
        FROM unnest(i.indkey::int2[]) AS key (number)
        LEFT JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = key.number
        LEFT JOIN pg_stats AS p ON p.schemaname = 'wakeboard' AND p.tablename = t.relname
            AND p.attname = a.attname
    ) AS columns
) AS e
WHERE t.relnamespace = 'wakeboard'::regnamespace AND t.relkind = 'r' AND m.amname = 'btree' AND i.indisvalid
    AND c.reltuples >= 0 AND e.bytes IS NOT NULL AND pg_relation_size(c.oid) >= %(floor)s
ORDER BY 3 DESC
"""
LEFTOVERS = """
SELECT c.relname::text AS name, t.relname::text AS on_table, current_user::text AS role,
    pg_has_role(c.relowner, 'USAGE') AS may_drop
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relnamespace = 'wakeboard'::regnamespace AND NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$'
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Index:
    """An index of the schema ``wakeboard``: its size, and as how many entries of what width it is known.

    Its pages are filled to ``fillfactor`` percent when it is made. ``condition`` is what a partial index asks
    of a row, as SQL; ``may_rebuild`` is of this ``role``. One that ``is_unique`` is not rebuilt beside the
    work: INSERT … ON CONFLICT may fail by the new one meanwhile. Entries of one that is not ``is_counted``
    are what statistics say.
    """

    name: str
    on_table: str
    bytes: int
    entries: float
    is_unique: bool
    entry_bytes: float
    fillfactor: int
    condition: str | None
    role: str
    may_rebuild: bool
    is_counted: bool = True

    @property
    def needed_bytes(self) -> float:
        """What its entries would take in a fresh index, of two pages at least."""
        return max(2 * PAGE_BYTES, self.entries * self.entry_bytes * 100 / self.fillfactor)

    @property
    def is_bloated(self) -> bool:
        """Whether it is several times as large as that."""
        return self.bytes > TOO_LARGE * self.needed_bytes

    @property
    def most_entries(self) -> int:
        """With how many entries it would not be bloated."""
        return ceil(self.bytes / TOO_LARGE * self.fillfactor / 100 / self.entry_bytes)

    @property
    def rebuilds(self) -> str:
        """The statement that rebuilds it."""
        return f"REINDEX INDEX CONCURRENTLY wakeboard.{self.name}"

    @property
    def says(self) -> str:
        """What is wrong, in one sentence."""
        says = f"{self.name} takes {megabytes(self.bytes)} where {megabytes(self.needed_bytes)} would do"
        unsure = "" if self.is_counted else f", by the statistics: its count took over {COUNT_SECONDS} s"
        return f"{says}{unsure}."


@dataclass(frozen=True, slots=True)
class Leftover:
    """A half-built index: a rebuild is under way, or was cut short; ``may_drop`` is of ``role``."""

    name: str
    on_table: str
    role: str
    may_drop: bool

    @property
    def drops(self) -> str:
        """The statement that drops it."""
        return f"DROP INDEX CONCURRENTLY wakeboard.{self.name}"


def bloated(connection: Connection, *, floor_bytes: int = FLOOR_BYTES) -> list[Index]:
    """Return the indexes of ``floor_bytes`` or more that take over three times what they need, largest first.

    By the statistics, which may be of before a million runs were added; so what they accuse is then counted,
    as far as it matters. An index whose entries or their width are unknown is left out.
    """
    with connection.cursor(row_factory=class_row(Index)) as cursor:
        large = cursor.execute(LARGE, {"floor": floor_bytes}).fetchall()
    counted = (_counted(connection, index) for index in large if index.is_bloated)
    return [index for index in counted if index.is_bloated]


def leftovers(connection: Connection) -> list[Leftover]:
    """Return what REINDEX CONCURRENTLY has under way or left behind: not valid, and named by it."""
    with connection.cursor(row_factory=class_row(Leftover)) as cursor:
        return cursor.execute(LEFTOVERS).fetchall()


def _counted(connection: Connection, index: Index) -> Index:
    """Return ``index`` with its entries as they are, as far as they matter, if it is quick to count."""
    count = sql.SQL("SELECT count(*) FROM (SELECT FROM wakeboard.{} WHERE {} LIMIT {}) AS counted").format(
        sql.Identifier(index.on_table),
        sql.SQL(index.condition or "true"),  # the server's own words
        sql.Literal(index.most_entries + 1),
    )
    try:
        with connection.transaction():
            # A plan by old statistics would walk the whole table.
            connection.execute(
                "SELECT set_config('statement_timeout', %s, true), set_config('enable_seqscan', 'off', true)",
                (f"{COUNT_SECONDS}s",),
            )
            row = connection.execute(count).fetchone()
    except psycopg.errors.QueryCanceled:
        return replace(index, is_counted=False)
    return replace(index, entries=row[0]) if row else index


def megabytes(size: float) -> str:
    """Return ``size`` in bytes as people read it, such as ``98.6 MB``."""
    return f"{size / 1024**2:.1f} MB"
