"""What a worker tells of its own loops, and what others see when it cannot tell any more."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import psycopg

from tests.support.factories import Connection, attempts, row, rows
from tests.support.factories import a_worker as a_worker_row
from tests.support.postgres.wire_proxy import Middleman, between
from tests.support.processes import run_wakeboard, wait_until, wakeboard
from tests.support.workers.worker_processes import (
    OPERATOR,
    SHORT,
    a_worker,
    insert,
    insert_many,
    wait_until_idle,
    wait_until_registered,
    wait_until_status,
)
from wakeboard.queue.workers import undrain
from wakeboard.reporting.heartbeats import Loop, late_loops, loops

WAITING_DUTIES = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'wakeboard duties' AND wait_event_type = 'Lock'
"""


def late(connection: Connection) -> set[str]:
    return {found.name for found in late_loops(connection)}


def loop(connection: Connection, name: str) -> Loop | None:
    return next((found for found in loops(connection) if found.name == name), None)


def hears(connection: Connection) -> str | None:
    found = loop(connection, "listen")
    return None if found is None or not found.numbers else str(found.numbers["hears"])


def ago(connection: Connection, name: str) -> float:
    found = loop(connection, name)
    assert found is not None
    return found.ago_seconds


def seen_since_start_of(connection: Connection, name: str, other: str) -> bool:
    query = """SELECT one.seen_at > other.started_at FROM wakeboard.workers AS one, wakeboard.workers AS other
        WHERE one.id = %s AND other.id = %s"""
    (seen,) = connection.execute(query, (name, other)).fetchone() or (False,)
    return bool(seen)


def watch_for(seconds: float, holds: Callable[[], bool]) -> None:
    """Look for ``seconds`` that something holds all the time."""
    end = time.monotonic() + seconds
    wait_until(lambda: not holds() or time.monotonic() > end, seconds + 5)
    assert time.monotonic() > end, "it did not hold all the time"


def proven_at(connection: Connection) -> datetime:
    found = loop(connection, "listen")
    assert found is not None
    return found.last_success_at


def listening_pid(connection: Connection) -> int | None:
    found = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'wakeboard claim'"
        " AND datname = current_database()"
    ).fetchone()
    return found[0] if found else None


def test_a_worker_that_hears_its_own_notification_says_so(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection):
        wait_until(lambda: hears(connection) == "notifications", 20, "the listening is proven")
        assert late(connection) == set()


def test_a_subscription_that_was_lost_in_silence_is_made_anew(database: str, connection: Connection) -> None:
    with between(database) as middleman, a_worker(middleman.url, ready=connection, POLL_SECONDS=30) as worker:
        wait_until(lambda: hears(connection) == "notifications", 20, "the listening is proven")
        old = listening_pid(connection)
        middleman.forget_subscriptions()
        wait_until(lambda: listening_pid(connection) not in (None, old), 30, "another connection listens")
        wait_until_idle(connection, worker)
        wait_until_status(connection, insert(connection, "quick"), "succeeded", seconds=3)
        assert "No notification arrives" in worker.output


def test_a_worker_that_hears_nothing_is_late_with_listening_and_works_on(
    database: str, connection: Connection
) -> None:
    with between(database) as middleman, a_worker(middleman.url, ready=connection):
        wait_until(lambda: hears(connection) == "notifications", 20, "the listening is proven")
        middleman.swallows_notifications = True
        wait_until(lambda: late(connection) == {"listen"}, 45, "the listening is late")
        found = loop(connection, "listen")
        assert found is not None and "did not come back" in str(found.last_error)
        wait_until_status(connection, insert(connection, "quick"), "succeeded")
        middleman.swallows_notifications = False
        wait_until(lambda: not late(connection), 30, "the listening is on time again")


def pooled(middleman: Middleman) -> None:
    """Make it what a pooler in transaction mode is: no server process of one's own, no notifications."""
    middleman.hides_the_server = middleman.swallows_notifications = True


def test_behind_a_pooler_that_passes_no_notification_on_polling_is_told_and_is_no_failure(
    database: str, connection: Connection
) -> None:
    with between(database) as middleman:
        pooled(middleman)
        with a_worker(middleman.url, ready=connection):
            says = "nothing through the pooler; polls every 0.2 s"
            wait_until(lambda: hears(connection) == says, 20, "the polling is told")
            opened = middleman.connections
            first = proven_at(connection)
            wait_until(lambda: proven_at(connection) > first + timedelta(seconds=4), 20, "the next is tried")
            wait_until_status(connection, insert(connection, "quick"), "succeeded")
            found = loop(connection, "listen")
            assert found is not None and (found.late, found.last_error) == (False, None)
            assert middleman.connections == opened


def test_a_pooler_that_passes_notifications_on_is_as_good_as_none(
    database: str, connection: Connection
) -> None:
    with between(database) as middleman:
        middleman.hides_the_server = True
        with a_worker(middleman.url, ready=connection):
            wait_until(lambda: hears(connection) == "notifications", 20, "the listening is proven")


def test_claims_are_not_late_while_long_runs_keep_every_slot_busy(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection, POLL_SECONDS=0.5):
        for run_id in insert_many(connection, "patient", 2, {"seconds": 40}):
            wait_until_status(connection, run_id, "running")
        wait_until(lambda: loop(connection, "claim"), 10)
        watch_for(9, lambda: ago(connection, "claim") < 3)
        assert late(connection) == set()


