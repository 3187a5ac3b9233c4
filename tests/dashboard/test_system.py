"""The system page: which loop is late, what the database stands on, and who may read which setting."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, fragments_of
from tests.support.factories import a_run, a_worker, an_attempt, insert
from wakeboard.config.settings import Settings
from wakeboard.maintenance.indexes.state import NAME, PROCESS_ID
from wakeboard_dashboard.views.system import warnings
from wakeboard_dashboard.web.connection import Database

# What stays while sizes, connections and the use of indexes change under the eyes.
FRAME = re.compile(r'id="table-[^"]+"|id="loop-[^"]+"|<h2>.*?</h2>|<dt>.*?</dt>|<th[ >].*?</th>')
FINE: dict[str, Any] = {
    "server": {"connections": 7, "max_connections": 100, "fsync": "on", "is_embedded": True},
    "holders": [],
    "sight": {"hidden": 0, "sees_all": False, "role": "wakeboard"},
    "pages_replica": None,
    "replicas": [],
    "installation": {"backed_up_at": datetime(2026, 1, 1, tzinfo=UTC)},
    "unrebuilt": None,
}


def a_loop(connection: Connection, name: str, ago_seconds: float, **columns: Any) -> None:
    values = {"process_id": "w1", "name": name, "interval_seconds": 2} | columns
    insert(connection, "loops", values, "name")
    connection.execute(
        "UPDATE wakeboard.loops SET last_success_at = now() - make_interval(secs => %s) WHERE name = %s",
        (ago_seconds, name),
    )


def test_a_late_loop_comes_first_with_its_error_and_its_numbers(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w1", hostname="db1", pid=77)
    a_loop(connection, "claim", 1, numbers={"claimed": 12})
    a_loop(connection, "schedule", 60, last_error="the clock <stopped>")
    page = client.get("/system").text
    assert "1 loop is late" in page and 'data-attention="1"' in page and "db1:77" in page
    assert page.index(">schedule</td>") < page.index(">claim</td>")
    assert "the clock &lt;stopped&gt;" in page and "claimed <strong>12</strong>" in page
    twin = client.get("/system.json").get_json()["loops"]
    assert [(loop["name"], loop["late"]) for loop in twin] == [("schedule", True), ("claim", False)]
    connection.execute("UPDATE wakeboard.loops SET last_success_at = now()")
    assert "All 2 are on time" in client.get("/system").text


def test_numbers_of_a_loop_are_told_as_people_read_them(client: FlaskClient, connection: Connection) -> None:
    ended = {"finished_at": "2026-11-21T15:19:20+00:00", "noted_at": "soon", "work_seconds": 0.092}
    a_loop(connection, "retention", 1, numbers=ended | {"backlog": True, "late": False, "runs": 12000})
    page = client.get("/_fragments/system/loops").text
    assert 'finished <strong><time datetime="2026-11-21T15:19:20+00:00"' in page
    assert "work <strong>92 ms</strong>" in page and "backlog <strong>yes</strong>" in page
    assert "noted at <strong>soon</strong>" in page and "True" not in page
    assert "removes what was kept for long enough" in client.get("/system").text


def test_what_the_workers_may_not_rebuild_is_said_with_what_the_owner_can_run(
    client: FlaskClient, connection: Connection
) -> None:
    assert client.get("/system.json").get_json()["unrebuilt"] is None
    numbers = {"missing_privilege": "job_runs_claimable takes <99> MB. As the owner: REINDEX …", "tried": {}}
    insert(connection, "loops", {"process_id": PROCESS_ID, "name": NAME, "interval_seconds": 1800,
                                 "numbers": numbers}, "name")  # fmt: skip
    assert client.get("/system.json").get_json()["unrebuilt"] == numbers["missing_privilege"]
    page = client.get("/_fragments/system/server").text
    assert "takes &lt;99&gt; MB. As the owner: REINDEX …" in page


def test_an_empty_house_says_what_to_start(client: FlaskClient) -> None:
    assert "No process works here" in client.get("/system").text


def test_the_database_is_described_without_counting_a_table(
    client: FlaskClient, app: Flask, connection: Connection
) -> None:
    engines: Database = app.extensions["wakeboard_database"]
    asked: list[str] = []
    event.listen(engines.pages, "before_cursor_execute", lambda *told: asked.append(told[2]))
    body = client.get("/system.json").get_json()
    assert body["server"]["version"].startswith("18") and body["server"]["bytes"] > 1_000_000
    assert body["server"]["revision"] == body["versions"]["schema_needed"]
    assert {"job_runs", "job_attempts", "audit_log"} <= {table["name"] for table in body["tables"]}
    assert "job_runs_claimable" in {index["name"] for index in body["indexes"]}
    big = [text for text in asked if "FROM wakeboard.job_runs" in text]
    assert big == []


def test_late_answers_that_were_refused_are_numbered(client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection, "running", attempts=2)
    an_attempt(connection, run_id, outcome="lost", attempt=7, lease_epoch=70)
    connection.execute(
        "UPDATE wakeboard.job_attempts SET refused_at = now(), refused_outcome = 'succeeded'"
        " WHERE lease_epoch = 70"
    )
    assert client.get("/system.json").get_json()["refused_answers_24h"] == 1
    connection.execute("UPDATE wakeboard.job_attempts SET refused_at = now() - interval '25 h'"
                       " WHERE lease_epoch = 70")  # fmt: skip
    assert client.get("/system.json").get_json()["refused_answers_24h"] == 0


def test_the_last_backup_is_told(client: FlaskClient, connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.installation SET backed_up_at = '2026-03-04 05:06:07Z'")
    assert client.get("/system.json").get_json()["installation"]["backed_up_at"].startswith("2026-03-04")


def test_a_transaction_left_open_is_told_with_its_mend(
    client: FlaskClient, connection: Connection, other: Connection
) -> None:
    with other.transaction():
        other.execute("SELECT 1")
        pid = other.info.backend_pid
        body = client.get("/system.json").get_json()
        assert body["oldest_transaction"]["pid"] == pid
        (holder,) = body["holders"]
        assert (holder["id"], holder["name"], holder["state"]) == (
            str(pid), "wakeboard other", "idle in transaction",
        )  # fmt: skip
        assert holder["statement"] == "SELECT 1" and not holder["is_long"]
        assert f"pid {pid}" in client.get("/system").text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"holders": [{"is_long": True, "says": "It is open.", "mend": "End it."}]}, "It is open. End it."),
        ({"holders": [{"is_long": False, "says": "It is open.", "mend": "End it."}]}, None),
        ({"sight": {"hidden": 2, "sees_all": False, "role": "app"}}, "GRANT pg_monitor TO app"),
        ({"sight": {"hidden": 2, "sees_all": True, "role": "app"}}, None),
        ({"pages_replica": {"error": "refused", "behind_seconds": None}}, "does not answer: refused"),
        ({"pages_replica": {"error": None, "behind_seconds": 6.0}}, "6 s behind"),
        ({"pages_replica": {"error": None, "behind_seconds": 4.0}}, None),
        ({"server": FINE["server"] | {"connections": 81}}, "81 of 100 connections"),
        ({"server": FINE["server"] | {"fsync": "off"}}, "Set fsync = on"),
        ({"replicas": [{"name": "standby", "lag_seconds": 61.0}]}, "“standby” lags behind by"),
        ({"installation": {"backed_up_at": None}}, "wakeboard db backup"),
        ({"unrebuilt": "The role app may not rebuild it."}, "The role app may not rebuild it."),
    ],
)
def test_what_will_hurt_is_a_sentence(change: dict[str, Any], says: str | None) -> None:
    found = list(warnings(FINE | change))
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_secrets_are_for_nobody_and_addresses_for_those_who_may_act(
    database: str, connection: Connection, app: Flask, as_role: AsRole
) -> None:
    app.config["SETTINGS"] = Settings.load(
        {
            "database_url": database,
            "heartbeat_url": "https://hc.example/secret-path",
            "bind": "10.1.2.3:80",
            "smtp_url": "smtps://jobs:hunter2@mail.example.org",
            "alert_mail": "ops@example.org",
        },
        environ={},
    )
    a_worker(connection, "w1")
    a_loop(connection, "claim", 1, last_error="connection to 10.9.9.9 failed")
    host = str(psycopg.conninfo.conninfo_to_dict(database)["host"])
    for role, sees in (("viewer", False), ("operator", True), ("admin", True)):
        for path in ("/system", "/system.json", "/_fragments/system/loops", "/_fragments/system/server"):
            body = as_role(role).get(path).text
            assert "secret-path" not in body and "hunter2" not in body
            assert sees or not any(
                hidden in body for hidden in (host, "10.1.2.3", "10.9.9.9", "mail.example.org")
            )
        page = as_role(role).get("/system").text
        told = (host, "10.1.2.3", "10.9.9.9", "smtps://jobs:***@mail.example.org")
        assert [each in page for each in told] == [sees] * 4
        assert "WAKEBOARD_LEASE_SECONDS" in page and ">30.0<" in page


def test_an_embedded_server_is_told_from_another(database: str, as_role: AsRole, app: Flask) -> None:
    assert as_role("admin").get("/system.json").get_json()["server"]["is_embedded"] is False
    folder = str(psycopg.conninfo.conninfo_to_dict(database)["host"]).removesuffix("/postgres/socket")
    app.config["SETTINGS"] = Settings.load({"data_dir": folder}, environ={})
    assert as_role("admin").get("/system.json").get_json()["server"]["is_embedded"] is True


def test_each_fragment_equals_itself_inside_the_page(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1")
    a_loop(connection, "claim", 60)
    html = client.get("/system").text
    fragments = fragments_of(html)
    assert set(fragments) == {
        f"/_fragments/system/{name}" for name in ("loops", "server", "horizon", "costs", "sizes")
    }
    for address in fragments:
        alone = FRAME.findall(client.get(address).text)
        assert alone and " ".join(alone) in " ".join(FRAME.findall(html)), address


def test_an_unknown_filter_is_refused(client: FlaskClient) -> None:
    assert client.get("/system?x=1").status_code == 400
    assert client.get("/system.json?x=1").status_code == 400
