"""Effects: what was begun and never confirmed is listed, and a person settles it."""

from __future__ import annotations

from typing import Any

from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, assert_shown_as_text, items_of
from tests.support.factories import a_run, insert, rows

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def an_effect(connection: Connection, run_id: int, key: str = "mail", **columns: Any) -> int:
    values = {
        "scope": f"run:{run_id}", "key": key, "run_id": run_id, "attempt": 1, "lease_epoch": 1,
        "status": "started",
    }  # fmt: skip
    return int(insert(connection, "effects", values | columns))


def listed(client: FlaskClient, query: str = "") -> list[int]:
    return [each["id"] for each in items_of(client, f"/effects.json{query}")]


def test_an_empty_list_says_what_would_be_here(client: FlaskClient) -> None:
    assert "Every effect is confirmed" in client.get("/effects").text


def test_only_effects_that_nobody_is_at_are_listed(client: FlaskClient, connection: Connection) -> None:
    running = a_run(connection, "running", lease_epoch=2, attempts=2)
    died = an_effect(connection, a_run(connection, "dead"))
    before = an_effect(connection, running, "by the attempt before", lease_epoch=1)
    an_effect(connection, running, "by this attempt", lease_epoch=2)
    an_effect(connection, running, "confirmed", status="done")
    orphan = an_effect(connection, 999_999, scope="global")
    assert listed(client) == [orphan, before, died]
    page = client.get("/effects").text
    assert "removed by retention" in page and "every run" in page


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead", job_type="report")
    mine = an_effect(connection, run, "invoice:8")
    an_effect(connection, a_run(connection, "dead"), "other")
    assert (
        listed(client, "?key=VOICE")
        == listed(client, "?type=report")
        == listed(client, f"?run={run}")
        == [mine]
    )
    assert "No effect matches" in client.get("/effects?key=none").text
    assert client.get("/effects.json?run=x").status_code == 400


def test_keys_are_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    effect = an_effect(connection, a_run(connection, "dead", job_type=HOSTILE), HOSTILE)
    assert_shown_as_text(client, "/effects")
    assert_shown_as_text(client, f"/effects/{effect}/settle")


def test_the_live_list_is_the_page(client: FlaskClient, connection: Connection) -> None:
    an_effect(connection, a_run(connection, "dead"))
    assert_fragments_match(client, "/effects")


def test_the_csv_has_a_line_per_effect(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    effect = an_effect(connection, run)
    head, line = client.get("/effects.csv").text.splitlines()
    assert head.startswith("id,key,scope,") and line.startswith(
        f"{effect},mail,run:{run},{run},1,1,started,mail,dead"
    )


def test_an_effect_that_happened_stays_done(client: FlaskClient, connection: Connection) -> None:
    effect = an_effect(connection, a_run(connection, "dead"))
    page = client.get(f"/effects/{effect}/settle").text
    assert "Did it happen?" in page and "the run that asks for it next makes it" in page
    answer = client.post(
        f"/effects/{effect}/settle", data={"happened": "yes", "reason": "seen"}, headers=JSON
    )
    assert (answer.status_code, answer.get_json()["status"]) == (200, "done")
    (stored,) = rows(connection, "effects")
    assert (stored["status"], stored["settled_by"]) == ("done", "admin")
    again = client.post(f"/effects/{effect}/settle", data={"happened": "yes"}, headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)
    assert listed(client) == []


def test_an_effect_that_did_not_happen_may_be_made(client: FlaskClient, connection: Connection) -> None:
    effect = an_effect(connection, a_run(connection, "dead"))
    back = client.post(f"/effects/{effect}/settle", data={"happened": "no", "next": "/effects"})
    assert (back.status_code, back.location) == (303, "/effects")
    assert rows(connection, "effects") == []
    gone = client.get(f"/effects/{effect}/settle")
    assert gone.status_code == 404 and "somebody has settled it" in gone.text


def test_settling_needs_a_word(client: FlaskClient, connection: Connection) -> None:
    effect = an_effect(connection, a_run(connection, "dead"))
    answer = client.post(f"/effects/{effect}/settle", headers=JSON)
    assert answer.status_code == 400 and "yes or no" in answer.text
    assert rows(connection, "effects")[0]["status"] == "started"


def test_an_effect_being_made_is_left_alone(client: FlaskClient, connection: Connection) -> None:
    effect = an_effect(connection, a_run(connection, "running"))
    answer = client.post(f"/effects/{effect}/settle", data={"happened": "no"}, headers=JSON)
    assert answer.status_code == 409 and "right now" in answer.get_json()["message"]
