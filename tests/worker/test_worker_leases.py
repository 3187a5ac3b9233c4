"""Workers that die, freeze or are cut off: their runs go on elsewhere, and nothing is finished twice."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.support.factories import Connection, attempts, from_now, row, rows
from tests.support.processes import run_wakeboard, wait_until
from tests.support.workers.worker_processes import (
    LEASE,
    REAPED_WITHIN,
    SHORT,
    a_worker,
    claim_ahead,
    counts,
    freeze,
    insert,
    insert_many,
    is_alive,
    most_at_once,
    now,
    outcomes,
    thaw,
    truth,
    wait_until_all,
    wait_until_started,
    wait_until_status,
)


def tick(database: str, record: Path) -> None:
    """Run a tick, which takes back ended leases at once and runs what is due."""
    done = run_wakeboard("tick", database=database, environment=SHORT | {"TRUTH": str(record)})
    assert done.returncode == 0, done.stderr


def wait_until_lease_ends(connection: Connection, run_id: int) -> None:
    """Wait until the run's lease has ended and nobody has taken it back."""
    wait_until(
        lambda: rows(connection, "job_runs", "id = %s AND locked_until < now()", run_id),
        LEASE + 10,
        f"the lease of run {run_id} ends",
    )


def test_fifty_runs_survive_the_kill_of_a_worker_and_take_effect_once(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(a_worker(database, TRUTH=record, CONCURRENCY=3)) for _ in range(3)
        )
        wait_until(lambda: len(rows(connection, "workers")) == 3, 30, "three workers register")
        ids = insert_many(connection, "effect", 50, {"seconds": 0.3})
        wait_until(lambda: counts(connection, ids).get("succeeded", 0) >= 5, 30)
        (victim,) = rows(connection, "workers", "pid = %s", first.pid)
        wait_until(lambda: rows(connection, "job_runs", "locked_by = %s", victim["id"]), 10)
        family = first.family()
        first.kill()
        killed = now()
        wait_until_all(connection, ids, "succeeded", 60)
        psutil.wait_procs(family, timeout=3)
        assert not any(member.is_running() for member in family), "a killed worker's children live on"
        assert (second.process.poll(), third.process.poll()) == (None, None)
    lost = rows(connection, "job_attempts", "outcome = 'lost'")
    assert lost
    assert {one["worker_id"] for one in lost} == {victim["id"]}
    assert {one["error_code"] for one in lost} == {"lease_lost"}
    late = [(one["finished_at"] - one["started_at"]).total_seconds() for one in lost]
    assert max(late) <= REAPED_WITHIN
    assert not rows(connection, "job_attempts", "outcome NOT IN ('lost', 'succeeded')")
    done = connection.execute(
        "SELECT count(*), count(DISTINCT key || scope) FROM wakeboard.effects WHERE status = 'done'"
    ).fetchone()
    assert done == (50, 50)
    effects: dict[int, list[float]] = {}
    for line in truth(record):
        if line.word == "effect":
            effects.setdefault(line.run_id, []).append(line.at)
    twice = {run_id: at for run_id, at in effects.items() if len(at) > 1}
    assert all(min(at) <= killed for at in twice.values()), "only what the kill cut off may be redone"
    assert set(effects) == set(ids)


def test_the_children_of_a_killed_worker_die_with_it(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    with a_worker(database, ready=connection) as worker:
        insert(connection, "deaf_for_long", {"pids": str(tmp_path / "pids")})
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        pids = [*map(int, (tmp_path / "pids").read_text().split()), *(m.pid for m in worker.family())]
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), 4, "nothing of the worker is left")


def test_a_command_dies_with_its_worker_although_every_process_is_killed_at_once(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection, ALLOW_COMMANDS=1) as worker:
        insert(connection, "command", {"argv": ["/bin/sleep", "617"]})
        (sleeper,) = wait_until(
            lambda: [each for each in worker.family() if each.name() == "sleep"], 15, "the command runs"
        )
        ours = [each for each in worker.family() if each.pid != sleeper.pid]
        # Stopped first, so that none of them can sweep up after another.
        for process in [psutil.Process(worker.pid), *ours]:
            process.suspend()
        for process in [psutil.Process(worker.pid), *ours]:
            # One that dies with its parent may be gone already.
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not is_alive(sleeper.pid), 4, "the command is gone")


