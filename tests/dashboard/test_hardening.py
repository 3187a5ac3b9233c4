"""What attackers, odd clients and hostile rows did to the dashboard once, each held to its mend."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from urllib.parse import quote

import psycopg
import pytest
from flask.testing import FlaskClient
from psycopg import sql

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.support.dashboard_apps import an_app
from wakeboard_dashboard.queries.keyset import Cursor

FAILED = """
WITH mine AS (
    INSERT INTO wakeboard.job_definitions (name, job_type) VALUES ('mine', 'sync')
    ON CONFLICT (name) DO UPDATE SET job_type = excluded.job_type RETURNING id
)
INSERT INTO wakeboard.job_runs (definition_id, job_type, payload, status, error_code, last_error)
SELECT mine.id, 'sync', %s, 'failed', 'BOOM', %s FROM mine RETURNING id
"""


def add_run(connection: Connection, payload: str = "{}", last_error: str = "no answer") -> int:
    """Insert a failed run of the schedule “mine” as any producer could and return its id."""
    row = connection.execute(FAILED, (payload, last_error)).fetchone()
    assert row
    return int(row[0])


def pages_of(run_id: int) -> list[str]:
    """Return the addresses that show the run."""
    lists = ["/runs", "/runs.json", "/runs.csv", "/schedules", "/schedules.json"]
    run = [f"/runs/{run_id}", f"/runs/{run_id}.json", "/schedules/mine", "/schedules/mine.json"]
    return ["/", *lists, *run, "/metrics"]


def unchecked(connection: Connection, rule: str) -> None:
    """Take a CHECK away, as a table restored from elsewhere may lack it: the pages must not depend on it."""
    connection.execute(f"ALTER TABLE wakeboard.job_runs DROP CONSTRAINT job_runs_{rule}".encode())


# Rows that any producer may insert


@pytest.mark.parametrize("column", ["run_at", "scheduled_for", "created_at", "updated_at"])
@pytest.mark.parametrize("moment", ["20000-01-01", "4000-01-01 BC", "9999-12-31 23:59:59+00", "0001-01-01"])
def test_a_time_beyond_the_calendar_hides_no_page(
    client: FlaskClient, connection: Connection, column: str, moment: str
) -> None:
    run_id = add_run(connection)
    unchecked(connection, "times_are_finite")
    connection.execute(f"UPDATE wakeboard.job_runs SET {column} = '{moment}'".encode())
    client.set_cookie("wakeboard_zone", "Pacific/Kiritimati")
    for address in pages_of(run_id):
        assert client.get(address).status_code == 200, address
    assert client.post(f"/runs/{run_id}/cancel").status_code == 303


@pytest.mark.parametrize(
    "payload",
    ['{"a": 1e5000}', '{"a": ' + "[" * 2000 + "]" * 2000 + "}", '{"a": ' + "[" * 900 + "]" * 900 + "}"],
    ids=["a number of 5000 digits", "2000 deep", "900 deep"],
)
def test_json_that_python_cannot_read_hides_no_page(
    client: FlaskClient, connection: Connection, payload: str
) -> None:
    run_id = add_run(connection, payload)
    for address in [*pages_of(run_id), f"/runs/{run_id}/again"]:
        assert client.get(address).status_code == 200, address


def test_a_timeout_that_is_no_number_hides_no_page(client: FlaskClient, connection: Connection) -> None:
    run_id = add_run(connection)
    unchecked(connection, "timeout_is_positive")
    for value in ("NaN", "Infinity"):
        connection.execute(f"UPDATE wakeboard.job_runs SET timeout_seconds = '{value}'".encode())
        assert client.get(f"/runs/{run_id}").status_code == 200


@pytest.mark.parametrize("name", ["a{", "}", 'a"b', "a\\", "a,b", " ", "", "ä☃", "NULL"])
def test_a_payload_is_found_by_whatever_its_names_are(
    as_role: AsRole, connection: Connection, name: str
) -> None:
    run_id = add_run(connection, json.dumps({"in": {name: "812"}}))
    add_run(connection, '{"in": {"a": "812"}}')
    found = as_role("operator").get("/runs.json", query_string={f"payload.in.{name}": "812"})
    assert [row["id"] for row in found.get_json()["items"]] == [run_id]


# Requests that were a mistake of ours


@pytest.mark.parametrize(
    "address",
    [
        "/errors?until=0001-01-01",
        "/audit?since=0001-01-01",
        "/audit?until=9999-12-31",
        "/errors/x?since=9999-12-31",
    ],
)
def test_a_time_that_cannot_be_counted_with_is_a_wrong_filter(client: FlaskClient, address: str) -> None:
    assert client.get(address).status_code == 400


@pytest.mark.parametrize(
    ("path", "keys"), [("/leases", (datetime(2026, 11, 26, tzinfo=UTC), 1)), ("/workers", ("w-7",))]
)
def test_a_cursor_beyond_all_rows_is_an_empty_page(
    client: FlaskClient, path: str, keys: tuple[object, ...]
) -> None:
    for rank in (10**12, -(10**12)):
        cursor = Cursor("older", (rank, *keys)).encode()
        assert items_of(client, f"{path}.json?cursor={cursor}") == []


def test_a_payload_path_without_end_is_a_wrong_filter(client: FlaskClient) -> None:
    assert client.get("/runs?payload." + "a." * 700 + "a=1").status_code == 400


@pytest.mark.parametrize("asked", ["payload.token=hunter2", "q=hunter2", "q=nothing"])
def test_a_viewer_cannot_guess_by_a_verb_either(as_role: AsRole, connection: Connection, asked: str) -> None:
    add_run(connection, '{"token": "hunter2"}')
    headers = {"Accept": "application/json"}
    answer = as_role("viewer").post("/runs/bulk/cancel", json={"filter": asked}, headers=headers)
    assert answer.status_code == 403 and "takes the role operator" in answer.get_json()["message"]


@pytest.mark.parametrize("body", ['{"payload": ' + "[" * 30_000, '{"payload": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("path", ["/runs/{}/retry", "/runs/bulk/retry", "/runs/{}/again"])
def test_a_body_made_to_be_unreadable_is_refused(
    as_role: AsRole, connection: Connection, path: str, body: str
) -> None:
    answer = as_role("admin").post(
        path.format(add_run(connection)), data=body, content_type="application/json"
    )
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/types/mail/pause", "until"),
        ("/types/mail/limit", "limit"),
        ("/runs/views/save", "name"),
        ("/runs/views/save", "query"),
        ("/runs/bulk/retry", "also"),
        ("/runs/bulk/retry", "per_minute"),
        ("/alerts/1/edit", "\ud800"),
    ],
)
def test_half_a_character_is_never_a_mistake_of_ours(client: FlaskClient, path: str, name: str) -> None:
    body = json.dumps({"filter": "status=dead", "name": "x", "query": "status=dead", name: "type=\ud800"})
    answer = client.post(path, data=body, content_type="application/json")
    assert answer.status_code < 500


def test_headers_that_are_no_addresses_are_refused_or_ignored(
    as_role: AsRole, anonymous: FlaskClient, connection: Connection
) -> None:
    run_id, operator = add_run(connection), as_role("operator")
    assert operator.post(f"/runs/{run_id}/cancel", headers={"Origin": "http://["}).status_code == 403
    assert operator.get(f"/runs/{run_id}/cancel", headers={"Referer": "http://[x"}).status_code == 200
    assert operator.post(f"/runs/{run_id}/cancel", headers={"Referer": "http://[x"}).status_code == 303
    headers = {"HX-Request": "true", "HX-Current-URL": "http://["}
    assert anonymous.get("/", headers=headers).headers["HX-Redirect"] == "/login?next=%2F"


def test_signing_in_leads_back_to_a_name_whatever_is_in_it(anonymous: FlaskClient) -> None:
    sent = anonymous.get("/types/a%3Fb%0A/pause?until=1h")
    assert sent.location == "/login?next=" + quote("/types/a%3Fb%0A/pause?until=1h", safe="")
    form = anonymous.post("/types/a%3Fb%0A/pause", data={"reason": "x"}).text
    assert quote("/types/a%3Fb%0A/pause?reason=x", safe="") in form


def test_a_forged_message_breaks_no_page(anonymous: FlaskClient) -> None:
    anonymous.set_cookie("wakeboard_toast", urlsafe_b64encode(b"[" * 2500).decode())
    assert anonymous.get("/login").status_code == 200


# One address, one thing


def test_a_verb_reaches_the_type_it_names_and_no_other(client: FlaskClient, connection: Connection) -> None:
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('a/b'), ('a//b'), ('/a')")
    assert client.post("/types/a%2F%2Fb/pause").status_code == 303
    assert client.post("/types/%2Fa/pause").status_code == 303
    paused = "SELECT name FROM wakeboard.job_types WHERE paused_at IS NOT NULL ORDER BY name"
    assert connection.execute(paused).fetchall() == [("/a",), ("a//b",)]


def test_an_act_by_session_is_never_audited_as_one_by_token(as_role: AsRole, connection: Connection) -> None:
    run_id = add_run(connection)
    as_role("operator").post(f"/runs/{run_id}/cancel", headers={"Authorization": "Basic eDp5"})
    source = "SELECT source FROM wakeboard.audit_log WHERE action = 'run.cancel'"
    assert connection.execute(source).fetchone() == ("web",)


@pytest.mark.parametrize("path", ["/readyz", "/statusz", "/metrics"])
def test_a_probe_is_answered_with_json_while_the_database_is_away(path: str) -> None:
    client = an_app(database_url="postgresql://nobody@127.0.0.1:1/nothing").test_client()
    said = client.get(path, headers={"Accept": "*/*"})
    assert (said.status_code, said.mimetype) == (503, "application/json")
    assert said.json["message"].startswith("The database does not answer")


def test_a_role_that_may_not_read_the_tables_is_told_so(
    client: FlaskClient, superuser: Connection, database: str
) -> None:
    with psycopg.connect(database) as mine:
        owner = sql.Identifier(mine.info.user)
    superuser.execute("ALTER TABLE wakeboard.job_runs OWNER TO CURRENT_USER")
    superuser.execute(sql.SQL("REVOKE ALL ON wakeboard.job_runs FROM {}").format(owner))
    said = client.get("/runs.json")
    assert said.status_code == 503
    assert "Use the role that owns the schema wakeboard" in said.json["message"]
