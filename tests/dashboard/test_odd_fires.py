"""What was odd about the runs of a schedule: late, overlapping, done twice; and who paused it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import items_of, one_line
from tests.support.factories import a_definition, a_run, from_now, insert
from wakeboard.core.parent_run import enqueuer_name
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel
from wakeboard_dashboard.text.oddities import LatestRun, count_oddities, find_oddities

JSON = {"Accept": "application/json"}


@pytest.fixture
def mine(connection: Connection) -> int:
    return a_definition(connection, "mine")


def a_fire(connection: Connection, mine: int, due: int, began: int, ended: int | None, **more: Any) -> int:
    """Write a run that was due, began and ended so many minutes ago (None: it runs)."""
    when = {"scheduled_for": from_now(f"-{due} minutes"), "started_at": from_now(f"-{began} minutes")}
    if ended is None:
        return a_run(connection, "running", definition_id=mine, **when, **more)
    when["finished_at"] = from_now(f"-{ended} minutes")
    return a_run(connection, "succeeded", definition_id=mine, **when, **more)


def item(client: FlaskClient) -> dict[str, Any]:
    return dict(items_of(client, "/schedules.json?q=mine")[0])


def odd(client: FlaskClient) -> dict[int, list[str]]:
    runs = client.get("/schedules/mine.json").get_json()["runs"]
    return {run["id"]: [one["word"] for one in run["odd"]] for run in runs if run["odd"]}


def test_punctual_runs_one_after_the_other_are_not_odd(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    a_fire(connection, mine, 60, 60, 50)
    a_fire(connection, mine, 40, 40, 30)
    assert odd(client) == {}
    assert [item(client)[word] for word in ("late", "overlapping", "twice")] == [0, 0, 0]


def test_a_dead_run_that_is_cancelled_later_was_not_beside_those_since(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    times = {"scheduled_for": from_now("-60 minutes"), "started_at": from_now("-60 minutes")}
    gone = {"failed_at": from_now("-50 minutes"), "finished_at": from_now("-50 minutes")}
    counts = {"attempts": 1, "failures": 1, "lease_epoch": 1}
    run = a_run(connection, "dead", definition_id=mine, **times, **gone, **counts)
    connection.execute(
        "UPDATE wakeboard.job_attempts AS a SET started_at = r.started_at, finished_at = r.finished_at"
        " FROM wakeboard.job_runs AS r WHERE a.run_id = r.id AND r.id = %s",
        (run,),
    )
    a_fire(connection, mine, 40, 40, 30)
    assert cancel(connection, run, Actor("anna", Role.OPERATOR, "test")).ok
    assert odd(client) == {} and item(client)["overlapping"] == 0
    assert client.get("/night.json?since=3h").get_json()["overlapping"] == 0
    page = client.get("/runs?status=cancelled").text
    assert "smtp_down" in page and "10 min" in page, "what failed stays to be read, and how long it took"


def test_a_late_start_is_told(client: FlaskClient, connection: Connection, mine: int) -> None:
    late = a_fire(connection, mine, 60, 48, 40)
    assert odd(client) == {late: ["late"]} and item(client)["late"] == 1
    page = client.get("/schedules/mine").text
    assert "started 12 min after its time" in page
    listed = client.get("/schedules").text
    assert "late 1" in listed and f"Run {late}: succeeded, late" in listed


def names(client: FlaskClient, query: str) -> list[str]:
    return [each["name"] for each in items_of(client, f"/schedules.json?{query}")]


def test_schedules_are_found_by_what_is_odd_about_their_latest_runs(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    a_fire(connection, mine, 60, 48, 40)
    beside, off = a_definition(connection, "beside"), a_definition(connection, "off", enabled=False)
    a_fire(connection, beside, 60, 60, 30)
    a_fire(connection, beside, 40, 40, 35)
    first = a_fire(connection, off, 60, 60, 50)
    a_run(connection, "succeeded", definition_id=off, origin_run_id=first)
    a_fire(connection, a_definition(connection, "fine"), 60, 60, 50)
    assert names(client, "state=late") == ["mine"]
    assert names(client, "state=overlapping") == ["beside"]
    assert names(client, "state=twice") == ["off"]
    assert names(client, "state=late,twice") == ["mine", "off"]
    assert names(client, "state=late,paused") == ["mine", "off"]
    assert names(client, "state=late&q=beside") == []
    listed = client.get("/schedules.csv?state=overlapping").text.splitlines()
    assert [line.split(",")[0] for line in listed[1:]] == ["beside"]
    page = one_line(client.get("/schedules?state=late").text)
    assert '<option value="late" selected>late</option>' in page and "/schedules/mine" in page
    assert 'href="/schedules/beside"' not in page


def test_a_run_that_still_waits_for_its_start_is_late(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    run = a_run(connection, definition_id=mine, scheduled_for=from_now("-9 minutes"))
    assert odd(client) == {run: ["late"]}


def test_a_retried_run_is_judged_by_its_first_start(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    a_fire(connection, mine, 60, 20, 10, attempts=2, lease_epoch=2, late_by=0.2)
    assert odd(client) == {}


def test_a_run_beside_the_one_before_is_told(client: FlaskClient, connection: Connection, mine: int) -> None:
    a_fire(connection, mine, 60, 60, 10)
    beside = a_fire(connection, mine, 30, 30, None)
    assert odd(client) == {beside: ["overlapping"]} and item(client)["overlapping"] == 1


def test_what_was_done_twice_is_told(client: FlaskClient, connection: Connection, mine: int) -> None:
    first = a_fire(connection, mine, 60, 60, 50, attempts=2, lease_epoch=2)
    connection.execute(
        "UPDATE wakeboard.job_attempts SET outcome = 'lost', refused_at = now(),"
        " refused_outcome = 'succeeded'"
        " WHERE run_id = %s AND lease_epoch = (SELECT min(lease_epoch) FROM wakeboard.job_attempts"
        " WHERE run_id = %s)",
        (first, first),
    )
    second = a_fire(connection, mine, 40, 40, 30)
    a_run(connection, "succeeded", origin_run_id=second)
    assert odd(client) == {first: ["twice"], second: ["twice"]} and item(client)["twice"] == 2


def test_what_its_own_handler_enqueued_is_not_its_work_done_twice(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    run = a_fire(connection, mine, 40, 40, 30)
    a_run(connection, "succeeded", job_type="mail", origin_run_id=run, enqueued_by=enqueuer_name(run))
    assert odd(client) == {}
    a_run(connection, "succeeded", origin_run_id=run, enqueued_by="anna")
    assert odd(client) == {run: ["twice"]}


def test_a_time_that_the_clocks_show_twice_is_told() -> None:
    def run(number: int, hour: int, minute: int) -> LatestRun:
        moment = datetime(2026, 10, 25, hour, minute, tzinfo=UTC)
        plain = {"late_by": 0.0, "overlapped": False, "came_back": False, "ran_again": False}
        return LatestRun(number, "succeeded", moment, moment, moment, None, **plain)

    found = find_oddities([run(1, 0, 30), run(2, 1, 30), run(3, 2, 30)], "Europe/Berlin")
    assert {number: [one.sentence for one in each] for number, each in found.items()} == {
        1: ["the clocks showed 02:30 on 25 October 2026 twice"],
        2: ["the clocks showed 02:30 on 25 October 2026 twice"],
    }
    assert count_oddities(found) == {"twice": 2}


def at(moment: str) -> datetime:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC)


BERLIN = at("2026-10-25T00:30"), at("2026-10-25T01:30")


def scheduled(connection: Connection, name: str, zone: str, *times: datetime) -> None:
    """Write a schedule in ``zone`` with a run that was in time for each of ``times``."""
    definition = a_definition(connection, name, timezone=zone)
    for time in times:
        when = {"scheduled_for": time, "started_at": time, "finished_at": time}
        a_run(connection, "succeeded", definition_id=definition, **when)


def test_schedules_are_found_by_a_time_that_the_clocks_show_twice(
    client: FlaskClient, connection: Connection
) -> None:
    scheduled(connection, "in-berlin", "Europe/Berlin", *BERLIN)
    scheduled(connection, "in-between", "Europe/Berlin", at("2026-03-01T00:30"), *BERLIN, at("2027-04-01"))
    scheduled(connection, "in-disorder", "Europe/Berlin", *reversed(BERLIN))
    scheduled(connection, "in-paris-once", "Europe/Paris", at("2026-10-24T00:30"), BERLIN[1])
    scheduled(connection, "in-utc", "UTC", *BERLIN)
    scheduled(connection, "nowhere", "No/Where", *BERLIN)
    assert names(client, "state=twice") == ["in-berlin", "in-between", "in-disorder"]
    assert names(client, "state=late") == []


def test_a_schedule_in_another_zone_is_judged_anew(client: FlaskClient, connection: Connection) -> None:
    scheduled(connection, "mine", "Europe/Berlin", *BERLIN)
    assert item(client)["twice"] == 2 and "twice 2" in client.get("/schedules").text
    connection.execute("UPDATE wakeboard.job_definitions SET timezone = 'UTC'")
    assert item(client)["twice"] == 0 and "twice 2" not in client.get("/schedules").text


def test_the_filter_joins_what_runs_say_with_what_clocks_show(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    a_fire(connection, mine, 60, 48, 40)
    late = a_fire(connection, a_definition(connection, "zest"), 60, 48, 40)
    scheduled(connection, "zone", "Europe/Berlin", *BERLIN)
    assert names(client, "state=late") == names(client, "state=late,late") == ["mine", "zest"]
    assert names(client, "state=late,twice") == ["mine", "zest", "zone"]
    assert f"Run {late}: succeeded, late" in client.get("/schedules?state=late").text


def test_the_filter_finds_what_the_badges_say(client: FlaskClient, connection: Connection) -> None:
    dice = Random(20261025)
    for number in range(40):
        zone = dice.choice(("Europe/Berlin", "Asia/Gaza", "Africa/Casablanca", "Australia/Lord_Howe"))
        first = datetime(dice.choice((2026, 2040)), 10, dice.randint(1, 28), dice.randint(0, 23), tzinfo=UTC)
        step = timedelta(minutes=dice.choice((30, 60, 180, 420, 1440, 10080)))
        times = [first + each * step for each in range(dice.randint(2, 20))]
        scheduled(connection, f"some-{number}", zone, *times)
    items = items_of(client, "/schedules.json")
    told = [each["name"] for each in items if each["twice"]]
    assert names(client, "state=twice") == told and 0 < len(told) < len(items)


def any_run(connection: Connection, dice: Random, definition: int, due: int) -> None:
    """Write a run of a schedule that was due so many minutes ago, and went in one of many ways."""
    how = dice.choice(("plain",) * 12 + ("late", "long", "retried", "by hand", "again", "waits", "cancelled"))
    if how == "late":
        a_fire(connection, definition, due, due - 3, due - 4)
    elif how == "long":
        a_fire(connection, definition, due, due, due - dice.choice((2, 50, 90)))
    elif how == "retried":
        a_fire(connection, definition, due, due, due - 1, attempts=2, lease_epoch=2)
    elif how == "by hand":
        began, ended = from_now(f"-{due} minutes"), from_now(f"-{due - dice.choice((1, 90))} minutes")
        a_run(connection, "succeeded", definition_id=definition, started_at=began, finished_at=ended)
    elif how in ("waits", "cancelled"):
        status = "queued" if how == "waits" else how
        a_run(connection, status, definition_id=definition, scheduled_for=from_now(f"-{due} minutes"))
    else:
        run = a_fire(connection, definition, due, due, due)
        if how == "again":
            a_run(
                connection,
                "succeeded",
                origin_run_id=run,
                enqueued_by=dice.choice(("anna", enqueuer_name(run))),
            )


@pytest.mark.parametrize("word", ("late", "overlapping", "twice"))
def test_the_filter_finds_what_the_badges_say_page_by_page(
    client: FlaskClient, connection: Connection, word: str
) -> None:
    dice = Random(20261125)
    for number in range(40):
        definition = a_definition(connection, f"some-{number}", timezone="UTC")
        for step in range(dice.choice((0, 1, 3, 30)), 0, -1):
            any_run(connection, dice, definition, 60 * (step + 2))
    items = items_of(client, "/schedules.json")
    told = [each["name"] for each in items if each[word]]
    assert names(client, f"state={word}") == told and 3 < len(told) < len(items) - 3
    page = client.get(f"/schedules.json?state={word}&limit=3").get_json()
    found = page["items"]
    while page["next"]:
        page = client.get(f"/schedules.json?state={word}&limit=3&cursor={page['next']}").get_json()
        found += page["items"]
    assert [each["name"] for each in found] == told


def test_schedules_that_missed_something_can_be_listed(
    client: FlaskClient, connection: Connection, mine: int
) -> None:
    a_definition(connection, "calm")
    missed = {"scheduled_for": datetime.now(UTC) - timedelta(hours=1), "reason": "misfire"}
    insert(connection, "missed_fires", {"definition_id": mine, **missed})
    names = [each["name"] for each in items_of(client, "/schedules.json?state=missed")]
    assert names == ["mine"]
    assert "missed 1" in client.get("/schedules").text


def test_a_pause_says_who_when_and_why(client: FlaskClient, connection: Connection, mine: int) -> None:
    client.post("/schedules/mine/pause", json={"reason": "the bank is closed"}, headers=JSON)
    for path in ("/schedules", "/schedules/mine"):
        page = client.get(path).text
        assert "by admin" in page and "the bank is closed" in page, path
    assert (item(client)["paused_by"], item(client)["paused_reason"]) == ("admin", "the bank is closed")
    client.post("/schedules/mine/resume", json={}, headers=JSON)
    assert item(client)["paused_by"] is None
    client.post("/schedules/mine/edit", json={"enabled": "0", "reason": "by the form"}, headers=JSON)
    assert item(client)["paused_reason"] == "by the form"


def test_a_pause_by_plain_sql_is_nobodys(client: FlaskClient, connection: Connection, mine: int) -> None:
    connection.execute("UPDATE wakeboard.job_definitions SET enabled = false WHERE id = %s", (mine,))
    assert "It is paused: nothing fires" in client.get("/schedules/mine").text
    assert item(client)["paused_by"] is None
