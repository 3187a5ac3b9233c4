"""The report of each morning and the page of the night: the same numbers, and a switch for admins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, a_failure, items_of, one_line
from tests.dashboard.test_activity_report import HOSTILE, a_full_night, html, night
from tests.dashboard.test_alerts import JSON, told
from tests.support.factories import a_run, age, from_now, insert, rows
from tests.support.receivers import Mailbox, Receiver, mailbox, receiver
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.summary import MAX_LINES, Summary, summarize

__all__ = ["mailbox", "receiver", "told"]


def rule(connection: Connection) -> dict[str, Any]:
    return rows(connection, "alert_rules", "name = 'morning_report'")[0]


def summed(connection: Connection, body: dict[str, Any]) -> Summary:
    """Return what a report says of the window of ``body``, asked as workers ask."""
    window = TimeWindow(*(datetime.fromisoformat(body[name]) for name in ("since", "until")))
    return summarize(connection, window, UTC)


def a_night_that_is_over(client: FlaskClient, connection: Connection) -> tuple[dict[str, Any], Summary]:
    """Move what was just done into minutes that are over, and ask both about the day up to now."""
    a_full_night(connection)
    for run in rows(connection, "job_runs"):
        age(connection, run["id"], "2 minutes")
    insert(
        connection,
        "audit_log",
        {"at": from_now("-5 minutes"), "actor": "anna", "source": "web", "action": "run.retry"},
    )
    until = connection.execute("SELECT date_trunc('minute', now())").fetchone()
    assert until
    body = night(client, f"since=24h&until={until[0].astimezone(UTC):%Y-%m-%dT%H:%M}Z")
    return body, summed(connection, body)


def test_a_report_has_the_numbers_and_the_sentence_of_the_page(
    client: FlaskClient, connection: Connection
) -> None:
    body, found = a_night_that_is_over(client, connection)
    numbers = asdict(found.numbers)
    assert numbers == {name: body[name] for name in numbers}
    assert (found.sentence, found.good) == (body["sentence"], body["well"])
    for name in ("attempts", "failed", "new", "dead", "recovered", "missed", "late", "slow", "taken_over"):
        assert numbers[name], f"a night with something of everything: {name}"
    sections = {section.name: section for section in found.sections}
    assert " ".join(sections) == "new failed recovered missed late overlapping slow lost ran acts"
    assert len(sections["failed"].lines) + sections["failed"].more == len(body["failures"])
    assert len(sections["new"].lines) + sections["new"].more == body["new"]
    assert len(sections["acts"].lines) + sections["acts"].more == body["acts"]


def test_each_link_of_a_report_opens(client: FlaskClient, connection: Connection) -> None:
    body, found = a_night_that_is_over(client, connection)
    paths = {line.path for section in found.sections for line in section.lines}
    paths |= {section.path for section in found.sections}
    assert len(paths) > 12
    for path in sorted(paths):
        assert client.get(path.partition("#")[0]).status_code == 200, path
    page = html(client, found.sections[0].path.partition("?")[2].partition("#")[0])
    for section in found.sections:
        assert f'id="{section.path.partition("#")[2]}"' in page, section.path
    assert body["sentence"].split(".")[0] in page


def test_only_the_worst_few_are_named_and_hostile_names_are_short_lines(
    client: FlaskClient, connection: Connection
) -> None:
    for number in range(MAX_LINES + 3):
        run = a_run(connection, "dead", attempts=0)
        a_failure(connection, "5 minutes", run, error_code=f"code_{number}", job_type=HOSTILE[:20])
    body = night(client)
    found = summed(connection, body)
    failed = next(section for section in found.sections if section.name == "failed")
    assert (len(failed.lines), failed.more) == (MAX_LINES, 3)
    assert all("\n" not in line.text and "\u202e" not in line.text for line in failed.lines)


def test_an_admin_switches_it_on_for_a_time_of_the_sites_clocks(
    client: FlaskClient, connection: Connection
) -> None:
    path = f"/alerts/{rule(connection)['id']}/edit"
    page = client.get("/alerts").text
    assert "Report of the night" in page and "Nothing is sent until an admin switches it on." in page
    form = one_line(client.get(path).text)
    assert 'name="at" value="08:00"' in form and "(00:00 to 23:59, UTC)" in form
    answer = client.post(path, data={"enabled": "1", "at": "07:30", "since": "17:00"})
    assert answer.status_code == 303
    kept = rule(connection)
    assert (kept["enabled"], kept["settings"]) == (True, {"at": 450, "since": 1020})
    assert kept["recovered_at"] is not None, "on from now: none of a morning before"
    (audited,) = rows(connection, "audit_log", "action = 'alert.edit'")
    assert (audited["before"]["enabled"], audited["after"]["enabled"]) == (False, True)
    standing = {item["kind"]: item["status"] for item in items_of(client, "/alerts.json")}
    assert standing["morning_report"] == "on"
    wrong = client.post(path, json={"at": "25:00"}, headers=JSON)
    assert wrong.status_code == 400 and "allowed: 00:00 to 23:59" in wrong.get_json()["message"]


def test_only_admins_switch_it(as_role: AsRole, connection: Connection) -> None:
    path = f"/alerts/{rule(connection)['id']}/edit"
    assert as_role("operator").post(path, json={"enabled": "1"}, headers=JSON).status_code == 403
    assert rule(connection)["enabled"] is False


def test_the_rules_own_button_sends_a_real_report(
    told: FlaskClient, connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    number = rule(connection)["id"]
    page = told.get("/alerts").text
    assert f'formaction="/alerts/{number}/test"' in page
    assert f'formaction="/alerts/{number}/test?channel=' not in page, "a channel is tested by an alarm's rule"
    assert told.post(f"/alerts/{number}/test", headers=JSON).status_code == 200
    assert str(mailbox.letters[0]["Subject"]).startswith("Test: Report of ")
    (body,) = receiver.bodies()
    assert (body["kind"], body["numbers"]["attempts"]) == ("morning_report", 0)
    assert "/night?since=" in mailbox.letters[0].get_content(), "the path alone without a public address"


@pytest.mark.parametrize("verb", ["silence", "edit", "test"])
def test_each_verb_asks_on_a_page_of_its_own(client: FlaskClient, connection: Connection, verb: str) -> None:
    assert client.get(f"/alerts/{rule(connection)['id']}/{verb}").status_code == 200
