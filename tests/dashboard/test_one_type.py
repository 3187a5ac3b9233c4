"""The page of one type: how it stands and went, who runs it, what makes it; and pauses with an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, assert_shown_as_text, items_of, one_line
from tests.support.factories import a_definition, a_run, a_type, a_worker, from_now, rows
from wakeboard_dashboard.text.ends import parse_end
from wakeboard_dashboard.text.policy import patience_seconds, retries

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/?#%2F"


def stored(connection: Connection) -> dict[str, Any]:
    return rows(connection, "job_types", "name = 'mail'")[0]


def test_a_type_has_a_page_that_says_how_it_stands(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail", max_attempts=3, backoff="1m,5m", timeout_seconds=90, max_running=4)
    a_run(connection, job_type="mail", run_at="-3 minutes")
    failed = a_run(connection, "failed", job_type="mail", error_code="http_503")
    a_worker(connection, "w-7", running=2)
    a_definition(connection, "nightly", job_type="mail")
    page = client.get("/types/mail").text
    assert "waits 1 m, 5 m, then always the last (±20 %)" in page and "about 6 min after" in page
    assert "of 4 at once" in page and "The oldest due run waits" in page
    assert f'href="/runs/{failed}"' in page and "http_503" in page
    assert 'href="/workers/w-7"' in page and "2 of 4 slots busy" in page
    assert 'href="/schedules/nightly"' in page and "At 02:00 every day" in page


def test_its_lease_is_the_longer_one_of_its_own_and_the_workers(
    client: FlaskClient, connection: Connection
) -> None:
    def said() -> str:
        return client.get("/types/mail").text.partition("<dt>Lease</dt>")[2].partition("</dd>")[0]

    a_type(connection, "mail")
    assert said() == "<dd>the worker’s own"
    a_worker(connection, lease_seconds=30)
    a_worker(connection, lease_seconds=90, job_types=["other"])
    a_worker(connection, lease_seconds=90, seen="-1 hour")
    assert said() == "<dd>the worker’s own, 30 s"
    connection.execute("UPDATE wakeboard.job_types SET lease_seconds = 1")
    assert said() == "<dd>30 s, the worker’s own, which is longer than the 1 s of the code"
    connection.execute("UPDATE wakeboard.job_types SET lease_seconds = 120")
    assert said() == "<dd>at least 2 min"
    assert client.get("/types/mail.json").get_json()["workers_lease_seconds"] == 30


def test_its_twin_has_every_number(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    due = a_run(connection, job_type="mail", run_at="-3 minutes")
    a_run(connection, job_type="mail", run_at="1 hour")
    a_run(connection, "dead", job_type="mail")
    connection.execute(
        """INSERT INTO wakeboard.statistics_rollups VALUES
        (date_trunc('minute', now()), 'mail', 'succeeded', 30, 20, 7, 1, 2000, 1, 1),
        (date_trunc('minute', now()), 'mail', 'failed', 30, 20, 2, 1, 2000, 1, 1),
        (date_trunc('minute', now()), 'other', 'succeeded', 30, 20, 99, 1, 2000, 1, 1)"""
    )
    found = client.get("/types/mail.json").get_json()
    assert [found[name] for name in ("queued", "dead", "succeeded_24h")] == [2, 1, 7]
    assert found["median_seconds"] == 0.032 and len(found["hours"]) == 24
    assert (found["hours"][-1]["succeeded"], found["hours"][-1]["failed"]) == (7, 2)
    run_at = rows(connection, "job_runs", "id = %s", due)[0]["run_at"]
    assert datetime.fromisoformat(found["oldest_due_at"]) == run_at
    assert [each["status"] for each in found["runs"]] == ["dead", "queued", "queued"]


def test_the_list_leads_to_it_and_says_how_long_the_oldest_waits(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")
    a_run(connection, job_type="mail", run_at="-3 minutes")
    page = client.get("/types").text
    assert 'href="/types/mail"' in page and "The oldest due run waits for so long" in page
    assert "Attempts per hour in the last 24 hours: 0, 0 failed" in page
    assert items_of(client, "/types.json")[0]["oldest_due_at"] is not None


def test_an_hour_that_is_over_is_read_once_and_the_current_one_again(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")

    def count(ago: str, runs: int) -> None:
        connection.execute(
            f"""INSERT INTO wakeboard.statistics_rollups VALUES
            (date_trunc('minute', now()) - interval '{ago}', 'mail', 'succeeded', 30, 20, {runs}, 1, 1, 1, 1)
            """.encode()
        )

    count("5 hours", 10)
    assert client.get("/types/mail.json").get_json()["succeeded_24h"] == 10
    count("0 hours", 1)
    assert client.get("/types/mail.json").get_json()["succeeded_24h"] == 11
    assert client.get("/types/mail.json").get_json()["succeeded_24h"] == 11


def test_any_name_has_a_page_and_is_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, HOSTILE, paused_at=from_now("0 s"), paused_by=HOSTILE, paused_reason=HOSTILE)
    a_run(connection, "dead", job_type=HOSTILE, error_code=HOSTILE, last_error=HOSTILE)
    a_worker(connection, "w/1", name=HOSTILE, job_types=[HOSTILE])
    assert_shown_as_text(client, f"/types/{quote(HOSTILE, safe='')}")


def test_live_regions_are_the_page(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail/a b")
    a_run(connection, "failed", job_type="mail/a b")
    assert_fragments_match(client, "/types/mail%2Fa b")


def test_an_unknown_type_is_a_sentence(client: FlaskClient) -> None:
    for path in ("/types/none", "/types/none.json", "/_fragments/types/none/day"):
        answer = client.get(path)
        assert answer.status_code == 404 and "no worker has ever registered it" in answer.text
    assert client.get("/types/none?x=1").status_code == 400


def test_a_pause_with_an_end_says_so_and_keeps_who_and_why(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "mail")
    asked = client.get("/types/mail/pause").text
    assert 'name="until"' in asked and 'name="until_at"' in asked
    answer = client.post("/types/mail/pause", json={"until": "2h", "reason": "a move"}, headers=JSON)
    assert answer.status_code == 200 and "is paused until 20" in answer.get_json()["message"]
    left = stored(connection)["paused_until"] - datetime.now(UTC)
    assert timedelta(hours=1, minutes=58) < left < timedelta(hours=2, minutes=2)
    for path in ("/types", "/types/mail"):
        page = one_line(client.get(path).text)
        assert '; ends <a href="/types/mail/pause"><time' in page and "a move" in page, path
    assert client.get("/types/mail.json").get_json()["paused_until"] is not None
    moved = client.post("/types/mail/pause", data={"until": "", "until_at": "", "next": "/types/mail"})
    assert (moved.status_code, moved.location) == (303, "/types/mail")
    assert stored(connection)["paused_until"] is None and stored(connection)["paused_at"] is not None


def test_a_time_of_the_form_is_in_the_readers_zone(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    client.set_cookie("wakeboard_zone", "Asia/Tokyo")
    there = (datetime.now(ZoneInfo("Asia/Tokyo")) + timedelta(days=1)).replace(second=0, microsecond=0)
    client.post("/types/mail/pause", data={"until_at": f"{there:%Y-%m-%dT%H:%M}"})
    assert stored(connection)["paused_until"] == there


@pytest.mark.parametrize("wrong", ["soon", "-1h", "2020-01-01T00:00", "2026-99-01", "400d", "9" * 400])
def test_an_end_that_cannot_be_pauses_nothing(
    client: FlaskClient, connection: Connection, wrong: str
) -> None:
    a_type(connection, "mail")
    answer = client.post("/types/mail/pause", data={"until": wrong}, headers=JSON)
    assert answer.status_code == 400 and "allowed:" in answer.text
    assert stored(connection)["paused_at"] is None


def test_ends_are_durations_times_or_nothing() -> None:
    now, paris = datetime(2026, 11, 21, 12, tzinfo=UTC), ZoneInfo("Europe/Paris")
    assert parse_end("", now, paris) is None and parse_end("never", now, paris) is None
    assert parse_end("1h30m", now, paris) == now + timedelta(minutes=90)
    assert parse_end("2026-11-22T06:00", now, paris) == datetime(2026, 11, 22, 5, tzinfo=UTC)
    assert parse_end("2026-11-22T06:00Z", now, paris) == datetime(2026, 11, 22, 6, tzinfo=UTC)


def test_a_policy_says_how_long_a_run_is_tried() -> None:
    assert retries(1, "fixed 30s") == "no retry" and patience_seconds(1, "fixed 30s") is None
    assert retries(5, "fixed 30s") == "waits 30 s each time"
    assert patience_seconds(5, "fixed 30s") == 120
    assert patience_seconds(3, "1m,5m") == pytest.approx(360)
    assert patience_seconds(2_000_000_000, "fixed 1s") == pytest.approx(2_000_000_000, rel=0.01)