def test_a_frozen_worker_comes_back_too_late_and_is_refused(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record, gate = tmp_path / "truth", tmp_path / "gate"
    with a_worker(database, ready=connection, TRUTH=record) as worker:
        run_id = insert(connection, "gated", {"gate": str(gate)})
        wait_until_started(record, run_id)
        frozen = freeze(worker)
        wait_until_lease_ends(connection, run_id)
        gate.touch()
        tick(database, record)
        assert row(connection, run_id)["status"] == "succeeded"
        before = row(connection, run_id)
        thaw(frozen)
        lost = wait_until(
            lambda: rows(connection, "job_attempts", "run_id = %s AND refused_at IS NOT NULL", run_id),
            10,
            f"the late answer is refused:\n{worker.output}",
        )
        assert row(connection, run_id) == before
        after = insert(connection, "quick")
        wait_until_status(connection, after, "succeeded")
    assert [one["outcome"] for one in lost] == ["lost"]
    assert lost[0]["refused_outcome"] in ("succeeded", "failed")
    assert outcomes(connection, run_id) == ["lost", "succeeded"]


def test_a_worker_that_gets_its_own_lost_run_again_finishes_it_once(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record, gate = tmp_path / "truth", tmp_path / "gate"
    with a_worker(database, "--name", "steady", ready=connection, TRUTH=record) as worker:
        run_id = insert(connection, "gated", {"gate": str(gate)})
        wait_until_started(record, run_id)
        frozen = freeze(worker)
        wait_until_lease_ends(connection, run_id)
        reap_by_hand(connection)
        assert row(connection, run_id)["status"] == "failed"
        thaw(frozen)
        wait_until(
            lambda: len([line for line in truth(record) if line.word == "start"]) == 2,
            15,
            f"the same worker starts it again:\n{worker.output}",
        )
        gate.touch()
        wait_until_status(connection, run_id, "succeeded")
        ids = insert_many(connection, "patient", 4, {"seconds": 0.3})
        wait_until_all(connection, ids, "succeeded", 10)
        spans = [line for line in truth(record) if line.run_id in ids]
        assert most_at_once(spans) == 2, "both slots are free again"
    assert outcomes(connection, run_id) == ["lost", "succeeded"]
    assert len({one["worker_id"] for one in attempts(connection, run_id)}) == 1
    ends = [line for line in truth(record) if line.word == "end" and line.run_id == run_id]
    assert len(ends) == 1, "the first attempt was killed before the gate opened"


def reap_by_hand(connection: Connection) -> None:
    """Take back ended leases as another worker's reaper would."""
    from wakeboard.runtime.duties.reaper import Reaper

    Reaper(lease_seconds=LEASE, heartbeat_seconds=LEASE / 3, waits_first=False).step(connection)


def test_a_pause_shorter_than_the_lease_loses_nothing(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, LEASE_SECONDS=6) as worker:
        run_id = insert(connection, "patient", {"seconds": 2})
        wait_until_started(record, run_id)
        frozen = freeze(worker)
        began = now()
        wait_until(lambda: now() - began > 1.5, 5)
        thaw(frozen)
        wait_until_status(connection, run_id, "succeeded")
    assert outcomes(connection, run_id) == ["succeeded"]


def test_a_worker_that_cannot_renew_stops_its_runs_before_the_lease_ends(
    database: str, connection: Connection, superuser: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record) as worker:
        run_id = insert(connection, "patient", {"seconds": 60})
        wait_until_started(record, run_id)
        (start,) = [line for line in truth(record) if line.word == "start"]
        lease_end: Any = None
        with superuser.transaction():
            superuser.execute("LOCK TABLE wakeboard.job_runs IN ACCESS EXCLUSIVE MODE")
            lease_end = superuser.execute(
                "SELECT extract(epoch FROM locked_until - clock_timestamp())::float8 FROM wakeboard.job_runs"
            ).fetchone()
            seconds_left = lease_end[0]
            wait_until(lambda: not is_alive(start.pid), seconds_left + 1, "the child is killed")
            (left,) = superuser.execute(
                "SELECT extract(epoch FROM locked_until - clock_timestamp())::float8 FROM wakeboard.job_runs"
            ).fetchone() or (None,)
            assert left is not None
            assert left > 0, f"the child was alive {-left:.3f} s after its lease had ended"
        wait_until(lambda: outcomes(connection, run_id), 20, "what happened is recorded")
        assert outcomes(connection, run_id)[0] in ("failed", "lost")
        again = insert(connection, "quick")
        wait_until_status(connection, again, "succeeded")
        assert worker.process.poll() is None


def test_a_claim_that_had_to_wait_for_longer_than_its_lease_costs_no_attempt(
    database: str, connection: Connection, superuser: Connection
) -> None:
    with a_worker(database, ready=connection):
        run_id = insert(connection, "patient", {"seconds": 0.3}, run_at=from_now("1 second"))
        with superuser.transaction():
            superuser.execute("LOCK TABLE wakeboard.job_runs IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > 1 + 1.5 * LEASE, 10)
        wait_until_status(connection, run_id, "succeeded")
    assert outcomes(connection, run_id) == ["succeeded"]
    assert row(connection, run_id)["attempts"] == 1


def test_results_wait_out_a_locked_table(
    database: str, connection: Connection, superuser: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, LEASE_SECONDS=30):
        run_id = insert(connection, "patient", {"seconds": 0.5})
        wait_until_started(record, run_id)
        with superuser.transaction():
            superuser.execute("LOCK TABLE wakeboard.job_runs IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            # Longer than the lock timeout of the worker's sessions.
            wait_until(lambda: time.monotonic() - began > 6, 10)
        wait_until_status(connection, run_id, "succeeded")
    (attempt,) = attempts(connection, run_id)
    assert attempt["result"] == "waited"
    assert "waiting" in attempt["output_tail"]
    assert attempt["note"] is None
    took = (attempt["finished_at"] - attempt["started_at"]).total_seconds()
    assert took < 2, "the time is the handler's, not the wait for the table"


def test_one_locked_run_holds_up_no_other(
    database: str, connection: Connection, other: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, CONCURRENCY=3):
        stuck = insert(connection, "patient", {"seconds": 60}, max_attempts=1)
        steady = insert(connection, "patient", {"seconds": 2 * LEASE})
        wait_until_started(record, stuck, steady)
        with other.transaction():
            other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (stuck,))
            ids = insert_many(connection, "quick", 50)
            wait_until_all(connection, ids, "succeeded", 10)
            wait_until_status(connection, steady, "succeeded")
            assert row(connection, stuck)["status"] == "running"
        wait_until_status(connection, stuck, "dead", "failed")
    assert outcomes(connection, steady) == ["succeeded"]
    assert not rows(connection, "job_attempts", "outcome <> 'succeeded' AND run_id <> %s", stuck)


def test_sessions_killed_again_and_again_cost_no_run(
    database: str, connection: Connection, superuser: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with a_worker(database, ready=connection, LEASE_SECONDS=10) as worker:
        ids = insert_many(connection, "gated", 1, {"gate": str(gate)})
        wait_until_status(connection, ids[0], "running")
        for way in ("claim", "finish", "lease", "heartbeat", "duties") * 4:
            ids += insert_many(connection, "quick", 10, {"answer": 42})
            superuser.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
                " AND datname = current_database()",
                (f"wakeboard {way}",),
            )
            wait_until(
                partial(alive, superuser, way), 15, f"the {way} connection comes back:\n{worker.output}"
            )
        gate.touch()
        wait_until_all(connection, ids, "succeeded", 30)
    assert not rows(connection, "job_attempts", "outcome <> 'succeeded'")
    kept = connection.execute(
        "SELECT count(*) FROM wakeboard.job_attempts WHERE job_type = 'quick' AND result = '42'"
    ).fetchone()
    assert kept == (200,)


def alive(connection: Connection, way: str) -> bool:
    """Whether the worker has a session of that name."""
    return bool(
        connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()",
            (f"wakeboard {way}",),
        ).fetchone()
    )


def test_a_run_is_not_stopped_for_one_behind_it_that_cannot_be_renewed(
    database: str, connection: Connection, superuser: Connection, tmp_path: Path
) -> None:
    record, gate = tmp_path / "truth", tmp_path / "gate"
    with a_worker(database, ready=connection, TRUTH=record) as worker:
        ids = claim_ahead(connection, gate)
        wait_until(
            lambda: len({line.run_id for line in truth(record)} & set(ids)) == 2, 20, "both slots began"
        )
        begun = {line.run_id for line in truth(record)} & set(ids)
        held = rows(connection, "job_runs", "status = 'running' AND id = ANY(%s)", ids)
        behind = next(one["id"] for one in held if one["id"] not in begun)
        with superuser.transaction():
            superuser.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (behind,))
            lost = "locked_until < now() AND id = ANY(%s)"
            wait_until(lambda: rows(connection, "job_runs", lost, [behind]), 20, "its lease has ended")
        gate.touch()
        wait_until_all(connection, ids, "succeeded", 30)
        assert worker.process.poll() is None
    assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", [*begun])} == {1}
    costs = {
        one["failures"] for one in rows(connection, "job_runs", "id = ANY(%s) AND id <> %s", ids, behind)
    }
    assert costs == {0}, "nobody paid for it"
