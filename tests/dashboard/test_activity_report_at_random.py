"""What a night tells of fires and of runs that failed is what a walk over the rows tells, of awkward data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from flask import Flask
from sqlalchemy import Connection as Session
from sqlalchemy import text

from tests.conftest import Connection
from tests.support.factories import a_definition, a_later_success, a_run, an_attempt
from wakeboard.reporting.activity_report import TimeWindow, failures, fires
from wakeboard.reporting.activity_report.failures import (
    MAX_SHOWN,
    FailedRunStates,
    FailingRuns,
    find_failed_attempts,
    find_recovered_runs,
)
from wakeboard.reporting.activity_report.fires import LATE, ScheduleFires

# So many minutes ago windows begin and end.
WINDOWS = ((2, 0), (31, 0), (90, 0), (700, 0), (400, 45), (201, 200))
DAY = 24 * 60


@contextmanager
def looking(app: Flask) -> Iterator[tuple[Session, datetime]]:
    """Yield a transaction, and its clock, which stands still."""
    with app.extensions["wakeboard_database"].primary.connect() as connection:
        now = connection.execute(text("SELECT now()")).scalar_one()
        yield connection, now


def spans(now: datetime) -> list[TimeWindow]:
    return [
        TimeWindow(now - timedelta(minutes=since), now - timedelta(minutes=until)) for since, until in WINDOWS
    ]


# Fires


@dataclass(frozen=True)
class Fire:
    """A run of a fire as a walk sees it; ``late_by`` is None where it never started and never will."""

    schedule: int
    at: datetime
    run: int
    waits: bool
    late_by: float | None
    overlapped: bool


def a_fire(connection: Connection, chance: Random, schedule: int, at: datetime) -> Fire:
    """Write one that waits, runs, ended, or was cancelled before its start."""
    status = chance.choice(("queued", "running", "succeeded", "succeeded", "failed", "dead", "cancelled"))
    started = status not in ("queued", "cancelled")
    late_by = chance.choice((0.25, 1, 59, 61, 900)) if started else None
    overlapped = started and chance.random() < 0.3
    columns = {"definition_id": schedule, "scheduled_for": at, "late_by": late_by, "overlapped": overlapped}
    run = a_run(connection, status, **columns)
    return Fire(schedule, at, run, status == "queued", late_by, overlapped)


def walked(made: list[Fire], names: dict[int, str], window: TimeWindow, now: datetime) -> list[ScheduleFires]:
    """Return the schedules of ``fires.find_fires``, told by walking over the fires one by one."""
    by_schedule: dict[int, list[Fire]] = defaultdict(list)
    for fire in made:
        if window.since <= fire.at < window.until:
            by_schedule[fire.schedule].append(fire)
    told = []
    for schedule, found in by_schedule.items():
        if names[schedule] == "gone":
            continue
        late: list[tuple[float, int]] = []
        for fire in found:
            late_by = (now - fire.at).total_seconds() if fire.waits else fire.late_by
            if late_by is not None and late_by > LATE.total_seconds():
                late.append((late_by, fire.run))
        beside = sorted((fire.at, fire.run) for fire in found if fire.overlapped)
        worst = max(late) if late else (None, None)
        newest = beside[-1][1] if beside else None
        told.append(
            ScheduleFires(names[schedule], "skip", len(found), len(late), *worst, len(beside), newest)
        )
    return sorted(each for each in told if each.late or each.beside)


def random_fires(
    connection: Connection, chance: Random, counts: Sequence[int]
) -> tuple[list[Fire], dict[int, str]]:
    """Write so many fires of the last twelve hours for each of some schedules; return them, and the names.

    The fourth is removed afterwards: its fires happened, but nobody can look at it.
    """
    now = datetime.now(UTC)
    names = {a_definition(connection, name): name for name in ("z-first", "middle", "a-last", "gone", "idle")}
    made = [
        a_fire(connection, chance, schedule, now - timedelta(minutes=ago + 0.5))
        for schedule, count in zip(names, counts, strict=False)
        for ago in chance.sample(range(720), count)
    ]
    connection.execute("DELETE FROM wakeboard.job_definitions WHERE name = 'gone'")
    return made, names


@pytest.mark.parametrize("seed", range(6))
def test_fires_are_judged_as_by_a_walk_over_all_of_them(
    app: Flask, connection: Connection, seed: int
) -> None:
    made, names = random_fires(connection, Random(seed), (8, 60, 30, 20))
    with looking(app) as (session, now):
        for window in spans(now):
            found, told = fires.find_fires(session, window), walked(made, names, window, now)
            assert found.schedules == told
            assert found.late == sum(one.late for one in told)
            assert found.overlapping == sum(one.beside for one in told)
            delays = [one.late_seconds for one in told if one.late_seconds]
            assert [one.late_seconds for one in found.latest] == sorted(delays, reverse=True)
            overlaps = [one.beside for one in told if one.beside]
            assert [one.beside for one in found.most_overlapping] == sorted(overlaps, reverse=True)


# Runs that failed


def numbers(array: str) -> list[int]:
    """Read an array of numbers in PostgreSQL's words."""
    return [int(each) for each in array.strip("{}").split(",") if each]


