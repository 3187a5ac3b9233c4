"""The runs of one schedule, found by its name wherever runs are listed, while it is there and afterwards."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import along, fragments_of, items_of, page_of, rows_in
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_run, a_type
from wakeboard import cli
from wakeboard.accounts import tokens
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import definitions

ANNA = Actor("anna", Role.ADMIN, "web")
OF = "definition_id = (SELECT id FROM wakeboard.job_definitions WHERE name = 'checkout')"
ASKED = {
    "schedule=checkout": OF,
    "schedule=idle": "false",
    "schedule=checkout&status=failed,dead": f"{OF} AND status IN ('failed', 'dead')",
    "schedule=checkout&status=running": f"{OF} AND status = 'running'",
    "schedule=checkout&error=smtp_down": f"{OF} AND status IN ('failed', 'dead')",
    "schedule=checkout&type=mail": f"{OF} AND job_type = 'mail'",
    "schedule=checkout&attempts=10": f"{OF} AND attempts = 10",
    "schedule=checkout&payload.is=even": f"{OF} AND payload ->> 'is' = 'even'",
    "schedule=checkout&key=k1": f"{OF} AND idempotency_key = 'k1'",
    "schedule=idle&key=k1": "false",
}


@pytest.fixture
def mixed(connection: Connection) -> int:
    """60 runs of a schedule and as many of none between them, in every state; another one that made none."""
    checkout = a_definition(connection, "checkout")
    a_definition(connection, "idle")
    for number in range(120):
        status = ("queued", "running", "succeeded", "failed", "dead", "cancelled")[number // 2 % 6]
        of_schedule = number % 2 == 1
        a_run(
            connection,
            status,
            job_type="mail" if number % 3 else "report",
            definition_id=checkout if of_schedule else None,
            idempotency_key=f"k{number}",
            payload={"is": "even" if number % 5 else "odd"},
        )
    return checkout


def ids_in(client: FlaskClient, path: str) -> list[int]:
    return [item["id"] for item in items_of(client, path)]


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("asked", ASKED)
def test_the_runs_of_a_schedule_are_found_on_every_page_there_and_back(
    client: FlaskClient, connection: Connection, asked: str
) -> None:
    condition = f"SELECT id FROM wakeboard.job_runs WHERE {ASKED[asked]} ORDER BY id DESC"
    wanted = [id_ for (id_,) in connection.execute(condition.encode()).fetchall()]
    pages = along(client, "next", page_of(client, f"/runs?{asked}&limit=7"))
    assert [id_ for page in pages for id_ in rows_in(page)] == wanted
    back = along(client, "prev", pages[-1])
    assert [id_ for page in reversed(back) for id_ in rows_in(page)] == wanted
    assert len(wanted) <= 7 or "payload" in asked or f"{len(wanted)} match" in pages[0]


@pytest.mark.parametrize("beside", ["", "&status=queued"])
def test_new_runs_of_a_schedule_are_counted_and_no_others(
    client: FlaskClient, connection: Connection, mixed: int, beside: str
) -> None:
    (live,) = fragments_of(page_of(client, f"/runs?schedule=checkout{beside}&limit=5"))
    a_run(connection, definition_id=mixed)
    a_run(connection)
    assert "1 new" in page_of(client, live)


def test_a_schedule_is_a_filter_of_the_terminal_and_of_bulk_verbs(
    client: FlaskClient,
    connection: Connection,
    database: str,
    mixed: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    assert cli.run(["runs", "--schedule", "checkout", "--limit", "3"]) == 0
    newest = ids_in(client, "/runs.json?schedule=checkout&limit=3")
    assert re.findall(r"^\s*(\d+)", capsys.readouterr().out, re.MULTILINE) == [str(each) for each in newest]
    assert cli.run(["runs", "schedule:chekout"]) == 2
    assert "There is no schedule “chekout”" in capsys.readouterr().err
    shown = page_of(client, "/runs/bulk/retry?schedule=checkout&status=dead")
    dead = ids_in(client, "/runs.json?schedule=checkout&status=dead")
    assert len(dead) == 10 and "10 runs" in shown
    assert client.get("/runs.csv?schedule=checkout").text.count("\n") == 61


def test_a_name_that_no_schedule_ever_had_is_a_sentence(client: FlaskClient, connection: Connection) -> None:
    for given, sentence in {
        "chekout": "There is no schedule “chekout”, and the audit log knows of none of that name",
        "Check out": "it must be a schedule's name",
        "#0": "it must be a schedule's name",
    }.items():
        answer = client.get("/runs.json", query_string={"schedule": given})
        assert answer.status_code == 400 and sentence in answer.get_json()["message"]


def test_a_removed_schedule_leads_to_its_runs(
    client: FlaskClient, connection: Connection, mixed: int
) -> None:
    wanted = ids_in(client, "/runs.json?schedule=checkout")
    assert len(wanted) == 50 and "/schedules/checkout" in page_of(client, f"/runs/{wanted[0]}")
    connection.execute("DELETE FROM wakeboard.missed_fires")
    definitions.remove(connection, "checkout", ANNA)
    answer = client.get("/schedules/checkout")
    assert answer.status_code == 404 and '<a class="button" href="/runs?schedule=checkout">' in answer.text
    told = client.get("/schedules/checkout.json").get_json()["message"]
    assert told == "Schedule “checkout” was removed. Its runs are kept: /runs?schedule=checkout"
    assert ids_in(client, "/runs.json?schedule=checkout") == wanted
    number = f"/runs?schedule=%23{mixed}"
    assert f'<a href="{number}">removed' in page_of(client, f"/runs/{wanted[0]}")
    assert ids_in(client, number.replace("runs", "runs.json")) == wanted
    # The name was taken again: it is the new one's, the number stays.
    a_definition(connection, "checkout")
    assert ids_in(client, "/runs.json?schedule=checkout") == []
    assert ids_in(client, number.replace("runs", "runs.json")) == wanted


@pytest.mark.usefixtures("mixed")
def test_the_page_of_a_schedule_leads_to_all_its_runs(client: FlaskClient) -> None:
    assert '<a href="/runs?schedule=checkout">all its runs</a>' in page_of(client, "/schedules/checkout")
    address = client.get("/schedules/checkout.json").get_json()["all_runs"]
    assert len(ids_in(client, f"{address}&limit=200")) == 60


@pytest.mark.usefixtures("mixed")
def test_a_token_for_a_type_finds_no_run_of_another_and_hears_of_no_schedule(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "report")
    token = tokens.create_token(connection, ANNA, "program", Role.VIEWER, job_types=("report",))
    program = app.test_client()
    program.environ_base.update(HTTP_AUTHORIZATION=f"Bearer {token}", REMOTE_ADDR="203.0.113.9")
    wanted = ids_in(client, "/runs.json?schedule=checkout&type=report&limit=200")
    assert len(wanted) == 20 and ids_in(program, "/runs.json?schedule=checkout&limit=200") == wanted
    assert ids_in(program, "/runs.json?schedule=checkout&type=mail") == []
    for name in ("idle", "never-was"):
        assert ids_in(program, f"/runs.json?schedule={name}") == []
        assert ids_in(program, f"/runs.json?schedule={name}&key=k1") == []


@pytest.fixture
def much(connection: Connection) -> None:
    """50,000 runs of 50 schedules: one of half of the older ones stopped, one has few at the old end."""
    made = {name: a_definition(connection, name) for name in ("stopped", "rare", "busy")}
    for status in ("queued", "running", "failed", "dead", "succeeded"):
        a_run(connection, status, definition_id=made["rare"])
    for every, of, count in ((2, "stopped", 40_000), (5, "busy", 10_000)):
        connection.execute(
            """INSERT INTO wakeboard.job_runs
                (job_type, definition_id, status, attempts, started_at, finished_at)
            SELECT 'mail', CASE WHEN n %% %s = 0 THEN %s ELSE 1000 + n %% 50 END, 'succeeded', 1, now(), now()
            FROM generate_series(1, %s) AS n""",
            (every, made[of], count),
        )
    connection.execute("ANALYZE wakeboard.job_runs")


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize("name", ["stopped", "rare", "busy"])
def test_the_runs_of_a_schedule_are_one_stretch_of_their_index(
    app: Flask, client: FlaskClient, connection: Connection, name: str
) -> None:
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    for beside in ("", "&status=failed,dead", "&status=running", "&since=1h", "&key=k1"):
        page = page_of(client, f"/runs?schedule={name}{beside}")
        page_of(client, *fragments_of(page))
        if older := re.search(r'rel="next" href="([^"]+)"', page):
            for there in along(client, "prev", page_of(client, unescape(older[1]))):
                assert "/runs" in there
    looked = [
        one for one in asked if "job_runs.definition_id" in one[0] and "job_runs.id = ANY" not in one[0]
    ]
    assert len(looked) > 10
    # As on a table that is too large for anything else.
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("SET enable_seqscan = off")
    for sql, values in looked:
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        # A stretch of ids is no walk.
        assert not re.search(r"job_runs_pkey on job_runs.*\n +Filter", plan), f"{sql}\n{plan}"
        if "job_runs.id <" not in sql and "job_runs.id >" not in sql and "idempotency_key =" not in sql:
            assert " job_runs_by_definition on" in plan, f"{sql}\n{plan}"
            assert "Key: definition_id" not in plan and "Key: job_runs.definition_id" not in plan, plan
