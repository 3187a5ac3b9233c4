"""What a night tells of fires and of runs that failed is what a walk over the rows tells, of awkward data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from tests.conftest import Connection
from tests.factories import a_definition, a_run, an_attempt
from wakeboard.reporting.activity_report import Ask, faults, fires
from wakeboard.reporting.activity_report.faults import Failing, Fates
from wakeboard.reporting.activity_report.fires import LATE, STEP, Fired, Fires
from wakeboard.reporting.activity_report.summary import Span

# So many minutes ago windows begin and end.
WINDOWS = ((2, 0), (31, 0), (90, 0), (700, 0), (400, 45), (201, 200))
DAY = 24 * 60


@contextmanager
def looking(app: Flask) -> Iterator[tuple[Ask, datetime]]:
    """Yield how to ask in one transaction, and its clock, which stands still."""
    with app.extensions["wakeboard_database"].primary.connect() as connection:
        now = connection.execute(text("SELECT now()")).scalar_one()
        yield lambda sql, values: [*connection.execute(text(sql), dict(values)).mappings()], now


def spans(now: datetime) -> list[Span]:
    return [Span(now - timedelta(minutes=since), now - timedelta(minutes=until)) for since, until in WINDOWS]


# Fires


@dataclass(frozen=True)
class Fire:
    """A run of a fire as a walk sees it."""

    schedule: int
    at: datetime
    run: int
    status: str
    began: datetime | None
    ended: datetime | None
    is_retried: bool = False


def a_fire(connection: Connection, chance: Random, schedule: int, at: datetime) -> Fire:
    """Write one that waits, runs, ended, or came to its end at the second attempt; soon or much later."""
    kind = chance.choice(("queued", "running", "succeeded", "succeeded", "retried", "dead", "cancelled"))
    status = "succeeded" if kind == "retried" else kind
    began = at + timedelta(seconds=chance.choice((0.25, 1, 61, 900)))
    ended = began + timedelta(seconds=chance.choice((1, 40, 400, 20_000)))
    columns: dict[str, Any] = {"definition_id": schedule, "scheduled_for": at, "attempts": 0}
    if kind in ("queued", "cancelled"):
        return Fire(schedule, at, a_run(connection, status, **columns), status, None, None)
    if kind == "running":
        columns |= {"started_at": began, "attempts": 1}
        return Fire(schedule, at, a_run(connection, status, **columns), status, began, None)
    again = began + timedelta(minutes=30) if kind == "retried" else began
    ended = max(ended, again)
    run = a_run(connection, status, **columns, started_at=again, finished_at=ended)
    if kind == "retried":
        for epoch, moment in ((3, began), (7, again)):
            times = dict.fromkeys(("due_at", "started_at", "finished_at"), moment)
            an_attempt(connection, run, attempt=epoch, lease_epoch=epoch, **times)
        connection.execute("UPDATE wakeboard.job_runs SET attempts = 2 WHERE id = %s", (run,))
    return Fire(schedule, at, run, status, began, ended, kind == "retried")


def walked(made: list[Fire], names: dict[int, str], window: Span, now: datetime) -> Fires:
    """Return what ``fires.fired`` returns, told by walking over the fires one by one."""
    by_schedule: dict[int, list[Fire]] = defaultdict(list)
    for fire in made:
        if window.since <= fire.at < window.until:
            by_schedule[fire.schedule].append(fire)
    told, under_way, ended = [], 0, 0
    for schedule, found in by_schedule.items():
        late, beside, reached, is_there = [], [], None, names[schedule] != "gone"
        for fire in sorted(found, key=lambda fire: fire.at):
            is_under_way, through = fire.status in ("queued", "running"), fire.ended or now
            is_odd = fire.began is not None and (fire.is_retried or through > fire.at + STEP)
            under_way += is_under_way and is_there
            ended += is_odd and not is_under_way
            start = fire.began or (now if is_under_way else None)
            if start is not None and start > fire.at + LATE:
                late.append(((start - fire.at).total_seconds(), fire.run))
            if fire.began is not None:
                if reached is not None and fire.began < reached:
                    beside.append(fire.run)
                reached = max(reached or fire.began, through)
        if not is_there:
            continue
        worst = max(late) if late else (None, None)
        newest = beside[-1] if beside else None
        told.append(Fired(names[schedule], "skip", len(found), len(late), *worst, len(beside), newest))
    of_late, of_beside = ([one for one in told if one[place]] for place in (3, 6))
    return Fires(
        sum(one.late for one in told), len(of_late), sum(one.beside for one in told), len(of_beside),
        under_way, ended, 0, sorted({*of_late, *of_beside}),
    )  # fmt: skip


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
    with looking(app) as (ask, now):
        for window in spans(now):
            assert replace(fires.fired(ask, window), walked=0) == walked(made, names, window, now)


def test_of_more_fires_than_are_looked_at_so_many_are_told_and_that_there_are_more(
    app: Flask, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_fires(connection, Random(7), (8, 60, 30, 20))
    with looking(app) as (ask, now):
        for window in spans(now):
            monkeypatch.setattr(fires, "CAP", 20_000)
            whole = fires.fired(ask, window)
            assert not whole.is_cut
            monkeypatch.setattr(fires, "CAP", 5)
            found = fires.fired(ask, window)
            assert found.under_way == min(whole.under_way, 5)
            assert found.is_cut == (max(whole.under_way, whole.ended) >= 5)
            assert found.late <= whole.late and found.beside <= whole.beside


def test_the_schedule_with_the_worst_delay_and_that_with_most_overlaps_are_told(
    app: Flask, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fires, "MOST_TOLD", 1)
    made, names = random_fires(connection, Random(8), (8, 60, 30, 20))
    with looking(app) as (ask, now):
        for window in spans(now):
            found, whole = fires.fired(ask, window), walked(made, names, window, now)
            assert replace(found, walked=0, worst=whole.worst) == whole
            delays = [one.late_seconds for one in whole.worst if one.late]
            assert [one.late_seconds for one in fires.late(found)] == sorted(delays, reverse=True)[:1]
            overlaps = [one.beside for one in whole.worst if one.beside]
            assert [one.beside for one in fires.beside(found)] == sorted(overlaps, reverse=True)[:1]
            assert set(found.worst) <= set(whole.worst)


# Runs that failed


def numbers(array: str) -> list[int]:
    """Read an array of numbers in PostgreSQL's words."""
    return [int(each) for each in array.strip("{}").split(",") if each]


