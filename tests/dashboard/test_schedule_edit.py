"""Editing a schedule: what was typed stays until it is right, nobody's edit is lost, and the audit tells."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_shown_as_text
from tests.support.factories import a_definition, a_run, rows
from wakeboard_dashboard.text import schedule_form as form

JSON = {"Accept": "application/json"}
PATH = "/schedules/nightly/edit"
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def stored(connection: Connection) -> dict[str, Any]:
    return rows(connection, "job_definitions", "name = 'nightly'")[0]


def fields(html: str) -> dict[str, str]:
    """Return what a browser would send back from the form of a page."""
    found = dict(re.findall(r'<input [^>]*name="(\w+)" value="([^"]*)"', html))
    found["payload"] = re.findall(r'<textarea name="payload"[^>]*>(.*?)</textarea>', html, re.DOTALL)[0]
    for name, options in re.findall(r'<select name="(\w+)">(.*?)</select>', html, re.DOTALL):
        found[name] = re.findall(r'<option value="([^"]*)" selected', options)[0]
    return {name: unescape(value) for name, value in found.items()}


def typed(client: FlaskClient, **changes: str) -> dict[str, str]:
    return fields(client.get(PATH).text) | changes


@pytest.fixture(autouse=True)
def nightly(connection: Connection) -> None:
    a_definition(
        connection, "nightly", schedule="30 2 * * *", timezone="Europe/Berlin", grace_seconds=90,
        payload={"path": "/var", "api_key": "sk-12345"}, timeout_seconds=1.5,
    )  # fmt: skip


def test_the_form_says_what_the_schedule_says(client: FlaskClient) -> None:
    found = typed(client)
    assert (found["schedule"], found["timezone"]) == ("30 2 * * *", "Europe/Berlin")
    assert (found["grace_seconds"], found["timeout_seconds"], found["max_attempts"]) == ("1m30s", "1.5s", "")
    assert (found["misfire"], found["overlap"], found["priority"], found["enabled"]) == (
        "one",
        "skip",
        "2",
        "1",
    )
    assert "sk-12345" not in found["payload"] and "/var" in found["payload"]
    page = client.get(PATH).text
    assert "At 02:30 every day" in page and "Next fires" in page
    assert f'href="{PATH}"' in client.get("/schedules/nightly").text


def test_saving_what_was_shown_changes_nothing(client: FlaskClient, connection: Connection) -> None:
    before = stored(connection)
    answer = client.post(PATH, data=typed(client))
    assert (answer.status_code, answer.location) == (303, "/schedules/nightly")
    assert stored(connection) == before


def test_an_edit_is_saved_and_the_audit_says_before_and_after(
    client: FlaskClient, connection: Connection
) -> None:
    a_run(connection, "succeeded", definition_id=stored(connection)["id"])
    sent = typed(
        client, schedule="0 4 * * 1-5", timezone="UTC", misfire="all", grace_seconds="5m", reason="DST"
    )
    sent["payload"] = sent["payload"].replace("/var", "/srv")
    assert client.post(PATH, data=sent).status_code == 303
    now = stored(connection)
    assert (now["schedule"], now["timezone"], now["misfire"]) == ("0 4 * * 1-5", "UTC", "all")
    assert now["grace_seconds"] == 300 and now["payload"] == {"path": "/srv", "api_key": "sk-12345"}
    assert now["next_fire_at"] > datetime.now(UTC) and now["next_fire_at"].hour == 4
    (entry,) = rows(connection, "audit_log", "action = 'schedule.edit'")
    assert (entry["actor"], entry["reason"]) == ("admin", "DST")
    assert entry["before"]["schedule"] == "30 2 * * *" and entry["after"]["schedule"] == "0 4 * * 1-5"
    assert set(entry["before"]) == {"schedule", "timezone", "misfire", "grace_seconds", "payload"}
    page = client.get("/schedules/nightly").text
    assert "30 2 * * * → 0 4 * * 1-5" in page and "sk-12345" not in page


def test_a_change_of_something_else_leaves_the_next_fire(client: FlaskClient, connection: Connection) -> None:
    before = stored(connection)["next_fire_at"]
    client.post(PATH, data=typed(client, grace_seconds="10m"))
    assert stored(connection)["next_fire_at"] == before and stored(connection)["grace_seconds"] == 600


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("schedule", "61 2 * * *", "0 to 59"),
        ("schedule", "soon", "a schedule has five"),
        ("timezone", "Europe/Berlim", "did you mean Europe/Berlin"),
        ("payload", "{not json", "The payload is not JSON"),
        ("payload", "[1]", "must be a JSON object"),
        ("payload", '{"new": "•••"}', "write the value itself"),
        ("misfire", "some", "allowed: one, all, none"),
        ("overlap", "maybe", "allowed: skip, allow, wait"),
        ("grace_seconds", "a while", "is not a duration"),
        ("grace_seconds", "1.5s", "whole seconds"),
        ("max_attempts", "0", "a whole number from 1"),
        ("timeout_seconds", "-1", "is not a duration"),
        ("priority", "9", "from 0 to 4"),
        ("enabled", "perhaps", "allowed: 1 or 0"),
    ],
)
def test_wrong_input_keeps_what_was_typed_and_says_what_is_allowed(
    client: FlaskClient, connection: Connection, name: str, wrong: str, sentence: str
) -> None:
    before = stored(connection)
    other = "overlap" if name != "overlap" else "misfire"
    answer = client.post(
        PATH, data=typed(client, **{name: wrong, other: "none" if other == "misfire" else "wait"})
    )
    page = unescape(answer.text)
    assert answer.status_code == 400 and "Nothing was saved" in page and sentence in page
    if name not in ("misfire", "overlap", "priority", "enabled"):
        assert wrong in page and 'aria-invalid="true"' in page
    assert f'value="{"wait" if other == "overlap" else "none"}" selected' in page
    assert stored(connection) == before
    told = client.post(PATH, json={name: wrong}, headers=JSON)
    assert told.status_code == 400 and name in told.get_json()["errors"]


def test_an_edit_of_somebody_else_is_not_overwritten(client: FlaskClient, connection: Connection) -> None:
    mine = typed(client, grace_seconds="5m")
    connection.execute('UPDATE wakeboard.job_definitions SET payload = \'{"path": "/opt"}\'')
    answer = client.post(PATH, data=mine)
    page = unescape(answer.text)
    assert answer.status_code == 409 and "was changed since you opened it" in page
    assert "It says now:" in page and "/opt" in page and fields(answer.text)["grace_seconds"] == "5m"
    assert stored(connection)["grace_seconds"] == 90
    again = fields(answer.text) | {"payload": '{"path": "/mine"}'}
    assert client.post(PATH, data=again).status_code == 303
    assert stored(connection)["payload"] == {"path": "/mine"} and stored(connection)["grace_seconds"] == 300
    told = client.post(PATH, json={"priority": 0, "version": mine["version"]}, headers=JSON)
    assert (told.status_code, told.get_json()["changed"]) == (409, False)


def test_an_api_changes_one_field_alone(client: FlaskClient, connection: Connection) -> None:
    answer = client.post(PATH, json={"payload": {"path": "/x"}, "max_attempts": 3}, headers=JSON)
    assert (answer.status_code, answer.get_json()["changed"]) == (200, True)
    now = stored(connection)
    assert (now["payload"], now["max_attempts"], now["grace_seconds"]) == ({"path": "/x"}, 3, 90)
    client.post(PATH, json={"max_attempts": None, "timeout_seconds": None}, headers=JSON)
    assert stored(connection)["max_attempts"] is None and stored(connection)["timeout_seconds"] is None
    again = client.post(PATH, json={"payload": {"path": "/x"}}, headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)


def test_a_preview_shows_what_was_typed_and_saves_nothing(
    client: FlaskClient, connection: Connection
) -> None:
    before = stored(connection)
    page = client.post(PATH, data=typed(client, schedule="0 9 31 * *", preview="1")).text
    assert "What you typed would fire" in page and "31st" in page
    assert 'value="0 9 31 * *"' in page and stored(connection) == before
    wrong = client.post(PATH, data=typed(client, schedule="nonsense", preview="1")).text
    assert "Cannot be read:" in unescape(wrong) and stored(connection) == before


def test_switching_off_and_on_is_part_of_the_form(client: FlaskClient, connection: Connection) -> None:
    client.post(PATH, data=typed(client, enabled="0"))
    assert stored(connection)["enabled"] is False
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = now() - interval '1 day'")
    client.post(PATH, data=typed(client, enabled="1"))
    assert stored(connection)["enabled"] and stored(connection)["next_fire_at"] > datetime.now(UTC)


def test_what_cannot_fire_is_mended(client: FlaskClient, connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.job_definitions SET timezone = 'Not/AZone', error = 'unknown zone'")
    page = client.get(PATH)
    assert page.status_code == 200
    client.post(PATH, data=typed(client, timezone="UTC"))
    assert stored(connection)["error"] is None and stored(connection)["next_fire_at"] is not None


def test_only_admins_edit_and_remove(as_role: AsRole, connection: Connection) -> None:
    for role in ("viewer", "operator"):
        client = as_role(role)
        assert "Needs the role admin" in client.get("/schedules/nightly").text
        for verb in ("edit", "remove"):
            assert client.get(f"/schedules/nightly/{verb}").status_code == 403
            assert client.post(f"/schedules/nightly/{verb}", data={"priority": "0"}).status_code == 403
    assert stored(connection)["priority"] == 2


def test_an_admin_removes_a_schedule(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "succeeded", definition_id=stored(connection)["id"])
    assert "its runs and their history stay" in client.get("/schedules/nightly/remove").text
    answer = client.post("/schedules/nightly/remove", data={"next": "/schedules"})
    assert (answer.status_code, answer.location) == (303, "/schedules")
    assert rows(connection, "job_definitions") == [] and rows(connection, "job_runs")[0]["id"] == run
    assert client.get(PATH).status_code == 404
    assert client.post(PATH, json={"priority": 1}, headers=JSON).status_code == 404


@pytest.mark.parametrize(
    ("job_type", "statuses", "said"),
    [
        ("command", ["queued", "failed", "running", "dead"], "2 runs of it wait and die at their next try"),
        ("command:www-data", ["queued", "failed"], "2 runs of it wait and die at their next try"),
        (
            "http",
            ["failed"],
            "1 run of it waits and dies at its next try (definition_gone): what to do",
        ),
        ("command", ["dead"], "A run of it that is tried again dies (definition_gone): what to do stands in"),
        ("report", ["queued", "failed"], "their history stay. 2 runs of it wait and go on."),
        ("report", ["running"], "its runs and their history stay.</p>"),
    ],
)
def test_a_removal_says_what_becomes_of_runs_that_wait(
    client: FlaskClient, connection: Connection, job_type: str, statuses: list[str], said: str
) -> None:
    made = a_definition(connection, "sweep", job_type=job_type)
    for status in statuses:
        a_run(connection, status, job_type=job_type, definition_id=made)
    a_run(connection, "failed", job_type=job_type)
    assert said in client.get("/schedules/sweep/remove").text
    answer = client.post("/schedules/sweep/remove", headers=JSON).get_json()
    assert said.removesuffix("</p>").removeprefix("their history stay. ").split(". ")[-1] in (
        answer["message"].replace("its history stays", "its runs and their history stay")
    )


def test_the_trail_of_a_removal_says_all_that_the_schedule_was(
    client: FlaskClient, connection: Connection
) -> None:
    argv = ["/usr/local/bin/sweep", *(f"--keep=/srv/data/{number:03}" for number in range(20))]
    a_definition(
        connection, "sweep", job_type="command", payload={"argv": argv, "env": {"API_TOKEN": "hush"}},
        schedule="*/7 3 * * 1-5", timezone="Europe/Paris", max_attempts=4, timeout_seconds=90,
    )  # fmt: skip
    client.post("/schedules/sweep/remove", headers=JSON)
    for page in ("/audit", "/audit?target=schedule:sweep"):
        shown = unescape(client.get(page).text)
        whole = shown[shown.index("<summary>all of it") :].split("</details>")[0]
        said = ["type command", "schedule */7 3 * * 1-5", "timezone Europe/Paris", "timeout in seconds 90"]
        for each in [*said, "max attempts 4", "overlap skip", "misfire one", argv[-1]]:
            assert each in whole, each
        assert "hush" not in shown
    a_definition(connection, "sweep", job_type="command", payload={"argv": argv})
    assert "<summary>all of it" in client.get("/schedules/sweep").text


def test_foreign_text_is_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    connection.execute(
        "UPDATE wakeboard.job_definitions SET schedule = %(t)s, timezone = %(t)s, job_type = 'a<b>'",
        {"t": HOSTILE.replace("'", "")},
    )
    assert_shown_as_text(client, PATH)


@pytest.mark.parametrize(
    ("seconds", "shown", "said"),
    [
        (315_360_001, "315360001", "longer than ten years"),
        (1e17, "100000000000000000", "longer than ten years"),
        (1e308, "1e+308", "is not a duration"),
        (315_360_000, "3650d", None),
        (1_234_567.5, "1234567.5", None),
    ],
)
def test_a_timeout_that_plain_sql_made_too_long_can_be_seen_and_corrected(
    client: FlaskClient, connection: Connection, seconds: float, shown: str, said: str | None
) -> None:
    connection.execute("UPDATE wakeboard.job_definitions SET timeout_seconds = %s", (seconds,))
    assert typed(client)["timeout_seconds"] == shown
    page = client.post(PATH, data=typed(client))
    assert (page.status_code == 400) == (said is not None) and (said or "") in unescape(page.text)
    assert client.post(PATH, data=typed(client, timeout_seconds="2h")).status_code == 303
    assert stored(connection)["timeout_seconds"] == 7200


def test_what_is_hidden_comes_back_where_it_was() -> None:
    stored = {"a": {"token": {"x": 1}, "n": [1, "Bearer abcdefghijk"]}, "password": "p"}
    shown = {"a": {"token": "•••", "n": [2, "Bearer •••"]}, "password": "•••", "new": True}
    assert form.restored(shown, stored) == {
        "a": {"token": {"x": 1}, "n": [2, "Bearer abcdefghijk"]}, "password": "p", "new": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"dry_run": True, "n": 1}, {"dry_run": 1, "n": 1}),
        ({"dry_run": True, "n": 1}, {"dry_run": True, "n": 1.0}),
        ({"list": [True, {"token": "one"}]}, {"list": [1, {"token": "•••"}]}),
        ({"list": [{"token": "one", "n": True}, 2]}, {"list": [{"token": "•••", "n": 1}, 2]}),
    ],
)
def test_true_that_becomes_1_is_a_change(
    client: FlaskClient, connection: Connection, before: dict[str, Any], after: dict[str, Any]
) -> None:
    connection.execute("UPDATE wakeboard.job_definitions SET payload = %s", (json.dumps(before),))
    answer = client.post(PATH, json={"payload": after}, headers=JSON).get_json()
    assert answer["message"] == "Schedule nightly was changed."
    kept = json.dumps(after, sort_keys=True, ensure_ascii=False).replace("•••", "one")
    assert json.dumps(stored(connection)["payload"], sort_keys=True) == kept
    trail = client.get("/schedules/nightly").text.split("<h2>Audit trail")[1]
    assert "payload {" in trail


A, B = {"host": "a", "token": "one"}, {"host": "b", "token": "two"}
SHOWN_A, SHOWN_B = A | {"token": "•••"}, B | {"token": "•••"}


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ([SHOWN_A, SHOWN_B, "plain"], [A, B, "plain"]),
        ([SHOWN_A | {"host": "c"}, SHOWN_B, "other"], [A | {"host": "c"}, B, "other"]),
        ([SHOWN_A, B | {"token": "new"}, "plain"], [A, B | {"token": "new"}, "plain"]),
        ([{"host": "c", "token": "new"}], [{"host": "c", "token": "new"}]),
        (["plain"], ["plain"]),
    ],
)
def test_a_list_whose_hidden_values_stayed_in_place_has_them_still(
    given: list[Any], becomes: list[Any]
) -> None:
    assert form.restored({"servers": given}, {"servers": [A, B, "plain"]}) == {"servers": becomes}


@pytest.mark.parametrize(
    "given",
    [
        [SHOWN_B, SHOWN_A],
        [SHOWN_A],
        [SHOWN_B],
        [SHOWN_A, SHOWN_B, SHOWN_B],
        [SHOWN_B, {"host": "c", "token": "new"}],
        [SHOWN_B | {"host": "c"}, SHOWN_A],
        [SHOWN_A | {"host": "c"}, SHOWN_B | {"host": "d"}],
    ],
)
def test_a_list_whose_hidden_values_may_have_moved_is_refused_and_nothing_written(
    client: FlaskClient, connection: Connection, given: list[Any]
) -> None:
    payload = json.dumps({"servers": [A, B]})
    connection.execute("UPDATE wakeboard.job_definitions SET payload = %s", (payload,))
    before = stored(connection)
    page = client.post(PATH, data=typed(client, payload=json.dumps({"servers": given})))
    assert page.status_code == 400
    assert "A list “servers” of the payload holds values shown as •••" in unescape(page.text)
    answer = client.post(PATH, json={"payload": {"servers": given}}, headers=JSON)
    assert answer.status_code == 400 and "keep the list's length and order" in answer.get_json()["message"]
    assert stored(connection) == before


def test_hidden_values_that_look_alike_are_not_told_apart_in_a_changed_list() -> None:
    before = {"keys": ["Bearer abcdefghijk", "Bearer lmnopqrstuv"]}
    assert form.restored({"keys": ["Bearer •••", "Bearer •••"]}, before) == before
    with pytest.raises(ValueError, match="not sure which is which"):
        form.restored({"keys": ["Bearer •••", "Bearer of news"]}, before)
