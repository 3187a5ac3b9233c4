"""What is remembered of schedules of which all the latest runs had ended when they were last looked at.

What a run that succeeded at its first attempt tells stays so. The others are watched: PostgreSQL gives a row
that was changed another ``xmin``, and a late answer of a stale worker shows in the attempts. Which runs are
the latest is asked as well, for schedules fire and retention removes; and which were run again, for that is
odd. All of it is asked of all schedules at once, of indexes but for what is watched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from sqlalchemy import Connection, RowMapping, text

from wakeboard_dashboard.queries import fires
from wakeboard_dashboard.queries.schedules import LATEST

# Where more runs than this were run again since the oldest that is shown, nothing is remembered.
MOST_AGAIN = 200
# Of each some 4 kB where its runs are told, and 1 where they are plain.
MOST_KEPT = 1000

# The schedules that are not as they were; those of runs that were run again come with what was.
_CHANGED = text(f"""
SELECT d.id AS definition_id, CAST(NULL AS bigint) AS again
FROM unnest(
    CAST(:ids AS bigint[]), CAST(:oldest AS bigint[]), CAST(:newest AS bigint[]), CAST(:many AS bigint[])
) AS d (id, oldest, newest, how_many)
CROSS JOIN LATERAL (
    SELECT max(run.id) AS newest, count(*) AS how_many FROM (
        SELECT r.id FROM wakeboard.job_runs AS r
        WHERE r.definition_id BETWEEN d.id AND d.id AND r.id >= d.oldest
        ORDER BY r.definition_id DESC, r.id DESC LIMIT :enough
    ) AS run
) AS there
WHERE there.newest IS DISTINCT FROM d.newest OR there.how_many <> d.how_many
UNION ALL
SELECT watched.definition_id, NULL
FROM unnest(
    CAST(:of AS bigint[]), CAST(:watched AS bigint[]), CAST(:versions AS bigint[]), CAST(:back AS bool[])
) AS watched (definition_id, id, version, came_back)
LEFT JOIN LATERAL (
    SELECT {fires.VERSION} AS version, {fires.CAME_BACK} AS came_back
    FROM wakeboard.job_runs AS r WHERE r.id = watched.id OFFSET 0
) AS r ON true
WHERE r.version IS DISTINCT FROM watched.version OR r.came_back <> watched.came_back
UNION ALL
SELECT origin.definition_id, again.origin_run_id
FROM (
    SELECT origin_run_id FROM wakeboard.job_runs WHERE origin_run_id >= :since
    ORDER BY origin_run_id DESC LIMIT :most
) AS again LEFT JOIN wakeboard.job_runs AS origin ON origin.id = again.origin_run_id""")


class Known:
    """What was found of schedules whose latest runs had ended, by definition id; for one process."""

    def __init__(self) -> None:
        self._kept: dict[int, RowMapping] = {}

    def of(self, connection: Connection, ids: Sequence[int]) -> dict[int, RowMapping]:
        """Return what was noted of those of ``ids`` that are as they were then."""
        kept = self._kept
        return _unchanged(connection, {each: kept[each] for each in ids if each in kept})

    def strips(self, connection: Connection, ids: Sequence[int]) -> dict[int, RowMapping]:
        """Return what ``fires.strips`` does."""
        known = {each: row for each, row in self.of(connection, ids).items() if "runs" in row}
        return known | self.told(connection, [each for each in ids if each not in known])

    def surveyed(
        self, connection: Connection, ids: Sequence[int], words: Collection[str]
    ) -> dict[int, RowMapping]:
        """Return what ``fires.surveyed`` does, and keep what it says of schedules that are plain."""
        found = fires.surveyed(connection, ids, words)
        self._note({each: row for each, row in found.items() if not row["is_odd"]})
        return found

    def told(self, connection: Connection, ids: Sequence[int]) -> dict[int, RowMapping]:
        """Return what ``fires.strips`` does, from the database, and keep it."""
        found = fires.strips(connection, ids)
        self._note(found)
        return found

    def _note(self, found: Mapping[int, RowMapping]) -> None:
        over = {each: row for each, row in found.items() if row["is_over"]}
        if not over:
            return
        # What was told last is forgotten last. Another thread may read what is kept meanwhile.
        kept = {each: row for each, row in self._kept.items() if each not in over} | over
        self._kept = dict(list(kept.items())[-MOST_KEPT:])


def _unchanged(connection: Connection, known: dict[int, RowMapping]) -> dict[int, RowMapping]:
    if not known:
        return {}
    watched = [(each, row) for each, row in known.items() if "watched" in row]
    oldest = [row["oldest"] for row in known.values()]
    values = {
        "ids": list(known),
        "oldest": oldest,
        "newest": [row["newest"] for row in known.values()],
        "many": [row["how_many"] for row in known.values()],
        "enough": LATEST + 1,
        "since": min(oldest),
        "of": [each for each, row in watched for _ in row["watched"]],
        "watched": list(chain.from_iterable(row["watched"] for _, row in watched)),
        "versions": list(chain.from_iterable(row["versions"] for _, row in watched)),
        "back": list(chain.from_iterable(row["back"] for _, row in watched)),
        "most": MOST_AGAIN + 1,
    }
    rows = connection.execute(_CHANGED, values).all()
    if sum(row.again is not None for row in rows) > MOST_AGAIN:
        return {}
    changed = {row.definition_id for row in rows}
    return {each: row for each, row in known.items() if each not in changed}
