"""Retention: what ended long ago goes, with all that belongs to it, and nothing else ever does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import (
    a_definition,
    a_run,
    a_type,
    age,
    attempts,
    from_now,
    insert,
    row,
    rows,
    status,
)
from tests.support.processes import run_wakeboard, wait_until, wait_until_blocked
from tests.support.workers.worker_processes import SHORT, a_worker
from wakeboard import queue as transitions
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor, record
from wakeboard.maintenance.retention import runs, state
from wakeboard.maintenance.retention.other_rows import retention_rules
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.sweep import BATCH_SETTINGS, Retention
from wakeboard.queue import effect_store
from wakeboard.queue.enqueue import enqueue

USUAL = RetentionPolicy.from_settings(Settings.load(environ={}))
OLIVIA = Actor("olivia", Role.OPERATOR, "web")


def finish(connection: Connection, retention: Retention) -> dict[str, Any]:
    """Let the duty work until its pass is through; return the pass's numbers."""
    numbers = dict(retention.step(connection))
    while retention.pause_seconds is not None:
        numbers = dict(retention.step(connection))
    assert numbers["finished_at"] is not None and numbers["backlog"] is False, numbers
    return numbers


def sweep(connection: Connection, policy: RetentionPolicy = USUAL) -> dict[str, Any]:
    """Make one whole pass, as a worker that has just started; return its numbers."""
    connection.execute("DELETE FROM wakeboard.loops")
    return finish(connection, Retention(policy, "w1"))


def make_due(connection: Connection, ago: str = "2 hours") -> None:
    """Let the last step of the last pass be longer ago."""
    connection.execute("UPDATE wakeboard.loops SET last_success_at = last_success_at - %s::interval", (ago,))


def kept(connection: Connection) -> set[int]:
    return {found["id"] for found in rows(connection, "job_runs")}


def many(connection: Connection, count: int, days: float, job_type: str = "mail") -> None:
    """Write ``count`` succeeded runs that ended ``days`` ago, each with its attempt."""
    connection.execute(
        """WITH made AS (
            INSERT INTO wakeboard.job_runs (job_type, status, attempts, lease_epoch, created_at, finished_at)
            SELECT %(type)s, 'succeeded', 1, 1, at, at
            FROM generate_series(1, %(count)s), (SELECT now() - make_interval(secs => %(ago)s) AS at) AS t
            RETURNING id, finished_at
        )
        INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome)
        SELECT id, 1, 1, %(type)s, 'w1', finished_at, finished_at, finished_at, 'succeeded' FROM made""",
        {"type": job_type, "count": count, "ago": days * 86_400},
    )


# ---- which runs go ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended", "days"), [("succeeded", 14), ("dead", 90), ("cancelled", 90)])
def test_an_ended_run_goes_with_its_attempts_on_its_last_day_and_not_before(
    connection: Connection, ended: str, days: int
) -> None:
    young = a_run(connection, ended, finished_at=f"-{days} days 1 minute")
    old = a_run(connection, ended, finished_at=f"-{days} days -1 minute")
    numbers = sweep(connection)
    assert kept(connection) == {young}
    assert (
        attempts(connection, old) == []
        and len(attempts(connection, young)) == row(connection, young)["attempts"]
    )
    assert numbers["removed_runs"] == 1


@pytest.mark.parametrize("waiting", ["queued", "running", "failed"])
def test_a_run_that_has_not_ended_stays_however_old_it_is(connection: Connection, waiting: str) -> None:
    run_id = a_run(connection, waiting)
    age(connection, run_id, "5000 days")
    sweep(connection)
    assert kept(connection) == {run_id}


def test_a_run_goes_with_its_last_output(connection: Connection) -> None:
    run_id = a_run(connection, "dead", finished_at="-100 days")
    connection.execute(
        "INSERT INTO wakeboard.run_output (run_id, lease_epoch, tail) VALUES (%s, 1, 'x')", (run_id,)
    )
    sweep(connection)
    assert rows(connection, "run_output") == [] and kept(connection) == set()


