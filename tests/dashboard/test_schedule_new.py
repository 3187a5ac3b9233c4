"""A new schedule from the browser: what was typed stays until it is right; none that exists is changed."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, one_line
from tests.support.factories import a_definition, a_type, rows

JSON = {"Accept": "application/json"}
PATH = "/schedules/+new"
NIGHTLY = {"name": "nightly", "job_type": "report", "schedule": "30 2 * * *", "timezone": "Europe/Paris"}


@pytest.fixture(autouse=True)
def report(connection: Connection) -> None:
    a_type(connection, "report")


def made(connection: Connection) -> list[dict[str, Any]]:
    return rows(connection, "job_definitions")


def test_a_schedule_is_made_and_opened(client: FlaskClient, connection: Connection) -> None:
    assert f'href="{PATH}"' in client.get("/schedules").text
    typed = NIGHTLY | {"payload": '{"days": 1}', "grace_seconds": "5m", "priority": "0", "reason": "asked"}
    answer = client.post(PATH, data=typed)
    assert (answer.status_code, answer.location) == (303, "/schedules/nightly")
    (row,) = made(connection)
    assert (row["job_type"], row["schedule"], row["timezone"]) == ("report", "30 2 * * *", "Europe/Paris")
    assert (row["payload"], row["grace_seconds"], row["priority"]) == ({"days": 1}, 300, 0)
    assert row["enabled"] and row["next_fire_at"] is not None
    (entry,) = rows(connection, "audit_log", "action = 'schedule.edit'")
    assert (entry["actor"], entry["reason"], entry["before"]) == ("admin", "asked", None)
    assert entry["after"]["schedule"] == "30 2 * * *"


def test_the_form_begins_with_what_is_usual_and_the_type_of_its_address(client: FlaskClient) -> None:
    page = client.get(f"{PATH}?type=report").text
    assert 'name="job_type" value="report"' in page and 'name="grace_seconds" value="1m"' in page
    assert '<option value="one" selected>' in page and 'name="enabled"' not in page


def test_a_name_that_is_taken_is_refused_and_its_schedule_stays(
    client: FlaskClient, connection: Connection
) -> None:
    a_definition(connection, "nightly", job_type="report", schedule="0 1 * * *")
    before = made(connection)
    answer = client.post(PATH, data=NIGHTLY)
    page = unescape(answer.text)
    assert answer.status_code == 409 and "There is a schedule nightly already." in page
    assert 'value="30 2 * * *"' in page and made(connection) == before
    told = client.post(PATH, json=NIGHTLY, headers=JSON)
    assert (told.status_code, told.get_json()["changed"]) == (409, False) and made(connection) == before


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("name", "Nightly run", "use 1 to 100 of a-z"),
        ("name", "", "use 1 to 100 of a-z"),
        ("job_type", "", "A job type is text of 1 to 200 characters"),
        ("job_type", "reprot", "no worker has ever registered it. Near it: report."),
        ("schedule", "61 2 * * *", "0 to 59"),
        ("timezone", "Europe/Pariss", "did you mean Europe/Paris"),
        ("payload", "[1]", "must be a JSON object"),
        ("grace_seconds", "a while", "is not a duration"),
    ],
)
def test_wrong_input_keeps_what_was_typed_and_says_what_is_allowed(
    client: FlaskClient, connection: Connection, name: str, wrong: str, sentence: str
) -> None:
    typed = NIGHTLY | {"max_attempts": "7", name: wrong}
    answer = client.post(PATH, data=typed)
    page = unescape(answer.text)
    assert answer.status_code == 400 and "Nothing was created" in page and sentence in page
    assert 'name="max_attempts" value="7"' in page and wrong in page
    told = client.post(PATH, json=typed, headers=JSON)
    assert told.status_code == 400 and list(told.get_json()["errors"]) == [name]
    assert made(connection) == []


def test_a_type_that_is_to_come_is_taken_when_that_is_said(
    client: FlaskClient, connection: Connection
) -> None:
    first = client.post(PATH, data=NIGHTLY | {"job_type": "to_come"})
    assert first.status_code == 400 and 'name="new_type"' in first.text
    assert client.post(PATH, data=NIGHTLY | {"job_type": "to_come", "new_type": "1"}).status_code == 303
    answer = client.post(
        PATH, json=NIGHTLY | {"name": "other", "job_type": "to_come", "new_type": True}, headers=JSON
    )
    assert (answer.status_code, answer.get_json()["status"]) == (200, "created")
    assert [row["job_type"] for row in made(connection)] == ["to_come", "to_come"]


def test_what_no_run_could_follow_is_refused_as_a_whole(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "command")
    answer = client.post(PATH, data=NIGHTLY | {"job_type": "command", "payload": "{}"})
    assert answer.status_code == 400 and "argv" in answer.text
    assert made(connection) == []


def test_a_preview_shows_the_fires_and_makes_nothing(client: FlaskClient, connection: Connection) -> None:
    page = one_line(client.post(PATH, data=NIGHTLY | {"preview": "1"}).text)
    assert '<button name="preview" value="1" formnovalidate>' in page, "also of a form that is not filled in"
    assert "What you typed would fire" in page and "At 02:30 every day" in page and "Europe/Paris" in page
    assert "Nothing was created" not in page and made(connection) == []


def test_only_admins_make_schedules(as_role: AsRole, connection: Connection) -> None:
    for role in ("viewer", "operator"):
        client = as_role(role)
        assert PATH not in client.get("/schedules").text
        assert client.get(PATH).status_code == 403
        assert client.post(PATH, data=NIGHTLY).status_code == 403
    assert made(connection) == []


def test_a_field_that_nobody_reads_is_refused(client: FlaskClient, connection: Connection) -> None:
    answer = client.post(PATH, json=NIGHTLY | {"cron": "0 1 * * *"}, headers=JSON)
    assert answer.status_code == 400 and "There is no field “cron”" in answer.get_json()["message"]
    assert made(connection) == []
