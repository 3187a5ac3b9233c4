"""The runs that failed in a night, where they are many: what is final of them is remembered.

Attempts that failed a while ago are as they were, and a run that succeeded stays so (``core.states``).
Asked for are attempts that are newer, and how the other runs stand. The answers are those of
``reporting.activity_report.faults``, which is asked where nothing is remembered of a window. Knows no
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import cast

from sqlalchemy import Connection, text

from wakeboard.reporting.activity_report import Row, faults
from wakeboard.reporting.activity_report.faults import MOST_SHOWN, Failed
from wakeboard_dashboard.queries import removed
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.failures import lately
from wakeboard_dashboard.queries.failures.lately import Attempts, Lately, Newest, array_of, stamp

# So many are remembered; a night tells of half of them at most.
MOST_KNOWN = 2 * faults.CAP
# The number of an attempt is that of its run, below zero where it was lost.
_ATTEMPTS = text(f"""
SELECT string_agg(timestamptz_send(finished_at), '') AS times,
    string_agg(int8send(CASE WHEN is_lost THEN -run_id ELSE run_id END), '') AS numbers
FROM ({faults.NEWEST}) AS newest
""")
_STANDING = text(f"""
SELECT {faults.MARK}, {faults.STANDING},
    string_agg(int8send(id), '') FILTER (WHERE status = 'succeeded') AS succeeded_runs,
    string_agg(timestamptz_send(coalesce(finished_at, '-infinity')), '') FILTER (WHERE status = 'succeeded')
        AS succeeded_at
FROM wakeboard.job_runs {faults.APART} WHERE id = ANY (CAST(:runs AS bigint[])) GROUP BY 1, 2, 3
""")
_LOST = text("""
SELECT coalesce(array_agg(run_id), '{}')::text AS runs, coalesce(array_agg(lease_epoch), '{}')::text AS epochs
FROM (
    SELECT run_id, lease_epoch FROM wakeboard.job_attempts
    WHERE run_id = ANY (CAST(:runs AS bigint[])) AND outcome = 'lost'
        AND finished_at >= :since AND finished_at < :until
    ORDER BY finished_at DESC LIMIT :most
) AS lost
""")


def _read(connection: Connection, window: Window, since: datetime) -> Attempts:
    """Return the newest attempts of ``window`` from ``since`` on, with their runs."""
    values = {"since": since, "until": window.until, "cap": faults.CAP}
    return Attempts(*(array_of(found) for found in connection.execute(_ATTEMPTS, values).one()))


@dataclass(frozen=True)
class _Walked:
    """What one walk over attempts tells; ``known``: when runs ended that succeeded, as far as remembered."""

    newest: Newest
    known: Mapping[int, int]

    @cached_property
    def lost(self) -> list[int]:
        """The runs of the attempts that were lost, oldest first."""
        return [-number for number in self.newest.one_by_one().numbers if number < 0]

    @cached_property
    def runs(self) -> AbstractSet[int]:
        """The runs of the attempts."""
        return frozenset(map(abs, self.newest.one_by_one().numbers))

    @cached_property
    def asked(self) -> str:
        """Those that may have come to any end."""
        return _array(self.runs - self.known.keys())

    @cached_property
    def of_succeeded(self) -> int:
        """How many the others are."""
        return len(self.runs & self.known.keys())


class Runs:
    """What one process remembers: failed attempts by run, and when those runs ended that succeeded."""

    def __init__(self) -> None:
        self.attempts = Lately(_read, lambda: faults.CAP)
        self._walked: _Walked | None = None
        self._known: tuple[datetime | None, dict[int, int]] = None, {}

    def walked(self, newest: Newest, now: datetime) -> _Walked:
        """Return what a walk over ``newest`` tells: that of the last time where it would be the same."""
        found, kept = _Walked(newest, self.known(now)), self._walked
        if kept is None or kept != found:
            self._walked = kept = found
        return kept

    def known(self, now: datetime) -> dict[int, int]:
        """Return when runs ended that succeeded and that nobody has removed."""
        turn, known = self._known
        if turn != lately.turn(now):
            return {}
        stays = stamp(now - removed.STAY)
        if min(known.values(), default=stays) >= stays:
            return known
        return {run: at for run, at in known.items() if at >= stays}

    def learn(self, found: Mapping[int, int], now: datetime) -> None:
        """Remember when runs ended that succeeded, as far as that is settled, and up to MOST_KNOWN."""
        settled = stamp(lately.settled(now))
        if new := {run: at for run, at in found.items() if at < settled}:
            known = self.known(now) | new
            self._known = lately.turn(now), known if len(known) <= MOST_KNOWN else {}


def failed(
    memory: Runs, connection: Connection, window: Window, now: datetime, groups: Sequence[int] = ()
) -> Failed | None:
    """Return what ``faults.failed`` does but for ``not_succeeded``: those are for when the window is settled.

    None where nothing is remembered. ``now``: the database's clock.
    """
    newest = memory.attempts.newest(connection, window, now)
    if newest is None:
        return None
    walked = memory.walked(newest, now)
    standing: Sequence[Row] = []
    if walked.asked != faults.NOTHING:
        values = {"runs": walked.asked, "groups": list(groups)}
        standing = cast(list[Row], connection.execute(_STANDING, values).mappings().all())
    memory.learn(_ended(standing), now)
    return Failed(
        *faults.stand(standing, len(walked.runs), walked.of_succeeded),
        newest.total,
        faults.NOTHING,
        len(walked.lost),
        *_lost(connection, window, walked.lost),
    )


def _ended(standing: Iterable[Row]) -> dict[int, int]:
    """Return when those of the runs ended that succeeded."""
    names = ("succeeded_runs", "succeeded_at")
    ended = (array_of(b"".join(row[name] or b"" for row in standing)) for name in names)
    return dict(zip(*ended, strict=True))


def _lost(connection: Connection, window: Window, runs: Sequence[int]) -> tuple[str, str]:
    """Return the runs and epochs of the newest attempts that were lost, of ``runs``, oldest first."""
    if not runs:
        return faults.NOTHING, faults.NOTHING
    newest = runs[-MOST_SHOWN:]
    values = {"since": window.since, "until": window.until, "runs": _array(newest), "most": len(newest)}
    row = connection.execute(_LOST, values).one()
    return row.runs, row.epochs


def _array(found: Iterable[object]) -> str:
    """Return what PostgreSQL reads as an array."""
    return f"{{{','.join(map(str, found))}}}"