def test_claims_are_not_late_while_a_worker_drains(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection, POLL_SECONDS=0.5) as worker:
        wait_until(lambda: loop(connection, "claim"), 10)
        name = wait_until_registered(connection, worker)
        connection.execute("UPDATE wakeboard.workers SET drain_requested_at = now() WHERE id = %s", (name,))
        watch_for(9, lambda: ago(connection, "claim") < 3)
        run_id = insert(connection, "quick")
        watch_for(1, lambda: row(connection, run_id)["status"] == "queued")
        assert undrain(connection, name, OPERATOR).result == "asked"
        wait_until_status(connection, run_id, "succeeded")


def test_a_frozen_worker_is_late_with_everything(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection) as worker:
        wait_until(lambda: loop(connection, "claim"), 10)
        worker.freeze()
        try:
            wait_until(lambda: late(connection) >= {"claim", "renew", "schedule", "presence"}, 30)
        finally:
            worker.thaw()
        wait_until(lambda: not late(connection), 30, "it is on time again")


def the_hanging_one(folder: Path) -> Path:
    """Return a ``wakeboard`` command whose loop hangs at SIGUSR1."""
    program = folder / "wakeboard"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.workers.apps.hanging "$@"\n')
    program.chmod(0o755)
    return program


def test_a_worker_whose_loop_hangs_keeps_its_runs_from_nobody(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    hanging = wakeboard("worker", database=database, environment=SHORT, program=the_hanging_one(tmp_path))
    with hanging as worker:
        name = wait_until_registered(connection, worker)
        run_id = insert(connection, "patient", {"seconds": 5})
        # The database says "running" before the worker has read that it may run.
        worker.wait_for(f"claim run={run_id}")
        worker.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "renew" in late(connection), 30, "its leases are late")
        assert "its runs are left to others" in worker.output
        with a_worker(database):
            wait_until_status(connection, run_id, "succeeded", seconds=30)
    (lost, _) = attempts(connection, run_id)
    assert (lost["outcome"], lost["worker_id"]) == ("lost", name)


def test_a_worker_whose_loop_hangs_is_late_with_claims_though_its_threads_go_on(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    program = the_hanging_one(tmp_path)
    with wakeboard("worker", database=database, environment=SHORT, program=program) as worker:
        wait_until_registered(connection, worker)
        wait_until(lambda: loop(connection, "claim"), 10)
        worker.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "claim" in late(connection), 30, "the claims are late")
        assert not late(connection) & {"schedule", "presence", "renew", "reap"}
        wait_until(lambda: "listen" in late(connection), 45, "nobody hears the notifications")


def test_a_killed_worker_is_late_and_one_that_ends_in_order_is_not(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection) as killed, a_worker(database, ready=connection) as stopped:
        name, other = (wait_until_registered(connection, worker) for worker in (killed, stopped))
        # What all workers do together has a line of its own.
        wait_until(lambda: {found.process_id for found in loops(connection)} >= {name, other})
        # Until it is heard once more, the other one may have been started in its place.
        wait_until(
            lambda: seen_since_start_of(connection, name, other), 30, "the one is seen beside the other"
        )
        stopped.terminate()
        killed.kill()
        wait_until(lambda: "claim" in late(connection), 30, "the killed worker's claims are late")
        assert {found.process_id for found in late_loops(connection)} == {name}


def test_doctor_names_each_late_loop_with_its_mend(database: str, connection: Connection) -> None:
    a_worker_row(connection, "w1", hostname="db1", pid=77)
    for name, error in (("listen", None), ("claim", "no such module")):
        connection.execute(
            """INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at, last_error)
            VALUES ('w1', %s, 2, now() - interval '1 min', %s)""",
            (name, error),
        )
    said = run_wakeboard("doctor", "--json", database=database)
    found = [each for each in json.loads(said.stdout)["items"] if each["check"] == "loops"]
    assert said.returncode == 1 and [each["level"] for each in found] == ["fail", "fail"]
    assert "'claim' of db1:77 last succeeded 6" in found[0]["says"] and "no such module" in found[0]["says"]
    assert "restart the worker" in found[0]["mend"] and "session mode" in found[1]["mend"]
    for name in ("reap", "renew", "schedule"):
        a_loop_row = "INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at)"
        connection.execute(f"{a_loop_row} VALUES ('w1', %s, 2, now() - interval '1 min')", (name,))
    said = run_wakeboard("doctor", "--json", database=database)
    [found] = [each for each in json.loads(said.stdout)["items"] if each["check"] == "loops"]
    assert "db1:77 stands still or is gone" in found["says"] and "claim, listen, reap, renew" in found["says"]
    assert "no such module" in found["says"] and "restart it" in found["mend"]
    connection.execute("UPDATE wakeboard.loops SET last_success_at = now()")
    assert "loops: All are on time." in run_wakeboard("doctor", database=database).stdout


def test_a_worker_whose_duties_wait_for_a_lock_is_seen_all_the_same(
    database: str, connection: Connection
) -> None:
    def seen_at() -> object:
        (worker,) = rows(connection, "workers")
        return worker["seen_at"]

    with a_worker(database, ready=connection), psycopg.connect(database) as maintenance:
        maintenance.execute("LOCK TABLE wakeboard.alert_rules IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: connection.execute(WAITING_DUTIES).fetchone() == (1,), 30, "a duty waits")
        before = seen_at()
        wait_until(lambda: seen_at() != before, 10, "the worker is seen again")
        assert connection.execute(WAITING_DUTIES).fetchone() == (1,), "the same duty waits"
