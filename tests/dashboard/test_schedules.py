"""Schedules: when each fires in words, what came of it, what it missed, and the verbs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient
from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of
from tests.support.factories import a_definition, a_run, a_type, insert, row, rows
from wakeboard.database.audit import ENGINE
from wakeboard.queue import definitions
from wakeboard_dashboard.text import schedule as words
from wakeboard_dashboard.text.formats import number

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def item(client: FlaskClient, name: str) -> dict[str, Any]:
    items = items_of(client, f"/schedules.json?q={name}")
    return next(dict(each) for each in items if each["name"] == name)


def definition(connection: Connection, name: str) -> dict[str, Any]:
    return rows(connection, "job_definitions", "name = %s", name)[0]


def test_an_empty_list_says_how_to_make_one(client: FlaskClient) -> None:
    page = client.get("/schedules").text
    assert "There are no schedules yet" in page and "wakeboard import-crontab" in page


def test_a_schedule_says_when_in_words_and_in_both_zones(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "nightly", schedule="30 2 * * *", timezone="Europe/Berlin")
    connection.execute(
        "UPDATE wakeboard.job_definitions SET next_fire_at = '2126-01-10 01:30+00' WHERE name = 'nightly'"
    )
    page = client.get("/schedules").text
    assert "At 02:30 every day" in page
    assert "Thu 10 Jan 2126 02:30 CET = 01:30 UTC" in page
    assert item(client, "nightly")["words"] == "At 02:30 every day"
    client.set_cookie("wakeboard_zone", "America/New_York")
    for path in ("/schedules", "/schedules/nightly"):
        assert "Thu 10 Jan 2126 02:30 CET = Wed 20:30 EST" in client.get(path).text, path


def test_the_trail_of_a_schedule_names_an_act_as_the_audit_log_does(
    client: FlaskClient, connection: Connection
) -> None:
    definitions.add(connection, definitions.Definition("nightly", "mail", "0 3 * * *"), ENGINE, "in code")
    trail = client.get("/schedules/nightly").text.split("<h2>Audit trail")[1]
    assert "<td>Add</td>" in trail and "Edit" not in trail.split("</table>")[0]


def test_a_schedule_that_fires_by_another_text_than_its_code_says_so(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "send.report", schedule="*/5 * * * *")
    definitions.add(connection, definitions.Definition("send-report", "send.report", "0 7 * * 1"), ENGINE)
    page = client.get("/schedules/send-report").text
    assert "The code of its type says <code>*/5 * * * *</code>" in page
    assert client.get("/schedules/send-report.json").get_json()["code_says"] == "*/5 * * * *"
    assert_fragments_match(client, "/schedules/send-report")


def test_the_code_says_what_it_said_last_and_not_what_an_old_worker_publishes(
    client: FlaskClient, connection: Connection
) -> None:
    said = Jsonb([["@daily", None], ["@weekly", None]])
    a_type(connection, "report", schedule="@daily", said_in_code=said)
    definitions.add(connection, definitions.Definition("report", "report", "@weekly"), ENGINE)
    assert client.get("/schedules/report.json").get_json()["code_says"] is None


@pytest.mark.parametrize(
    ("zone", "told"), [("Europe/Paris", None), ("Asia/Tokyo", "@daily in Asia/Tokyo"), (None, None)]
)
def test_a_schedule_says_which_zone_the_code_names_where_it_has_another(
    client: FlaskClient, connection: Connection, zone: str | None, told: str | None
) -> None:
    a_type(connection, "report", schedule="@daily", timezone=zone)
    made = definitions.Definition("report", "report", "@daily", timezone="Europe/Paris")
    definitions.add(connection, made, ENGINE)
    assert client.get("/schedules/report.json").get_json()["code_says"] == told


def test_a_schedule_that_is_not_the_codes_has_nothing_to_say_of_it(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "send.report", schedule="*/5 * * * *")
    for name, job_type, text in (
        ("send-report", "send.report", "*/5 * * * *"),
        ("mondays", "send.report", "0 7 * * 1"),
        ("send-report-4119bc", "mail", "0 7 * * 1"),
    ):
        definitions.add(connection, definitions.Definition(name, job_type, text), ENGINE)
        assert "The code of its type" not in client.get(f"/schedules/{name}").text
        assert client.get(f"/schedules/{name}.json").get_json()["code_says"] is None


def test_the_latest_runs_are_squares_that_link(client: FlaskClient, connection: Connection) -> None:
    mine = a_definition(connection, "mine")
    made = [a_run(connection, "succeeded", definition_id=mine) for _ in range(21)]
    dead = a_run(connection, "dead", definition_id=mine)
    a_run(connection, "cancelled", definition_id=a_definition(connection, "other"))
    page = client.get("/schedules?q=mine").text
    strip = page.split('<span class="strip">')[1].split("</span>")[0]
    assert strip.count("<a ") == 20
    assert re.search(rf'<a class="dead( odd)?" href="/runs/{dead}"', strip)
    assert f'href="/runs/{made[1]}"' not in strip and f'href="/runs/{made[2]}"' in strip
    found = item(client, "mine")
    assert (found["last_run_id"], found["last_run_status"]) == (dead, "dead")


def strip(client: FlaskClient) -> str:
    return client.get("/schedules?q=mine").text.split('<span class="strip">')[1].split("</span>")[0]


def test_the_marks_follow_their_runs_and_the_readers_zone(
    client: FlaskClient, connection: Connection
) -> None:
    mine = a_definition(connection, "mine")
    run = a_run(connection, "failed", definition_id=mine, scheduled_for="2026-01-10T01:30Z", error_code="<a>")
    assert f'title="Run {run}: failed (&lt;a&gt;), late, 2026-01-10 01:30:00 UTC"' in strip(client)
    client.set_cookie("wakeboard_zone", "America/New_York")
    assert "2026-01-09 20:30:00 EST" in strip(client)
    connection.execute("UPDATE wakeboard.job_runs SET error_code = 'b' WHERE id = %s", (run,))
    assert "failed (b)" in strip(client)
    by_hand = a_run(connection, "queued", definition_id=mine, run_at=datetime(2126, 1, 10, 1, 30, tzinfo=UTC))
    assert f'title="Run {by_hand}: queued, 2126-01-09 20:30:00 EST"' in strip(client)


def test_a_mark_is_named_by_its_title_alone(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "succeeded", definition_id=a_definition(connection, "mine"))
    assert "aria-label" not in strip(client) and strip(client).endswith("></a>")


def test_whoever_looks_first_the_buttons_are_those_of_the_readers_role(
    as_role: AsRole, connection: Connection
) -> None:
    a_definition(connection, "mine")

    def button(role: str, verb: str) -> str:
        return as_role(role).get("/schedules").text.split(f'id="{verb}-mine"')[1].split(">")[0]

    for verb in ("run", "pause"):
        assert "disabled" not in button("admin", verb)
        assert 'disabled title="Needs the role operator"' in button("viewer", verb)
        assert f"/schedules/mine/{verb}" in button("operator", verb)
    connection.execute("UPDATE wakeboard.job_definitions SET enabled = false")
    assert "/schedules/mine/resume" in button("admin", "resume")


def test_missed_fires_are_counted_and_explained(client: FlaskClient, connection: Connection) -> None:
    mine = a_definition(connection, "mine")
    for minute, reason in enumerate(words.REASONS):
        insert(
            connection,
            "missed_fires",
            {
                "definition_id": mine,
                "scheduled_for": datetime(2026, 1, 1, 2, minute, tzinfo=UTC),
                "reason": reason,
            },
        )
    assert item(client, "mine")["missed_24h"] == len(words.REASONS) - 1  # all but paused
    page = client.get("/schedules/mine").text
    for sentence in words.REASONS.values():
        assert sentence in page
    assert "Thu 1 Jan 2026 02:01 UTC" in page


def test_of_many_missed_fires_the_newest_are_shown_counted_and_lead_to_all(
    client: FlaskClient, connection: Connection
) -> None:
    def miss(name: str, count: int) -> None:
        connection.execute(
            """INSERT INTO wakeboard.missed_fires (definition_id, scheduled_for, reason)
            SELECT %s, now() - n * interval '1 minute', 'misfire' FROM generate_series(1, %s) AS n""",
            (a_definition(connection, name), count),
        )

    def missed_in(page: str) -> list[int]:
        return [int(found) for found in re.findall(r'<tr id="missed-(\d+)"', page)]

    for name, count in (("few", 50), ("mine", 143), ("others", 1200)):
        miss(name, count)
    page = client.get("/schedules/mine").text
    assert len(missed_in(page)) == 50 and "the newest 50 of 143" in page
    assert f"the newest 50 of {number(1000)}+" in client.get("/schedules/others").text
    assert "the newest" not in client.get("/schedules/few").text
    twin = client.get("/schedules/mine.json").get_json()
    assert (len(twin["missed_fires"]), twin["missed_fires_count"]) == (50, 143)
    assert client.get("/schedules/few.json").get_json()["missed_fires_count"] == 50
    (address,) = re.findall(r'href="([^"]*)">all of them</a>', page)
    pages = [client.get(address).text]
    assert missed_in(pages[0]) == missed_in(page)
    while older := re.search(r'rel="next" href="([^"]+)"', pages[-1]):
        pages.append(client.get(unescape(older[1])).text)
    wanted = rows(connection, "missed_fires", "definition_id = 2", order="scheduled_for DESC")
    assert [each for page in pages for each in missed_in(page)] == [each["id"] for each in wanted]
    items = items_of(client, f"{twin['all_missed_fires']}?limit=200")
    assert [each["id"] for each in items] == [each["id"] for each in wanted]
    assert client.get("/schedules/gone/missed").status_code == 404
    assert client.get("/schedules/mine/missed.csv").text.count("\n") == 144


def test_one_line_that_stands_for_many_missed_fires_says_until_when(
    client: FlaskClient, connection: Connection
) -> None:
    fire = {"scheduled_for": "2026-01-01T02:00Z", "until_at": "2026-01-20T03:00Z", "reason": "misfire"}
    insert(connection, "missed_fires", {"definition_id": a_definition(connection, "mine"), **fire})
    page = client.get("/schedules/mine").text
    assert "and all others before Tue 20 Jan 2026 03:00 UTC" in page
    assert (
        client.get("/schedules/mine.json").get_json()["missed_fires"][0]["until_at"].startswith("2026-01-20")
    )


def test_odd_fires_are_explained_on_the_page_and_in_its_twin(
    client: FlaskClient, connection: Connection
) -> None:
    a_definition(connection, "mine", schedule="0 9 31 * *")
    assert "have no 31st" in client.get("/schedules/mine").text.replace("has no", "have no")
    notes = [fire["note"] for fire in client.get("/schedules/mine.json").get_json()["next_fires"]]
    assert sum("no 31st" in (note or "") for note in notes) >= 4


def test_a_schedule_that_cannot_be_read_shows_why_and_hurts_no_other(
    client: FlaskClient, connection: Connection
) -> None:
    a_definition(connection, "good")
    a_definition(connection, "bad", schedule="99 * * * *", error="The minute field '99' is out of range.")
    page = client.get("/schedules").text
    assert "cannot fire" in page and "out of range" in page and "At 02:00 every day" in page
    one = client.get("/schedules/bad").text
    assert "It does not fire:" in one and "No fire is to come" in one


def test_an_overdue_fire_is_told(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "late", next_fire_at="-10 minutes")
    assert "overdue" in client.get("/schedules").text
    assert "A fire is overdue" in client.get("/schedules/late").text
    assert [each["name"] for each in items_of(client, "/schedules.json?state=overdue")] == ["late"]


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "on", job_type="report")
    a_definition(connection, "off", enabled=False)
    a_definition(connection, "hand", schedule=None, next_fire_at=None)

    def names(query: str) -> list[str]:
        return [each["name"] for each in items_of(client, f"/schedules.json?{query}")]

    assert names("state=enabled") == ["on"]
    assert names("state=paused") == ["off"]
    assert names("state=by hand") == ["hand"]
    assert names("type=report") == ["on"]
    assert names("q=AN") == ["hand"]
    assert client.get("/schedules.json?state=tardy").status_code == 400
    assert client.get("/schedules.json?status=dead").status_code == 400


def test_one_schedule_hides_secrets_of_its_payload(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "mine", payload={"path": "/var", "api_key": "sk-12345"})
    page = client.get("/schedules/mine").text
    assert "/var" in page and "sk-12345" not in page
    body = client.get("/schedules/mine.json").get_json()
    assert body["payload"] == {"path": "/var", "api_key": "•••"}
    assert len(body["next_fires"]) == 10


def test_a_change_of_the_clocks_is_noted_beside_its_fire() -> None:
    fires = words.preview("30 2 * * *", "Europe/Berlin", datetime(2027, 3, 27, 12, tzinfo=UTC))
    assert fires[0].note is not None and "02:30 does not exist" in fires[0].note
    assert fires[1].note is None


def test_words_never_fail_whatever_a_definition_says() -> None:
    moment = datetime(2026, 7, 1, 23, 30, tzinfo=UTC)
    assert words.in_words("nonsense").startswith("Cannot be read:")
    assert words.preview("nonsense", "UTC", moment) == []
    assert words.preview("* * * * *", "Not/AZone", moment) == []
    assert words.in_zone(moment, "Not/AZone") == "Wed 1 Jul 2026 23:30 UTC"
    assert words.in_zone(moment, "Europe/Berlin") == "Thu 2 Jul 2026 01:30 CEST = Wed 23:30 UTC"


def test_foreign_text_is_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    mine = a_definition(
        connection, "mine", job_type=HOSTILE, payload={HOSTILE: HOSTILE}, error=HOSTILE, schedule=HOSTILE
    )
    a_run(connection, "dead", definition_id=mine, job_type=HOSTILE, error_code=HOSTILE, last_error=HOSTILE)
    assert_shown_as_text(client, "/schedules")
    assert_shown_as_text(client, "/schedules/mine")


def test_live_regions_are_the_page(client: FlaskClient, connection: Connection) -> None:
    mine = a_definition(connection, "mine")
    a_run(connection, "failed", definition_id=mine)
    a_run(connection, "running", definition_id=mine)
    assert_fragments_match(client, "/schedules?state=enabled")
    assert_fragments_match(client, "/schedules/mine")


def test_an_unknown_schedule_is_a_sentence(client: FlaskClient) -> None:
    for path in ("/schedules/none", "/schedules/none.json", "/_fragments/schedules/none/history"):
        answer = client.get(path)
        assert answer.status_code == 404 and "There is no schedule" in answer.text
    assert client.post("/schedules/none/run", json={}, headers=JSON).status_code == 404


def test_the_csv_has_a_line_per_schedule(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "mine")
    head, line = client.get("/schedules.csv").text.splitlines()
    assert head.startswith("name,job_type,schedule,words,") and line.startswith(
        "mine,mail,0 2 * * *,At 02:00"
    )


def test_run_now_makes_one_run(client: FlaskClient, connection: Connection) -> None:
    mine = a_definition(connection, "mine")
    assert "Enqueue one run of mine now?" in client.get("/schedules/mine/run").text
    answer = client.post("/schedules/mine/run", json={"reason": "the report was wrong"}, headers=JSON)
    assert answer.status_code == 200
    made = row(connection, answer.get_json()["id"])
    assert (made["definition_id"], made["status"], made["enqueued_by"]) == (mine, "queued", "admin")
    page = client.get("/schedules/mine").text
    assert "the report was wrong" in page and "by hand: admin" in page


def test_pause_and_resume_are_each_other_undone(client: FlaskClient, connection: Connection) -> None:
    a_definition(connection, "mine", next_fire_at="-1 day")
    asked = client.post("/schedules/mine/pause", headers={"HX-Request": "true"})
    assert asked.status_code == 200 and "Schedule mine is paused." in asked.text
    assert definition(connection, "mine")["enabled"] is False
    assert "It is paused" in client.get("/schedules/mine").text
    again = client.post("/schedules/mine/pause", json={}, headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)
    back = client.post("/schedules/mine/resume", data={"next": "/schedules"})
    assert (back.status_code, back.location) == (303, "/schedules")
    after = definition(connection, "mine")
    assert after["enabled"] and after["next_fire_at"] > datetime.now(UTC)
    assert "enabled no → yes" in client.get("/schedules/mine").text


def test_a_viewer_may_not_touch_schedules(as_role: AsRole, connection: Connection) -> None:
    a_definition(connection, "mine")
    viewer = as_role("viewer")
    for verb in ("run", "pause", "resume"):
        assert viewer.get(f"/schedules/mine/{verb}").status_code == 403
        assert viewer.post(f"/schedules/mine/{verb}", json={}, headers=JSON).status_code == 403
    assert rows(connection, "job_runs") == [] and definition(connection, "mine")["enabled"]
