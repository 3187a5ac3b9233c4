"""Error groups on pages: how they stand, what they are, their runs; mute, unmute, and the way to a retry."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, items_of, one_line, page_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_definition, a_group, a_run, a_worker, age, an_attempt, from_now, rows
from wakeboard.core.errors.error_groups import format_fingerprint, group_of
from wakeboard_dashboard.queries import error_groups
from wakeboard_dashboard.views import error_group
from wakeboard_dashboard.views.error_group import starts

AsRole = Callable[[str], FlaskClient]
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/?#"
TRACE = """Traceback (most recent call last):
  File "/srv/shop/crm.py", line 88, in send
    dial()
  File "/usr/lib/python3.11/socket.py", line 9, in create
    raise err
OSError: gone"""


def failures(
    connection: Connection, number: int, count: int = 1, ago: str = "1 hour", **columns: Any
) -> None:
    (have,) = connection.execute("SELECT count(*) FROM wakeboard.job_attempts").fetchone() or (0,)
    for place in range(count):
        an_attempt(
            connection, 900, lease_epoch=1000 + have + place, error_group=number,
            **{"outcome": "failed", "error_code": "smtp_down", "finished_at": f"-{ago}"} | columns,
        )  # fmt: skip


def listed(client: FlaskClient, query: str = "") -> list[dict[str, Any]]:
    return items_of(client, f"/errors.json?{query}")


# ---- the list ---------------------------------------------------------------------------------------


def test_failures_of_one_code_and_type_with_other_words_stand_apart(
    client: FlaskClient, connection: Connection
) -> None:
    down, full = a_group(connection), a_group(connection, message="mailbox 'anna' is full")
    failures(connection, down, 2)
    failures(connection, full)
    failures(connection, None)  # type: ignore[arg-type]
    found = {item["fingerprint"]: item for item in listed(client)}
    assert {name: item["count"] for name, item in found.items()} == {
        format_fingerprint(down): 2, format_fingerprint(full): 1, None: 1,
    }  # fmt: skip
    assert found[format_fingerprint(full)]["template"] == "mailbox <value> is full"
    assert (found[None]["state"], found[None]["error_group"]) == (None, None)
    page = page_of(client, "/errors")
    assert f'href="/errors/{format_fingerprint(down)}"' in page and 'href="/errors/smtp_down"' in page
    assert "mailbox &lt;value&gt; is full" in page


def test_a_failure_without_a_group_changes_nothing_of_the_others(
    client: FlaskClient, connection: Connection
) -> None:
    down, full = a_group(connection), a_group(connection, "report", message="mailbox 'anna' is full")
    muted = a_group(connection, code="KeyError", muted_until="2 hours")
    failures(connection, down, 2)
    failures(connection, full, 2, job_type="report")
    failures(connection, muted, 3, ago="3 hours", error_code="KeyError")
    for status, job_type, code, number in (
        ("dead", "mail", "smtp_down", down),
        ("dead", "mail", "smtp_down", down),
        ("failed", "report", "smtp_down", full),
        ("dead", "mail", "KeyError", muted),
    ):
        a_run(connection, job_type=job_type, status=status, error_code=code, error_group=number)
    before = listed(client)
    assert [(item["error_group"], item["dead"], item["failed"]) for item in before] == [
        (down, 2, 0), (full, 0, 1), (muted, 1, 0),
    ]  # fmt: skip
    failures(connection, None)  # type: ignore[arg-type]
    assert [item for item in listed(client) if item["error_group"]] == before


def test_failures_whose_group_is_no_longer_kept_stand_by_code_and_type(
    client: FlaskClient, connection: Connection
) -> None:
    down, full = a_group(connection), a_group(connection, message="mailbox 'anna' is full")
    failures(connection, down, 2)
    failures(connection, full)
    connection.execute("DELETE FROM wakeboard.error_groups WHERE id = %s", (down,))
    gone, kept = listed(client)
    assert (gone["error_code"], gone["job_type"], gone["error_group"]) == ("smtp_down", "mail", down)
    assert (gone["fingerprint"], gone["count"]) == (None, 2)
    assert (kept["fingerprint"], kept["count"]) == (format_fingerprint(full), 1)


@pytest.mark.parametrize(
    ("columns", "state", "word"),
    [
        ({"first_seen_at": "-23 hours"}, "new", "new"),
        ({"first_seen_at": "-25 hours"}, "ongoing", "ongoing"),
        ({"first_seen_at": "-60 days", "returned_at": "-23 hours"}, "back", "back again"),
        ({"first_seen_at": "-60 days", "returned_at": "-25 hours"}, "ongoing", "ongoing"),
        ({"first_seen_at": "-60 days", "last_seen_at": "-8 days"}, "quiet", "quiet"),
    ],
)
def test_a_group_is_new_back_ongoing_or_quiet(
    client: FlaskClient, connection: Connection, columns: dict[str, str], state: str, word: str
) -> None:
    number = a_group(connection, **columns)
    failures(connection, number)
    (item,) = listed(client)
    assert item["state"] == state
    assert [item["fingerprint"] for item in listed(client, f"state={state}")] == [format_fingerprint(number)]
    others = ",".join(each for each in error_groups.STATES if each != state)
    assert listed(client, f"state={others}") == []
    for path in ("/errors", f"/errors/{format_fingerprint(number)}"):
        assert f"</svg>{word}</span>" in page_of(client, path)
    assert client.get(f"/errors/{format_fingerprint(number)}.json").get_json()["state"] == state


def test_muted_groups_are_shown_apart_with_who_until_when_and_why(
    client: FlaskClient, connection: Connection
) -> None:
    muted = {"muted_until": "2 hours", "muted_by": "anna", "muted_reason": "provider is down"}
    loud, silent = a_group(connection, **muted), a_group(connection, "report", **muted)
    heard = a_group(connection, code="KeyError", muted_until="-1 minute")
    failures(connection, loud, 3)
    failures(connection, heard)
    assert [(item["error_group"], item["muted"], item["count"]) for item in listed(client)] == [
        (heard, False, 1), (loud, True, 3), (silent, True, 0),
    ]  # fmt: skip
    before, _, after = page_of(client, "/errors").partition('<h2 id="muted">')
    assert format_fingerprint(heard) in before and format_fingerprint(loud) not in before
    assert format_fingerprint(loud) in after and "anna" in after and "provider is down" in after
    assert [item["error_group"] for item in listed(client, "type=report")] == [silent]
    assert f"{format_fingerprint(loud)}/unmute" in page_of(client, "/errors")


def test_the_same_failure_of_other_types_is_told(client: FlaskClient, connection: Connection) -> None:
    mail, report = a_group(connection), a_group(connection, "report")
    a_group(connection, "other", message="something else")
    failures(connection, mail)
    failures(connection, report, job_type="report")
    assert {item["job_type"]: item["also_in"] for item in listed(client)} == {
        "mail": ["report"], "report": ["mail"],
    }  # fmt: skip
    assert "also in 1 type" in page_of(client, "/errors")
    body = client.get(f"/errors/{format_fingerprint(mail)}.json").get_json()
    assert body["also_in"] == [{"job_type": "report", "fingerprint": format_fingerprint(report)}]


def test_the_runs_of_a_group_are_found_by_their_own_filter(
    client: FlaskClient, connection: Connection
) -> None:
    number = a_group(connection)
    dead = a_run(connection, "dead", error_group=number)
    went_on = a_run(connection, "succeeded", error_group=number)
    a_run(connection, "dead")
    assert f"/runs?status=dead&amp;group={format_fingerprint(number)}" in page_of(client, "/errors")

    def found(query: str) -> list[int]:
        return [item["id"] for item in items_of(client, f"/runs.json?{query}")]

    assert found(f"group={format_fingerprint(number)}") == [went_on, dead]
    assert found(f"group={format_fingerprint(number)}&status=dead,failed") == [dead]
    assert found(f"group={format_fingerprint(number)}&error=smtp_down") == [dead]
    assert found(f"group={format_fingerprint(number)}&since=1h&q=mail") == [went_on, dead]
    assert found("group=0000000000001") == []
    for wrong in ("1", "x", "0" * 14, "A" * 13):
        assert client.get(f"/runs?group={wrong}").status_code == 400


# ---- one group --------------------------------------------------------------------------------------


@pytest.fixture
def busy(connection: Connection) -> int:
    """A group with a past: failures on two workers, runs in several states."""
    group = group_of("mail", "smtp_down", "order 7 is gone", TRACE)
    worker = a_worker(connection, "w-7", name="shop-1")
    first = a_run(connection, "dead", error_group=group.id, attempts=0)
    a_group(
        connection, message="order 7 is gone", traceback=TRACE, first_run_id=first, first_seen_at="-60 days",
        returned_at="-2 days", quiet_from_at="-12 days",
    )  # fmt: skip
    age(connection, first, "2 days")
    for status in ("failed", "succeeded"):
        a_run(connection, status, error_group=group.id, attempts=0, last_error="order 9 is gone")
    failures(connection, group.id, 2, "2 days", worker_id=worker)
    failures(
        connection, group.id, 1, "30 minutes", worker_id=worker, error="order 8 is gone", traceback=TRACE
    )
    failures(connection, group.id, 1, "20 minutes", outcome="timed_out", error="order 9 is gone")
    failures(connection, group.id, 9, "10 days")
    return group.id


def test_a_group_tells_what_it_is_and_where_it_was_met(client: FlaskClient, busy: int) -> None:
    page = page_of(client, f"/errors/{format_fingerprint(busy)}")
    for words in (
        "order &lt;n&gt; is gone", "<code>crm.py in send</code>", "ongoing", "after 10 d",
        "1 dead", "1 failed", "1 succeeded", "shop-1", "4 in the window",
        f'href="/runs/bulk/retry?group={format_fingerprint(busy)}&amp;status=dead,failed"', "run 900",
    ):  # fmt: skip
        assert words in page, words
    body = client.get(f"/errors/{format_fingerprint(busy)}.json").get_json()
    assert body["runs"] == {
        "queued": 0, "running": 0, "succeeded": 1, "failed": 1, "dead": 1, "cancelled": 0,
    }  # fmt: skip
    assert (body["by"], body["count"], len(body["trend"])) == ("day", 4, 8)
    assert sum(each["count"] for each in body["trend"]) == 4
    assert [(row["name"], row["failures"]) for row in body["workers"]] == [("shop-1", 3), (None, 1)]
    assert [item["status"] for item in body["items"]] == ["succeeded", "failed", "dead"]
    assert body["last_run_id"] == 900 and body["frame"] == "crm.py in send"


def test_by_worker_the_newest_failures_are_counted_and_the_page_says_so(
    client: FlaskClient, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, says = f"/errors/{format_fingerprint(busy)}", "Of the newest 3 failures of the window."
    assert says not in page_of(client, path)
    assert not client.get(f"{path}.json").get_json()["workers_capped"]
    monkeypatch.setattr(error_groups, "WORKERS_CAP", 3)
    body = client.get(f"{path}.json").get_json()
    assert [(row["name"], row["failures"]) for row in body["workers"]] == [("shop-1", 2), (None, 1)]
    assert says in page_of(client, path)
    assert body["workers_capped"]


def test_where_more_workers_failed_than_are_shown_the_page_says_both(
    client: FlaskClient, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_groups, "MOST_WORKERS", 1)
    monkeypatch.setattr(error_groups, "WORKERS_CAP", 4)
    page = page_of(client, f"/errors/{format_fingerprint(busy)}")
    assert "Shown are 1 of 2 workers, those with the most." in page
    assert "Of the newest 4 failures of the window." in page


def test_a_group_with_as_many_runs_as_are_counted_says_so_in_json(
    client: FlaskClient, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"/errors/{format_fingerprint(busy)}.json"
    assert not client.get(address).get_json()["runs_capped"]
    monkeypatch.setattr(error_groups, "RUNS_CAP", 1)
    assert client.get(address).get_json()["runs_capped"]


def test_where_counting_stopped_a_number_says_so() -> None:
    assert [error_group.capped(count) for count in (9_999, 10_000)] == ["9\u202f999", "10\u202f000+"]
    assert error_group.capped(19_999, cap=20_000) == "19\u202f999"


def test_the_lines_of_ones_own_code_are_marked_in_the_trace(client: FlaskClient, busy: int) -> None:
    page = page_of(client, f"/errors/{format_fingerprint(busy)}")
    assert "<mark>  File &#34;/srv/shop/crm.py&#34;, line 88, in send</mark>" in page
    assert "<mark>    dial()</mark>" in page and "<mark>    raise err" not in page
    assert "<mark>" in page_of(client, "/errors/smtp_down")


def test_the_trend_is_by_hour_or_by_day_and_its_numbers_are_in_a_table(
    client: FlaskClient, busy: int
) -> None:
    path = f"/errors/{format_fingerprint(busy)}"
    body = client.get(f"{path}.json?since=1d").get_json()
    assert body["by"] == "hour" and len(body["trend"]) in (24, 25) and body["count"] == 2
    body = client.get(f"{path}.json?by=hour").get_json()
    assert len(body["trend"]) in (168, 169) and body["count"] == 4
    assert client.get(f"{path}.json?since=30d").get_json()["count"] == 13
    page = page_of(client, path)
    assert page.count('<tr id="step-') == 8
    assert client.get(f"{path}?since=30d&by=hour").status_code == 400


@pytest.mark.parametrize(
    ("step", "since", "count"),
    [("day", "2026-10-23T22:30Z", 3), ("hour", "2026-10-24T22:00Z", 49), ("day", "2026-03-27T23:00Z", 213)],
)
def test_days_of_23_and_25_hours_are_one_bar_each(step: str, since: str, count: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime.fromisoformat(since)
    found = starts(first, datetime(2026, 10, 26, 23, 0, tzinfo=UTC), step, zone)
    assert len(found) == count == len(set(found)) and found == sorted(found)
    if step == "day":
        assert {each.astimezone(zone).hour for each in found} == {0}


@pytest.mark.parametrize(
    ("zone", "step", "failed"),
    [
        ("Atlantic/Azores", "day", "2026-10-25T12:00Z"),
        ("America/Havana", "day", "2026-11-01T12:00Z"),
        ("Australia/Lord_Howe", "hour", "2026-04-05T12:10Z"),
    ],
)
def test_no_failure_is_lost_where_the_clocks_are_put_back_oddly(
    app: Flask, connection: Connection, zone: str, step: str, failed: str
) -> None:
    number, moment = a_group(connection), datetime.fromisoformat(failed)
    since, until = moment - timedelta(days=2), moment + timedelta(days=2)
    an_attempt(connection, 1, error_group=number, outcome="failed", error_code="x", finished_at=moment)
    begun = starts(since, until, step, ZoneInfo(zone))
    with app.extensions["wakeboard_database"].pages.connect() as looking:
        found = error_groups.count_steps(looking, number, since, until, begun)
    at = found.index(1)
    assert sum(found) == 1 and begun[at] <= moment < begun[at + 1]


def test_the_runs_of_a_group_come_in_pages_and_by_state(client: FlaskClient, connection: Connection) -> None:
    number = a_group(connection)
    made = [a_run(connection, "dead", error_group=number, attempts=0) for _ in range(5)]
    a_run(connection, "succeeded", error_group=number, attempts=0)
    path = f"/errors/{format_fingerprint(number)}"
    body = client.get(f"{path}.json?status=dead&limit=2").get_json()
    seen = [item["id"] for item in body["items"]]
    while body["next"]:
        body = client.get(f"{path}.json?status=dead&limit=2&cursor={body['next']}").get_json()
        seen += [item["id"] for item in body["items"]]
    assert seen == made[::-1]
    head, *lines = client.get(f"{path}.csv?status=dead").text.splitlines()
    assert head.startswith("id,status,job_type") and len(lines) == 5
    assert 'rel="next"' in page_of(client, f"{path}?limit=2")


def test_a_group_that_is_gone_is_not_found_and_no_code_is_taken_for_one(
    client: FlaskClient, connection: Connection
) -> None:
    for path in ("/errors/0123456789abc", "/errors/0123456789abc.json", "/errors/0123456789abc/mute"):
        answer = client.get(path)
        assert answer.status_code == 404 and "There is no error group 0123456789abc" in answer.text
    assert "No failure with this code" in page_of(client, "/errors/0123456789ab")
    assert client.get(f"/errors/{format_fingerprint(a_group(connection))}?colour=red").status_code == 400


def test_what_is_shown_live_is_what_is_shown_at_first(
    client: FlaskClient, connection: Connection, busy: int
) -> None:
    a_group(connection, code="x", muted_until="1 hour", muted_by="anna")
    for path in (
        "/errors?state=back,ongoing",
        f"/errors/{format_fingerprint(busy)}",
        f"/errors/{format_fingerprint(busy)}?since=1d",
    ):
        assert_fragments_match(client, path)


def test_hostile_text_stays_text(client: FlaskClient, connection: Connection) -> None:
    group = group_of(HOSTILE, HOSTILE, HOSTILE)
    a_group(
        connection, HOSTILE, HOSTILE, HOSTILE, frame=HOSTILE, muted_by=HOSTILE, muted_reason=HOSTILE,
        muted_until="1 hour",
    )  # fmt: skip
    a_group(connection, "mail", HOSTILE, HOSTILE, frame=HOSTILE)
    failures(
        connection, group.id, error=HOSTILE, traceback=f'  File "/srv/{HOSTILE}", line 1, in x',
        worker_id=HOSTILE, error_code=HOSTILE, job_type=HOSTILE,
    )  # fmt: skip
    a_run(connection, "dead", error_group=group.id, error_code=HOSTILE, last_error=HOSTILE, job_type=HOSTILE)
    for path in ("/errors", f"/errors/{group.fingerprint}", f"/errors/{group.fingerprint}/mute"):
        page = page_of(client, path)
        assert "<img src=x" not in page and "\u202e" not in page and "&lt;img src=x" in page, path


def test_secrets_are_in_no_shape_of_a_group(client: FlaskClient, connection: Connection) -> None:
    words = "password=hunter2 was refused"
    number = a_group(connection, message=words)
    failures(connection, number, error=words, traceback=words)
    a_run(connection, "dead", error_group=number, last_error=words)
    path = f"/errors/{format_fingerprint(number)}"
    for shape in ("/errors", "/errors.json", "/errors.csv", path, f"{path}.json", f"{path}.csv"):
        assert b"hunter2" not in client.get(shape).data, shape


def test_an_attempt_leads_to_its_group(client: FlaskClient, connection: Connection) -> None:
    number = a_group(connection)
    run = a_run(connection, "dead", error_group=number, attempts=1, failures=1)
    page = page_of(client, f"/runs/{run}")
    assert page.count(f'href="/errors/{format_fingerprint(number)}"') == 2


def test_a_night_knows_a_group_by_its_own_first_time(client: FlaskClient, connection: Connection) -> None:
    old = a_group(connection, first_seen_at="-30 days")
    new = a_group(connection, message="never seen", first_seen_at="-1 hour")
    for number in (old, new):
        failures(connection, number, ago="30 minutes")
    body = client.get("/night.json?since=24h").get_json()
    assert {item["error_group"]: item["is_new"] for item in body["failures"]} == {old: False, new: True}
    assert f'href="/errors/{format_fingerprint(new)}?since=' in page_of(client, "/night?since=24h")


# ---- verbs ------------------------------------------------------------------------------------------


def test_a_mute_is_asked_for_then_done_and_undone_without_a_script(
    client: FlaskClient, connection: Connection
) -> None:
    path = f"/errors/{format_fingerprint(a_group(connection))}"
    asked = page_of(client, f"{path}/mute")
    assert '<select name="for">' in asked and "Alerts of failures and dead runs leave it out" in asked
    answer = client.post(f"{path}/mute", data={"for": "8h", "reason": "provider is down", "next": path})
    assert (answer.status_code, answer.headers["Location"]) == (303, path)
    (found,) = rows(connection, "error_groups")
    assert (found["muted_reason"], found["muted_until"] > found["muted_at"]) == ("provider is down", True)
    page = page_of(client, path)
    assert "provider is down" in page and "Mute again" in page and "Who did what" in page
    assert client.get(f"{path}.json").get_json()["audit"][0]["action"] == "error.mute"
    assert client.post(f"{path}/unmute", data={"next": path}).status_code == 303
    assert rows(connection, "error_groups")[0]["muted_until"] is None


def test_a_mute_must_have_one_end(client: FlaskClient, connection: Connection) -> None:
    path = f"/errors/{format_fingerprint(a_group(connection))}/mute"
    as_json = {"Accept": "application/json"}
    for wrong in (
        {}, {"for": ""}, {"for": "7d", "until": "2030-01-01"}, {"for": "for ever"}, {"for": "200d"},
        {"until": "8h"}, {"until": "2020-01-01"}, {"until": "nonsense"}, {"for": "0"}, {"for": "-1h"},
    ):  # fmt: skip
        answer = client.post(path, json=wrong, headers=as_json)
        assert answer.status_code == 400, wrong
    assert rows(connection, "error_groups")[0]["muted_until"] is None
    answer = client.post(path, json={"for": "morning"}, headers=as_json)
    assert (answer.status_code, answer.get_json()["status"], answer.get_json()["changed"]) == (
        200, "muted", True,
    )  # fmt: skip
    (now,) = connection.execute("SELECT now() + interval '2 days'").fetchone() or (None,)
    answer = client.post(path, json={"until": now.isoformat()}, headers=as_json)
    assert answer.status_code == 200
    assert abs((rows(connection, "error_groups")[0]["muted_until"] - now).total_seconds()) < 1


@pytest.mark.parametrize("given", ["1455512880613372", "nosuch", "0123456789ABC", "urn:x/0123456789abc"])
@pytest.mark.parametrize("verb", ["mute", "unmute", "retry"])
def test_a_verb_on_what_is_no_group_says_how_a_group_is_addressed(
    given: str, verb: str, client: FlaskClient, connection: Connection
) -> None:
    a_group(connection)
    as_json = {"Accept": "application/json"}
    answer = client.post(f"/errors/{given}/{verb}", json={"for": "8h"}, headers=as_json)
    assert (answer.status_code, "Allow" in answer.headers) == (404, False)
    assert answer.get_json()["message"] == (
        f"“{given}” is no error group: the address of one has 13 digits 0-9 a-f, which /errors.json gives as "
        "fingerprint."
    )
    assert rows(connection, "error_groups")[0]["muted_until"] is None


def test_a_code_that_ends_like_a_verb_has_its_page(client: FlaskClient, connection: Connection) -> None:
    for code in ("nosuch/mute", "mute", "a/mute/b"):
        number = a_group(connection, code=code)
        failures(connection, number, error_code=code)
        assert f'href="/errors/{format_fingerprint(number)}' in page_of(client, f"/errors/{code}")
        assert client.get(f"/errors/{code}.json").get_json()["error_code"] == code
        assert client.put(f"/errors/{code}").status_code == 405
    assert client.post("/errors/nosuch").status_code == 405


def test_htmx_gets_a_toast(client: FlaskClient, connection: Connection) -> None:
    path = f"/errors/{format_fingerprint(a_group(connection))}"
    answer = client.post(f"{path}/mute", data={"for": "1h"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200 and "is muted until" in answer.text
    assert answer.headers["HX-Trigger"] == "live:now"


def test_a_person_who_retries_a_group_is_led_to_its_preview_and_a_program_begins_it(
    client: FlaskClient, connection: Connection
) -> None:
    number = a_group(connection)
    run = a_run(connection, "dead", error_group=number)
    path, preview = (
        f"/errors/{format_fingerprint(number)}",
        f"/runs/bulk/retry?group={format_fingerprint(number)}&status=dead,failed",
    )
    assert "1 dead and 0 waiting" in page_of(client, f"{path}/retry")
    answer = client.post(f"{path}/retry")
    assert (answer.status_code, answer.headers["Location"]) == (303, preview)
    assert rows(connection, "job_runs", "id = %s", run)[0]["status"] == "dead"
    sent = {"confirm": 1, "per_minute": 60, "reason": "CRM is back"}
    body = client.post(f"{path}/retry", json=sent, headers={"Accept": "application/json"}).get_json()
    (begun,) = rows(connection, "operations")
    assert (body["changed"], body["id"], begun["total"], begun["per_minute"]) == (True, begun["id"], 1, 60)
    assert begun["reason"] == "CRM is back"


@pytest.mark.parametrize(
    ("status", "offered", "refused"),
    [
        ("dead", ("retry", "cancel"), ()),
        ("failed", ("retry",), ("No run of this group is dead",)),
        ("succeeded", (), ("No run of this group fails now", "No run of this group is dead")),
    ],
)
def test_what_the_runs_of_a_group_do_not_need_is_not_offered(
    client: FlaskClient, connection: Connection, status: str, offered: Sequence[str], refused: Sequence[str]
) -> None:
    number = a_group(connection)
    a_run(connection, status, error_group=number)
    live = page_of(client, f"/_fragments/errors/{format_fingerprint(number)}/facts")
    for verb in ("retry", "cancel"):
        assert (f'href="/runs/bulk/{verb}?group={format_fingerprint(number)}' in live) is (verb in offered)
    for reason in ("No run of this group fails now", "No run of this group is dead"):
        assert (f'disabled title="{reason}"' in live) is (reason in refused)


def test_viewers_look_and_may_not_mute(as_role: AsRole, connection: Connection) -> None:
    path = f"/errors/{format_fingerprint(a_group(connection))}"
    viewer = as_role("viewer")
    page = page_of(viewer, path)
    assert f'href="{path}/mute"' not in page and "Needs the role operator" in page
    for verb in ("mute", "unmute", "retry"):
        assert viewer.get(f"{path}/{verb}").status_code == 403
        assert viewer.post(f"{path}/{verb}", data={"for": "1h"}).status_code == 403
    assert rows(connection, "error_groups")[0]["muted_until"] is None
    assert as_role("operator").post(f"{path}/mute", data={"for": "1h"}).status_code == 303


def test_a_group_names_the_schedules_whose_runs_failed_so(
    client: FlaskClient, connection: Connection
) -> None:
    number = a_group(connection, "command", code="exit_1", message="")
    made = {name: a_definition(connection, name, job_type="command") for name in ("backup", "sweep", "gone")}
    path = f"/errors/{format_fingerprint(number)}"

    def fail(definition: int | None, count: int) -> int:
        for _ in range(count):
            run = a_run(
                connection, "dead", job_type="command", definition_id=definition, error_group=number,
                error_code="exit_1", attempts=0,
            )  # fmt: skip
            for attempt in (1, 2):
                an_attempt(
                    connection, run, attempt=attempt, lease_epoch=attempt, outcome="failed",
                    error_group=number, error_code="exit_1", finished_at="-1 minute",
                )  # fmt: skip
        return run

    fail(None, 2)
    assert "<dt>Schedules</dt>" not in page_of(client, path)
    assert client.get(f"{path}.json").get_json()["schedules"] == []
    fail(made["backup"], 1)
    swept = fail(made["sweep"], 3)
    fail(made["gone"], 2)
    connection.execute("DELETE FROM wakeboard.job_definitions WHERE name = 'gone'")
    (said,) = re.findall(r"<dt>Schedules</dt> ?<dd>(.*?)</dd>", one_line(page_of(client, path)))
    assert unescape(re.sub("<[^>]+>", "", said)) == (
        f"sweep 3 runs, removed (was number {made['gone']}) 2 runs, backup 1 run, none 2 runs "
        "(failed so in the window)"
    )
    links = [unescape(each) for each in re.findall(r'href="([^"]+)"', said)]
    assert links[0] == f"/runs?schedule=sweep&group={format_fingerprint(number)}"
    found = [client.get(link.replace("/runs?", "/runs.json?")).get_json()["items"] for link in links]
    assert [len(items) for items in found] == [3, 2, 1] and found[0][0]["id"] == swept
    body = client.get(f"{path}.json").get_json()
    assert [(each["name"], each["runs"]) for each in body["schedules"]] == [
        ("sweep", 3), (None, 2), ("backup", 1), (None, 2),
    ]  # fmt: skip
    assert not body["schedules_capped"]


def test_of_many_schedules_some_are_named_and_of_many_failures_the_newest_counted(
    client: FlaskClient, connection: Connection
) -> None:
    number = a_group(connection, "command", code="exit_1", message="")
    for place in range(7):
        definition = a_definition(connection, f"line-{place}", job_type="command")
        connection.execute(
            """WITH made AS (INSERT INTO wakeboard.job_runs (job_type, definition_id, status, finished_at,
                error_code, error_group, failed_at)
            SELECT 'command', %s, 'dead', now(), 'exit_1', %s, now() FROM generate_series(1, 40) RETURNING id)
            INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
                started_at, finished_at, outcome, error_code, error_group)
            SELECT id, 1, 1, 'command', 'w1', now(), now(), now() - %s * interval '1 min', 'failed', 'exit_1',
                %s
            FROM made""",
            (definition, number, place, number),
        )
    path = f"/errors/{format_fingerprint(number)}"
    (said,) = re.findall(r"<dt>Schedules</dt> ?<dd>(.*?)</dd>", one_line(page_of(client, path)))
    assert "(of the newest 200 failures of the window)" in said and "line-5" not in said
    assert client.get(f"{path}.json").get_json()["schedules_capped"]
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE run_id % 4 > 0")
    (said,) = re.findall(r"<dt>Schedules</dt> ?<dd>(.*?)</dd>", one_line(page_of(client, path)))
    assert "and 2 more" in said and "(failed so in the window)" in said


# ---- bounds -----------------------------------------------------------------------------------------


def test_no_page_of_a_group_reads_a_whole_table(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    numbers = [a_group(connection, message=f"fault {chr(97 + n)}") for n in range(7)]
    a_group(connection, "report", muted_until=from_now("1 hour"))
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, finished_at, error_code, error_group, failed_at)
        SELECT 'mail', CASE WHEN n % 50 = 0 THEN 'dead' ELSE 'succeeded' END, now(),
            CASE WHEN n % 5 = 0 THEN 'smtp_down' END,
            CASE WHEN n % 5 = 0 THEN (%(numbers)s::bigint[])[1 + n / 5 %% 7] END, now()
        FROM generate_series(1, 50000) AS n""".replace("n % ", "n %% ").encode(),
        {"numbers": numbers},
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error, error_group)
        SELECT id, 1, 1, job_type, 'w1', now(), now(), now() - (id % 9000) * interval '1 min',
            CASE WHEN error_group IS NULL THEN 'succeeded' ELSE 'failed' END, error_code, 'no', error_group
        FROM wakeboard.job_runs"""
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.error_groups")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    name = format_fingerprint(numbers[0])
    for path in (
        "/errors", f"/errors/{name}", f"/errors/{name}?since=30d", f"/errors/{name}?status=dead",
        f"/runs?group={name}", f"/runs?group={name}&status=dead,failed", f"/runs?group={name}&q=x",
        f"/errors/{name}/retry", f"/runs?group={name}&error=smtp_down",
    ):  # fmt: skip
        assert client.get(path).status_code == 200, path
    looked_at = [(sql, values) for sql, values in asked if "job_runs" in sql or "job_attempts" in sql]
    assert len(looked_at) >= 30
    for sql, values in looked_at:
        plan = [line for (line,) in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall()]
        large = ("Seq Scan on job_runs", "Seq Scan on job_attempts")
        walks = [line for line in plan if any(walk in line for walk in large)]
        assert not walks, "\n".join([sql, *plan])
        if "error_group = " in sql and "job_runs" in sql:
            # What is known of attempts leads to single runs.
            by_number = ["job_runs_by_group", "job_runs_by_error"]
            by_number += ["job_attempts_by_group"] if "job_attempts" in sql else []
            # Of what fails with a code the index knows the group: once vacuum was there it needs no row.
            by_number += ["job_runs_by_error"] if "error_code = " in sql else []
            assert any(index in line for line in plan for index in by_number), "\n".join([sql, *plan])
