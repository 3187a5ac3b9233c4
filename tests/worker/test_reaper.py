"""Taking back what was lost: at once where it is safe, later where every lease only looks ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.factories import Connection, a_run, a_type, attempts, end_lease, row, status
from tests.support.postgres.write_refusals import refuse, refuse_at_commit
from tests.support.processes import wait_until
from wakeboard.config import log
from wakeboard.database import db
from wakeboard.runtime.duties.reaper import Reaper


@pytest.fixture(autouse=True)
def _an_old_server(connection: Connection) -> None:
    """Just after a start of the server every lease only looks ended, so a reaper would wait."""
    old = "SELECT pg_postmaster_start_time() < now() - interval '16 seconds'"
    wait_until(lambda: connection.execute(old).fetchone() == (True,), 20, "the server is no longer new")


def reaper(*, waits_first: bool = False, lease_seconds: float = 30) -> Reaper:
    return Reaper(lease_seconds=lease_seconds, heartbeat_seconds=lease_seconds / 3, waits_first=waits_first)


def test_a_first_loss_is_due_again_at_once(connection: Connection) -> None:
    run_id = a_run(connection, "running")
    end_lease(connection, run_id)
    assert reaper().step(connection) == {"failed": 1}
    found = row(connection, run_id)
    (lost,) = attempts(connection, run_id)
    assert (found["status"], found["failures"], found["error_code"]) == ("failed", 1, "lease_lost")
    assert connection.execute("SELECT run_at <= now() FROM wakeboard.job_runs").fetchone() == (True,)
    assert (lost["outcome"], lost["worker_id"]) == ("lost", "w1")


def test_a_later_loss_waits_by_the_types_own_rule(connection: Connection) -> None:
    a_type(connection, backoff="fixed 1h")
    run_id = a_run(connection, "running", failures=2, attempts=3, lease_epoch=3)
    end_lease(connection, run_id)
    reaper().step(connection)
    found = connection.execute(
        "SELECT run_at > now() + interval '59 minutes' FROM wakeboard.job_runs WHERE id = %s", (run_id,)
    ).fetchone()
    assert found == (True,)


def test_the_last_loss_is_the_end(connection: Connection) -> None:
    a_type(connection, max_attempts=3)
    run_id = a_run(connection, "running", failures=2, attempts=3, lease_epoch=3)
    end_lease(connection, run_id)
    assert reaper().step(connection) == {"dead": 1}


def test_a_lease_that_has_not_ended_is_left_alone(connection: Connection) -> None:
    run_id = a_run(connection, "running")
    assert reaper().step(connection) == {}
    assert status(connection, run_id) == "running"


def test_a_reaper_that_has_just_come_or_reconnected_is_patient(connection: Connection) -> None:
    run_id = a_run(connection, "running")
    end_lease(connection, run_id)
    assert reaper(waits_first=True).step(connection) == {}
    back_again = reaper()
    back_again.reconnected()
    assert back_again.step(connection) == {}
    assert status(connection, run_id) == "running"


def test_a_jump_of_the_databases_clock_takes_nothing_back(connection: Connection) -> None:
    run_id = a_run(connection, "running")
    careful = reaper()
    careful.step(connection)
    connection.execute("CREATE SCHEMA jumped")
    connection.execute(
        "CREATE FUNCTION jumped.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
        " AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$"
    )
    connection.execute("SET search_path = jumped, pg_catalog")
    end_lease(connection, run_id)
    assert careful.step(connection) == {}
    assert careful.step(connection) == {}, "it goes on waiting"
    assert status(connection, run_id) == "running"


def test_reapers_that_meet_take_each_run_once(connection: Connection, database: str) -> None:
    ids = [a_run(connection, "running") for _ in range(40)]
    for run_id in ids:
        end_lease(connection, run_id)
    counted: list[int] = []

    def reap() -> None:
        with db.connect(database, name="wakeboard reaper") as mine:
            counted.append(reaper().step(mine).get("failed", 0))

    threads = [threading.Thread(target=reap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counted) == 40
    assert all(len(attempts(connection, run_id)) == 1 for run_id in ids)


def test_a_locked_row_is_left_for_the_next_time(connection: Connection, other: Connection) -> None:
    locked, free = a_run(connection, "running"), a_run(connection, "running")
    for run_id in (locked, free):
        end_lease(connection, run_id)
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (locked,))
        assert reaper().step(connection) == {"failed": 1}
        assert (status(connection, locked), status(connection, free)) == ("running", "failed")
    assert reaper().step(connection) == {"failed": 1}


def test_a_type_that_no_worker_ever_registered_is_decided_by_the_defaults(connection: Connection) -> None:
    run_id = a_run(connection, "running", job_type="forgotten")
    end_lease(connection, run_id)
    assert reaper().step(connection) == {"failed": 1}
    assert attempts(connection, run_id)[0]["max_attempts"] == 10


@pytest.mark.parametrize("wrong", [{"priority": 99}, {"payload": "[]"}, {"failures": 999_999_999}])
def test_a_row_that_breaks_a_rule_keeps_no_other_from_being_taken_back(
    connection: Connection, wrong: dict[str, object]
) -> None:
    bad, good = a_run(connection, "running", **wrong), a_run(connection, "running")
    for run_id in (bad, good):
        end_lease(connection, run_id)
    assert reaper().step(connection) == {"dead": 1, "failed": 1}
    found = row(connection, bad)
    assert (found["status"], found["locked_by"], found["error_code"]) == ("dead", None, "lease_lost")
    assert "rule" in str(found["last_error"]) or "constraint" in str(found["last_error"])
    assert reaper().step(connection) == {}


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("place", [0, 13, 20])
def test_a_run_that_may_not_be_tried_again_is_dead_and_the_others_are_taken_back(
    connection: Connection, rule: Any, place: int
) -> None:
    ids = [a_run(connection, "running", payload={"bad": 1} if n == place else {}) for n in range(21)]
    for run_id in ids:
        end_lease(connection, run_id)
    rule(connection, "new.payload ? 'bad' AND new.status = 'failed'", "once only")
    assert reaper().step(connection) == {"failed": 20, "dead": 1}
    found = row(connection, ids[place])
    (lost,) = attempts(connection, ids[place])
    assert (found["status"], found["error_code"], lost["outcome"]) == ("dead", "lease_lost", "lost")
    assert found["last_error"] == lost["error"]
    assert found["last_error"].endswith("; once only")


def test_a_run_that_may_not_be_touched_at_all_is_passed_by(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    bad, good = a_run(connection, "running", payload={"bad": 1}), a_run(connection, "running")
    for run_id in (bad, good):
        end_lease(connection, run_id)
    refuse(connection, "new.payload ? 'bad'", "hands off")
    again = reaper()
    assert again.step(connection) == {"failed": 1}
    before = row(connection, bad)
    later = a_run(connection, "running")
    end_lease(connection, later)
    assert again.step(connection) == {"failed": 1}
    assert again.step(connection) == {}
    assert row(connection, bad) == before
    assert attempts(connection, bad) == []
    log.flush()
    told = capfd.readouterr().err
    assert told.count("refuses that a lost run") == 1
    assert f'run={bad} type=mail error="hands off"' in told
