"""The overview: one true sentence, numbers that stop at the cap, what needs a person, what is next."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event

from dashboard.queries import overview
from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def worker(connection: Connection, *, seen: str = "0 s", concurrency: int = 4) -> None:
    connection.execute(
        """INSERT INTO wakeboard.workers (id, hostname, pid, concurrency, seen_at)
        VALUES ('w1', 'db1', 7, %s, now() - %s::interval)""",
        (concurrency, seen),
    )


def runs(connection: Connection, status: str, count: int = 1, job_type: str = "send_invoice") -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs
            (job_type, status, error_code, failed_at, finished_at, started_at, locked_by, locked_until,
             run_at)
        SELECT %(type)s, %(status)s,
            CASE WHEN %(status)s IN ('failed', 'dead') THEN 'BOOM' END,
            CASE WHEN %(status)s IN ('failed', 'dead') THEN now() END,
            CASE WHEN %(status)s IN ('succeeded', 'dead', 'cancelled') THEN now() END,
            now(),
            CASE WHEN %(status)s = 'running' THEN 'w1' END,
            CASE WHEN %(status)s = 'running' THEN now() + interval '30 s' END,
            now() - interval '41 s'
        FROM generate_series(1, %(count)s)""",
        {"type": job_type, "status": status, "count": count},
    )


def sentence(client: FlaskClient) -> str:
    return str(client.get("/overview.json").get_json()["sentence"])


def test_a_new_installation_says_how_to_begin(client: FlaskClient) -> None:
    assert sentence(client) == (
        "No worker has ever run here. Nothing is queued. Start one: wakeboard worker, or wakeboard up."
    )
    page = client.get("/").get_data(as_text=True)
    assert "Nothing needs you" in page and "No schedule is enabled" in page


def test_a_quiet_house_is_well(client: FlaskClient, connection: Connection) -> None:
    worker(connection)
    runs(connection, "running", 2)
    assert sentence(client) == "All is well. 2 of 4 slots busy."


def test_dead_and_stuck_runs_ask_for_a_decision(client: FlaskClient, connection: Connection) -> None:
    worker(connection)
    runs(connection, "dead", 4)
    runs(connection, "running")
    connection.execute(
        "UPDATE wakeboard.job_runs SET locked_until = now() - interval '6 min' WHERE status = 'running'"
    )
    body = client.get("/overview.json").get_json()
    assert body["sentence"] == "1 stuck, 4 dead need a decision. 1 of 4 slots busy."
    assert body["well"] is False
    assert [(line["state"], line["runs"]) for line in body["attention"]] == [("stuck", 1), ("dead", 4)]
    assert 'data-attention="5"' in client.get("/").get_data(as_text=True)


def test_a_failure_that_will_be_tried_again_is_no_alarm(client: FlaskClient, connection: Connection) -> None:
    worker(connection)
    runs(connection, "failed")
    assert sentence(client) == "Nothing needs you. 1 run failed and will be tried again. 0 of 4 slots busy."


def test_a_silent_worker_is_no_worker(client: FlaskClient, connection: Connection) -> None:
    worker(connection, seen="1 hour")
    runs(connection, "queued", 3)
    assert sentence(client).startswith("No worker is running. 3 queued.")


def test_the_oldest_due_run_is_found_behind_paused_and_delayed_ones(
    client: FlaskClient, connection: Connection
) -> None:
    worker(connection)
    runs(connection, "queued", job_type="paused_type")
    runs(connection, "queued", job_type="send_invoice")
    connection.execute(
        "UPDATE wakeboard.job_runs SET run_at = now() - interval '1 day' WHERE job_type = 'paused_type'"
    )
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('paused_type', now())")
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at) VALUES ('x', now() + interval '1 day')"
    )
    row = connection.execute(
        "SELECT run_at FROM wakeboard.job_runs WHERE job_type = 'send_invoice'"
    ).fetchone()
    assert row and client.get("/overview.json").get_json()["oldest_due_at"] == row[0].isoformat()


def test_a_count_stops_at_the_cap_and_says_so(client: FlaskClient, connection: Connection) -> None:
    runs(connection, "queued", overview.CAP + 5)
    assert "10\u202f000+" in client.get("/").get_data(as_text=True)
    assert client.get("/overview.json").get_json()["queued"] == overview.CAP + 1


