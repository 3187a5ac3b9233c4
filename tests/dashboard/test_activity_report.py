"""Last night on one page: which window it is, what it counts, and that page and twin say the same."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask.testing import FlaskClient
from markupsafe import escape

from tests.conftest import Connection
from tests.dashboard.conftest import NIGHT_TILES, SAME_ORIGIN, a_failure, assert_shown_as_text
from tests.support.dashboard_apps import an_app, overhear
from tests.support.factories import (
    a_definition,
    a_group,
    a_later_success,
    a_run,
    a_type,
    a_worker,
    age,
    an_attempt,
    from_now,
    insert,
)
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database import audit
from wakeboard.reporting.activity_report import TimeWindow, failures, fires
from wakeboard.reporting.activity_report.baselines import Baseline
from wakeboard.reporting.activity_report.summary import summarize
from wakeboard.reporting.activity_report.type_activity import (
    MAX_SLICES,
    BusyTime,
    Stretch,
    find_attempts,
    find_busy_times,
    join_stretches,
    slice_length,
)
from wakeboard.reporting.hourly_rollups import sum_next_hour
from wakeboard_dashboard.charts import gantt
from wakeboard_dashboard.queries import errors
from wakeboard_dashboard.queries import night as night_queries
from wakeboard_dashboard.text import night as words
from wakeboard_dashboard.text.formats import anchor
from wakeboard_dashboard.views.night import BOUNDS

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/?#"
DAY = "since=24h"


def night(client: FlaskClient, query: str = DAY) -> Any:
    answer = client.get(f"/night.json?{query}")
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def html(client: FlaskClient, query: str = DAY) -> str:
    answer = client.get(f"/night?{query}")
    assert answer.status_code == 200
    return answer.text


def row(page: str, id: str) -> list[str]:
    """Return the texts of the cells of the row with that id."""
    found = re.search(rf'<tr id="{re.escape(id)}".*?</tr>', page, re.S)
    assert found, id
    cells = re.findall(r"<td.*?</td>", found[0], re.S)
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in cells]


def rows(page: str, prefix: str) -> int:
    return page.count(f'<tr id="{prefix}-')


def counted(
    connection: Connection,
    ago: str,
    job_type: str = "mail",
    outcome: str = "succeeded",
    runs: int = 1,
    seconds: float = 1,
    bucket: int = 40,
    table: str = "statistics_rollups",
) -> None:
    """Write attempts into the statistics, each of which took ``seconds``."""
    connection.execute(
        f"""INSERT INTO wakeboard.{table} (minute, job_type, outcome, duration_bucket, wait_bucket, runs,
            duration_ms, duration_max_ms, wait_ms, wait_max_ms)
        VALUES (date_trunc('minute', now() - %s::interval), %s, %s, %s, 1, %s, %s, %s, 1, 1)""".encode(),
        (ago, job_type, outcome, bucket, runs, runs * seconds * 1000, seconds * 1000),
    )


# Which window


def moment(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    "now", ["2026-11-21T00:30", "2026-11-21T03:00", "2026-11-21T09:00", "2026-11-21T23:59"]
)
def test_last_night_is_yesterday_evening_to_this_morning(now: str) -> None:
    window = words.last_night(moment(now, "Europe/Paris"), ZoneInfo("Europe/Paris"))
    assert window.since == moment("2026-11-20T18:00", "Europe/Paris")
    assert window.until == moment("2026-11-21T08:00", "Europe/Paris")


def test_a_night_in_which_the_clocks_change_is_an_hour_longer_or_shorter() -> None:
    paris = ZoneInfo("Europe/Paris")
    spring = words.last_night(moment("2026-03-29T12:00"), paris)
    autumn = words.last_night(moment("2026-10-25T12:00"), paris)
    assert (spring.until - spring.since, autumn.until - autumn.since) == (
        timedelta(hours=13),
        timedelta(hours=15),
    )
    assert words.shift_window(autumn, 1, paris).since == moment("2026-10-25T18:00", "Europe/Paris")


def test_the_night_is_that_of_the_site_whatever_zone_the_reader_chose(
    database: str, connection: Connection
) -> None:
    app = an_app(database_url=database, timezone="Asia/Tokyo")
    reader = app.test_client()
    reader.environ_base.update(SAME_ORIGIN)
    name = f"wakeboard_{users.install_id(connection)}"
    reader.set_cookie(name, sessions.open_session(connection, "anna", Role.VIEWER))
    reader.set_cookie("wakeboard_zone", "Europe/Paris")
    body = night(reader, "")
    since = datetime.fromisoformat(body["since"]).astimezone(ZoneInfo("Asia/Tokyo"))
    assert (since.hour, since.minute) == (18, 0)
    app.extensions["wakeboard_database"].dispose()


@pytest.mark.parametrize(
    ("query", "hours"),
    [
        ("", 14),
        ("since=6h", 6),
        ("until=2026-11-20T08:00Z", 14),
        ("since=2026-11-20T20:00Z&until=2026-11-20T22:30Z", 2.5),
    ],
)
def test_any_other_window_comes_by_its_address(client: FlaskClient, query: str, hours: float) -> None:
    body = night(client, query)
    length = datetime.fromisoformat(body["until"]) - datetime.fromisoformat(body["since"])
    assert abs(length.total_seconds() - hours * 3600) <= 120


@pytest.mark.parametrize(
    "query", ["status=dead", "since=yesterday", "since=1h&until=2h", "since=4d", "since=1h&until=1h"]
)
def test_a_window_that_cannot_be_is_refused(client: FlaskClient, query: str) -> None:
    for path in ("/night", "/night.json", "/night.csv"):
        assert client.get(f"{path}?{query}").status_code == 400, path


@pytest.mark.parametrize(
    ("since", "until", "says", "kinds"),
    [
        ("2026-11-21T08:00", "2026-11-20T18:00", "“since” is not before “until”", ["datetime-local"] * 2),
        ("yesterday", "2026-11-20T18:00", "yesterday", ["text", "datetime-local"]),
        ("2026-11-01T08:00", "", "The window is longer than", ["datetime-local"] * 2),
        ('"><b>', "2026-13-40T08:00", "it must be a time", ["text"] * 2),
    ],
)
def test_times_that_cannot_be_come_back_in_the_form_with_the_sentence(
    client: FlaskClient, since: str, until: str, says: str, kinds: list[str]
) -> None:
    answer = client.get("/night", query_string={"since": since, "until": until})
    page = answer.text
    assert answer.status_code == 400 and says in page
    for name, kind, typed in zip(("since", "until"), kinds, (since, until), strict=True):
        assert f'<input type="{kind}" name="{name}" value="{escape(typed)}"' in page
    assert 'action="/night"' in page and 'href="/night?since=24h"' in page


def test_the_days_before_and_after_are_a_click_away(client: FlaskClient) -> None:
    page = html(client, "since=2020-11-20T18:00Z&until=2020-11-21T08:00Z")
    assert 'href="/night?since=2020-11-19T18:00Z&amp;until=2020-11-20T08:00Z"' in page
    assert 'href="/night?since=2020-11-21T18:00Z&amp;until=2020-11-22T08:00Z"' in page
    assert "A day later" not in html(client)


# What it says


def test_an_empty_night_says_what_would_be_here(client: FlaskClient) -> None:
    page = html(client, "since=3d&until=2d")
    assert "Nothing ran." in night(client, "since=3d&until=2d")["sentence"]
    assert "Nothing happened in this window" in page and "prints on paper" in page


def test_what_ran_is_counted_by_type_from_merged_and_unmerged_minutes(
    client: FlaskClient, connection: Connection
) -> None:
    counted(connection, "2 hours", runs=5, seconds=2)
    counted(connection, "3 hours", runs=2, outcome="failed", table="statistics_deltas")
    counted(connection, "3 hours", "report", runs=7)
    counted(connection, "30 hours", "report", runs=100)
    body = night(client)
    assert [(one["job_type"], one["attempts"], one["failed"]) for one in body["items"]] == [
        ("mail", 7, 2),
        ("report", 7, 0),
    ]
    assert (body["attempts"], body["types"], body["failed"]) == (14, 2, 2)
    assert body["items"][0]["seconds"] == pytest.approx(12)
    head, *lines = client.get(f"/night.csv?{DAY}").text.splitlines()
    assert head.startswith("job_type,attempts,succeeded,failed,lost,slow,seconds") and len(lines) == 2


def test_failures_that_were_never_seen_before_are_marked(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection)
    for ago, code, job_type in (
        ("40 hours", "smtp_down", "mail"),
        ("2 hours", "smtp_down", "mail"),
        ("2 hours", "smtp_down", "report"),
        ("1 hour", "no_vat", "mail"),
    ):
        a_failure(connection, ago, run, error_code=code, job_type=job_type)
    body = night(client)
    found = {(one["error_code"], one["job_type"]): one["is_new"] for one in body["failures"]}
    assert found == {
        ("smtp_down", "mail"): False,
        ("smtp_down", "report"): True,
        ("no_vat", "mail"): True,
    }
    assert body["new"] == 2 and not body["well"]
    assert "2 new kinds of failure" in body["sentence"]
    page = html(client)
    assert page.count("</svg>first time</span>") == 2
    assert re.search(r'href="/errors/no_vat\?since=[^"]*until=', page)


def test_what_became_of_the_runs_that_failed(client: FlaskClient, connection: Connection) -> None:
    for status in ("dead", "failed", "succeeded", "cancelled"):
        a_failure(connection, "1 hour", a_run(connection, status, attempts=0))
    a_failure(connection, "1 hour", 999_999)
    body = night(client)
    assert body["failed_runs"] == {
        "runs": 5, "succeeded": 1, "waiting": 1, "dead": 1, "cancelled": 1, "gone": 1,
    }  # fmt: skip
    assert "1 run gave up" in body["sentence"]
    page = html(client)
    assert "5 runs: 1 dead, 1 not through yet, 1 succeeded since, 1 cancelled, 1 removed since" in page


def test_a_run_that_succeeded_only_after_retries_is_named(
    client: FlaskClient, connection: Connection
) -> None:
    failed = {"attempts": 0, "error_code": "smtp_down"}
    run = a_run(connection, "succeeded", finished_at="-1 hour", **failed)
    a_failure(connection, "2 hours", run)
    a_failure(connection, "90 minutes", run)
    early = a_run(connection, "succeeded", finished_at="-23 hours", **failed)
    a_failure(connection, "70 hours", early)
    before = a_run(connection, "succeeded", finished_at="-26 hours", **failed)
    a_failure(connection, "27 hours", before)
    for each in (run, early, before):
        a_later_success(connection, each)
    a_run(connection, "succeeded")
    body = night(client)
    assert [(one["id"], one["failures"]) for one in body["recovered_runs"]] == [(run, 2), (early, 1)]
    assert body["recovered"] == 2
    page = html(client)
    assert row(page, f"recovered-{run}")[:4] == [str(run), "mail", "2", "smtp_down"]
    lines = dict(re.findall(r'<tr id="recovered-(\d+)">(.*?)</tr>', page, re.S))
    assert 'href="/errors/smtp_down?since=' in lines[str(run)]
    older = lines[str(early)]
    assert "/errors/" not in older and re.search(
        r"20\d\d-\d\d-\d\d \d\d:\d\d", row(page, f"recovered-{early}")[4]
    )


def test_fires_that_were_missed_are_told_with_the_reason(client: FlaskClient, connection: Connection) -> None:
    nightly, paused = a_definition(connection, "nightly"), a_definition(connection, "hourly")
    for ago, reason in (("-2 hours", "overlap"), ("-3 hours", "overlap"), ("-40 hours", "misfire")):
        values = {"definition_id": nightly, "scheduled_for": from_now(ago), "reason": reason}
        insert(connection, "missed_fires", values)
    insert(
        connection,
        "missed_fires",
        {
            "definition_id": paused,
            "scheduled_for": from_now("-50 hours"),
            "until_at": from_now("-5 hours"),
            "reason": "paused",
        },
    )
    body = night(client)
    found = [(one["name"], one["reason"], one["fires"], one["is_many"]) for one in body["missed_fires"]]
    assert found == [("nightly", "overlap", 2, False), ("hourly", "paused", 1, True)]
    assert "at least 3 fires missed" in body["sentence"]
    page = html(client)
    assert row(page, "missed-nightly-overlap")[1] == "2" and row(page, "missed-hourly-paused")[1] == "1+"
    assert 'href="/schedules/nightly"' in page


def test_all_missed_fires_are_counted_though_the_worst_lines_alone_are_told(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fires, "MAX_MISSED_LINES", 1)
    monkeypatch.setitem(BOUNDS, "shown", 1)
    for name, count in (("often", 3), ("once", 1)):
        schedule = a_definition(connection, name)
        for hours in range(1, count + 1):
            fire = {"scheduled_for": from_now(f"-{hours} hours"), "reason": "misfire"}
            insert(connection, "missed_fires", {"definition_id": schedule, **fire})
    body, page = night(client), html(client)
    assert body["missed"] == 4 and [one["name"] for one in body["missed_fires"]] == ["often"]
    assert "2 lines in all, by schedule and reason; shown are those with the most." in page
    monkeypatch.setattr(fires, "MAX_MISSED", 3)
    assert "at least 3 fires missed" in night(client)["sentence"]


def fire(connection: Connection, definition: int, ago: int, started: int | None, ended: int | None) -> int:
    """Write a run of a fire ``ago`` minutes ago; it began and ended so many minutes after its time."""
    status = "queued" if started is None else "running" if ended is None else "succeeded"
    columns: dict[str, Any] = {"definition_id": definition, "scheduled_for": from_now(f"-{ago} minutes")}
    if started is not None:
        columns["started_at"] = f"{started - ago} minutes"
    if ended is not None:
        columns["finished_at"] = f"{ended - ago} minutes"
    return a_run(connection, status, **columns)


def test_late_fires_and_those_beside_the_run_before_are_found(
    client: FlaskClient, connection: Connection
) -> None:
    slow, waiting = a_definition(connection, "slow", overlap="allow"), a_definition(connection, "waiting")
    fire(connection, slow, 180, 0, 90)
    beside = fire(connection, slow, 120, 0, 10)
    late = fire(connection, slow, 60, 25, 30)
    stands = fire(connection, waiting, 45, None, None)
    fire(connection, waiting, 2000, 600, 700)
    body = night(client)
    found = {one["name"]: one for one in body["fires"]}
    assert (found["slow"]["fires"], found["slow"]["late"], found["slow"]["late_run_id"]) == (3, 1, late)
    assert (found["slow"]["beside"], found["slow"]["beside_run_id"]) == (1, beside)
    assert found["slow"]["late_seconds"] == pytest.approx(1500, abs=2)
    assert (found["waiting"]["fires"], found["waiting"]["late_run_id"]) == (1, stands)
    assert found["waiting"]["late_seconds"] == pytest.approx(45 * 60, abs=5)
    assert (body["late"], body["overlapping"]) == (2, 1)
    page = html(client)
    assert row(page, "late-slow") == ["slow", "1 of 3", "25 min", str(late)]
    assert row(page, "beside-slow")[:3] == ["slow", "1 of 3", str(beside)]


def test_of_many_late_schedules_the_worst_are_shown_and_the_others_counted(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fires, "MAX_SHOWN", 2)
    monkeypatch.setitem(BOUNDS, "shown", 2)
    for minutes in (3, 9, 6):
        fire(connection, a_definition(connection, f"by-{minutes}"), 60, minutes, minutes + 1)
    page = html(client)
    assert re.findall(r'<tr id="late-([^"]*)"', page) == ["by-9", "by-6"]
    assert "3 schedules in all; shown are those with the worst delay" in page
    assert 'href="/schedules?state=late"' in page
    body = night(client)
    assert [one["name"] for one in body["fires"]] == ["by-6", "by-9"] and body["late"] == 3


def test_a_night_in_which_a_schedule_fired_on_time_is_not_empty(
    client: FlaskClient, connection: Connection
) -> None:
    assert "Nothing happened in this window" in html(client)
    run = fire(connection, a_definition(connection, "on-time"), 60, 0, 0.3)
    body = night(client)
    assert (body["late"], body["overlapping"], body["fires"]) == (0, 0, [])
    page = html(client)
    assert "Nothing happened in this window" not in page and "each fire of each schedule made its run" in page
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (run,))
    assert "Nothing happened in this window" in html(client)


def test_a_retried_fire_is_judged_by_its_first_start(client: FlaskClient, connection: Connection) -> None:
    nightly = a_definition(connection, "nightly")
    run = a_run(
        connection, "succeeded", definition_id=nightly, scheduled_for=from_now("-3 hours"), attempts=0,
        started_at="-1 hour", finished_at="-59 minutes", late_by=0.2,
    )  # fmt: skip
    for number, start, end, outcome in ((1, "-180", "-179", "failed"), (2, "-60", "-59", "succeeded")):
        an_attempt(
            connection, run, attempt=number, lease_epoch=number, outcome=outcome,
            started_at=f"{start} minutes", finished_at=f"{end} minutes",
        )  # fmt: skip
    connection.execute("UPDATE wakeboard.job_runs SET attempts = 2 WHERE id = %s", (run,))
    assert night(client)["late"] == 0


def test_what_took_over_three_times_its_median_is_slow(client: FlaskClient, connection: Connection) -> None:
    for day in range(2, 6):
        counted(connection, f"{day} days", "report", seconds=20, bucket=49)
    counted(connection, "2 hours", "report", seconds=70, bucket=53)
    counted(connection, "2 hours", "report", seconds=59, bucket=52)
    counted(connection, "2 hours", "young", seconds=900, bucket=60)
    run = a_run(
        connection, "succeeded", job_type="report", started_at="-121 minutes", finished_at="-119 minutes"
    )
    a_run(connection, "succeeded", job_type="report", started_at="-120 minutes", finished_at="-119 minutes")
    body = night(client)
    slow = {one["job_type"]: one["slow"] for one in body["items"]}
    assert slow == {"report": 1, "young": 0}
    assert [(one["id"], one["seconds"]) for one in body["slow_runs"]] == [(run, pytest.approx(120))]
    assert row(html(client), f"slow-{anchor('report')}") == [
        "report",
        "1 of 2",
        "20 s",
        "1 min 10 s",
        str(run),
    ]


def test_a_few_milliseconds_more_are_not_slow(client: FlaskClient, connection: Connection) -> None:
    for day in range(2, 6):
        counted(connection, f"{day} days", seconds=0.01, bucket=27)
    counted(connection, "2 hours", seconds=0.9, bucket=40)
    assert night(client)["slow"] == 0


def test_what_was_taken_over_leads_to_its_attempt_and_worker(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w9", name="night-shift")
    run = a_run(connection, "failed", attempts=0)
    an_attempt(
        connection, run, outcome="lost", error_code="lease_lost", worker_id="w9", lease_epoch=4, attempt=2,
        started_at="-3 hours", finished_at="-2 hours", refused_at="-1 hour", refused_outcome="succeeded",
    )  # fmt: skip
    body = night(client)
    (one,) = body["taken_over_runs"]
    assert (body["taken_over"], one["run_id"], one["status"]) == (1, run, "failed")
    page = html(client)
    assert row(page, f"lost-{run}-4")[:4] == [str(run), "mail", "2", "night-shift"]
    assert f'href="/runs/{run}#attempt-4"' in page and 'href="/workers/w9"' in page
    assert "succeeded, refused" in page


def test_what_is_stuck_now_makes_no_quiet_night(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "running", locked_until="-10 minutes", started_at="-2 hours")
    body = night(client)
    assert (body["running"], body["stuck"]) == (1, 1)
    assert "1 run is stuck" in body["sentence"]
    assert body["timeline"][0]["running"] == 1
    assert "Leases" in html(client)


def test_who_did_what_is_told_with_the_reason(client: FlaskClient, connection: Connection) -> None:
    anna = audit.Actor("anna", Role.OPERATOR, "web")
    audit.record(
        connection, anna, "run.retry", "run", 7, reason="the server is back",
        before={"status": "dead"}, after={"status": "queued"},
    )  # fmt: skip
    body = night(client)
    (act,) = [each for each in body["audit"] if each["action"] == "run.retry"]
    cells = row(html(client), f"act-{act['id']}")
    assert cells[1:] == ["anna", "Retry", "run 7", "status dead → queued", "the server is back"]
    assert 'href="/runs/7"' in html(client)


def a_full_night(connection: Connection) -> None:
    """Write a night with something of everything."""
    a_type(connection, "mail")
    definition = a_definition(connection, "nightly", overlap="allow")
    counted(connection, "2 hours", runs=1200, seconds=3)
    counted(connection, "5 hours", "report", runs=3, outcome="lost")
    counted(connection, "4 hours", "report", runs=3, outcome="failed")
    for day in range(2, 6):
        counted(connection, f"{day} days", seconds=0.1, bucket=33)
    fire(connection, definition, 180, 30, 90)
    fire(connection, definition, 120, 0, 10)
    values = {"definition_id": definition, "scheduled_for": from_now("-2 hours"), "reason": "misfire"}
    insert(connection, "missed_fires", values)
    dead = a_run(connection, "dead", attempts=0, job_type="report")
    a_failure(connection, "4 hours", dead, job_type="report")
    good = a_run(connection, "succeeded", attempts=0, finished_at="-1 hour")
    a_later_success(connection, good)
    a_failure(connection, "2 hours", good)
    a_failure(connection, "5 hours", dead, job_type="report", outcome="lost", error_code="lease_lost")
    a_run(connection, "running", locked_until="-1 minute", started_at="-1 hour")
    audit.record(connection, audit.Actor("anna", Role.OPERATOR, "web"), "run.retry", "run", dead)


def test_page_and_twin_say_the_same(client: FlaskClient, connection: Connection) -> None:
    a_full_night(connection)
    body, page = night(client), html(client)
    spoken = unescape(re.sub(r"<[^>]*>", " ", page)).split()
    assert " ".join(body["sentence"].split()) in " ".join(spoken)
    tiles = re.findall(r'<a class="tile[^>]*href="(#\w+)".*?<b>([^<]*)</b>', page, re.S)
    shown = [int(re.sub(r"\D", "", value)) for _, value in tiles]
    assert shown == [body[name] for name in NIGHT_TILES]
    assert 0 not in shown, "a night with something of everything"
    for target, _ in tiles:
        assert f'id="{target[1:]}"' in page
    for one in body["items"]:
        cells = row(page, f"ran-{anchor(one['job_type'])}")
        assert [int(re.sub(r"\D", "", cell)) for cell in cells[1:4]] == [
            one["attempts"], one["succeeded"], one["failed"],
        ]  # fmt: skip
    for lane in body["timeline"]:
        cells = row(page, f"lane-{anchor(lane['job_type'])}")
        total = [sum(bar[name] for bar in lane["stretches"]) for name in ("attempts", "failed")]
        assert [int(re.sub(r"\D", "", cell)) for cell in cells[-2:]] == total
    lists = {
        "ran": "items", "lane": "timeline", "failed": "failures", "recovered": "recovered_runs",
        "missed": "missed_fires", "lost": "taken_over_runs", "act": "audit",
    }  # fmt: skip
    for prefix, name in lists.items():
        assert rows(page, prefix) == len(body[name]) > 0, name
    assert rows(page, "stretch") == sum(len(lane["stretches"]) for lane in body["timeline"])
    assert rows(page, "late") == sum(1 for one in body["fires"] if one["late"])
    assert rows(page, "beside") == sum(1 for one in body["fires"] if one["beside"])


@pytest.mark.parametrize(
    ("numbers", "well", "said"),
    [
        (
            {"attempts": 9, "types": 2},
            True,
            "A quiet night. 9 attempts of 2 types ended, none of them failed.",
        ),
        ({"attempts": 1, "types": 1, "slow": 1}, True, "Worth a look: 1 slow."),
        (
            {"attempts": 9, "failed": 2},
            True,
            "Nothing needs you. 9 attempts of 0 types ended, 2 failed; nothing",
        ),
        ({"attempts": 9, "failed": 2, "waiting": 1}, True, "1 run waits to be tried again."),
        ({"attempts": 9, "failed": 2, "dead": 1}, False, "1 run gave up. 9 attempts"),
        ({"missed": 2, "stuck": 2}, False, "2 runs are stuck, 2 fires missed."),
        ({"missed": 2, "unmanned_seconds": 3480}, False, "2 fires missed, 58 m without a worker."),
        ({"unmanned_seconds": 3480}, False, "58 m without a worker. 0 attempts"),
        ({}, True, "Nothing ran. No attempt ended"),
    ],
)
def test_the_sentence_says_how_the_night_was(numbers: dict[str, Any], well: bool, said: str) -> None:
    good, strong, rest = words.verdict(words.NightNumbers(**numbers), is_over=True)
    assert good == well and said in f"{strong} {rest}"


def test_a_night_that_goes_on_is_judged_so_far() -> None:
    assert words.verdict(words.NightNumbers(attempts=1), is_over=False)[1] == "Quiet so far."
    assert words.verdict(words.NightNumbers(), is_over=False)[1:] == ("Nothing ran.", "Not yet.")


def test_what_was_not_looked_at_is_said(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "CAP", 1)
    monkeypatch.setattr(failures, "MAX_SHOWN", 1)
    for ago in ("26 hours", "27 hours", "1 hour"):
        a_failure(connection, ago)
    for _ in range(2):
        a_failure(connection, "1 hour", outcome="lost")
    page = html(client)
    assert "among the newest" in page
    monkeypatch.setattr(failures, "CAP", 100)
    assert night(client)["taken_over"] == 2 and "2 in all; shown are the newest." in html(client)


def test_the_failures_that_are_looked_at_are_the_newest_of_the_window(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = (a_run(connection, "succeeded", attempts=0, finished_at="-1 hour") for _ in range(2))
    for each in (run, other):
        a_later_success(connection, each)
    for ago in ("25 hours", "26 hours", "2 hours"):
        a_failure(connection, ago, run)
    a_failure(connection, "3 hours", other)
    for cap, runs, recovered in ((1, 1, 1), (100, 2, 2)):
        monkeypatch.setattr(failures, "CAP", cap)
        body = night(client)
        assert (body["failed_runs"]["runs"], body["recovered"]) == (runs, recovered)
    assert [(one["id"], one["failures"]) for one in body["recovered_runs"]] == [(run, 3), (other, 1)]


def test_the_twin_says_in_which_steps_of_the_window_each_group_failed(
    client: FlaskClient, connection: Connection
) -> None:
    for ago, code in (("1410 minutes", "smtp_down"), ("30 minutes", "smtp_down"), ("5 hours", "full")):
        a_failure(connection, ago, error_code=code)
    a_failure(connection, "30 minutes", error_code="smtp_down")
    for query in (DAY, "since=26h&until=2h", "since=26h&until=2h"):
        for group in night(client, query)["failures"]:
            assert len(group["buckets"]) == errors.BUCKETS and sum(group["buckets"]) == group["count"]
    steps = {group["error_code"]: group["buckets"] for group in night(client)["failures"]}
    assert (steps["smtp_down"][0], steps["smtp_down"][-1], max(steps["smtp_down"][1:-1])) == (1, 2, 0)
    assert steps["full"].index(1) in (18, 19)


def test_groups_are_told_apart_by_number_and_those_that_are_not_kept_beside_them(
    client: FlaskClient, connection: Connection
) -> None:
    numbers = [
        a_group(connection, code=code, message=message)
        for code, message in (("smtp_down", "no answer"), ("smtp_down", "refused"), ("full", "no room"))
    ]
    for number, code, count in zip(numbers, ("smtp_down", "smtp_down", "full"), (3, 2, 1), strict=True):
        run = a_run(connection, "dead", attempts=0, error_code=code, error_group=number)
        for _ in range(count):
            a_failure(connection, "30 minutes", run, error_code=code, error_group=number)

    def told() -> set[tuple[int | None, str, str, int, int]]:
        names = ("error_group", "error_code", "job_type", "count", "dead")
        failures = night(client)["failures"]
        assert all(sum(each["buckets"]) == each["count"] for each in failures)
        return {tuple(each[name] for name in names) for each in failures}

    kept = {
        (numbers[0], "smtp_down", "mail", 3, 1),
        (numbers[1], "smtp_down", "mail", 2, 1),
        (numbers[2], "full", "mail", 1, 1),
    }
    assert told() == kept
    for job_type in ("mail", "mail", "report"):
        a_failure(connection, "30 minutes", a_run(connection, "dead", attempts=0), job_type=job_type)
    a_failure(connection, "30 minutes", a_run(connection, "dead", attempts=0), error_group=7)
    assert told() == kept | {
        (7, "smtp_down", "mail", 1, 0),
        (None, "smtp_down", "mail", 2, 4),
        (None, "smtp_down", "report", 1, 0),
    }


def test_of_each_failure_the_runs_of_the_window_are_told_that_fail_with_it_now(
    client: FlaskClient, connection: Connection
) -> None:
    group, other = a_group(connection, first_seen_at="-9 days"), a_group(connection, code="no_vat")
    for status in ("dead", "dead", "failed", "succeeded"):
        run = a_run(connection, status, attempts=0, error_code="smtp_down", error_group=group)
        a_failure(connection, "4 hours", run, error_group=group)
    elsewhere = a_run(connection, "dead", attempts=0, error_code="no_vat", error_group=other)
    a_failure(connection, "5 hours", elsewhere, error_group=group)
    a_failure(connection, "4 hours", elsewhere, error_code="no_vat", error_group=other)
    a_failure(
        connection, "4 hours", a_run(connection, "dead", attempts=0, error_code="old"), error_code="old"
    )
    a_run(connection, "dead", attempts=0, error_code="smtp_down", error_group=group)

    def told(query: str) -> dict[str, tuple[int, int, int]]:
        return {
            each["error_code"]: (each["count"], each["failed"], each["dead"])
            for each in night(client, query)["failures"]
        }

    for query in (DAY, "since=12h&until=2h"):
        assert told(query) == {"smtp_down": (5, 1, 2), "no_vat": (1, 0, 1), "old": (1, 0, 1)}
    connection.execute("UPDATE wakeboard.job_runs SET status = 'queued' WHERE status = 'failed'")
    for query in (DAY, "since=12h&until=2h"):
        assert told(query)["smtp_down"] == (5, 0, 2)
    assert "2 dead" in html(client) and "none fails" not in html(client)


def test_of_many_failures_the_new_ones_are_shown_first_and_the_others_counted(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_queries, "MAX_SHOWN", 2)
    run = a_run(connection)
    for code, attempts, first in (
        ("often", 3, "-9 days"),
        ("sometimes", 2, "-9 days"),
        ("new", 1, "-1 hour"),
    ):
        group = a_group(connection, code=code, first_seen_at=first)
        for _ in range(attempts):
            a_failure(connection, "1 hour", run, error_code=code, error_group=group)
    body, page = night(client), html(client)
    assert [(each["error_code"], each["is_new"]) for each in body["failures"]] == [
        ("new", True),
        ("often", False),
    ]
    assert rows(page, "failed") == 2 and "Shown are the new ones and those with the most attempts" in page
    assert body["new"] == 1 and page.count("</svg>first time</span>") == 1


def test_a_window_is_told_the_same_by_its_hours_and_by_its_minutes(
    app: Flask, connection: Connection
) -> None:
    chance = Random(7)
    now = datetime.now(UTC)
    # Of each run time one bucket.
    times = {0.5: 38, 1: 40, 40: 51, 9000: 63}
    for _ in range(400):
        ago, seconds = chance.randrange(50 * 60), chance.choice(list(times))
        counted(
            connection, f"{ago} minutes", chance.choice(("mail", "report", "sync")),
            chance.choice(("succeeded", "succeeded", "failed", "lost", "cancelled")), chance.randrange(1, 5),
            seconds=seconds, bucket=times[seconds],
            table="statistics_rollups" if ago > 5 else chance.choice(STATISTICS),
        )  # fmt: skip
    usual = {"mail": Baseline(9, 1.0), "sync": Baseline(9, 20.0)}
    windows = []
    for length in (1, 59, 61, 360, 420, 720, 1440, *(chance.randrange(1, 2900) for _ in range(20))):
        until = now - timedelta(minutes=chance.randrange(300))
        windows.append(words.whole_minutes(until - timedelta(minutes=length), until))

    def told() -> list[Any]:
        with app.extensions["wakeboard_database"].primary.connect() as session:
            return [
                (
                    [
                        replace(each, seconds=round(each.seconds, 6))
                        for each in find_attempts(session, window, usual)
                    ],
                    rounded(find_busy_times(session, window, ["mail", "report", "sync"])),
                )
                for window in windows
            ]

    by_minutes = told()
    assert sum(each.slow for ran, _ in by_minutes for each in ran) > 50
    while sum_next_hour(connection) is not None:
        pass
    assert told() == by_minutes


@pytest.mark.parametrize(
    ("ended", "milliseconds", "began"), [(0, 600, 0), (1, 62_000, 0), (90, 5_400_500, 0)]
)
def test_what_began_with_a_minute_is_told_to_have_begun_then(
    client: FlaskClient, connection: Connection, ended: int, milliseconds: float, began: int
) -> None:
    """A run that began on the hour is known by the minute that it ended in and by how long it took."""
    connection.execute(
        """INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket,
            runs, duration_ms, duration_max_ms, wait_ms, wait_max_ms)
        VALUES (date_trunc('hour', now()) - interval '3 hours' + make_interval(mins => %(ended)s), 'mail',
            'succeeded', 30, 20, 1, %(milliseconds)s, %(milliseconds)s, 1, 1)""",
        {"ended": ended, "milliseconds": milliseconds},
    )
    ((stretch,),) = (lane["stretches"] for lane in night(client)["timeline"])
    assert datetime.fromisoformat(stretch["first_at"]).minute == began


STATISTICS = ("statistics_rollups", "statistics_deltas")


def rounded(found: dict[str, BusyTime]) -> dict[str, list[list[tuple[float, ...]]]]:
    return {
        name: [[tuple(round(each, 6) for each in stretch) for stretch in stretches] for stretches in of_type]
        for name, of_type in found.items()
    }


# Nobody there


def test_a_night_says_when_no_worker_was_there(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w1", started_at="-20 hours", stopped_at="-5 hours", seen="-5 hours")
    a_worker(connection, "w2", started_at="-4 hours", seen="-2 hours")
    a_worker(connection, "tick", started_at="-119 minutes", stopped_at="-119 minutes", is_tick=True)
    a_worker(connection, "w3", started_at="-90 minutes")
    found = client.get("/night.json?since=6h").get_json()
    gaps = [found["unmanned"][place] for place in (0, 1)]
    lengths = [moment_of(gap["until_at"]) - moment_of(gap["since_at"]) for gap in gaps]
    assert [round(length.total_seconds()) for length in lengths] == [3600, 1740]
    assert len(found["unmanned"]) == 2
    assert not found["well"] and "1 h 29 m without a worker" in found["sentence"]
    page = client.get("/night?since=6h").text
    (told,) = re.findall(r"No worker was there</strong>.*?</p>", page, re.S)
    assert "(1 h)" in told and "(29 min)" in told
    assert client.get("/night.json?since=1h").get_json()["unmanned"] == []


def moment_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_before_the_first_worker_that_is_known_none_is_missing(
    client: FlaskClient, connection: Connection
) -> None:
    assert client.get("/night.json?since=6h").get_json()["unmanned"] == []
    a_worker(connection, "w1", started_at="-2 hours")
    assert client.get("/night.json?since=6h").get_json()["unmanned"] == []


def test_a_night_of_which_nothing_is_kept_is_not_told_as_a_quiet_one(client: FlaskClient) -> None:
    page = client.get("/night?since=40d&until=39d").text
    assert "Nothing is kept of this window" in page and "nobody did anything" not in page


# Drawing


def piece(start: float, failed: int = 0, length: float = 5) -> Stretch:
    """Attempts from one minute on, for so many."""
    return Stretch(60 * start, 60 * (start + length), 10, failed)


def test_busy_stretches_are_joined_and_long_pauses_are_not() -> None:
    window = TimeWindow(moment("2026-11-20T18:00"), moment("2026-11-21T08:00"))
    pause = slice_length(window).total_seconds()
    pieces = join_stretches([piece(0), piece(9), piece(400, failed=2), piece(-60, length=90)], pause)
    failing = [piece(400, failed=2, length=10)]
    (lane,) = gantt.lanes(window, ["mail", "idle"], {"mail": BusyTime(pieces, failing)}, {}, window.until)
    assert [bar.attempts for bar in lane.bars] == [30, 10]
    assert lane.bars[0].first_at == window.since and lane.bars[0].x == 0
    assert [(bar.last_at - window.since) / timedelta(minutes=1) for bar in lane.bars] == [30, 405]
    assert (lane.attempts, lane.failed, len(lane.marks)) == (40, 2, 1)


def test_nothing_of_a_window_that_goes_on_ends_later_than_now() -> None:
    window = TimeWindow(moment("2026-11-20T18:00"), moment("2026-11-21T08:00"))
    now = moment("2026-11-20T18:21") + timedelta(seconds=3)
    pieces = [piece(20, failed=1, length=2)]
    (lane,) = gantt.lanes(window, ["mail"], {"mail": BusyTime(pieces, pieces)}, {}, now)
    assert lane.last_at == lane.marks[0].last_at == now


def test_a_lane_has_a_bounded_number_of_bars_inside_of_the_drawing() -> None:
    window = TimeWindow(moment("2026-11-20T18:03"), moment("2026-11-21T08:03"))
    step = slice_length(window) / timedelta(minutes=1)
    begins = [-3 + place * step for place in range(int(14 * 60 / step) + 1)]
    pieces = [piece(begin, failed=1, length=0.1) for begin in begins]
    failing = join_stretches([piece(begin, failed=1, length=step) for begin in begins], 60 * step)
    under_way = {"mail": (window.since, 3)}
    stretches = join_stretches(pieces, 60 * step)
    (lane,) = gantt.lanes(window, ["mail"], {"mail": BusyTime(stretches, failing)}, under_way, window.until)
    assert len(lane.bars) <= MAX_SLICES and len(lane.marks) == 1 and lane.running is not None
    for bar in (*lane.bars, *lane.marks, lane.running):
        assert bar.x >= 0 and bar.x + bar.width <= gantt.WIDTH + 0.2
    assert (lane.marks[0].first_at, lane.marks[0].last_at) == (window.since, window.until)
    apart = join_stretches(pieces[2::2], 60 * step)
    (lane,) = gantt.lanes(window, ["mail"], {"mail": BusyTime(apart, [])}, {}, window.until)
    assert len(lane.bars) == len(pieces[2::2]) > 20


@pytest.mark.parametrize(
    ("hours", "minutes"),
    [(0.1, 1), (1.5, 1), (2, 5), (6, 5), (12, 10), (14, 10), (24, 15), (41, 30), (72, 60), (200, 1440)],
)
def test_slices_part_an_hour_evenly_and_are_no_more_than_can_be_drawn(hours: float, minutes: int) -> None:
    since = moment("2026-11-20T18:07")
    length = slice_length(TimeWindow(since, since + timedelta(hours=hours)))
    assert length == timedelta(minutes=minutes) and hours * 60 / minutes <= MAX_SLICES


# Rules of every page


def test_hostile_text_stays_text(client: FlaskClient, connection: Connection) -> None:
    counted(connection, "1 hour", HOSTILE)
    a_failure(
        connection,
        "1 hour",
        a_run(connection, "dead", attempts=0),
        error_code=HOSTILE,
        error=HOSTILE,
        job_type=HOSTILE,
    )
    a_failure(connection, "1 hour", 5, outcome="lost", worker_id=HOSTILE, job_type=HOSTILE)
    good = a_run(connection, "succeeded", attempts=0, job_type=HOSTILE, error_code=HOSTILE)
    a_failure(connection, "1 hour", good, job_type=HOSTILE)
    actor = audit.Actor(HOSTILE, Role.VIEWER, "web")
    audit.record(connection, actor, "run.retry", "run", HOSTILE, reason=HOSTILE, after={"x": HOSTILE})
    assert_shown_as_text(client, f"/night?{DAY}")


def test_secrets_are_in_no_shape_of_the_page(client: FlaskClient, connection: Connection) -> None:
    url = "https://app:hunter2@crm.example.com"
    a_failure(connection, "1 hour", 5, error=url)
    anna = audit.Actor("anna", Role.ADMIN, "web")
    audit.record(connection, anna, "run.again", "run", 5, after={"password": "hunter2"})
    for path in ("/night", "/night.json", "/night.csv"):
        assert b"hunter2" not in client.get(f"{path}?{DAY}").data, path


def test_a_viewer_may_read_it_and_it_is_linked_from_every_page(as_role: Any) -> None:
    viewer = as_role("viewer")
    assert viewer.get("/night").status_code == 200
    assert 'href="/night"' in viewer.get("/runs").text


def test_the_page_of_a_night_never_reads_a_whole_table(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    definition = a_definition(connection, "busy")
    a_definition(connection, "idle")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, definition_id, scheduled_for, status, attempts,
            started_at, finished_at, error_code, created_at)
        SELECT 'type' || n % 9, %s, now() - (50000 - n) * interval '1 min',
            CASE WHEN n %% 50 = 0 THEN 'dead' ELSE 'succeeded' END, 1 + n %% 3,
            now() - (50000 - n) * interval '1 min', now() - (50000 - n) * interval '1 min', 'code' || n %% 7,
            now() - (50000 - n) * interval '1 min'
        FROM generate_series(1, 50000) AS n""".replace("n % 9", "n %% 9"),
        (definition,),
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error)
        SELECT id, 1, 1, job_type, 'w1', started_at, started_at, finished_at,
            CASE WHEN id % 10 = 0 THEN 'failed' ELSE 'succeeded' END, error_code, 'no'
        FROM wakeboard.job_runs"""
    )
    connection.execute(
        """INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket,
            runs, duration_ms, duration_max_ms, wait_ms, wait_max_ms)
        SELECT date_trunc('minute', now()) - n * interval '1 min', 'type' || t, 'succeeded', 40, 1, 1,
            CASE WHEN n < 500 THEN 90000 ELSE 1000 END, CASE WHEN n < 500 THEN 90000 ELSE 1000 END, 1, 1
        FROM generate_series(1, 20000) AS n, generate_series(0, 4) AS t"""
    )
    connection.execute(
        """INSERT INTO wakeboard.missed_fires (definition_id, scheduled_for, reason, noted_at)
        SELECT %s, now() - n * interval '1 min', 'overlap', now() - n * interval '1 min'
        FROM generate_series(1, 20000) AS n""",
        (definition,),
    )
    connection.execute(
        """INSERT INTO wakeboard.audit_log (at, actor, source, action)
        SELECT now() - (20000 - i) * interval '1 minute', 'anna', 'web', 'login'
        FROM generate_series(1, 20000) AS i"""
    )
    connection.execute("VACUUM ANALYZE")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    assert client.get("/night").status_code == 200
    assert client.get("/night?since=14h").status_code == 200
    now = datetime.now(UTC)
    with app.extensions["wakeboard_database"].primary.connect() as asking:
        summarize(asking, TimeWindow(now - timedelta(hours=14), now), UTC)
    big = ("job_runs", "job_attempts", "statistics_rollups", "missed_fires", "audit_log")
    looked_at = [(sql, values) for sql, values in asked if any(table in sql for table in big)]
    assert len(looked_at) >= 20
    planned: list[tuple[str, str]] = []
    for sql, values in looked_at:
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        planned.append((sql, plan))
        assert not any(f"Seq Scan on {table}" in plan for table in big), f"{sql}\n{plan}"
        assert "Backward using job_runs_pkey" not in plan or "max(" in sql, f"{sql}\n{plan}"
    judged = [plan for sql, plan in planned if "AS late_run_id" in sql]
    assert len(judged) >= 3
    assert all("Index Only Scan using job_runs_fires " in plan for plan in judged), judged
    recovered = [plan for sql, plan in planned if "WITH recovered AS MATERIALIZED" in sql]
    assert len(recovered) >= 3
    assert all("using job_attempts_later_successes on" in plan for plan in recovered), recovered
    tried = [plan for sql, plan in planned if "WITH attempts AS MATERIALIZED" in sql]
    used = "Index Only Scan Backward using job_attempts_failed_runs "
    assert sum(used in plan for plan in tried) >= 3 and all("Full Join" in plan for plan in tried), tried


def test_a_night_of_long_ago_is_counted_as_well(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead", attempts=1)
    age(connection, run, "10 days")
    assert night(client, "since=11d&until=9d")["dead"] == 1
