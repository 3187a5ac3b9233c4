"""What leaves as CSV: each one is in the audit log, with its page, its filter and how many rows it had."""

from __future__ import annotations

import csv
import io
import json
from secrets import token_hex

from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.support.every_page import addresses, furnish, plain_text
from tests.support.factories import a_run, rows
from wakeboard.accounts import tokens
from wakeboard.core.states import Role
from wakeboard.database.audit import terminal_actor
from wakeboard_dashboard.queries.runs import LONGEST_PAYLOAD
from wakeboard_dashboard.text.formats import number


def lines_of(client: FlaskClient, address: str) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer.status_code == 200, address
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def test_every_csv_is_one_row_of_the_audit_log(app: Flask, as_role: AsRole, connection: Connection) -> None:
    viewer = as_role("viewer")
    found = addresses(app, furnish(connection, plain_text(), plain_text("k")))
    exports = [found[rule][0] for rule in found if rule.endswith(".csv")]
    assert len(exports) >= 8
    for address in exports:
        count = len(lines_of(viewer, address))
        kept = rows(connection, "audit_log", "action = 'export'")[-1]
        path, _, query = address.partition("?")
        told = {"rows": count} | ({"filter": query} if query else {})
        assert (kept["target_type"], kept["target_id"], kept["after"]) == ("page", path, told), address
        assert (kept["actor"], kept["role"], kept["source"], kept["result"]) == (
            "viewer", "viewer", "web", "done",
        )  # fmt: skip
        assert kept["ip"] == "127.0.0.1" and kept["request_id"]
    assert len(rows(connection, "audit_log", "action = 'export'")) == len(exports)


def test_an_export_by_a_token_says_which(app: Flask, connection: Connection) -> None:
    token = tokens.create_token(connection, terminal_actor(), "nightly copy", Role.VIEWER)
    headers = {"Authorization": f"Bearer {token}"}
    assert app.test_client().get("/audit.csv", headers=headers).status_code == 200
    (kept,) = rows(connection, "audit_log", "action = 'export'")
    assert (kept["actor"], kept["source"], kept["target_id"]) == ("token:nightly copy", "api", "/audit.csv")


def test_neither_twins_nor_pages_nor_what_is_refused_is_an_export(
    client: FlaskClient, connection: Connection
) -> None:
    client.get("/runs")
    client.get("/runs.json")
    client.head("/runs.csv")
    assert client.get("/runs.csv?status=nonsense").status_code == 400
    assert rows(connection, "audit_log", "action = 'export'") == []


def test_an_export_keeps_no_secret_that_was_searched_for(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, payload={"token": "hunter2"})
    query = "payload.token=hunter2&q=redis%3A%2F%2F%3Ahunter2%40cache&type=mail"
    assert client.get(f"/runs.csv?{query}").status_code == 200
    (kept,) = rows(connection, "audit_log", "action = 'export'")
    assert "hunter2" not in str(kept) and kept["after"]["filter"].endswith("&type=mail")
    page = client.get("/audit?what=export").text
    assert "rows 0" in page and "/runs.csv" in page and ">Export<" in page


def test_nothing_goes_out_without_its_row(client: FlaskClient, connection: Connection) -> None:
    a_run(connection)
    connection.execute(
        "ALTER TABLE wakeboard.audit_log ADD CONSTRAINT full_disk CHECK (action <> 'export') NOT VALID"
    )
    answer = client.get("/runs.csv")
    assert answer.status_code >= 500 and "status,job_type" not in answer.text


def test_the_payload_is_the_last_column_as_json(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, payload={"=1+1": ["@SUM(A1)", "two\nlines"], "price": 1.50, "token": "hunter2"})
    (line,) = lines_of(client, "/runs.csv")
    assert list(line)[-1] == "payload" and line["payload"].startswith("{")
    assert json.loads(line["payload"]) == {
        "=1+1": ["@SUM(A1)", "two\nlines"], "price": 1.5, "token": "•••",
    }  # fmt: skip


def test_a_payload_too_long_for_a_list_says_where_it_stands(
    client: FlaskClient, connection: Connection
) -> None:
    short = a_run(connection, payload={"text": "x" * (LONGEST_PAYLOAD - len('{"text": ""}'))})
    # Kept by PostgreSQL, a list of ones takes four times its text.
    ones = a_run(connection, payload={"ones": [1] * (LONGEST_PAYLOAD // 3 - 10)})
    long = a_run(connection, payload={"token": "hunter2" * LONGEST_PAYLOAD})
    noise = a_run(connection, payload={"noise": token_hex(4 * LONGEST_PAYLOAD)})
    shown = {int(line["id"]): line["payload"] for line in lines_of(client, "/runs.csv")}
    assert len(shown[short]) == LONGEST_PAYLOAD
    assert shown[ones].startswith('{"ones": [1, 1')
    for run_id in (long, noise):
        assert shown[run_id] == f"… over {number(LONGEST_PAYLOAD)} characters: /runs/{run_id}/payload.json"
        assert client.get(f"/runs/{run_id}/payload.json").status_code == 200
    items = {item["id"]: item["payload"] for item in items_of(client, "/runs.json")}
    assert items[long] == {"token": "•••"}, "a twin has it whole"
