"""Alerts: how rules stand in words, who is told, silence, edit and the test button, for each role."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of, one_line
from tests.support.factories import a_run, a_worker, age, insert, rows
from tests.support.receivers import SECRET, Mailbox, Receiver, mailbox, receiver
from wakeboard.accounts import sessions, users
from wakeboard.alerts.evaluation import RuleEvaluator
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard_dashboard import create_app
from wakeboard_dashboard.views.alerts import silence_seconds

__all__ = ["mailbox", "receiver"]
JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def rule(connection: Connection, name: str = "dead_runs") -> dict[str, Any]:
    return rows(connection, "alert_rules", "name = %s", name)[0]


def look(connection: Connection, watcher: str = "worker") -> None:
    """Let the rules be looked at, as workers and the web process do, without any channel."""
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = NULL")
    RuleEvaluator("web" if watcher == "web" else "worker", Settings.load({}, environ={})).step(connection)


@pytest.fixture
def told(
    app: Flask, database: str, connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> Iterator[FlaskClient]:
    """An admin at a dashboard that has both channels."""
    environ = {**mailbox.environment, **receiver.environment}
    settings = Settings.load({"database_url": database}, environ=environ)
    client = create_app(settings).test_client()
    client.environ_base.update({"HTTP_SEC_FETCH_SITE": "same-origin"})
    cookie = sessions.open_session(connection, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    yield client


def test_a_new_house_watches_and_says_how_to_be_told(client: FlaskClient) -> None:
    page = client.get("/alerts").text
    for words in (
        "No worker for waiting work",
        "Stuck leases",
        "No notifications configured",
        "WAKEBOARD_ALERT_MAIL",
    ):
        assert words in page
    assert "WAKEBOARD_HEARTBEAT_URL" in page


def test_a_rule_that_fires_says_why_in_words(client: FlaskClient, connection: Connection) -> None:
    for _ in range(3):
        a_run(connection, "dead")
    look(connection)
    page = client.get("/alerts").text
    assert "3 runs died in the last 1 h: mail 3. Look at them, and retry what can be fixed." in page
    assert 'data-attention="1"' in page
    items = {item["name"]: item for item in items_of(client, "/alerts.json")}
    assert (items["dead_runs"]["status"], items["stuck_leases"]["status"]) == ("firing", "quiet")
    assert "alert rules that fire" in client.get("/").text
    assert 'wakeboard_alerts_firing{rule="dead_runs"} 1.0' in client.get("/metrics").text


def test_fragments_are_what_the_page_shows(told: FlaskClient, connection: Connection) -> None:
    look(connection)
    told.post(f"/alerts/{rule(connection)['id']}/test", headers=JSON)
    assert_fragments_match(told, "/alerts")


def test_an_unknown_filter_is_refused(client: FlaskClient) -> None:
    assert client.get("/alerts?stat=1").status_code == 400
    assert client.get("/alerts/999/silence").status_code == 404
    assert client.post("/alerts/999/silence", headers=JSON).status_code == 404


def test_silence_answers_in_three_shapes_and_ends(client: FlaskClient, connection: Connection) -> None:
    path = f"/alerts/{rule(connection)['id']}/silence"
    assert "one hour" in client.get(path).text
    answer = client.post(path, json={"for": "8h", "reason": "moving house"}, headers=JSON)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "silenced")
    assert rule(connection)["silenced_until"] is not None
    audited = rows(connection, "audit_log", "action = 'alert.silence'")[-1]
    assert (audited["reason"], audited["result"]) == ("moving house", "done")
    assert "silenced" in client.get("/alerts").text
    htmx = client.post(path, data={"for": "0"}, headers={"HX-Request": "true"})
    assert "may send messages again" in htmx.text
    plain = client.post(path, data={"for": "1h"})
    assert (plain.status_code, plain.headers["Location"]) == (303, "/alerts")
    for wrong in ("soon", "31d", "-1"):
        assert client.post(path, data={"for": wrong}, headers=JSON).status_code == 400, wrong


def test_until_the_morning_is_the_operators_own_morning() -> None:
    paris = ZoneInfo("Europe/Paris")
    assert silence_seconds("morning", datetime(2026, 11, 21, 23, 0, tzinfo=paris)) == 9 * 3600
    assert silence_seconds("morning", datetime(2026, 11, 21, 7, 30, tzinfo=paris)) == 1800
    assert silence_seconds("morning", datetime(2026, 3, 28, 23, 0, tzinfo=paris)) == 8 * 3600
    assert silence_seconds("morning", datetime(2026, 10, 24, 23, 0, tzinfo=paris)) == 10 * 3600


def test_edits_are_bounded_and_explained(client: FlaskClient, connection: Connection) -> None:
    path = f"/alerts/{rule(connection)['id']}/edit"
    page = client.get(path).text
    assert "From this many (1 to 1e+06)" not in page and "At most one message in (1m to 1d)" in page
    answer = client.post(path, json={"count": 5, "within_seconds": "2h"}, headers=JSON)
    assert answer.get_json()["changed"] is True
    kept = rule(connection)["settings"]
    assert (kept["count"], kept["within_seconds"], kept["window_seconds"]) == (5, 7200, 900)
    assert client.post(path, json={"count": "5"}, headers=JSON).get_json()["changed"] is False
    for wrong in (
        {"count": "0"},
        {"count": "1.5"},
        {"count": "nan"},
        {"window_seconds": "1s"},
        {"nonsense": "1"},
    ):
        answer = client.post(path, json=wrong, headers=JSON)
        assert answer.status_code == 400, wrong
        assert "allowed" in answer.get_json()["message"]


def test_a_form_of_a_rule_that_cannot_be_read_comes_back_as_it_was_typed(
    client: FlaskClient, connection: Connection
) -> None:
    before = rule(connection)
    typed = {"enabled": "0", "count": "0", "window_seconds": "2h", "reason": "deploys take long"}
    answer = client.post(f"/alerts/{before['id']}/edit", data=typed)
    page = answer.text
    assert answer.status_code == 400 and "allowed: 1 to" in page
    page = one_line(page)
    for words in ('name="count" value="0"', 'name="window_seconds" value="2h"', 'value="deploys take long"'):
        assert words in page, words
    assert '<option value="0" selected>off' in page
    assert rule(connection) == before


def test_a_rule_that_is_off_is_not_looked_at_and_begins_anew(
    client: FlaskClient, connection: Connection
) -> None:
    a_run(connection, "dead")
    look(connection)
    path = f"/alerts/{rule(connection)['id']}/edit"
    assert client.post(path, json={"enabled": "0"}, headers=JSON).get_json()["status"] == "off"
    look(connection)
    assert rule(connection)["state"] == "quiet"
    assert client.post(path, json={"enabled": "1"}, headers=JSON).status_code == 200
    look(connection)
    assert rule(connection)["state"] == "firing"


def test_the_test_button_sends_now_and_shows_what_was_answered(
    told: FlaskClient, connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    path = f"/alerts/{rule(connection)['id']}/test"
    answer = told.post(path, headers=JSON)
    assert answer.status_code == 200
    assert "accepted the mail" in answer.get_json()["message"]
    assert "answered 204" in answer.get_json()["message"]
    assert [letter["Subject"] for letter in mailbox.letters] == ["Test, nothing is wrong: Dead runs"]
    assert receiver.bodies()[0]["cause"] == "test"
    page = told.get("/alerts").text
    assert page.count(">sent</span>") == 2
    receiver.status = 500
    refused = told.post(f"{path}?channel=webhook", headers=JSON)
    assert refused.status_code == 409
    assert "Webhook: 127.0.0.1:" in refused.get_json()["message"]
    assert len(mailbox.letters) == 1
    assert "not sent" in told.get("/alerts").text
    assert SECRET not in told.get("/alerts").text


def test_without_a_channel_the_test_says_how_to_get_one(client: FlaskClient, connection: Connection) -> None:
    answer = client.post(f"/alerts/{rule(connection)['id']}/test", headers=JSON)
    assert (answer.status_code, answer.get_json()["changed"]) == (409, False)
    assert "WAKEBOARD_SMTP_URL" in answer.get_json()["message"]


def test_each_role_does_what_it_may(as_role: AsRole, connection: Connection) -> None:
    path = f"/alerts/{rule(connection)['id']}"
    viewer, operator = as_role("viewer"), as_role("operator")
    assert viewer.get("/alerts").status_code == 200
    for verb in ("silence", "edit", "test"):
        assert viewer.get(f"{path}/{verb}").status_code == 403
        assert viewer.post(f"{path}/{verb}", headers=JSON).status_code == 403
    assert operator.post(f"{path}/silence", headers=JSON).status_code == 200
    assert operator.post(f"{path}/edit", json={"count": "2"}, headers=JSON).status_code == 403
    assert rule(connection)["settings"] == {}


def test_addresses_are_for_those_who_act(
    database: str, connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    environ = {**mailbox.environment, **receiver.environment}
    app = create_app(Settings.load({"database_url": database}, environ=environ))
    seen = {}
    for role in Role:
        client = app.test_client()
        cookie = sessions.open_session(connection, role.value, role)
        client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
        seen[role] = client.get("/alerts").text
    assert "ops@example.org" in seen[Role.OPERATOR]
    assert "ops@example.org" not in seen[Role.VIEWER] and "configured" in seen[Role.VIEWER]


def test_hostile_names_are_text(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "dead", job_type=HOSTILE)
    age(connection, a_run(connection, job_type=HOSTILE), "1 hour")
    look(connection)
    look(connection, "web")
    message = {"kind": "firing", "channel": "mail", "subject": HOSTILE, "body": {"sentence": HOSTILE}}
    insert(connection, "alert_messages", {**message, "error": HOSTILE, "tries": 3})
    assert_shown_as_text(client, "/alerts")
    assert_shown_as_text(client, "/")


def test_a_message_tells_how_it_fares(client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection, job_type="alert")
    base = {"kind": "firing", "channel": "mail", "subject": "Dead runs: fires", "body": {}}
    insert(connection, "alert_messages", {**base, "run_id": run_id})
    insert(connection, "alert_messages", {**base, "tries": 2, "error": "mail.example.org answered 451."})
    page = client.get("/alerts").text
    assert f'href="/runs/{run_id}"' in page
    assert "waiting" in page and "will be tried again" in page and "mail.example.org answered 451." in page
    assert "2 tries" in page


def test_the_dead_mans_switch_shows_its_last_call(
    database: str, connection: Connection, as_role: AsRole
) -> None:
    a_worker(connection)
    connection.execute("UPDATE wakeboard.installation SET pinged_at = now(), ping_error = 'it answered 500.'")
    settings = Settings.load(
        {"database_url": database},
        environ={"WAKEBOARD_HEARTBEAT_URL": "https://ping.example.org/secret-path"},
    )
    client = create_app(settings).test_client()
    cookie = sessions.open_session(connection, "anna", Role.VIEWER)
    client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
    page = client.get("/alerts").text
    assert "ping.example.org" in page and "it answered 500." in page
    assert "secret-path" not in page