def test_a_long_delayed_run_is_kept_from_its_end_on_not_from_its_beginning(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded", created_at=from_now("-1 year"), finished_at="-13 days")
    sweep(connection)
    assert kept(connection) == {run_id}


def test_an_old_run_behind_thousands_of_kept_ones_is_found(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at, created_at) SELECT 'mail', now() + interval '1 y',"
        " now() - interval '20 days' FROM generate_series(1, %s)", (3 * runs.SCAN_ROWS,),
    )  # fmt: skip
    old = a_run(connection, "succeeded", finished_at="-15 days")
    assert sweep(connection)["removed_runs"] == 1
    assert old not in kept(connection)


def test_a_run_of_last_month_is_found_beyond_a_gap_of_ids(connection: Connection) -> None:
    connection.execute(
        "SELECT setval(pg_get_serial_sequence('wakeboard.job_runs', 'id'), %s)", (50 * runs.SCAN_IDS,)
    )
    a_run(connection, "succeeded", finished_at="-30 days")
    assert sweep(connection)["removed_runs"] == 1


def test_more_than_one_batch_goes_in_one_pass(connection: Connection) -> None:
    many(connection, 3 * runs.REMOVE_ROWS + 7, days=15)
    many(connection, 10, days=13)
    numbers = sweep(connection)
    assert numbers["removed_runs"] == numbers["removed_attempts"] == 3 * runs.REMOVE_ROWS + 7
    assert len(kept(connection)) == len(rows(connection, "job_attempts")) == 10


def test_the_oldest_run_that_is_kept_is_told(connection: Connection) -> None:
    a_run(connection, "succeeded", finished_at="-20 days")
    oldest = a_run(connection, "dead", finished_at="-80 days")
    numbers = sweep(connection)
    ended = row(connection, oldest)["finished_at"].isoformat(timespec="seconds")
    assert numbers["oldest_ended_at"] == ended


# ---- whose days count -------------------------------------------------------------------------------


def test_a_type_may_keep_its_runs_for_shorter_or_longer(connection: Connection) -> None:
    a_type(connection, "short", keep_succeeded_days=1, keep_dead_days=2)
    a_type(connection, "long", keep_succeeded_days=400)
    a_type(connection, "usual")
    found = {
        (name, ended, days): a_run(connection, ended, job_type=name, finished_at=f"-{days} days")
        for name, ended, days in [
            ("short", "succeeded", 2), ("short", "dead", 3), ("short", "cancelled", 1),
            ("long", "succeeded", 399), ("long", "succeeded", 401), ("long", "dead", 91),
            ("usual", "succeeded", 2), ("usual", "succeeded", 15), ("unknown", "succeeded", 15),
        ]
    }  # fmt: skip
    sweep(connection)
    left = {key for key, run_id in found.items() if run_id in kept(connection)}
    assert left == {("short", "cancelled", 1), ("long", "succeeded", 399), ("usual", "succeeded", 2)}


def test_zero_keeps_for_ever_unless_a_type_says_otherwise(connection: Connection) -> None:
    policy = RetentionPolicy.from_settings(
        Settings.load({"keep_succeeded_days": 0, "keep_dead_days": 0}, environ={})
    )
    a_type(connection, "short", keep_succeeded_days=1)
    a_run(connection, "succeeded", job_type="short", finished_at="-2 days")
    ever = {a_run(connection, ended, finished_at="-9000 days") for ended in ("succeeded", "dead")}
    sweep(connection, policy)
    assert kept(connection) == ever
    connection.execute("UPDATE wakeboard.job_types SET keep_succeeded_days = NULL")
    sweep(connection, policy)
    assert kept(connection) == ever