@pytest.mark.parametrize("cap", [10_000, 60, 1])
def test_what_became_of_failures_is_as_by_a_walk_over_the_newest_of_them(
    app: Flask, connection: Connection, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(faults, "CAP", cap)
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
            outcome = "lost" if is_lost else chance.choice(("failed", "timed_out", "succeeded", "released"))
            error = None if outcome in ("succeeded", "released") else "smtp_down"
            an_attempt(
                connection, run, attempt=epoch, lease_epoch=epoch, outcome=outcome, error_code=error,
                due_at=at, started_at=at, finished_at=at,
            )  # fmt: skip
            if error:
                failed.append((at, run, epoch, is_lost))
    for run in chance.sample(sorted(standing), 5):
        connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (run,))
        standing[run] = (None, None)
    with looking(app) as (ask, now):
        for window in (*spans(now), Span(now - timedelta(days=2), now)):
            newest = sorted(each for each in failed if window.since <= each[0] < window.until)[-cap:]
            within = {run for _, run, *_ in newest}
            stands = Counter(standing[run][0] for run in within)
            found = faults.failed(ask, window, [7])
            assert found.fates == Fates(
                len(within), stands["succeeded"], stands["failed"] + stands["queued"], stands["dead"],
                stands["cancelled"], stands[None],
            )  # fmt: skip
            marks = Counter((groups[run], standing[run][0]) for run in within)
            for number, mark in (
                (7, (7, None, None)), (8, (None, None, None)), (None, (None, "smtp_down", "mail")),
            ):  # fmt: skip
                told = found.failing.get(mark, Failing())
                assert told == Failing(marks[number, "failed"], marks[number, "dead"]), mark
            lost = [(run, epoch) for _, run, epoch, is_lost in newest if is_lost]
            assert found.of_lost == len(lost)
            lost_told = zip(numbers(found.lost_runs), numbers(found.lost_epochs), strict=True)
            assert sorted(lost_told) == sorted(lost[-faults.MOST_SHOWN :])
            tries = Counter(run for _, run, *_ in failed)
            first = {run: at for at, run, *_ in sorted(failed, reverse=True)}
            well = {run for run in tries if is_well(standing[run], window)}
            recovered, of_all = faults.recovered(ask, window)
            assert of_all == min(len(well), cap)
            told = {row["id"]: (row["failures"], row["first_failed_at"]) for row in recovered}
            assert told.items() <= {run: (tries[run], first[run]) for run in well}.items()
            assert len(told) == min(of_all, faults.MOST_SHOWN)
            in_order = [row["failures"] for row in recovered]
            assert in_order == sorted(in_order, reverse=True)


def is_well(stands: tuple[str | None, datetime | None], window: Span) -> bool:
    """Whether a run succeeded in ``window``."""
    status, ended = stands
    return status == "succeeded" and ended is not None and window.since <= ended < window.until
