"""What the pages of nouns ask of a large table of runs: by an index, wherever the matches lie."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_run, a_type, a_worker

BIG = ("Seq Scan on job_runs", "Seq Scan on job_attempts", "Seq Scan on audit_log")
PATHS = (
    "/leases",
    "/leases?type=mail",
    "/schedules",
    "/schedules?state=late,overlapping,twice",
    "/schedules/idle",
    "/schedules/off",
    "/schedules/busy/remove",
    "/types",
    "/types/mail",
    "/types/rare",
    "/workers",
    "/workers/w1",
    "/types/+pause-all",
    "/types/+resume-all",
    "/effects",
    "/audit?since=1h",
    "/audit?who=ben",
    "/audit?what=run.retry",
    "/audit?target=run:7",
    "/audit?result=denied,refused",
    "/audit?kind=run&until=2h",
    "/audit?who=anna&what=run.retry&since=7d",
)


@pytest.fixture
def much(connection: Connection) -> None:
    """50,000 runs of one schedule and type that ended, few that matter, at the old end; many schedules."""
    busy = a_definition(connection, "busy")
    a_definition(connection, "idle")
    a_definition(connection, "off", enabled=False)
    connection.execute(
        """INSERT INTO wakeboard.job_definitions (name, job_type, schedule)
        SELECT 'one-of-many-' || i, 'mail', '0 2 * * *' FROM generate_series(1, 500) AS i"""
    )
    a_worker(connection, "w1", drain_requested_at="-1 minute")
    a_type(connection, "mail")
    a_type(connection, "rare")
    for status in ("queued", "running", "failed", "dead"):
        a_run(connection, status, job_type="rare")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, definition_id, status, attempts, started_at, finished_at)
        SELECT 'mail', %s, 'succeeded', 1, at, at
        FROM generate_series(1, 50000), (SELECT now() - interval '1 hour' AS at) AS ago""",
        (busy,),
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts
            (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at, finished_at, outcome)
        SELECT id, 1, 1, 'mail', 'w1', now(), now(), now(), 'succeeded' FROM wakeboard.job_runs
        WHERE status = 'succeeded'"""
    )
    connection.execute(
        """INSERT INTO wakeboard.effects (scope, key, run_id, attempt, lease_epoch, status)
        SELECT 'run:' || id, 'mail', id, 1, 1, 'done' FROM wakeboard.job_runs LIMIT 20000"""
    )
    connection.execute(
        """INSERT INTO wakeboard.audit_log (at, actor, source, action)
        SELECT now() - (20000 - i) * interval '1 minute', 'anna', 'web', 'login'
        FROM generate_series(1, 20000) AS i"""
    )
    connection.execute(
        "ANALYZE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.effects, wakeboard.audit_log"
    )


@pytest.mark.usefixtures("much")
def test_no_page_walks_a_large_table(app: Flask, client: FlaskClient, connection: Connection) -> None:
    asked: list[tuple[str, str, Any]] = []
    here = ""
    overhear(app, lambda sql, values: asked.append((here, sql, values)))
    for here in PATHS:
        assert client.get(here).status_code == 200
    looked = [
        one for one in asked if any(table in one[1] for table in ("job_runs", "job_attempts", "audit_log"))
    ]
    assert {path for path, _, _ in looked} == set(PATHS)
    for path, sql, values in looked:
        plan = "\n".join(line[0] for line in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        assert not any(walk in plan for walk in BIG), f"{path}\n{sql}\n{plan}"
        # Back from the newest run to the few at the old end is the whole table too.
        assert "Backward using job_runs_pkey" not in plan, f"{path}\n{sql}\n{plan}"
        if "audit_log" in sql and not path.startswith("/audit"):
            assert "audit_log_pkey" not in plan, f"{path}\n{sql}\n{plan}"


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("explain", ["EXPLAIN", "EXPLAIN (GENERIC_PLAN)"])
def test_what_is_under_way_of_each_type_is_counted_by_indexes_alone(
    app: Flask, client: FlaskClient, connection: Connection, explain: str
) -> None:
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert client.get("/types").status_code == 200
    ((sql, values),) = [one for one in asked if "AS claimable" in one[0]]
    if "GENERIC" in explain:
        sql, values = sql % {name: f"${place}" for place, name in enumerate(values, 1)}, None
    plan = "\n".join(line[0] for line in connection.execute(f"{explain} {sql}".encode(), values).fetchall())
    for index in ("job_runs_leased", "job_runs_failing_by_type", "job_runs_claimable"):
        assert f"Index Only Scan using {index} " in plan, plan
    assert "Bitmap" not in plan and "Sort" not in plan, plan