@pytest.mark.parametrize("cap", [10_000, 60, 1])
def test_what_became_of_failures_is_as_by_a_walk_over_the_newest_of_them(
    app: Flask, connection: Connection, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(failures, "CAP", cap)
    chance, now = Random(cap), datetime.now(UTC)
    standing: dict[int, tuple[str | None, datetime | None]] = {}
    groups: dict[int, int | None] = {}
    failed: list[tuple[datetime, int, int, bool]] = []
    for _ in range(60):
        status = chance.choice(("succeeded", "succeeded", "queued", "failed", "dead", "cancelled"))
        ended = now - timedelta(minutes=chance.randrange(700) + 0.5)
        times = {"finished_at": ended} if status in ("succeeded", "dead", "cancelled") else {}
        group = chance.choice((None, 7, 8)) if status in ("failed", "dead") else None
        run = a_run(connection, status, attempts=0, error_group=group, **times)
        standing[run] = (status, times.get("finished_at"))
        groups[run] = group
        for epoch in range(1, chance.choice((1, 2, 7)) + 1):
            at = now - timedelta(minutes=chance.randrange(3 * DAY), seconds=len(failed) / 10 + 1)
            is_lost = chance.random() < 0.1
            outcome = "lost" if is_lost else chance.choice(("failed", "timed_out", "released"))
            error = None if outcome == "released" else "smtp_down"
            an_attempt(
                connection, run, attempt=epoch, lease_epoch=epoch, outcome=outcome, error_code=error,
                due_at=at, started_at=at, finished_at=at,
            )  # fmt: skip
            if error:
                failed.append((at, run, epoch, is_lost))
        if status == "succeeded":
            a_later_success(connection, run)
    for run in chance.sample(sorted(standing), 5):
        connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (run,))
        standing[run] = (None, None)
    with looking(app) as (session, now):
        for window in (*spans(now), TimeWindow(now - timedelta(days=2), now)):
            newest = sorted(each for each in failed if window.since <= each[0] < window.until)[-cap:]
            within = {run for _, run, *_ in newest}
            stands = Counter(standing[run][0] for run in within)
            found = find_failed_attempts(session, window, [7])
            assert found.states == FailedRunStates(
                len(within), stands["succeeded"], stands["failed"] + stands["queued"], stands["dead"],
                stands["cancelled"], stands[None],
            )  # fmt: skip
            marks = Counter((groups[run], standing[run][0]) for run in within)
            for number, mark in (
                (7, (7, None, None)), (8, (None, None, None)), (None, (None, "smtp_down", "mail")),
            ):  # fmt: skip
                told = found.failing.get(mark, FailingRuns())
                assert told == FailingRuns(marks[number, "failed"], marks[number, "dead"]), mark
            lost = [(run, epoch) for _, run, epoch, is_lost in newest if is_lost]
            assert found.lost_count == len(lost)
            lost_told = zip(numbers(found.lost_runs), numbers(found.lost_epochs), strict=True)
            assert sorted(lost_told) == sorted(lost[-MAX_SHOWN:])
            tries = Counter(run for _, run, *_ in failed)
            first = {run: at for at, run, *_ in sorted(failed, reverse=True)}
            well = {run for run in tries if is_well(standing[run], window)}
            recovered, of_all = find_recovered_runs(session, window)
            assert of_all == min(len(well), cap)
            told = {run.id: (run.failures, run.first_failed_at) for run in recovered}
            assert told.items() <= {run: (tries[run], first[run]) for run in well}.items()
            assert len(told) == min(of_all, MAX_SHOWN)
            in_order = [run.failures for run in recovered]
            assert in_order == sorted(in_order, reverse=True)


def is_well(stands: tuple[str | None, datetime | None], window: TimeWindow) -> bool:
    """Whether a run succeeded in ``window``."""
    status, ended = stands
    return status == "succeeded" and ended is not None and window.since <= ended < window.until
