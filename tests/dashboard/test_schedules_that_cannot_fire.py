"""An enabled schedule that cannot fire is told wherever the other sick things are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, items_of
from tests.support.factories import a_definition, a_worker, rows
from tests.support.postgres.write_refusals import refuse
from wakeboard.cli.commands.doctor.liveness import schedules as doctor
from wakeboard.schedules import scheduler

JSON = {"Accept": "application/json"}
SICK_COLUMNS = {
    "mars": {"timezone": "Mars/Base"},
    "no-day": {"schedule": "0 0 31 2 *"},
    "text": {"schedule": "x y"},
}
SICK = {"mars": "'Mars/Base' is not a known time zone", "no-day": "never fires again", "text": "'x y'"}


@pytest.fixture
def sick(connection: Connection) -> Iterator[Connection]:
    """Three schedules that plain SQL made so, beside a well one and a paused one."""
    a_worker(connection)
    for name, columns in SICK_COLUMNS.items():
        a_definition(connection, name, next_fire_at=None, **columns)
    a_definition(connection, "well")
    a_definition(connection, "paused", schedule="0 0 31 2 *", enabled=False)
    scheduler.settle(connection)
    yield connection


def metric(client: FlaskClient) -> str:
    lines = client.get("/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith("wakeboard_unfireable_schedules ")]
    return found.split()[1]


def test_the_overview_says_so_and_leads_to_them(client: FlaskClient, sick: Connection) -> None:
    page = client.get("/").text
    row = page.split('id="unfireable"')[1].split("</tr>")[0]
    assert "schedules that cannot fire" in row and '<td class="number">3</td>' in row
    assert 'href="/schedules?state=unreadable"' in row
    body = client.get("/overview.json").get_json()
    assert body["schedules_that_cannot_fire"] == 3 and body["well"] is False
    assert body["sentence"].startswith("Three schedules cannot fire;")
    assert 'data-attention="3"' in page
    assert_fragments_match(client, "/")
    listed = items_of(client, "/schedules.json?state=unreadable")
    assert {each["name"] for each in listed} == set(SICK)


def test_statusz_raises_the_alarm_and_metrics_count_them(client: FlaskClient, sick: Connection) -> None:
    alarm = client.get("/statusz")
    assert (alarm.status_code, alarm.get_json()["status"]) == (503, "schedules cannot fire")
    assert alarm.get_json()["schedules_that_cannot_fire"] == 3
    assert metric(client) == "3.0"


def test_doctor_names_each_with_its_reason_and_the_mend(sick: Connection) -> None:
    found = list(doctor(sick))
    assert {one.level for one in found} == {"fail"}
    for one, (name, reason) in zip(found, SICK.items(), strict=True):
        assert one.says.startswith(f"{name} cannot fire. ") and reason in one.says
        assert one.mend and f"/schedules/{name}/edit" in one.mend


def test_one_whose_run_the_database_refuses_is_told_of_as_well(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection)
    refuse(connection, "true", "a report names its customer", "INSERT")
    a_definition(connection, "nightly", schedule="0 2 * * *", next_fire_at="-1 minute")
    scheduler.settle(connection)
    assert client.get("/overview.json").get_json()["schedules_that_cannot_fire"] == 1
    assert (client.get("/statusz").status_code, metric(client)) == (503, "1.0")
    (told,) = doctor(connection)
    why = "The database refuses its run (a report names its customer)"
    assert told.says.startswith(f"nightly cannot fire. {why}")
    assert told.mend == "Let the database take its run, or run: wakeboard schedule pause nightly"


def test_all_is_well_again_once_they_are_mended(client: FlaskClient, sick: Connection) -> None:
    sick.execute("UPDATE wakeboard.job_definitions SET timezone = 'UTC', schedule = '0 3 * * *'")
    scheduler.settle(sick)
    assert client.get("/statusz").status_code == 200 and metric(client) == "0.0"
    assert [one.level for one in doctor(sick)] == ["ok"]
    assert client.get("/overview.json").get_json()["schedules_that_cannot_fire"] == 0


def test_a_rule_that_has_not_looked_again_yet_keeps_nothing_unwell(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection)
    a_definition(connection, "well")
    connection.execute(
        "UPDATE wakeboard.alert_rules SET state = 'firing', fired_at = now() WHERE kind = 'cannot_fire'"
    )
    body = client.get("/overview.json").get_json()
    assert (body["well"], body["schedules_that_cannot_fire"]) == (True, 0)
    assert 'data-attention="0"' in client.get("/").text


def test_a_paused_one_is_not_resumed_but_told_what_to_edit(client: FlaskClient, sick: Connection) -> None:
    for name, reason in {**SICK, "no-day": "never comes"}.items():
        assert client.post(f"/schedules/{name}/pause", headers=JSON).status_code == 200
        answer = client.post(f"/schedules/{name}/resume", headers=JSON)
        assert answer.status_code == 409, name
        said = answer.get_json()["message"]
        assert (
            said.startswith(f"Schedule {name} cannot fire: ") and reason in said and "Edit it first" in said
        )
    assert client.get("/statusz").status_code == 200


def test_many_are_not_told_one_by_one(connection: Connection) -> None:
    for number in range(8):
        a_definition(connection, f"sick-{number}", next_fire_at=None, schedule="0 0 31 2 *")
    scheduler.settle(connection)
    *named, others = doctor(connection)
    assert len(named) == 5 and others.says == "3 others cannot either."


@pytest.mark.parametrize("text", ["0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6 *"])
def test_the_form_refuses_a_text_without_any_time(
    client: FlaskClient, connection: Connection, text: str
) -> None:
    a_definition(connection, "nightly")
    before = rows(connection, "job_definitions")
    answer = client.post("/schedules/nightly/edit", json={"schedule": text}, headers=JSON)
    assert answer.status_code == 400
    assert answer.get_json()["message"] == f"'{text}' never comes: none of its months has that day."
    assert rows(connection, "job_definitions") == before


def test_a_step_past_its_range_is_refused_by_the_forms_and_goes_on_where_it_is(
    client: FlaskClient, connection: Connection
) -> None:
    a_definition(connection, "nightly")
    a_definition(connection, "older", schedule="*/90 * * * *", enabled=False)
    for path, more in (("/schedules/nightly/edit", {}), ("/schedules/+new", {"name": "a", "job_type": "b"})):
        answer = client.post(path, json={"schedule": "*/90 * * * *", **more}, headers=JSON)
        assert answer.status_code == 400
        assert "it would fire at minute 0 alone. Write 0 for that." in answer.get_json()["message"]
    assert client.post("/schedules/older/resume", headers=JSON).status_code == 200
    assert "At the start of every hour" in client.get("/schedules/older").text
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = now() WHERE name = 'older'")
    scheduler.settle(connection)
    assert [each["job_type"] for each in rows(connection, "job_runs")] == ["mail"]
