"""The overview: one true sentence, numbers that stop at the cap, what needs a person, what is next."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_run, a_type, a_worker, from_now, insert, rows
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.types import pause_all
from wakeboard_dashboard.text.verdict import CAP

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


def missed(connection: Connection, definition: int, reason: str) -> None:
    values = {"definition_id": definition, "scheduled_for": from_now("-1 minute"), "reason": reason}
    insert(connection, "missed_fires", values)


def sentence(client: FlaskClient) -> str:
    return str(client.get("/overview.json").get_json()["sentence"])


def test_a_new_installation_says_how_to_begin(client: FlaskClient) -> None:
    assert sentence(client) == (
        "No worker has ever run here. Nothing is queued. Start one: wakeboard worker, or wakeboard up."
    )
    page = client.get("/").text
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
    assert body["sentence"] == (
        "Four runs are dead and one run is stuck; everything else is normal. 0 of 4 slots busy."
    )
    assert body["well"] is False
    assert [(line["state"], line["runs"]) for line in body["attention"]] == [("stuck", 1), ("dead", 4)]
    assert 'data-attention="5"' in client.get("/").text


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
    tile = _queued(client)
    assert "oldest due" in tile and "paused types aside" in tile


def test_the_tile_of_what_is_queued_says_when_the_oldest_due_run_is_none_of_it(
    client: FlaskClient, connection: Connection
) -> None:
    a_run(connection, run_at="1 hour")
    assert "none is due yet" in _queued(client)
    a_run(connection, "failed", run_at="-5 minutes")
    assert "a failed run’s retry, due" in _queued(client) and "paused" not in _queued(client)
    a_run(connection, run_at="-6 minutes")
    assert "oldest due" in _queued(client)


def _queued(client: FlaskClient) -> str:
    """Return the text of the tile of queued runs."""
    page = client.get("/").text
    (tile,) = re.findall(r'<a class="tile queued".*?</a>', page, re.DOTALL)
    return re.sub(r"<[^>]+>", "", tile)


def test_a_count_stops_at_the_cap_and_says_so(client: FlaskClient, connection: Connection) -> None:
    runs(connection, "queued", CAP + 5)
    assert "10\u202f000+" in client.get("/").text
    assert client.get("/overview.json").get_json()["queued"] == CAP + 1


def test_the_sentence_names_what_is_wrong_and_says_that_the_rest_is_not(
    client: FlaskClient, connection: Connection
) -> None:
    worker(connection)
    for name in ("nightly", "hourly"):
        missed(connection, a_definition(connection, name), "misfire")
        missed(connection, a_definition(connection, f"{name}-paused"), "paused")
    assert sentence(client) == (
        "Two schedules missed their time; everything else is normal. 0 of 4 slots busy."
    )
    assert client.get("/overview.json").get_json()["missed_fires"] == 2


def test_an_alert_that_no_number_tells_of_is_not_called_normal(
    client: FlaskClient, connection: Connection
) -> None:
    worker(connection)
    runs(connection, "dead")
    connection.execute(
        """UPDATE wakeboard.alert_rules SET state = 'firing', fired_at = now()
        WHERE kind IN ('dead_runs', 'late_loop')"""
    )
    told = "One run is dead and the alert “A loop is late” fires; everything else is normal."
    assert sentence(client) == f"{told} 0 of 4 slots busy."


def test_without_a_worker_the_rest_of_what_is_wrong_is_told_too(
    client: FlaskClient, connection: Connection
) -> None:
    runs(connection, "dead")
    assert sentence(client).endswith("or wakeboard up. One run is dead.")


def test_unconfirmed_effects_have_a_tile(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    values = {"run_id": run, "key": "letter", "attempt": 1, "lease_epoch": 1, "status": "started"}
    insert(connection, "effects", {"scope": f"run:{run}", **values})
    page = client.get("/").text
    assert "may have happened or not" in page and "no effect is in doubt" not in page
    assert client.get("/overview.json").get_json()["unconfirmed_effects"] == 1


def tiles(html: str) -> list[tuple[str, str]]:
    """Return (word, number) of every tile, in the order of the page."""
    found = re.findall(r'class="tile [^"]*".*?</svg>([^<]*)</span>\s*<b>([^<]*)</b>', html, re.DOTALL)
    return [(word, number.replace("\u202f", "")) for word, number in found]


def test_the_tiles_tell_what_needs_a_decision_first_and_the_twin_says_the_same(
    client: FlaskClient, connection: Connection
) -> None:
    worker(connection)
    for number, status in enumerate(("dead", "failed", "running", "queued"), 2):
        runs(connection, status, number)
    connection.execute(
        """UPDATE wakeboard.job_runs SET locked_until = now() - interval '1 min'
        WHERE id = (SELECT min(id) FROM wakeboard.job_runs WHERE status = 'running')"""
    )
    for name in ("nightly", "hourly"):
        missed(connection, a_definition(connection, name), "misfire")
    said = client.get("/overview.json").get_json()
    assert tiles(client.get("/").text) == [
        ("dead", "2"),
        ("stuck", "1"),
        ("failed", "3"),
        ("missed runs", "2"),
        ("unconfirmed", "0"),
        ("running", "4"),
        ("queued", "5"),
        ("succeeded", "0"),
    ]
    names = ("dead", "stuck", "failed", "missed_fires", "unconfirmed_effects", "running", "queued")
    assert [said[name] for name in (*names, "succeeded_attempts")] == [2, 1, 3, 2, 0, 4, 5, 0]


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
    page = client.get("/").text
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
    overhear(app, lambda sql, values: asked.append((sql, values)))
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
    assert 'wakeboard_runs{state="dead"} 3.0' in answer.text


def test_what_a_silent_worker_still_holds_is_not_counted_into_the_slots_of_the_living(
    client: FlaskClient, connection: Connection
) -> None:
    worker = a_worker(connection, concurrency=1)
    a_run(connection, "running", locked_by=worker)
    a_run(connection, "running", locked_by=a_worker(connection, seen="-1 hour"), locked_until="10 minutes")
    assert sentence(client).endswith("1 of 1 slot busy. 1 held by silent workers (Leases).")
    assert "1 of 1 slot on 1 worker" in client.get("/").text
    a_run(connection, "running", locked_by=worker)
    assert sentence(client).endswith("2 run, more than the 1 slot of live workers.")
    assert "2 more than the 1 slot on 1 worker" in client.get("/").text


def test_the_sentence_knows_what_is_paused(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, concurrency=4)
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('mail', now())")
    assert sentence(client) == "One type is paused; nothing else needs you. 0 of 4 slots busy."
    a_run(connection, "dead")
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES ('report', now())")
    told = "One run is dead; two types are paused, everything else is normal. 0 of 4 slots busy."
    assert sentence(client) == told
    assert client.get("/overview.json").get_json()["paused_types"] == 2


def test_what_a_silent_worker_holds_is_not_called_held(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "running", locked_by=a_worker(connection, concurrency=4))
    assert "every lease is held" in client.get("/").text
    a_run(connection, "running", locked_by=a_worker(connection, seen="-1 hour"), locked_until="10 minutes")
    page = client.get("/").text
    assert "1 held by silent workers" in page and "every lease is held" not in page
    assert 'href="/leases?state=ended,silent"' in page
    assert sentence(client).endswith("1 of 4 slots busy. 1 held by silent workers (Leases).")
    body = client.get("/overview.json").get_json()
    assert (body["stuck"], body["held_by_silent_workers"]) == (1, 1)


def test_stuck_is_the_same_wherever_it_is_said(client: FlaskClient, connection: Connection) -> None:
    here, gone = a_worker(connection, concurrency=4), a_worker(connection, seen="-5 minutes")
    a_run(connection, "running", locked_by=here)
    ended = a_run(connection, "running", locked_by=here, locked_until="-1 minute")
    silent = a_run(connection, "running", locked_by=gone)
    orphan = a_run(connection, "running", locked_by="nobody")
    page, body = client.get("/").text, client.get("/overview.json").get_json()
    assert dict(tiles(page))["stuck"] == "3" and body["stuck"] == 3
    assert 'data-attention="3"' in page and "<title>(3) " in page
    assert [(line["state"], line["runs"]) for line in body["attention"]] == [("stuck", 3)]
    assert timedelta(minutes=4) < since(body["attention"][0]) < timedelta(minutes=6)
    assert 'wakeboard_runs{state="stuck"} 3.0' in client.get("/metrics").text
    listed = items_of(client, "/runs.json?status=running")
    assert {run["id"] for run in listed if run["stuck"]} == {ended, silent, orphan}
    each = {run: client.get(f"/runs/{run}.json").get_json()["stuck"] for run in (ended, silent, orphan)}
    assert all(each.values())
    leases = items_of(client, "/leases.json?state=ended,silent")
    assert {lease["id"] for lease in leases} == {ended, silent, orphan}


def since(line: dict[str, Any]) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(line["since_at"])


def test_types_that_are_held_together_are_one_line(client: FlaskClient, connection: Connection) -> None:
    def lines() -> list[str]:
        page = client.get("/").text
        found = re.findall(r'<tr id="paused.*?</tr>', page, re.DOTALL)
        return [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in found]

    for number in range(12):
        a_type(connection, f"type{number:02}")
    a_type(
        connection,
        "mail",
        paused_at=from_now("-1 hour"),
        paused_by="bert",
        paused_reason="the post is on strike",
    )
    assert pause_all(connection, Actor("anna", Role.OPERATOR, "test"), "the CRM moves").ok
    alone, together = lines()
    assert "mail paused by bert: the post is on strike" in alone
    assert "12 types at once paused by anna: the CRM moves" in together
    for number in range(5):
        connection.execute(
            "UPDATE wakeboard.job_types SET paused_at = now() - interval '1 minute' WHERE name = %s",
            (f"type{number:02}",),
        )
    (one,) = lines()
    assert "13 types are paused at different times, the first by bert" in one


def test_a_fire_missed_while_paused_is_missed_on_no_page(client: FlaskClient, connection: Connection) -> None:
    for name, reason in (("held", "paused"), ("nightly", "misfire"), ("nightly", "paused")):
        known = {each["name"]: each["id"] for each in rows(connection, "job_definitions")}
        missed(connection, known.get(name) or a_definition(connection, name), reason)
    assert dict(tiles(client.get("/").text))["missed runs"] == "1"
    items = items_of(client, "/schedules.json?state=missed")
    assert [(each["name"], each["missed_24h"]) for each in items] == [("nightly", 1)]


@pytest.mark.parametrize("window", ["1h", "24h", "7d"])
def test_what_succeeded_leads_to_the_runs_of_its_window(client: FlaskClient, window: str) -> None:
    page = client.get(f"/?window={window}").text
    assert f'href="/runs?status=succeeded&amp;since={window}"' in page


def running_tile(client: FlaskClient) -> str:
    (note,) = re.findall(
        r'class="tile running".*?<span class="muted">([^<]*)</span>', client.get("/").text, re.DOTALL
    )
    return str(note)


def unclaimed(client: FlaskClient) -> str:
    """Return the line of *Needs attention* about workers that take nothing new, as HTML, or nothing."""
    return "".join(re.findall(r'<tr id="unclaimed">.*?</tr>', client.get("/").text, re.DOTALL))


def test_workers_that_all_drain_are_named_while_due_work_waits(
    client: FlaskClient, connection: Connection
) -> None:
    worker = a_worker(connection, concurrency=2, drain_requested_at="-5 minutes")
    a_run(connection, run_at="-1 minute")
    body = client.get("/overview.json").get_json()
    assert body["sentence"] == (
        "No worker takes new work: one is draining. Due work waits, 1 queued."
        " Undrain one (Workers), or start another: wakeboard worker."
    )
    assert not body["well"]
    assert running_tile(client) == "no worker takes new work: 1 draining"
    row = unclaimed(client)
    assert '<a href="/workers?state=draining,stopping">' in row and "1 draining: undrain one" in row
    assert "Nothing needs you" not in client.get("/").text
    names = ("workers", "slots", "claiming_workers", "claiming_slots", "draining_workers", "stopping_workers")
    assert [body[name] for name in names] == [1, 2, 0, 0, 1, 0]
    assert_fragments_match(client, "/")
    connection.execute("UPDATE wakeboard.workers SET drain_requested_at = NULL WHERE id = %s", (worker,))
    assert sentence(client) == "All is well. 0 of 2 slots busy." and not unclaimed(client)


def test_what_still_runs_on_workers_that_take_nothing_new_stays_counted(
    client: FlaskClient, connection: Connection
) -> None:
    draining = a_worker(connection, drain_requested_at="-5 minutes")
    stopping = a_worker(connection, stopping_at="-1 second")
    for worker in (draining, stopping):
        a_run(connection, "running", locked_by=worker)
    a_run(connection, "dead")
    assert sentence(client) == (
        "No worker takes new work: one is draining and one is stopping. Nothing is due."
        " 2 still run there. Undrain one (Workers), or start another: wakeboard worker. One run is dead."
    )
    page, body = client.get("/").text, client.get("/overview.json").get_json()
    assert dict(tiles(page))["running"] == "2"
    assert (body["running"], body["running_on_leaving_workers"], body["slots"]) == (2, 2, 8)
    metrics = client.get("/metrics").text
    assert "wakeboard_workers 2.0" in metrics and "wakeboard_claiming_workers 0.0" in metrics


def test_a_worker_that_drains_while_others_claim_is_no_alarm(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, concurrency=2)
    draining = a_worker(connection, concurrency=4, drain_requested_at="-5 minutes")
    a_run(connection, run_at="-1 minute")
    assert sentence(client) == "All is well. 0 of 2 slots busy." and not unclaimed(client)
    assert running_tile(client) == "of 2 slots on 1 worker, 1 draining"
    for _ in range(3):
        a_run(connection, "running", locked_by=draining)
    assert sentence(client) == "All is well. 0 of 2 slots busy. 3 more run on workers that are draining."
    assert running_tile(client) == "0 of 2 slots on 1 worker, 1 draining"
    assert "wakeboard_claiming_slots 2.0" in client.get("/metrics").text


def test_a_drained_worker_without_work_is_named_and_no_alarm(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, drain_requested_at="-5 minutes")
    body = client.get("/overview.json").get_json()
    assert body["well"] and body["sentence"].startswith(
        "No worker takes new work: one is draining. Nothing is due. Undrain one"
    )
    assert unclaimed(client)


def test_a_worker_that_stops_is_not_to_be_undrained(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, stop_requested_at="-1 second", drain_requested_at="-5 minutes")
    a_run(connection, run_at="-1 minute")
    assert sentence(client) == (
        "No worker takes new work: one is stopping. Due work waits, 1 queued."
        " Start another: wakeboard worker."
    )
    assert "undrain" not in unclaimed(client) and "1 stopping" in unclaimed(client)
