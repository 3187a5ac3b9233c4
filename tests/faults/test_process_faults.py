"""Faults of the processes of one worker: each is stopped in turn, by SIGSTOP. Group A of the table."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.factories import row, rows
from tests.support.faults.deployment import KILL_SECONDS, SHUTDOWN_SECONDS, House
from tests.support.faults.fault_rows import fault
from tests.support.faults.truth_file import Line, now
from tests.support.postgres.wire_proxy import Middleman, between
from tests.support.processes import Wakeboard, run_wakeboard, wait_until
from tests.support.workers.worker_processes import is_alive
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel
from wakeboard.runtime.deadlines import SERVER_SILENT_SECONDS

Measured = Callable[[str], None]
OPERATOR = Actor("olivia", Role.OPERATOR, "web")
APP = "tests.support.faults.apps.pulses"
TIMEOUT = 1.5
LEASE = 4.0
# A fork server that is stopped is taken for dead after a second; one more for a busy machine.
NOTICED_SECONDS = 2.0
BELOW = ("fork_server", "child", "descendant")
# What a reaper does with a run whose lease it thinks has ended, and whoever claims it then.
TAKE_OVER = """
WITH taken AS (
    UPDATE wakeboard.job_runs SET lease_epoch = lease_epoch + 1, status = 'failed', locked_by = NULL,
        locked_until = NULL, failures = failures + 1, failed_at = now(), error_code = 'lease_lost',
        run_at = now() + interval '1 second'
    WHERE id = %s RETURNING *
)
INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome, error_code, next_run_at)
SELECT id, attempts, lease_epoch - 1, job_type, 'other', run_at, started_at, now(), 'lost', 'lease_lost',
    run_at FROM taken
"""


@pytest.fixture
def middleman(database: str) -> Iterator[Middleman]:
    """A way to the database that can be cut."""
    with between(database) as opened:
        yield opened


def pulses(house: House, ids: Sequence[int]) -> list[Line]:
    """Return what the processes of the runs' first attempts have told, once each run has two that work."""

    def told() -> list[Line]:
        return [line for line in house.truth("beat") if line.run_id in ids and line.attempt == 1]

    wait_until(lambda: len({line.pid for line in told()}) == 2 * len(ids), 30, "handlers and their offspring")
    return told()


def pids_of(who: str, worker: Wakeboard, house: House, ids: Sequence[int]) -> list[int]:
    """Return the ids of one kind of a worker's processes: those that the runs have, or its fork server's."""
    if who == "fork_server":
        return [child.pid for child in psutil.Process(worker.pid).children()]
    starts = {line.pid for line in house.truth("start") if line.run_id in ids}
    if who == "child":
        return sorted(starts)
    return sorted({line.pid for line in pulses(house, ids)} - starts)


def runs_of(worker: Wakeboard, house: House) -> list[int]:
    """Return the runs that the handlers of a worker have started."""
    family = {member.pid for member in worker.family()}
    return [line.run_id for line in house.truth("start") if line.pid in family]