def test_a_type_whose_days_are_cut_is_swept_at_the_next_pass(connection: Connection) -> None:
    a_type(connection)
    run_id = a_run(connection, "succeeded", finished_at="-15 days", created_at=from_now("-15 days"))
    other = a_run(connection, "succeeded", finished_at="-5 days", created_at=from_now("-15 days"))
    retention = Retention(USUAL, "w1")
    finish(connection, retention)
    assert kept(connection) == {other} and run_id != other
    connection.execute("UPDATE wakeboard.job_types SET keep_succeeded_days = 3")
    make_due(connection)
    finish(connection, retention)
    assert kept(connection) == set()


# ---- what else goes ---------------------------------------------------------------------------------


def test_audit_rows_go_after_a_year_and_only_retention_may(connection: Connection) -> None:
    for days in (364, 366):
        insert(connection, "audit_log", {
            "at": from_now(f"-{days} days"), "actor": "anna", "source": "web", "action": "run.retry",
        })  # fmt: skip
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM wakeboard.audit_log")
    assert sweep(connection)["removed_audit_rows"] == 1
    assert len(rows(connection, "audit_log")) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM wakeboard.audit_log")


def test_audit_rows_of_a_house_that_keeps_them_stay(connection: Connection) -> None:
    insert(connection, "audit_log", {
        "at": from_now("-9000 days"), "actor": "anna", "source": "web", "action": "run.retry",
    })  # fmt: skip
    sweep(connection, RetentionPolicy(14, 90, None))
    assert len(rows(connection, "audit_log")) == 1


def an_effect(connection: Connection, key: str, done: str | None, run_id: int, scope: str = "global") -> None:
    insert(connection, "effects", {
        "scope": scope, "key": key, "run_id": run_id, "attempt": 1, "lease_epoch": 1,
        "status": "done" if done else "started", "created_at": from_now(done or "-5000 days"),
        "result": '"provider-7"', **({"finished_at": from_now(done)} if done else {}),
    })  # fmt: skip


def test_done_effects_go_after_400_days_and_unconfirmed_ones_stay(connection: Connection) -> None:
    here = a_run(connection, "queued")
    gone = here + 1000
    an_effect(connection, "young", "-399 days", gone)
    an_effect(connection, "old", "-401 days", gone)
    an_effect(connection, "unconfirmed", None, gone)
    an_effect(connection, "its run is here", "-401 days", here)
    assert sweep(connection)["removed_effects"] == 1
    assert {found["key"] for found in rows(connection, "effects")} == {
        "young", "unconfirmed", "its run is here",
    }  # fmt: skip


