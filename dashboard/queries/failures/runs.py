"""The runs that failed in a night, where they are many: what is final of them is remembered.

Attempts that failed a while ago are as they were, and a run that succeeded stays so (``worker.states``).
Asked for are attempts that are newer, and how the other runs stand. The answers are those of
``worker.nights.faults``, which is asked where nothing is remembered of a window. Knows no request.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, cast

from sqlalchemy import Connection, TextClause, text

from dashboard.queries import removed
from dashboard.queries.errors import Window
from dashboard.queries.failures import lately
from dashboard.queries.failures.lately import Attempts, Lately, Newest, array_of, moment_of, stamp
from worker.nights import Row, faults
from worker.nights.faults import LEAD, MOST_SHOWN, Failed

# So many are remembered; a night tells of half of them at most.
MOST_KNOWN = 2 * faults.CAP
# The number of an attempt is that of its run, below zero where it was lost.
_ATTEMPTS = text(f"""
SELECT string_agg(timestamptz_send(finished_at), '') AS times,
    string_agg(int8send(CASE WHEN is_lost THEN -run_id ELSE run_id END), '') AS numbers
FROM ({faults.NEWEST}) AS newest
""")
_WELL = "FILTER (WHERE status = 'succeeded')"
_SUCCEEDED = f"""string_agg(int8send(id), '') {_WELL} AS succeeded_runs,
    string_agg(timestamptz_send(coalesce(finished_at, '-infinity')), '') {_WELL} AS succeeded_at"""
_OF_THESE = "WHERE id = ANY (CAST(:runs AS bigint[]))"
_STANDING = text(f"""
SELECT {faults.MARK}, {faults.STANDING}, {_SUCCEEDED}
FROM wakeboard.job_runs {faults.APART} {_OF_THESE} GROUP BY 1, 2, 3
""")
_ENDED = text(f"SELECT {_SUCCEEDED} FROM wakeboard.job_runs {_OF_THESE}")
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
    values = {"begin": since, "until": window.until, "cap": faults.CAP}
    return Attempts(*(array_of(found) for found in connection.execute(_ATTEMPTS, values).one()))


@dataclass(frozen=True)
class _Walked:
    """What one walk over attempts tells, of which the first ``before`` are from before the window.

    ``known``: when runs ended that succeeded, as far as that is remembered.
    """

    newest: Newest
    before: int
    known: Mapping[int, int]
    _first: dict[int, int] = field(default_factory=dict, compare=False)

    @cached_property
    def runs(self) -> array[int]:
        """The runs of the attempts, oldest first."""
        numbers = self.newest.one_by_one().numbers
        return array("q", map(abs, numbers)) if min(numbers, default=0) < 0 else numbers

    @cached_property
    def lost(self) -> list[int]:
        """The runs of the attempts of the window that were lost, oldest first."""
        return [-number for number in self.newest.one_by_one().numbers[self.before :] if number < 0]

    @cached_property
    def tries(self) -> Counter[int]:
        """How often each run failed."""
        return Counter(self.runs)

    @cached_property
    def in_window(self) -> AbstractSet[int]:
        """The runs that failed in the window."""
        return frozenset(self.runs[self.before :])

    @cached_property
    def asked(self) -> str:
        """Those that may have come to any end."""
        return _array(self.in_window - self.known.keys())

    @cached_property
    def others_asked(self) -> str:
        """The runs that failed before the window alone and may have come to any end."""
        return _array(self.tries.keys() - self.in_window - self.known.keys())

    @cached_property
    def succeeded(self) -> dict[int, int]:
        """When the others ended."""
        return {run: self.known[run] for run in self.tries.keys() & self.known.keys()}

    @cached_property
    def of_succeeded(self) -> int:
        """How many of the others failed in the window."""
        return len(self.in_window & self.known.keys())

    def first_failed(self, runs: Collection[int]) -> Mapping[int, int]:
        """Return when each of ``runs`` first failed."""
        wanted = set(runs) - self._first.keys()
        for run, at in zip(self.runs, self.newest.one_by_one().times, strict=True) if wanted else ():
            if run in wanted:
                self._first[run] = at
                wanted.remove(run)
                if not wanted:
                    break
        return self._first


class Runs:
    """What one process remembers: failed attempts by run, and when those runs ended that succeeded."""

    def __init__(self) -> None:
        self.attempts = Lately(_read, lambda: faults.CAP)
        self._walked: _Walked | None = None
        self._known: tuple[datetime | None, dict[int, int]] = None, {}

    def walked(self, newest: Newest, since: datetime, now: datetime) -> _Walked:
        """Return what a walk over ``newest`` tells: that of the last time where it would be the same."""
        before = newest.one_by_one().before(since)
        found, kept = _Walked(newest, before, self.known(now)), self._walked
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
    newest = memory.attempts.newest(connection, Window(window.since - LEAD, window.until), now)
    if newest is None:
        return None
    walked = memory.walked(newest, window.since, now)
    standing = _ask(connection, _STANDING, {"runs": walked.asked, "groups": list(groups)})
    found = _ended(standing)
    others = _ended(_ask(connection, _ENDED, {"runs": walked.others_asked}))
    memory.learn(found | others, now)
    ended = walked.succeeded | found | others
    since, until = stamp(window.since), stamp(window.until)
    recovered = sorted((run for run, at in ended.items() if since <= at < until), reverse=True)
    recovered.sort(key=ended.__getitem__, reverse=True)
    recovered.sort(key=walked.tries.__getitem__, reverse=True)
    shown = recovered[:MOST_SHOWN]
    first = walked.first_failed(shown)
    return Failed(
        *faults.stand(standing, len(walked.in_window), walked.of_succeeded),
        newest.total,
        faults.NOTHING,
        len(walked.lost),
        *_lost(connection, window, walked.lost),
        len(recovered),
        _array(shown),
        _array(walked.tries[run] for run in shown),
        _array(f'"{moment_of(first[run]).isoformat()}"' for run in shown),
    )


def _ask(connection: Connection, question: TextClause, values: Mapping[str, Any]) -> Sequence[Row]:
    """Return the answer about ``runs``; of no runs there is none."""
    if values["runs"] == faults.NOTHING:
        return []
    return cast(list[Row], connection.execute(question, values).mappings().all())


def _ended(rows: Iterable[Row]) -> dict[int, int]:
    """Return when those of the runs ended that succeeded."""
    ended = (
        array_of(b"".join(row[name] or b"" for row in rows)) for name in ("succeeded_runs", "succeeded_at")
    )
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