def stop(pids: Sequence[int]) -> None:
    """Stop processes as a debugger or a careless operator does."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def gone_at(pids: Sequence[int]) -> float:
    """Wait until none of the processes lives; return when that was seen."""
    wait_until(lambda: not any(map(is_alive, pids)), 30, "the processes of the runs are gone")
    return now()


def clock(connection: psycopg.Connection[Any]) -> datetime:
    """Return the database's time."""
    (value,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


@fault(
    "F76",
    injected="SIGSTOP of fork server, handlers, their offspring or the supervisor, which goes on later, "
    "while one run times out and one is cancelled",
    expected="every process of both gone in time, outcomes timed_out and cancelled, the worker goes on",
)
def test_a_stopped_process_keeps_nothing_from_being_stopped(house: House, measured: Measured) -> None:
    worker = house.worker(APP=APP, CONCURRENCY=2, LEASE_SECONDS=10)
    late: dict[str, float] = {}
    for who in (*BELOW, "supervisor"):
        timed = house.enqueue("pulse", timeout_seconds=TIMEOUT, max_attempts=1)
        cancelled = house.enqueue("pulse", max_attempts=1)
        ids = [timed, cancelled]
        began = max(line.at for line in house.wait_until_started(ids))
        pids = {run_id: {line.pid for line in pulses(house, [run_id])} for run_id in ids}
        stop([worker.pid] if who == "supervisor" else pids_of(who, worker, house, ids))
        asked = now()
        cancel(house.connection, cancelled, OPERATOR)
        if who == "supervisor":
            wait_until(lambda due=began + TIMEOUT + 1: now() >= due)  # type: ignore[misc]
            worker.thaw()
            asked, began = now(), now() - TIMEOUT
        cancel_took = gone_at(list(pids[cancelled])) - asked
        timeout_took = gone_at(list(pids[timed])) - began - TIMEOUT
        house.settle(30)
        found = [row(house.connection, run_id) for run_id in ids]
        assert [one["status"] for one in found] == ["dead", "cancelled"], (who, found)
        assert [one["error_code"] for one in found] == ["timed_out", "cancelled"], (who, found)
        late[who] = max(timeout_took - KILL_SECONDS, cancel_took - 2 * KILL_SECONDS)
    house.wait_until_status([house.enqueue("note")], "succeeded")
    measured(
        ", ".join(f"{who} stopped: {seconds:+.2f} s" for who, seconds in late.items()) + " after the KILL"
    )
    assert max(late.values()) <= NOTICED_SECONDS
    assert worker.process.poll() is None
    assert worker.output.count("taken for dead") == 1, worker.output
    house.check()


@fault(
    "F76",
    injected="SIGSTOP of the fork server of an idle worker, then runs; again when its children end beside it",
    expected="the fork server is taken for dead and replaced, the runs start within 8 s",
)
def test_a_fork_server_that_cannot_fork_is_replaced(house: House, measured: Measured) -> None:
    worker = house.worker(APP=APP, CONCURRENCY=2, LEASE_SECONDS=10)
    took: list[float] = []
    for _ in range(2):
        stop(pids_of("fork_server", worker, house, []))
        # The second time there are children, which end by themselves and are mourned by nobody.
        for child in worker.family()[1:]:
            os.kill(child.pid, signal.SIGKILL)
        asked = now()
        ids = house.enqueue_many("note", 2)
        house.wait_until_started(ids)
        took.append(now() - asked)
        house.wait_until_status(ids, "succeeded")
    measured(f"runs start after {min(took):.2f} to {max(took):.2f} s")
    assert max(took) <= 8
    assert worker.output.count("taken for dead") == 2, worker.output
    house.check()


@fault(
    "F76",
    injected="SIGSTOP of a fork server that was just started afresh and imports the handlers",
    expected="it is taken for dead and replaced; a slow import is not",
)
def test_a_fork_server_that_is_stopped_while_it_imports_is_replaced(house: House, measured: Measured) -> None:
    slow = house.folder / "slow"
    worker = house.worker(environment={"SLOW_IMPORT": str(slow)}, APP=f"{APP}_slowly", LEASE_SECONDS=10)
    (first,) = pids_of("fork_server", worker, house, [])
    slow.write_text(f"{SERVER_SILENT_SECONDS + 1:g}")
    os.kill(first, signal.SIGKILL)
    (second,) = wait_until(lambda: [pid for pid in pids_of("fork_server", worker, house, []) if pid != first])
    wait_until(lambda: not slow.exists(), 30, "the second one imports")
    waiting = house.enqueue("note")
    house.wait_until_started([waiting])
    assert pids_of("fork_server", worker, house, []) == [second], "a slow import is no silence"
    slow.write_text("60")
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: not slow.exists(), 30, "the third one imports")
    stop(pids_of("fork_server", worker, house, []))
    asked = now()
    last = house.enqueue("note")
    house.wait_until_started([last])
    measured(f"at work again after {now() - asked:.1f} s")
    house.wait_until_status([waiting, last], "succeeded")
    assert house.outcomes() == {"succeeded": 2}
    house.check()


def overlap(house: House, run_id: int) -> list[Line]:
    """Return what the first attempt's processes told after the second had started."""
    (second,) = [line for line in house.truth("start") if (line.run_id, line.attempt) == (run_id, 2)]
    return [
        line
        for line in house.truth("beat")
        if (line.run_id, line.attempt) == (run_id, 1) and line.at > second.at
    ]


