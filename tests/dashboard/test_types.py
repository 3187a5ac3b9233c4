"""Types: what each may do, how it goes, what waits without one, and pause, resume, limit."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of
from tests.support.factories import a_definition, a_run, a_type, a_worker, from_now, rows
from wakeboard_dashboard.queries import types as query

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/?#%2F"


def item(client: FlaskClient, name: str) -> dict[str, Any]:
    items = items_of(client, "/types.json")
    return next(dict(each) for each in items if each["name"] == name)


def stored(connection: Connection, name: str = "mail") -> dict[str, Any]:
    return rows(connection, "job_types", "name = %s", name)[0]


def test_an_empty_list_says_how_types_come(client: FlaskClient) -> None:
    assert "No worker has registered a type yet" in client.get("/types").text


def test_a_type_tells_its_policy_in_words(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, backoff="1m,5m,30m", max_attempts=4, timeout_seconds=90)
    page = client.get("/types").text
    assert "4 attempts, 1 min 30 s each" in page
    assert "waits 1 m, 5 m, 30 m, then always the last (±20 %)" in page


def test_a_line_that_was_shown_before_tells_what_changed(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, max_attempts=4, max_running=2, seen_at=from_now("-1 minute"))
    before = client.get("/types").text
    assert "4 attempts" in before and "set in the code" in before and "no live worker" in before
    connection.execute(
        "UPDATE wakeboard.job_types SET max_attempts = 7, backoff = '1m', max_running_operator = 5,"
        " keep_dead_days = 3, paused_at = now(), paused_by = 'ben'"
    )
    a_worker(connection, job_types=["mail"])
    a_run(connection, "queued", job_type="mail", run_at="-1 minute")
    after = client.get("/types").text
    for words in ("7 attempts", "waits 1 m", "of 5", "set by an operator", "dead ones 3 days", ">Resume<"):
        assert words in after, words
    assert "1 live worker<" in after and "The oldest due run waits" in after and "no live worker" not in after


def test_buttons_and_times_are_those_of_who_asks(as_role: AsRole, connection: Connection) -> None:
    a_type(connection, seen_at=from_now("-1 minute"))
    a_run(connection, "dead", job_type="mail", error_code="boom")
    admin, viewer = as_role("admin"), as_role("viewer")
    for _ in range(2):
        assert 'formaction="/types/mail/pause"' in admin.get("/types").text
        seen = viewer.get("/types").text
        assert "formaction" not in seen.partition("<tbody>")[2].partition("</tbody>")[0]
        assert "Needs the role operator" in seen
    viewer.set_cookie("wakeboard_zone", "Asia/Kathmandu")
    there, here = (each.get("/types").text.partition("<tbody>")[2] for each in (viewer, admin))
    assert there.count("+0545</time>") == 2 and "+0545" not in here


def test_each_type_counts_its_own_runs(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    a_type(connection, "report")
    for status, count in (("queued", 3), ("failed", 2), ("running", 1), ("dead", 4), ("succeeded", 5)):
        for _ in range(count):
            a_run(connection, status, job_type="mail")
    a_run(connection, "queued", job_type="report")
    mail, report = item(client, "mail"), item(client, "report")
    assert [mail[name] for name in ("queued", "failed", "running", "dead")] == [3, 2, 1, 4]
    assert [report[name] for name in ("queued", "failed", "running", "dead")] == [1, 0, 0, 0]


def test_counts_stop_and_say_so(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "CAP", 4)
    monkeypatch.setattr(query, "NEWEST", 2)
    a_type(connection)
    for status, count in (("queued", 6), ("running", 6), ("dead", 3)):
        for _ in range(count):
            a_run(connection, status, job_type="mail")
    assert [item(client, "mail")[name] for name in ("queued", "running", "dead")] == [5, 5, 3]
    assert client.get("/types").text.count(">4+<") == 2


def test_what_failed_does_not_hide_what_is_queued(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "CAP", 4)
    a_type(connection)
    for _ in range(4):
        a_run(connection, "failed", job_type="mail", run_at="-1 hour")
        a_run(connection, "queued", job_type="mail")
    assert [item(client, "mail")[name] for name in ("queued", "failed")] == [4, 4]
    assert ">4+<" not in client.get("/types").text
    a_run(connection, "failed", job_type="mail", run_at="-1 hour")
    assert [item(client, "mail")[name] for name in ("queued", "failed")] == [0, 5]
    page = client.get("/types").text
    assert page.count(">4+<") == 1 and page.count(">0+<") == 1


def test_median_and_p95_come_from_the_statistics(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    for table, bucket, count in (
        ("statistics_deltas", 20, 60),  # up to 1 ms
        ("statistics_rollups", 30, 35),  # up to 32 ms
        ("statistics_rollups", 40, 5),  # up to 1.024 s
    ):
        connection.execute(
            f"""INSERT INTO wakeboard.{table} VALUES
            (now() - interval '1 hour', 'mail', 'succeeded', {bucket}, 20, {count}, 1, 2000, 1, 1),
            (now() - interval '1 hour', 'mail', 'failed', 60, 20, 1000, 1, 1, 1, 1),
            (now() - interval '2 days', 'mail', 'succeeded', 60, 20, 1000, 1, 1, 1, 1)""".encode()
        )
    found = item(client, "mail")
    assert (found["median_seconds"], found["p95_seconds"], found["succeeded_24h"]) == (0.001, 0.032, 100)


def test_the_last_failure_of_each_type_links(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    a_type(connection, "report")
    a_run(connection, "failed", job_type="mail", error_code="old_news")
    connection.execute("UPDATE wakeboard.job_attempts SET finished_at = finished_at - interval '1 hour'")
    last = a_run(connection, "failed", job_type="mail", error_code="http_503")
    a_run(connection, "succeeded", job_type="report")
    found = item(client, "mail")
    assert (found["last_failure_run_id"], found["last_failure_code"]) == (last, "http_503")
    assert item(client, "report")["last_failure_run_id"] is None


def test_waiting_runs_of_a_type_that_nobody_knows_are_told(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection)
    a_run(connection, job_type="mail")
    a_run(connection, job_type="typo_mail")
    a_run(connection, "succeeded", job_type="was_here_once")
    assert client.get("/types.json").get_json()["unregistered"] == ["typo_mail"]
    assert "no worker has ever registered that type" in client.get("/types").text


def test_waiting_commands_of_a_user_say_which_worker_they_need(
    client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, job_type="command:www-data")
    a_definition(connection, "lines", job_type="command:www-data", payload={"argv": ["id"]})
    wanted = "No live worker runs commands as www-data: start a worker as that user, or a worker as root with"
    assert wanted in client.get("/types").text
    assert "no worker runs commands as www-data" in client.get("/schedules/lines").text
    a_type(connection, "command:www-data")
    page = client.get("/types/command:www-data").text
    assert wanted in page and "No live worker runs this type" not in page
    found = items_of(client, "/runs.json?type=command:www-data")
    assert [each["id"] for each in found] == [run]


def test_live_workers_of_a_type_are_counted(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    a_worker(connection, job_types=["mail", "report"])
    a_worker(connection, seen="-1 hour")
    a_worker(connection, stopped_at="-1 second")
    assert item(client, "mail")["workers"] == 1


def test_workers_that_take_nothing_new_are_not_called_live(
    client: FlaskClient, connection: Connection
) -> None:
    def line() -> str:
        (found,) = re.findall(r'<a href="/workers\?type=mail">([^<]*)</a>', client.get("/types").text)
        return str(found)

    a_type(connection)
    drained = a_worker(connection, drain_requested_at="-1 minute")
    assert line() == "1 draining worker"
    assert "None of them takes new work." in client.get("/types/mail").text
    a_worker(connection, drain_requested_at="-1 minute", stopping_at="-1 second")
    assert line() == "1 draining worker, 1 stopping"
    a_worker(connection)
    assert line() == "1 live worker, 1 draining, 1 stopping"
    found = item(client, "mail")
    assert [found[name] for name in ("workers", "claiming_workers", "draining_workers")] == [3, 1, 1]
    assert "None of them takes new work." not in client.get("/types/mail").text
    connection.execute("DELETE FROM wakeboard.workers WHERE stopping_at IS NULL AND id <> %s", (drained,))
    connection.execute("UPDATE wakeboard.workers SET stop_requested_at = now()")
    assert line() == "2 stopping workers"


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail", paused_at=from_now("-1 hour"))
    a_type(connection, "report", max_running_operator=2)

    def names(text: str) -> list[str]:
        return [each["name"] for each in items_of(client, f"/types.json?{text}")]

    assert (names("state=paused"), names("state=limited"), names("q=EPO")) == (
        ["mail"],
        ["report"],
        ["report"],
    )
    assert names("state=active,paused") == ["mail", "report"]
    assert client.get("/types.json?state=broken").status_code == 400


def test_names_of_others_are_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, HOSTILE, paused_at=from_now("0 s"), paused_by=HOSTILE, paused_reason=HOSTILE)
    a_run(connection, "dead", job_type=HOSTILE, error_code=HOSTILE)
    a_run(connection, job_type=HOSTILE + "2")
    assert_shown_as_text(client, "/types")


def test_the_live_list_is_the_page(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    a_run(connection, "failed")
    assert_fragments_match(client, "/types?state=active")


def test_the_csv_has_a_line_per_type(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    head, line = client.get("/types.csv").text.splitlines()
    assert head.startswith("name,state,queued,") and line.startswith("mail,active,0,")


def test_a_pause_keeps_who_and_why(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    assert "Pause type mail?" in client.get("/types/mail/pause").text
    answer = client.post("/types/mail/pause", data={"reason": "the bank asked"}, headers=JSON)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "paused")
    page = client.get("/types").text
    assert "the bank asked" in page and "by admin" in page
    again = client.post("/types/mail/pause", headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)
    client.post("/types/mail/resume", headers={"HX-Request": "true"})
    assert stored(connection)["paused_at"] is None


def test_a_type_with_any_name_can_be_paused(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, HOSTILE)
    answer = client.post(f"/types/{quote(HOSTILE, safe='')}/pause", headers=JSON)
    assert answer.status_code == 200 and stored(connection, HOSTILE)["paused_at"] is not None


def test_a_limit_is_set_and_taken_away(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, max_running=9)
    assert "own limit is 9" in client.get("/types/mail/limit").text
    back = client.post("/types/mail/limit", data={"limit": "2", "next": "/types"})
    assert (back.status_code, back.location) == (303, "/types")
    assert item(client, "mail")["max_running_operator"] == 2
    assert client.post("/types/mail/limit", json={"limit": 0}, headers=JSON).get_json()["changed"] is True
    assert stored(connection)["max_running_operator"] == 0
    client.post("/types/mail/limit", data={"limit": ""})
    assert stored(connection)["max_running_operator"] is None
    assert len(rows(connection, "audit_log", "action = 'type.limit' AND result = 'done'")) == 3


def test_a_limit_that_is_no_number_changes_nothing(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, max_running_operator=3)
    for wrong in ("-1", "many", "1.5", "1000001", "٣"):
        answer = client.post("/types/mail/limit", data={"limit": wrong}, headers=JSON)
        assert answer.status_code == 400 and "allowed: 0 to 1000000" in answer.text, wrong
    assert stored(connection)["max_running_operator"] == 3


def test_days_of_its_own_are_set_shown_and_taken_away(client: FlaskClient, connection: Connection) -> None:
    a_type(connection)
    assert "For how many days are ended runs of type mail kept?" in client.get("/types/mail/keep").text
    back = client.post("/types/mail/keep", data={"succeeded_days": "3", "dead_days": "", "next": "/types"})
    assert (back.status_code, back.location) == (303, "/types")
    page = client.get("/types").text
    assert "keeps succeeded runs 3 days</span>" in page
    answer = client.post("/types/mail/keep", json={"dead_days": 400}, headers=JSON).get_json()
    assert answer["message"] == (
        "Type mail keeps succeeded runs for 3 days, dead and cancelled ones for 400 days now."
    )
    found = item(client, "mail")
    assert (found["keep_succeeded_days"], found["keep_dead_days"]) == (3, 400)
    client.post("/types/mail/keep", data={"succeeded_days": "", "dead_days": ""})
    assert stored(connection)["keep_succeeded_days"] is None and stored(connection)["keep_dead_days"] is None
    last = rows(connection, "audit_log", "action = 'type.keep' AND result = 'done'")[-1]
    assert last["before"] == {"succeeded_days": 3, "dead_days": 400}
    again = client.post("/types/mail/keep", data={"succeeded_days": ""}, headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)


def test_days_that_are_no_number_of_days_change_nothing(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, keep_dead_days=3)
    for wrong in ("-1", "0", "many", "1.5", "36501", "٣"):
        answer = client.post("/types/mail/keep", data={"dead_days": wrong}, headers=JSON)
        assert answer.status_code == 400 and "allowed: 1 to 36500" in answer.text, wrong
    assert stored(connection)["keep_dead_days"] == 3


def test_only_an_admin_says_for_how_long_runs_are_kept(as_role: AsRole, connection: Connection) -> None:
    a_type(connection)
    operator = as_role("operator")
    assert "Needs the role admin" in operator.get("/types").text
    assert operator.get("/types/mail/keep").status_code == 403
    assert operator.post("/types/mail/keep", data={"dead_days": "1"}).status_code == 403
    assert stored(connection)["keep_dead_days"] is None


def test_an_unknown_type_is_a_sentence(client: FlaskClient) -> None:
    answer = client.post("/types/none/pause", headers=JSON)
    assert answer.status_code == 404 and "no worker has ever registered it" in answer.get_json()["message"]
