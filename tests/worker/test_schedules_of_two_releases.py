"""Old and new workers side by side: what the code says is applied once, and undoes no person's edit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.factories import Connection, rows
from wakeboard.config import log
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import definitions
from wakeboard.queue.definitions import edit
from wakeboard.runtime import worker
from wakeboard.runtime.duties.worker_row import WorkerRow
from wakeboard.schedules import code_schedules

ANN = Actor("ann", Role.ADMIN, "web")
OLD, NEW, NEWER = "0 2 * * *", "0 3 * * *", "0 4 * * *"


class Worker:
    """A worker of a release whose code says ``text``, as it starts, goes on for a minute and ends."""

    def __init__(self, connection: Connection, text: str | None, *, is_tick: bool = False) -> None:
        self.connection, self.policies = connection, [{**POLICY, "schedule": text}]
        self.row = WorkerRow(worker.Worker(worker.new_worker_id("host"), is_tick=is_tick))
        self.row.register(connection, self.policies)
        code_schedules.sync(connection, self.policies)

    def a_minute_later(self) -> None:
        code_schedules.resync(self.connection, self.policies)
        self.row.publish_types(self.connection, self.policies)

    def stop(self) -> None:
        self.row.mark_stopped(self.connection)


POLICY = {"name": "report", "max_attempts": 10, "timeout_seconds": 300.0, "backoff": "fixed 1s"}


def text_of(connection: Connection) -> str | None:
    """Return what the schedule says, None when there is none."""
    found = rows(connection, "job_definitions", "name = 'report'")
    return found[0]["schedule"] if found else None


def edits(connection: Connection) -> int:
    return len(rows(connection, "audit_log", "target_id = 'report' AND action = 'schedule.edit'"))


def moved_by_ann(connection: Connection) -> str | None:
    assert edit(connection, "report", {"schedule": "0 5 * * *"}, ANN, "behind the backup").result == "done"
    return "0 5 * * *"


def removed_by_ann(connection: Connection) -> str | None:
    assert definitions.remove(connection, "report", ANN, "not wanted").result == "done"
    return None


DECISIONS = pytest.mark.parametrize("decide", [moved_by_ann, removed_by_ann])
Decide = Callable[[Connection], str | None]


@DECISIONS
def test_a_person_decides_while_old_and_new_workers_run_and_more_new_ones_start(
    connection: Connection, decide: Decide
) -> None:
    old, new = Worker(connection, OLD), Worker(connection, NEW)
    old.a_minute_later()
    decided = decide(connection)
    for _ in range(2):
        for each in (Worker(connection, NEW), old, new):
            each.a_minute_later()
            assert text_of(connection) == decided


@DECISIONS
@pytest.mark.parametrize("newer_lives", [True, False])
def test_a_person_decides_and_an_old_worker_starts_once_more(
    connection: Connection, decide: Decide, newer_lives: bool
) -> None:
    Worker(connection, OLD).stop()
    new = Worker(connection, NEW)
    decided = decide(connection)
    if not newer_lives:
        new.stop()
    Worker(connection, OLD).a_minute_later()
    assert text_of(connection) == decided
    Worker(connection, NEW).a_minute_later()
    assert text_of(connection) == decided


@pytest.mark.parametrize("is_tick", [False, True])
def test_two_releases_side_by_side_do_not_flip_a_schedule(connection: Connection, is_tick: bool) -> None:
    Worker(connection, OLD, is_tick=is_tick)
    for _ in range(3):
        for text in (NEW, OLD):
            worker = Worker(connection, text, is_tick=is_tick)
            worker.a_minute_later()
            if is_tick:
                worker.stop()
            assert text_of(connection) == NEW
    assert edits(connection) == 2


def test_a_release_that_is_taken_back_is_applied_when_the_last_of_its_workers_has_gone(
    connection: Connection,
) -> None:
    Worker(connection, OLD).stop()
    first, second = Worker(connection, NEW), Worker(connection, NEW)
    first.stop()
    back = Worker(connection, OLD)
    assert text_of(connection) == NEW
    second.stop()
    back.a_minute_later()
    assert text_of(connection) == OLD


def test_workers_that_died_and_old_ticks_say_nothing_any_more(connection: Connection) -> None:
    Worker(connection, OLD).stop()
    Worker(connection, NEW)
    Worker(connection, NEW, is_tick=True).stop()
    connection.execute("UPDATE wakeboard.workers SET seen_at = now() - interval '4 minutes'")
    Worker(connection, OLD)
    assert text_of(connection) == NEW
    connection.execute("UPDATE wakeboard.workers SET seen_at = now() - interval '16 minutes'")
    Worker(connection, OLD)
    assert text_of(connection) == OLD


@DECISIONS
def test_what_the_code_has_never_said_is_applied_whatever_a_person_decided(
    connection: Connection, decide: Decide
) -> None:
    Worker(connection, OLD)
    decide(connection)
    Worker(connection, NEW)
    assert text_of(connection) == NEW


def test_code_that_drops_its_schedule_and_takes_it_up_again_has_it_made_again(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    old = Worker(connection, OLD)
    new = Worker(connection, None)
    log.flush()
    assert "A schedule is not in the code any more" in capfd.readouterr().err
    removed_by_ann(connection)
    old.a_minute_later()
    Worker(connection, OLD).stop()
    assert text_of(connection) is None
    new.stop()
    Worker(connection, OLD)
    assert text_of(connection) == OLD


def test_a_worker_says_why_it_leaves_what_a_person_decided(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    Worker(connection, OLD).stop()
    Worker(connection, NEW).stop()
    moved_by_ann(connection)
    Worker(connection, OLD).a_minute_later()
    log.flush()
    assert capfd.readouterr().err.count("somebody made or changed the one under its name") == 1
    Worker(connection, NEWER).stop()
    removed_by_ann(connection)
    connection.execute("UPDATE wakeboard.workers SET stopped_at = now()")
    Worker(connection, OLD).a_minute_later()
    log.flush()
    assert capfd.readouterr().err.count("somebody removed it, and the code has said the same before") == 1