@fault(
    "F77",
    injected="SIGSTOP of fork server, handler or its offspring of a worker that is cut off from the database",
    expected="nothing of the first attempt works when the lease ends and another worker starts the second",
)
def test_a_worker_fences_itself_whichever_of_its_processes_is_stopped(
    house: House, middleman: Middleman, measured: Measured
) -> None:
    how = {"APP": APP, "LEASE_SECONDS": LEASE, "CONCURRENCY": 1}
    cut_off = [house.worker(database=middleman.url, wait=False, **how) for _ in BELOW]
    ids = house.enqueue_many("pulse", 3)
    house.wait_until_started(ids)
    pids = {run_id: {line.pid for line in pulses(house, [run_id])} for run_id in ids}
    other = house.worker(APP=APP, LEASE_SECONDS=LEASE)
    wait_until(house.is_attended, 30, "the other worker takes back what is lost")
    middleman.fall_silent()
    for who, worker in zip(BELOW, cut_off, strict=True):
        stop(pids_of(who, worker, house, runs_of(worker, house)))
    ends = {run_id: row(house.connection, run_id)["locked_until"] for run_id in ids}
    spare: list[float] = []
    for run_id in ids:
        gone_at(list(pids[run_id]))
        spare.append((ends[run_id] - clock(house.connection)).total_seconds())
    house.wait_until_status(ids, "succeeded")
    late = [line for run_id in ids for line in overlap(house, run_id)]
    middleman.heal()
    assert other.terminate() == 0
    house.wait_until_status(house.enqueue_many("note", 3), "succeeded")
    measured(f"gone {min(spare):.2f} s before the lease ended at the latest (lease {LEASE:g} s)")
    assert not late, f"{len(late)} signs of first attempts after the second had started"
    assert [worker.process.poll() for worker in cut_off] == [None] * 3
    house.check()


@fault(
    "F77",
    injected="SIGSTOP of fork server, handler or its offspring of a worker whose run another one takes over",
    expected="the worker hears it with its next renewal and ends what it runs within a second more",
)
def test_a_lease_that_was_taken_over_ends_the_run_whatever_is_stopped(
    house: House, measured: Measured
) -> None:
    worker = house.worker(APP=APP, LEASE_SECONDS=LEASE, CONCURRENCY=1)
    took: list[float] = []
    for who in BELOW:
        run_id = house.enqueue("pulse")
        house.wait_until_started([run_id])
        pids = {line.pid for line in pulses(house, [run_id])}
        stop(pids_of(who, worker, house, [run_id]))
        taken = now()
        house.connection.execute(TAKE_OVER, (run_id,))
        took.append(gone_at(list(pids)) - taken)
        house.wait_until_status([run_id], "succeeded")
    measured(f"gone {max(took):.2f} s after the loss at most (lease {LEASE:g} s)")
    # A renewal comes each third of a lease.
    assert max(took) <= LEASE / 3 + NOTICED_SECONDS
    assert worker.process.poll() is None
    house.check(but_for=("I4",))


@fault(
    "F78",
    injected="SIGTERM for four workers; stopped are: the first's fork server, the second's handler, "
    "the third's handler's offspring, and the fourth itself, which goes on two seconds later",
    expected="each ends with 0 within SHUTDOWN_SECONDS + KILL_SECONDS, nothing is left",
)
def test_a_worker_stops_in_time_whichever_of_its_processes_is_stopped(
    house: House, measured: Measured
) -> None:
    workers = dict(zip((*BELOW, "supervisor"), house.workers(4, APP=APP, CONCURRENCY=1), strict=True))
    ids = house.enqueue_many("pulse", len(workers))
    house.wait_until_started(ids)
    pids = {line.pid for line in pulses(house, ids)}
    asked: dict[str, float] = {}
    for who, worker in workers.items():
        below = [] if who == "supervisor" else pids_of(who, worker, house, runs_of(worker, house))
        stop(below or [worker.pid])
        os.kill(worker.pid, signal.SIGTERM)
        asked[who] = now()
    thaws_at = now() + 2
    wait_until(lambda: now() >= thaws_at)
    os.kill(workers["supervisor"].pid, signal.SIGCONT)
    asked["supervisor"] = now()
    took: dict[str, float] = {}

    def all_have_ended() -> bool:
        for who, worker in workers.items():
            if who not in took and worker.process.poll() is not None:
                took[who] = now() - asked[who]
        return took.keys() == workers.keys()

    wait_until(all_have_ended, 30, "the workers end")
    left = sum(map(is_alive, pids))
    house.worker(APP=APP)
    house.settle(30)
    measured(", ".join(f"{who} stopped: {seconds:.1f} s" for who, seconds in took.items()))
    assert {worker.wait() for worker in workers.values()} == {0}
    assert max(took.values()) <= SHUTDOWN_SECONDS + KILL_SECONDS
    assert left == 0
    house.check()