def test_every_hour_has_its_bar_and_its_numbers(client: FlaskClient, connection: Connection) -> None:
    for ago, outcome, count in (
        ("0 h", "succeeded", 7),
        ("2 h", "succeeded", 5),
        ("2 h", "lost", 1),
        ("30 h", "failed", 9),
    ):
        for table in ("statistics_deltas", "statistics_rollups"):
            connection.execute(
                f"""INSERT INTO wakeboard.{table} (minute, job_type, outcome, duration_bucket, wait_bucket,
                    runs, duration_ms, duration_max_ms, wait_ms, wait_max_ms)
                VALUES (date_trunc('hour', now()) - %s::interval, 'x', %s, 1, 1, %s, 1, 1, 1, 1)""".encode(),
                (ago, outcome, count),
            )
    for _ in range(2):
        body = client.get("/overview.json").get_json()
        assert len(body["hours"]) == overview.HOURS
    assert [(hour["succeeded"], hour["failed"]) for hour in body["hours"][-3:]] == [(10, 2), (0, 0), (14, 0)]
    assert (body["succeeded_24h"], body["failed_24h"]) == (24, 2)


def test_what_the_overview_shows_live_is_what_it_shows_at_first(
    client: FlaskClient, connection: Connection
) -> None:
    worker(connection)
    for status in ("queued", "running", "dead", "failed", "succeeded"):
        runs(connection, status, 2)
    assert_fragments_match(client, "/")


def test_hostile_text_stays_text(client: FlaskClient, connection: Connection) -> None:
    runs(connection, "dead", job_type=HOSTILE)
    connection.execute(
        """INSERT INTO wakeboard.job_types (name, paused_at, paused_by, paused_reason)
        VALUES (%(x)s, now(), %(x)s, %(x)s)""",
        {"x": HOSTILE},
    )
    page = client.get("/").get_data(as_text=True)
    assert "<img src=x" not in page and "\u202e" not in page.replace("%E2%80%AE", "")
    assert "&lt;img src=x" in page


def test_the_overview_never_reads_the_whole_table(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, finished_at)
        SELECT 'x', 'succeeded', now() FROM generate_series(1, 20000)"""
    )
    # Nearly all queued at the far end of the table: where a plain equality makes the planner walk it all.
    runs(connection, "queued", 60_000)
    connection.execute("ANALYZE wakeboard.job_runs")
    asked: list[tuple[str, Any]] = []
    engine = app.extensions["wakeboard_database"].primary
    event.listen(
        engine, "before_cursor_execute", lambda _c, _cursor, sql, values, *_: asked.append((sql, values))
    )
    client.get("/")
    looked_at_runs = [(sql, values) for sql, values in asked if "job_runs" in sql]
    assert len(looked_at_runs) >= 3
    for sql, values in looked_at_runs:
        plan = connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall()
        assert not any("Seq Scan on job_runs" in line[0] or "job_runs_pkey" in line[0] for line in plan), plan


def test_statusz_raises_the_alarm_when_nobody_keeps_the_schedules(
    client: FlaskClient, connection: Connection
) -> None:
    assert client.get("/statusz").status_code == 200
    connection.execute(
        """INSERT INTO wakeboard.job_definitions (name, job_type, schedule, updated_at)
        VALUES ('nightly', 'x', '0 2 * * *', now() - interval '1 hour')"""
    )
    alarm = client.get("/statusz")
    assert (alarm.status_code, alarm.get_json()["status"]) == (503, "no worker or tick came for 3 minutes")
    worker(connection)
    assert client.get("/statusz").status_code == 200


def test_statusz_raises_the_alarm_when_a_duty_is_late(client: FlaskClient, connection: Connection) -> None:
    worker(connection)
    connection.execute(
        """INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at)
        VALUES ('w1', 'reaper', 10, now() - interval '20 s')"""
    )
    assert client.get("/statusz").status_code == 200
    connection.execute("UPDATE wakeboard.loops SET last_success_at = now() - interval '1 min'")
    alarm = client.get("/statusz")
    assert alarm.status_code == 503 and alarm.get_json()["loops"][0]["late"] is True


def test_readyz_refuses_traffic_while_the_schema_is_of_another_version(
    client: FlaskClient, superuser: Connection
) -> None:
    assert client.get("/readyz").status_code == 200
    superuser.execute("UPDATE wakeboard.alembic_version SET version_num = 'older'")
    assert client.get("/readyz").status_code == 503


def test_metrics_are_in_prometheus_own_text(client: FlaskClient, connection: Connection) -> None:
    runs(connection, "dead", 3)
    answer = client.get("/metrics")
    assert answer.mimetype == "text/plain"
    assert 'wakeboard_runs{state="dead"} 3.0' in answer.get_data(as_text=True)
