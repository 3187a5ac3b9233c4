"""``tick``: a crontab line wakes it, it does what is due, and it is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.support import factories
from tests.support.factories import Connection, from_now, row, rows
from tests.support.processes import ROOT, run_wakeboard, surroundings, wait_until, wakeboard
from tests.support.workers.worker_processes import (
    LEASE,
    SHORT,
    a_worker,
    counts,
    insert,
    insert_many,
    outcomes,
    truth,
    wait_until_started,
)
from wakeboard.runtime.duties.duty_thread import Duty, DutyThread
from wakeboard.schedules import scheduler


def tick(database: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_wakeboard("tick", *words, database=database, environment=SHORT | variables)


def test_a_tick_runs_what_is_due_and_ends(database: str, connection: Connection) -> None:
    ids = insert_many(connection, "quick", 30)
    later = insert(connection, "quick", run_at=from_now("1 hour"))
    done = tick(database)
    assert done.returncode == 0, done.stderr
    assert counts(connection, ids) == {"succeeded": 30}
    assert row(connection, later)["status"] == "queued"
    (stood,) = rows(connection, "workers")
    assert stood["is_tick"]
    assert stood["stopped_at"] is not None


def test_a_tick_with_nothing_to_do_ends_at_once(database: str) -> None:
    began = time.monotonic()
    assert tick(database).returncode == 0
    assert time.monotonic() - began < 15


def test_a_tick_prints_what_it_did_and_nothing_when_that_was_nothing(
    database: str, connection: Connection
) -> None:
    for log_format in ("text", "json"):
        idle = tick(database, WAKEBOARD_LOG_FORMAT=log_format, WAKEBOARD_LEASE_SECOND="9")
        assert (idle.returncode, idle.stdout, idle.stderr) == (0, "", "")
    insert(connection, "quick")
    said = tick(database).stderr.splitlines()
    assert "Worker started." in said[0]
    assert "Worker stopped." in said[-1]
    assert any(" succeed " in line for line in said[1:-1])
    refused = tick(database, "--types", "nobody_knows_it")
    assert (refused.returncode, "Worker started." in refused.stderr) == (2, True), refused.stderr


def test_a_tick_logs_no_more_than_it_was_asked_to(database: str, connection: Connection) -> None:
    def moves(**variables: str) -> list[str]:
        insert_many(connection, "quick", 3)
        insert(connection, "crash", {"way": "exit"})
        lines = [line.split() for line in tick(database, **variables).stderr.splitlines()]
        return [line[1] for line in lines if line[2].startswith("run=")]

    assert sorted(set(moves())) == ["claim", "dead", "succeed"]
    assert moves(WAKEBOARD_LOG_MOVES="failures") == ["dead"]
    assert sorted(set(moves(WAKEBOARD_LOG_MOVES="quick=failures"))) == ["claim", "dead"]
    insert_many(connection, "quick", 3)
    assert tick(database, WAKEBOARD_LOG_LEVEL="warning").stderr == ""


def test_duties_tell_once_that_each_has_had_its_first_turn(database: str) -> None:
    done = list[str]()
    steps = (lambda _: done.append("schedule"), lambda _: done.append("presence"))
    duties = DutyThread(
        database, [Duty(name, 0.01, step) for name, step in zip("ab", steps, strict=True)],
        on_first_round=lambda: done.append("told"),
    )  # fmt: skip
    duties.start()
    wait_until(lambda: len(done) > 6, 20, "the duties come round again")
    duties.stop()
    assert done[:3] == ["schedule", "presence", "told"]
    assert done.count("told") == 1


def test_a_tick_that_claims_before_its_first_duties_are_done_ends_without_a_poll(
    database: str, connection: Connection
) -> None:
    def waits_for(table: str) -> None:
        asked = "SELECT FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)"
        wait_until(
            lambda: connection.execute(asked, (table,)).fetchone() is not None, 30, f"it needs {table}"
        )

    first, last = "wakeboard.job_definitions", "wakeboard.statistics_deltas"
    with ThreadPoolExecutor() as pool, psycopg.connect(database) as one, psycopg.connect(database) as other:
        one.execute(f"LOCK TABLE {first}".encode())
        other.execute(f"LOCK TABLE {last}".encode())
        ended = pool.submit(tick, database, WAKEBOARD_POLL_SECONDS="60")
        waits_for(first)
        time.sleep(1.5)  # meanwhile its handlers are loaded
        one.rollback()
        waits_for(last)
        time.sleep(0.5)  # meanwhile it claims, and finds nothing
        other.rollback()
        assert ended.result(30).returncode == 0


def test_a_tick_fires_the_schedules_that_are_due_and_runs_them(database: str, connection: Connection) -> None:
    definition = factories.insert(
        connection,
        "job_definitions",
        {"name": "hourly", "job_type": "quick", "schedule": "0 * * * *", "next_fire_at": "2020-01-01T00:00Z"},
    )
    assert tick(database).returncode == 0
    (fired,) = rows(connection, "job_runs", "definition_id = %s", definition)
    assert fired["status"] == "succeeded"
    assert fired["scheduled_for"].minute == 0


def test_a_tick_fires_more_than_one_look_takes(database: str, connection: Connection) -> None:
    count = 2 * scheduler.BATCH + 1
    connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, next_fire_at)"
        " SELECT 'many-' || n, 'quick', '0 0 1 1 *', now() FROM generate_series(1, %s) AS n",
        (count,),
    )
    assert tick(database).returncode == 0
    assert counts(connection, [run["id"] for run in rows(connection, "job_runs")]) == {"succeeded": count}


def test_a_tick_follows_what_its_runs_enqueue_to_the_end(database: str, connection: Connection) -> None:
    first = insert(connection, "chain", {"links": 6})
    done = tick(database)
    assert done.returncode == 0, done.stderr
    found = rows(connection, "job_runs", "job_type = 'chain'")
    assert [one["status"] for one in found] == ["succeeded"] * 7
    assert found[0]["id"] == first


def test_a_tick_stops_claiming_in_time_and_waits_for_what_runs(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    words = ("--for", "3")
    long = insert(connection, "patient", {"seconds": 4})
    others = insert_many(connection, "patient", 30, {"seconds": 0.5})
    done = tick(database, *words, TRUTH=str(record))
    assert done.returncode == 0, done.stderr
    assert row(connection, long)["status"] == "succeeded"
    found = counts(connection, others)
    assert set(found) <= {"queued", "succeeded"}
    assert found["queued"] > 0
    lines = truth(record)
    assert max(line.at for line in lines if line.word == "end") > max(
        line.at for line in lines if line.word == "start"
    )


def test_ticks_may_overlap(database: str, connection: Connection, tmp_path: Path) -> None:
    record = tmp_path / "truth"
    ids = insert_many(connection, "patient", 40, {"seconds": 0.05})
    environment = surroundings(database, SHORT | {"TRUTH": str(record)})
    command = [sys.executable, "-m", "wakeboard", "tick"]
    ticks = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(3)
    ]
    assert [one.wait(60) for one in ticks] == [0, 0, 0]
    assert counts(connection, ids) == {"succeeded": 40}
    starts = [line.run_id for line in truth(record) if line.word == "start"]
    assert sorted(starts) == sorted(ids)


def test_a_tick_takes_over_the_run_of_a_dead_worker(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record) as worker:
        run_id = insert(connection, "patient", {"seconds": 1})
        wait_until_started(record, run_id)
        worker.kill()
    wait_until(lambda: rows(connection, "job_runs", "locked_until < now()"), LEASE + 5, "the lease ends")
    assert tick(database).returncode == 0
    assert row(connection, run_id)["status"] == "succeeded"
    assert outcomes(connection, run_id) == ["lost", "succeeded"]


def test_a_tick_leaves_what_is_not_due_and_what_is_paused(database: str, connection: Connection) -> None:
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('quick', now())")
    run_id = insert(connection, "quick")
    assert tick(database).returncode == 0
    assert row(connection, run_id)["status"] == "queued"


def test_a_tick_obeys_sigterm(database: str, connection: Connection, tmp_path: Path) -> None:
    record = tmp_path / "truth"
    run_id = insert(connection, "patient", {"seconds": 60})
    environment = SHORT | {"TRUTH": str(record), "WAKEBOARD_SHUTDOWN_SECONDS": "2"}
    with wakeboard("tick", database=database, environment=environment) as started:
        wait_until_started(record, run_id, seconds=30)
        assert started.terminate(10) == 0, started.output
    assert row(connection, run_id)["status"] == "queued"
    assert outcomes(connection, run_id) == ["released"]


def test_a_tick_without_a_database_gives_up_and_says_that_it_left_the_work() -> None:
    impatient = "import sys; from wakeboard.runtime import supervisor; from wakeboard.cli import main; "
    impatient += "supervisor.PATIENCE_SECONDS = 1.0; sys.argv = ['wakeboard', 'tick']; main()"
    done = subprocess.run(
        [sys.executable, "-c", impatient],
        env=surroundings("postgresql://nobody@127.0.0.1:1/nothing") | SHORT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1, done.stderr
    assert "The database does not answer" in done.stderr
    assert "the work is left to the next one" in done.stderr and "Traceback" not in done.stderr


def test_a_tick_without_tables_says_in_a_line_what_to_run_and_ends(empty_database: str) -> None:
    began = time.monotonic()
    done = tick(empty_database)
    assert time.monotonic() - began < 30, "it waited for tables that nobody makes"
    assert done.returncode == 1, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert said.endswith("Run: wakeboard db upgrade"), done.stderr


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_a_tick_whose_time_is_over_before_it_can_claim_says_so(
    seconds: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    run_id = insert(connection, "quick")
    (tmp_path / "slow_shop.py").write_text("import time\ntime.sleep(3)\n")
    done = run_wakeboard("tick", "--for", seconds, "--app", "slow_shop", database=database, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Give --for more seconds.") == 1, done.stderr
    assert row(connection, run_id)["status"] == "queued"