@fault(
    "F78",
    injected="kill -9 of the supervisor while its fork server is stopped",
    expected="fork server, handlers and their offspring are gone within 2 s",
)
def test_nothing_outlives_a_killed_supervisor_whose_fork_server_is_stopped(
    house: House, measured: Measured
) -> None:
    worker = house.worker(APP=APP, CONCURRENCY=2)
    ids = house.enqueue_many("pulse", 2)
    house.wait_until_started(ids)
    pids = [member.pid for member in worker.family()] + [line.pid for line in pulses(house, ids)]
    stop(pids_of("fork_server", worker, house, ids))
    worker.kill()
    killed = now()
    took = gone_at(pids) - killed
    measured(f"{len(set(pids))} processes gone after {took:.2f} s")
    assert took <= 2
    house.worker(APP=APP)
    house.settle(60)
    house.check()


def children_of(worker: Wakeboard) -> list[psutil.Process]:
    """Return the children of a worker's fork server."""
    return [each for server in psutil.Process(worker.pid).children() for each in server.children()]


@fault(
    "F79",
    injected="the folder of a worker is removed, as deploys do, and its children have to be replaced; in the "
    "end the folder is there again",
    expected="the same runs go through in /, with one warning; later ones in the new folder",
)
def test_a_worker_outlives_its_folder(house: House, measured: Measured) -> None:
    release = house.folder / "release"
    release.mkdir()
    worker = house.worker(folder=release, CONCURRENCY=2)
    house.wait_until_status(house.enqueue_many("note", 4), "succeeded")
    release.rmdir()
    for _ in range(3):
        for child in children_of(worker):
            child.kill()
        house.wait_until_status(house.enqueue_many("note", 4), "succeeded")
    assert {child.cwd() for child in children_of(worker)} == {"/"}
    # A fork server that is started afresh finds no folder either.
    psutil.Process(worker.pid).children()[0].kill()
    house.wait_until_status(house.enqueue_many("note", 4), "succeeded")
    wait_until(lambda: worker.output.count(f"{release}, is gone") == 2, 20, "it says so once more")
    release.mkdir()
    for child in children_of(worker):
        child.kill()
    house.wait_until_status(house.enqueue_many("note", 4), "succeeded")
    assert {child.cwd() for child in children_of(worker)} == {str(release)}
    measured(f"{house.outcomes()}, one warning of each fork server")
    assert house.outcomes() == {"succeeded": 24}
    house.check()


LATE_CLAIMS = "SELECT last_error FROM wakeboard.loops WHERE name = 'claim' AND last_success_at < now() - %s"
# A module that leaves a thread: each child is a process of its own, which imports it anew.
THREADED = """
import threading
from tests.support.faults.apps.handlers import note
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@fault(
    "F79",
    injected="the handlers' module is removed, and every process for handlers ends while it imports it",
    expected="claims at longer and longer intervals, told in the log, by the status page and doctor; at work "
    "again when the module is back",
)
def test_processes_that_never_start_make_no_spin(house: House, measured: Measured) -> None:
    module = house.folder / "release_jobs.py"
    module.write_text(THREADED)
    worker = house.worker(folder=house.folder, APP="release_jobs", CONCURRENCY=2)
    house.wait_until_status(house.enqueue_many("note", 4), "succeeded")
    module.unlink()
    for child in children_of(worker):
        child.kill()
    ids = house.enqueue_many("note", 4)
    began = now()
    wait_until(lambda: now() - began >= 9, 20)
    claims = sum(" claim run=" in line for line in worker.output.splitlines()) - 4
    (said,) = house.connection.execute(LATE_CLAIMS, (timedelta(seconds=5),)).fetchone() or ("",)
    found = run_wakeboard("doctor", database=house.database)
    module.write_text(THREADED)
    healed = now()
    house.wait_until_status(ids, "succeeded")
    measured(f"{claims} claims of 4 runs in 9 s; at work {now() - healed:.1f} s after the module was back")
    assert "No module named 'release_jobs'" in said
    assert "claims wait" in worker.output
    assert (found.returncode, said.split("(")[0] in found.stdout) == (1, True), found.stdout
    # A claim takes up to four, and one a second would be 36.
    assert claims <= 24
    assert {one["attempts"] for one in rows(house.connection, "job_runs")} == {1}
    wait_until(
        lambda: house.connection.execute(LATE_CLAIMS, (timedelta(seconds=5),)).fetchone() is None,
        sentence="the claims are on time again",
    )
    house.check()
