"""The table is the contract: what a plain INSERT does, what the tables refuse, and who is woken."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import Connection
from tests.support import factories
from wakeboard.queue import NewRun, enqueue_many

INVOICE = (
    "INSERT INTO wakeboard.job_runs (job_type, payload) VALUES ('send_invoice', '{\"invoice_id\": 812}')"
)


def test_a_type_and_a_payload_are_enough(connection: Connection) -> None:
    connection.execute(INVOICE)
    factories.a_type(connection, "send_invoice")
    (claimed,) = factories.claim(connection, ["send_invoice"])
    assert claimed.payload == '{"invoice_id": 812}'


# A producer that may only INSERT


@pytest.fixture
def producer(superuser: Connection) -> Iterator[Connection]:
    """A connection whose role may INSERT into job_runs and nothing else."""
    role = sql.Identifier(f"producer_{secrets.token_hex(4)}")
    superuser.execute(sql.SQL("CREATE ROLE {}").format(role))
    superuser.execute(sql.SQL("GRANT USAGE ON SCHEMA wakeboard TO {}").format(role))
    superuser.execute(sql.SQL("GRANT INSERT ON wakeboard.job_runs TO {}").format(role))
    superuser.execute(sql.SQL("SET ROLE {}").format(role))
    yield superuser
    superuser.execute("RESET ROLE")
    superuser.execute(sql.SQL("DROP OWNED BY {}").format(role))
    superuser.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_producer_that_may_only_insert_enqueues_and_wakes(producer: Connection, other: Connection) -> None:
    factories.a_worker(other, idle=True)
    other.execute("LISTEN wakeboard_wake")
    producer.execute(INVOICE)
    assert woken(other)
    assert factories.rows(other, "job_runs")[0]["status"] == "queued"


@pytest.mark.parametrize("statement", ["SELECT id FROM {}", "UPDATE {} SET priority = 0", "DELETE FROM {}"])
def test_a_producer_that_may_only_insert_may_do_nothing_else(producer: Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute(statement.format("wakeboard.job_runs").encode())


# Who is woken


def woken(listener: Connection) -> bool:
    """Return whether anything was sent to workers before this call; asks by sending a mark behind it."""
    mark = secrets.token_hex(4)
    listener.execute("SELECT pg_notify('wakeboard_wake', %s)", (mark,))
    heard: list[psycopg.Notify] = []
    for one in listener.notifies(timeout=10):
        if one.payload == mark:
            return bool(heard)
        heard.append(one)
    raise AssertionError("The mark did not come back within 10 s.")


@pytest.fixture
def listener(other: Connection) -> Connection:
    other.execute("LISTEN wakeboard_wake")
    return other


def test_an_idle_worker_is_woken_by_a_due_run(connection: Connection, listener: Connection) -> None:
    factories.a_worker(connection, idle=True)
    connection.execute(INVOICE)
    assert woken(listener)


def test_nobody_is_woken_when_nobody_is_idle(connection: Connection, listener: Connection) -> None:
    factories.a_worker(connection)
    connection.execute(INVOICE)
    assert not woken(listener)


def test_thousands_of_runs_at_once_wake_a_worker_where_one_of_them_is_due(
    connection: Connection, listener: Connection
) -> None:
    factories.a_worker(connection, idle=True)
    later = [NewRun("mail", delay=60)] * 12_000
    enqueue_many(connection, later)
    assert not woken(listener)
    assert len(set(enqueue_many(connection, [*later, NewRun("mail")]))) == 12_001
    assert woken(listener)


@pytest.mark.parametrize("gone", [{"seen": "-31 seconds"}, {"stopped_at": "-1 second"}])
def test_a_worker_that_has_gone_is_not_woken(
    connection: Connection, listener: Connection, gone: dict[str, str]
) -> None:
    factories.a_worker(connection, idle=True, heartbeat_seconds=10.0, **gone)
    connection.execute(INVOICE)
    assert not woken(listener)


def test_nobody_is_woken_for_later_or_for_what_has_ended(
    connection: Connection, listener: Connection
) -> None:
    factories.a_worker(connection, idle=True)
    factories.a_run(connection, run_at="1 hour")
    factories.a_run(connection, "succeeded")
    assert not woken(listener)


def test_many_runs_in_one_statement_wake_once_and_a_roll_back_wakes_nobody(
    connection: Connection, listener: Connection
) -> None:
    factories.a_worker(connection, idle=True)
    with connection.transaction(force_rollback=True):
        connection.execute(INVOICE)
    assert not woken(listener)
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, 1000)"
    )
    assert woken(listener)


# What is refused


@pytest.mark.parametrize(
    ("status", "columns", "rule"),
    [
        ("queued", {"job_type": ""}, "job_type_is_printable"),
        ("queued", {"job_type": "x" * 201}, "job_type_is_printable"),
        ("queued", {"attempts": 2**31 - 1}, "counts_have_room"),
        ("queued", {"failures": 2**31 - 1}, "counts_have_room"),
        ("queued", {"lease_epoch": 2**63 - 1}, "counts_have_room"),
        ("queued", {"attempts": 999_999_999}, "counts_have_room"),
        ("queued", {"failures": 500_000_000}, "counts_have_room"),
        ("queued", {"lease_epoch": 10**18 - 1}, "counts_have_room"),
        ("queued", {"traceparent": "x" * 201}, "origin_is_short"),
        ("queued", {"enqueued_by": "x" * 201}, "origin_is_short"),
        ("queued", {"job_type": "a\nb"}, "job_type_is_printable"),
        ("queued", {"priority": 5}, "priority_is_0_to_4"),
        ("queued", {"attempts": -1}, "counts_are_not_negative"),
        ("queued", {"failures": -1}, "counts_are_not_negative"),
        ("queued", {"max_attempts": 0}, "max_attempts_is_positive"),
        ("queued", {"timeout_seconds": 0.0}, "timeout_is_positive"),
        ("queued", {"idempotency_key": ""}, "key_is_short"),
        ("queued", {"idempotency_key": "x" * 201}, "key_is_short"),
        ("queued", {"payload": "[]"}, "payload_is_a_small_object"),
        ("queued", {"payload": "null"}, "payload_is_a_small_object"),
        ("queued", {"payload": {"text": "x" * 1_048_576}}, "payload_is_a_small_object"),
        ("queued", {"locked_by": "w1"}, "only_running_holds_a_lease"),
        ("running", {"locked_by": None}, "only_running_holds_a_lease"),
        ("running", {"locked_until": None}, "only_running_holds_a_lease"),
        ("running", {"started_at": None}, "only_running_holds_a_lease"),
        ("queued", {"finished_at": "-1 second"}, "only_ended_is_finished"),
        ("succeeded", {"finished_at": None}, "only_ended_is_finished"),
        ("dead", {"error_code": None}, "failure_has_a_code"),
        ("failed", {"error_code": None}, "failure_has_a_code"),
        ("queued", {"run_at": sql.SQL("'infinity'")}, "times_are_finite"),
        ("queued", {"scheduled_for": sql.SQL("'-infinity'")}, "times_are_finite"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(
    shared: Connection, status: str, columns: dict[str, Any], rule: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=f"job_runs_{rule}"):
        factories.a_run(shared, status, **columns)


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"name": "Nightly"}, "name_is_plain"),
        ({"name": ""}, "name_is_plain"),
        ({"name": "a" * 101}, "name_is_plain"),
        ({"job_type": ""}, "job_type_is_printable"),
        ({"misfire": "twice"}, "misfire_is_known"),
        ({"overlap": "queue"}, "overlap_is_known"),
        ({"priority": 9}, "priority_is_0_to_4"),
        ({"grace_seconds": -1}, "grace_is_bounded"),
        ({"payload": "[]"}, "payload_is_a_small_object"),
        ({"max_attempts": 0}, "max_attempts_is_positive"),
        ({"timeout_seconds": -1.0}, "timeout_is_positive"),
        ({"next_fire_at": sql.SQL("'infinity'")}, "times_are_finite"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(
    shared: Connection, columns: dict[str, Any], rule: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=f"job_definitions_{rule}"):
        factories.a_definition(shared, **({"name": "nightly"} | columns))


def test_a_status_that_nobody_knows_is_refused(shared: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="job_runs_status_is_known"):
        factories.insert(shared, "job_runs", {"job_type": "mail", "status": "done"})


def test_one_fire_makes_one_run(shared: Connection) -> None:
    moment = sql.SQL("'2026-01-14 02:00+00'")
    factories.a_run(shared, definition_id=5, scheduled_for=moment)
    with pytest.raises(psycopg.errors.UniqueViolation, match="job_runs_fires"):
        factories.a_run(shared, "succeeded", definition_id=5, scheduled_for=moment)


def test_one_epoch_has_one_attempt(shared: Connection) -> None:
    run = factories.a_run(shared, "succeeded")
    with pytest.raises(psycopg.errors.UniqueViolation, match="job_attempts_pkey"):
        factories.an_attempt(shared, run, lease_epoch=1)


def test_an_attempt_that_ended_in_no_known_way_is_refused(shared: Connection) -> None:
    run = factories.a_run(shared)
    with pytest.raises(psycopg.errors.CheckViolation, match="outcome_is_known"):
        factories.an_attempt(shared, run, outcome="vanished")


@pytest.mark.parametrize("moment", ["infinity", "20000-01-01", "4000-01-01 BC"])
@pytest.mark.parametrize("column", ["run_at", "created_at", "updated_at"])
def test_a_time_that_no_program_can_read_back_is_refused(
    connection: Connection, column: str, moment: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="times_are_finite"):
        connection.execute(
            f"INSERT INTO wakeboard.job_runs (job_type, {column}) VALUES ('mail', %s)".encode(), (moment,)
        )


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "0", "-1"])
def test_a_timeout_that_never_comes_is_refused(connection: Connection, seconds: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="timeout_is_positive"):
        connection.execute(
            "INSERT INTO wakeboard.job_runs (job_type, timeout_seconds) VALUES ('mail', %s::float8)",
            (seconds,),
        )
