"""What fails is counted and listed from indexes, however many runs are dead and however few are asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_type
from tests.support.processes import wait_until

Asked = list[tuple[str, Any]]
# Single rows by their ids, examples of groups, and what the frame of every page asks.
OTHERS = ("ANY", "unnest", "RECURSIVE", "wakeboard.effects")
# Ways that lead past runs that do not fail.
WALKS = ("Seq Scan on job_runs", "job_runs_pkey", "job_runs_listed_by_type")


@pytest.fixture
def many_dead(connection: Connection) -> None:
    """20,000 runs, half of them dead, of 30 types and 40 codes, a few that will be tried again."""
    a_type(connection, "type_1")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, started_at, finished_at,
            failed_at, error_code, last_error)
        SELECT 'type_' || n % 30, CASE WHEN n % 2 = 0 THEN 'dead' ELSE 'succeeded' END, 1, 1 - n % 2, now(),
            now(), now(), CASE WHEN n % 2 = 0 THEN 'code_' || n % 40 END, 'no'
        FROM generate_series(1, 20000) AS n"""
    )
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, started_at, failed_at,
            error_code, last_error, run_at)
        SELECT 'type_1', 'failed', 1, 1, now(), now(), 'code_2', 'no', now() + interval '1 day'
        FROM generate_series(1, 100)"""
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error)
        SELECT id, 1, 1, job_type, 'w1', now(), now(), now() - id * interval '120 seconds',
            CASE WHEN status = 'succeeded' THEN 'succeeded' ELSE 'failed' END, error_code, 'no'
        FROM wakeboard.job_runs"""
    )
    wait_until(lambda: vacuumed(connection), sentence="vacuum finds all rows visible for everybody")


def vacuumed(connection: Connection) -> bool:
    """Vacuum runs and attempts; return whether indexes alone can be read: an ANALYZE beside it may forbid."""
    connection.execute("VACUUM (ANALYZE) wakeboard.job_runs, wakeboard.job_attempts")
    return connection.execute(
        """SELECT bool_and(relallvisible = relpages) FROM pg_class
        WHERE oid IN ('wakeboard.job_runs'::regclass, 'wakeboard.job_attempts'::regclass)"""
    ).fetchone() == (True,)


def plans(app: Flask, client: FlaskClient, connection: Connection, path: str, table: str) -> list[str]:
    """Return the plans of the statements of a page that read ``table`` and not single rows of it by id."""
    asked: Asked = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert client.get(path).status_code == 200
    found = [
        "\n".join(line[0] for line in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        for sql, values in asked
        if f"FROM wakeboard.{table}" in sql and not any(other in sql for other in OTHERS)
    ]
    assert found, path
    return found


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("/runs?error=code_2", "job_runs_by_error"),
        ("/errors?type=type_1", "job_runs_failing_by_type"),
        ("/errors/code_2", "job_runs_by_error"),
    ],
)
def test_what_fails_is_found_by_the_index_of_what_fails(
    app: Flask, client: FlaskClient, connection: Connection, path: str, index: str
) -> None:
    for plan in plans(app, client, connection, path, "job_runs"):
        assert f" {index} " in plan.replace("\n", " "), plan
        assert not any(walk in plan for walk in WALKS), plan


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize("path", ["/errors", "/errors?type=type_1", "/errors/code_2"])
def test_what_fails_is_counted_without_a_look_at_a_run_or_an_attempt(
    app: Flask, client: FlaskClient, connection: Connection, path: str
) -> None:
    # As on a table that is too large for anything else.
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("SET enable_seqscan = off")
    (plan,) = plans(app, client, connection, path, "job_runs")
    assert not any(walk in plan for walk in WALKS), plan
    reads = re.findall(r"(\S+ \S+) Scan.* on job_(?:runs|attempts)", plan)
    assert len(reads) >= 2 and set(reads) == {"Index Only"}, plan


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("/errors", "job_attempts_failed_runs"),
        ("/errors?type=type_1", "job_attempts_failed_runs"),
        ("/errors/code_2", "job_attempts_failed_by_code"),
        ("/errors/code_2?since=30d", "job_attempts_failed_by_code"),
    ],
)
def test_failures_of_a_window_are_found_by_their_index(
    app: Flask, client: FlaskClient, connection: Connection, path: str, index: str
) -> None:
    plan = plans(app, client, connection, path, "job_attempts")[0]
    assert f" {index} " in plan.replace("\n", " "), plan
    assert "Seq Scan on job_attempts" not in plan


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize(
    "path", ["/runs?status=failed,dead", "/runs?status=dead,succeeded&cursor=WyJvbGRlciIsMTUwMDBd"]
)
def test_several_states_are_merged_in_the_order_of_the_list_and_never_sorted(
    app: Flask, client: FlaskClient, connection: Connection, path: str
) -> None:
    for plan in plans(app, client, connection, path, "job_runs"):
        assert "Merge Append" in plan, plan
        assert "Sort Key" not in plan.split("Merge Append")[0], plan


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize(
    "query",
    [
        "failed-since=24h", "failed-since=24h&failed-until=1h", "failed-until=1h&status=dead",
        "failed-since=24h&status=failed", "failed-since=24h&cursor=WyJvbGRlciIsMTUwMDBd",
    ],
)  # fmt: skip
def test_what_failed_in_a_time_is_read_from_the_index_of_what_fails_and_no_run(
    app: Flask, client: FlaskClient, connection: Connection, query: str
) -> None:
    # As on a table that is too large for anything else.
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("SET enable_seqscan = off")
    for plan in plans(app, client, connection, f"/runs?{query}", "job_runs"):
        reads = re.findall(r"(\S+ \S+) Scan.* using (\S+) on job_runs", plan)
        assert reads and set(reads) == {("Index Only", "job_runs_by_status")}, plan
        assert "Sort Key" not in plan.split("Merge Append")[0], plan


@pytest.mark.usefixtures("many_dead")
@pytest.mark.parametrize("query", ["type=type_1", "error=code_2", "type=type_1&status=dead"])
def test_what_failed_in_a_time_and_more_is_looked_for_among_what_fails(
    app: Flask, client: FlaskClient, connection: Connection, query: str
) -> None:
    for plan in plans(app, client, connection, f"/runs?failed-since=24h&{query}", "job_runs"):
        assert re.search("job_runs_(by_status|by_error|failing_by_type)", plan), plan
        assert not any(walk in plan for walk in WALKS), plan


@pytest.mark.usefixtures("many_dead")
def test_a_page_of_several_states_leads_back_to_the_newer_ones(client: FlaskClient) -> None:
    first = client.get("/runs.json?status=failed,dead&limit=60").json
    second = client.get(f"/runs.json?status=failed,dead&limit=60&cursor={first['next']}").json
    ids = [row["id"] for row in [*first["items"], *second["items"]]]
    assert len(ids) == 120
    assert ids == sorted(ids, reverse=True)
    assert {row["status"] for row in first["items"]} == {"failed"}
    assert {row["status"] for row in second["items"]} == {"failed", "dead"}