def test_a_global_effect_is_remembered_longer_than_the_run_that_made_it(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded", finished_at="-20 days")
    an_effect(connection, "invoice-812", "-20 days", run_id)
    sweep(connection)
    assert run_id not in kept(connection)
    entry = effect_store.find(connection, "global", "invoice-812")
    assert entry is not None and entry.is_done and entry.result == "provider-7" and not entry.is_live


def test_a_key_is_free_again_once_its_run_is_gone(connection: Connection) -> None:
    first = a_run(connection, "dead", finished_at="-89 days", idempotency_key="order-7")
    sweep(connection)
    assert enqueue(connection, "mail", {}, key="order-7") == first
    age(connection, first, "2 days")
    sweep(connection)
    assert enqueue(connection, "mail", {}, key="order-7") != first


def statistics_row(days: int) -> dict[str, Any]:
    return {
        "minute": from_now(f"-{days} days"), "job_type": "mail", "outcome": "succeeded", "duration_bucket": 1,
        "wait_bucket": 1, "runs": 1, "duration_ms": 1, "duration_max_ms": 1, "wait_ms": 1, "wait_max_ms": 1,
    }  # fmt: skip


def some_traces(connection: Connection, days: int) -> None:
    """Write a row of each small kind that became old ``days`` ago."""
    at = from_now(f"-{days} days")
    definition = a_definition(connection)
    insert(connection, "missed_fires", {
        "definition_id": definition, "scheduled_for": at, "reason": "overlap", "noted_at": at,
    })  # fmt: skip
    insert(connection, "statistics_rollups", statistics_row(days), "runs")
    hour = insert(connection, "statistics_hours", {"hour": at}, "hour")
    insert(connection, "statistics_hours_of_types", {"hour": hour, "job_type": "mail"}, "hour")
    insert(connection, "alert_messages", {
        "kind": "firing", "channel": "mail", "subject": "s", "body": {}, "created_at": at, "sent_at": at,
    })  # fmt: skip
    operation = insert(connection, "operations", {
        "verb": "retry", "filter": {}, "as_of": at, "actor": "anna", "finished_at": at, "status": "finished",
    })  # fmt: skip
    insert(connection, "operation_runs", {"operation_id": operation, "run_id": days + 1}, "run_id")
    insert(connection, "tokens", {
        "name": f"t{days}", "role": "viewer", "token_hash": str(days), "expires_at": at,
    })  # fmt: skip
    insert(connection, "sessions", {
        "id_hash": str(days), "actor": "anna", "role": "viewer", "expires_at": at,
    }, "actor")  # fmt: skip
    insert(connection, "login_links", {"token_hash": str(days), "actor": "x", "expires_at": at}, "actor")
    insert(connection, "login_failures", {"subject": str(days), "last_failed_at": at}, "subject")
    insert(connection, "error_groups", {
        "fingerprint": str(days), "error_code": "x", "job_type": "mail", "template": "x", "last_seen_at": at,
    })  # fmt: skip


TRACES = {
    "missed_fires": 90, "statistics_rollups": 35, "statistics_hours": 35, "alert_messages": 90,
    "operations": 90, "operation_runs": 90, "tokens": 90,
    "sessions": 1, "login_links": 1, "login_failures": 1, "error_groups": 180,
}  # fmt: skip


def test_each_small_kind_goes_after_its_own_days(connection: Connection) -> None:
    for days in (0, 34, 36, 89, 91, 179, 181):
        some_traces(connection, days)
    sweep(connection)
    left = {table: len(rows(connection, table)) for table in TRACES}
    assert left == {
        table: sum(days < limit for days in (0, 34, 36, 89, 91, 179, 181)) for table, limit in TRACES.items()
    }


def test_what_still_matters_to_somebody_stays_however_old(connection: Connection) -> None:
    old = from_now("-5000 days")
    insert(connection, "alert_messages", {
        "kind": "firing", "channel": "mail", "subject": "not sent", "body": {}, "created_at": old,
    })  # fmt: skip
    insert(
        connection,
        "operations",
        {"verb": "retry", "filter": {}, "as_of": old, "actor": "a"},
    )
    insert(connection, "tokens", {"name": "t", "role": "viewer", "token_hash": "h", "created_at": old})
    insert(connection, "error_groups", {
        "fingerprint": "f", "error_code": "x", "job_type": "mail", "template": "x", "last_seen_at": old,
        "muted_until": from_now("1 day"),
    })  # fmt: skip
    sweep(connection)
    for table in ("alert_messages", "operations", "tokens", "error_groups"):
        assert len(rows(connection, table)) == 1, table


def test_error_groups_stay_where_some_runs_are_kept_for_ever(connection: Connection) -> None:
    some_traces(connection, 5000)
    sweep(connection, RetentionPolicy(14, None, 365))
    assert len(rows(connection, "error_groups")) == 1


# ---- others are at it too ---------------------------------------------------------------------------


def test_a_run_that_is_retried_between_look_and_removal_stays(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = a_run(connection, "dead", finished_at="-100 days")
    look, answers = runs.scan, list[str]()

    def look_and_be_late(*values: Any) -> runs.ScannedRuns:
        found = look(*values)
        answers.append(transitions.retry_now(other, run_id, OLIVIA).result)
        return found

    monkeypatch.setattr(runs, "scan", look_and_be_late)
    assert sweep(connection)["removed_runs"] == 0
    assert answers[0] == "done"
    assert status(connection, run_id) == "queued" and len(attempts(connection, run_id)) == 10


def test_a_run_that_is_being_retried_is_passed_over_without_waiting(
    connection: Connection, other: Connection
) -> None:
    a_run(connection, "dead", finished_at="-101 days")
    busy = a_run(connection, "dead", finished_at="-100 days")
    a_run(connection, "dead", finished_at="-99 days")
    with other.transaction():
        transitions.retry_now(other, busy, OLIVIA)
        assert sweep(connection)["removed_runs"] == 2
    assert kept(connection) == {busy} and status(connection, busy) == "queued"


def test_a_run_that_died_anew_since_it_was_looked_at_stays(connection: Connection) -> None:
    run_id = a_run(connection, "dead", finished_at="-100 days")
    as_read = row(connection, run_id)["finished_at"]
    connection.execute("UPDATE wakeboard.job_runs SET finished_at = now() WHERE id = %s", (run_id,))
    assert runs.remove(connection, [(run_id, as_read)]) == runs.RemovedRuns()
    assert kept(connection) == {run_id}


def test_whoever_retries_a_run_that_is_being_removed_hears_that_it_is_gone(
    connection: Connection, other: Connection, database: str
) -> None:
    run_id = a_run(connection, "dead", finished_at="-100 days")
    answers: list[str] = []
    with db.connect(database, name="wakeboard operator") as mine:
        operator = threading.Thread(
            target=lambda: answers.append(transitions.retry_now(mine, run_id, OLIVIA).message)
        )
        with connection.transaction():
            ended = row(connection, run_id)["finished_at"]
            assert runs.remove(connection, [(run_id, ended)]).runs == 1
            operator.start()
            wait_until_blocked(other, mine.info.backend_pid)
        operator.join(10)
    assert answers == [f"There is no run {run_id}; it may have been removed by retention."]


def test_a_run_made_from_another_outlives_it(connection: Connection) -> None:
    origin = a_run(connection, "dead", finished_at="-100 days")
    answer = transitions.run_again(connection, origin, OLIVIA)
    sweep(connection)
    (left,) = kept(connection)
    assert left == answer.id and row(connection, left)["origin_run_id"] == origin


def test_a_locked_attempt_keeps_its_own_run_and_no_other(connection: Connection, other: Connection) -> None:
    found = [a_run(connection, "succeeded", finished_at="-20 days") for _ in range(9)]
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.job_attempts WHERE run_id = %s FOR UPDATE", (found[4],))
        assert sweep(connection)["removed_runs"] == 8
    assert kept(connection) == {found[4]} and len(attempts(connection, found[4])) == 1
    assert sweep(connection)["removed_runs"] == 1


def test_a_locked_audit_row_is_passed_over(connection: Connection, other: Connection) -> None:
    for _ in range(3):
        insert(connection, "audit_log", {
            "at": from_now("-400 days"), "actor": "anna", "source": "web", "action": "run.retry",
        })  # fmt: skip
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.audit_log ORDER BY id LIMIT 1 FOR UPDATE")
        assert sweep(connection)["removed_audit_rows"] == 2


def test_what_a_batch_noted_that_was_rolled_back_is_looked_at_again(connection: Connection) -> None:
    many(connection, 300, days=20)
    retention = Retention(USUAL, "w1")
    state.create(connection)
    connection.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'the disk is full'; END $$"""
    )
    connection.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON wakeboard.loops EXECUTE FUNCTION public.refuse()"
    )
    with pytest.raises(psycopg.errors.RaiseException):
        retention.step(connection)
    assert len(kept(connection)) == 300, "the batch was rolled back"
    connection.execute("DROP TRIGGER refuse ON wakeboard.loops")
    assert finish(connection, retention)["removed_runs"] == 300


def test_two_workers_at_once_remove_everything_once(connection: Connection, database: str) -> None:
    many(connection, 4000, days=20)
    many(connection, 100, days=2)
    told: list[dict[str, Any]] = []

    def work(name: str) -> None:
        with db.connect(database, name="wakeboard retention") as mine:
            retention = Retention(USUAL, name)
            told.append(dict(retention.step(mine)))
            while retention.pause_seconds is not None:
                told.append(dict(retention.step(mine)))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (shared,) = rows(connection, "loops")
    assert shared["numbers"]["removed_runs"] == shared["numbers"]["removed_attempts"] == 4000
    assert len(kept(connection)) == len(rows(connection, "job_attempts")) == 100


def test_one_worker_makes_the_pass_and_the_others_tell_its_numbers(
    connection: Connection, other: Connection
) -> None:
    first, second = Retention(USUAL, "w1"), Retention(USUAL, "w2")
    many(connection, 3, days=20)
    finish(connection, first)
    many(connection, 3, days=20)
    assert second.step(other)["removed_runs"] == 3 and len(kept(connection)) == 3
    make_due(connection, "61 minutes")
    second.step(other)
    assert len(kept(connection)) == 3
    finish(connection, first)
    assert kept(connection) == set()


def test_a_pass_whose_worker_died_is_finished_by_another(connection: Connection) -> None:
    many(connection, 20, days=20)
    state.create(connection)
    left = state.RetentionPass(owner="dead", phase="runs", cursor=min(kept(connection)) + 9, started_at=1.0)
    state.store(connection, left)
    assert Retention(USUAL, "w2").step(connection)["removed_runs"] == 0
    assert len(kept(connection)) == 20
    make_due(connection, "31 seconds")
    assert finish(connection, Retention(USUAL, "w2"))["removed_runs"] == 10


def test_a_worker_that_never_came_for_hours_is_replaced(connection: Connection) -> None:
    finish(connection, Retention(USUAL, "gone"))
    many(connection, 3, days=20)
    make_due(connection, "71 minutes")
    finish(connection, Retention(USUAL, "w2"))
    assert kept(connection) == set()


def test_a_long_open_snapshot_does_not_stop_it(connection: Connection, other: Connection) -> None:
    many(connection, 2000, days=20)
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    seen = other.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone()
    retention = Retention(USUAL, "w1")
    finish(connection, retention)
    many(connection, 500, days=20)
    make_due(connection)
    assert finish(connection, retention)["removed_runs"] == 500
    assert other.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() == seen == (2000,)
    other.execute("ROLLBACK")


# ---- what it costs ----------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows that each look read."""
    counted: list[int] = []
    look = runs.scan

    def counting(*values: Any) -> runs.ScannedRuns:
        found = look(*values)
        counted.append(found.rows)
        return found

    monkeypatch.setattr(runs, "scan", counting)
    yield counted


def test_kept_rows_are_not_walked_again_at_each_pass(connection: Connection, looks: list[int]) -> None:
    a_type(connection, "long", keep_succeeded_days=3650)
    many(connection, 20_000, days=300, job_type="long")
    many(connection, 100, days=1)
    retention = Retention(USUAL, "w1")
    finish(connection, retention)
    assert sum(looks) >= 20_000
    looks.clear()
    make_due(connection)
    finish(connection, retention)
    assert sum(looks) <= runs.SCAN_ROWS


def test_rows_younger_than_any_that_may_go_are_not_walked(connection: Connection, looks: list[int]) -> None:
    many(connection, 10, days=20)
    many(connection, 20_000, days=3)
    assert sweep(connection)["removed_runs"] == 10
    assert sum(looks) <= 2 * runs.SCAN_ROWS


def test_a_slice_is_short_so_the_other_duties_come_in_between(connection: Connection) -> None:
    many(connection, 20_000, days=20)
    retention = Retention(USUAL, "w1")
    numbers = retention.step(connection)
    assert retention.pause_seconds is not None and numbers["backlog"] is True
    assert 0 < numbers["removed_runs"] < 20_000


def plans(connection: Connection, statement: str, values: dict[str, Any]) -> set[str]:
    """Return how a statement reads job_runs and job_attempts: the indexes, or kinds of scan."""

    def scans(plan: dict[str, Any]) -> Iterator[str]:
        kind = plan["Node Type"]
        if plan.get("Relation Name") in ("job_runs", "job_attempts") and "Scan" in kind:
            yield plan.get("Index Name") or kind
        for child in plan.get("Plans", []):
            yield from scans(child)

    found = psycopg.ClientCursor(connection).execute(f"EXPLAIN (FORMAT JSON) {statement}", values).fetchone()
    assert found is not None
    return set(scans(found[0][0]["Plan"]))


def test_a_batch_reads_by_the_primary_keys_alone(connection: Connection) -> None:
    for analyzed in (False, True):
        if analyzed:
            many(connection, 30_000, days=20)
            connection.execute("ANALYZE wakeboard.job_runs, wakeboard.job_attempts")
        with connection.transaction():
            connection.execute(BATCH_SETTINGS)
            ids = list(range(1, 501))
            ends = [row_at for (row_at,) in connection.execute("SELECT now() FROM generate_series(1, 500)")]
            assert plans(connection, runs.REMOVE, {"ids": ids, "ends": ends}) == {
                "job_runs_pkey", "job_attempts_pkey",
            }  # fmt: skip
            look = {
                "from_id": 5, "to_id": 20_005, "rows": 2000, "most": 500, "succeeded": 14, "dead": 90,
                "shortest": 14,
            }  # fmt: skip
            assert plans(connection, runs.SCAN, look) == {"job_runs_pkey"}


def test_effects_are_weighed_by_their_runs_primary_key(connection: Connection) -> None:
    (effects,) = [each for each in retention_rules(USUAL) if each.name == "effects"]
    values = {"cursor": 0, "rows": 1000, "days": 400}
    with connection.transaction():
        connection.execute(BATCH_SETTINGS)
        assert plans(connection, effects.statement, values) == {"job_runs_pkey"}


# ---- a real worker does it --------------------------------------------------------------------------


def test_a_worker_removes_what_expired_and_tells_it(connection: Connection, database: str) -> None:
    many(connection, 1200, days=20)
    young = a_run(connection, "succeeded")
    record(connection, OLIVIA, "run.retry", "run", young)
    with a_worker(database, ready=connection) as worker:
        wait_until(lambda: kept(connection) == {young}, 30, "the worker removes what expired")
        wait_until(
            lambda: rows(
                connection, "loops", "name = 'retention' AND process_id IN (SELECT id FROM wakeboard.workers)"
                " AND (numbers->>'removed_runs')::int = 1200 AND numbers->>'finished_at' IS NOT NULL",
            ), 30, "its loop tells the numbers",
        )  # fmt: skip
        worker.wait_for("Removed what was kept for long enough.")
        assert worker.output.count("Removed what was kept for long enough.") == 1


def test_a_pass_that_finds_nothing_to_remove_is_not_worth_a_line(
    connection: Connection, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wakeboard")
    assert sweep(connection)["removed_runs"] == 0
    assert "Removed" not in capsys.readouterr().err
    many(connection, 1, days=20)
    assert sweep(connection)["removed_runs"] == 1
    assert "Removed what was kept for long enough. runs=1" in capsys.readouterr().err


def test_ticks_get_through_together_though_each_lives_for_a_moment(
    connection: Connection, database: str
) -> None:
    many(connection, 600, days=20)

    def tick_and_wait() -> bool:
        assert run_wakeboard("tick", database=database, environment=SHORT).returncode == 0
        make_due(connection, "1 minute")
        return kept(connection) == set()

    assert any(tick_and_wait() for _ in range(5))
