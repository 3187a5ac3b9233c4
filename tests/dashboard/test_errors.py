"""Errors by code and type: what is counted, over which window, and how it leads to the runs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import a_failure, assert_fragments_match, items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_type, age
from wakeboard_dashboard.queries import errors

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/?#"


def groups(client: FlaskClient, query: str = "", path: str = "/errors") -> dict[tuple[str, str], Any]:
    items = items_of(client, f"{path}.json?{query}")
    return {(item["error_code"], item["job_type"]): item for item in items}


def failure(connection: Connection, code: str, ago: str, run: int = 1, **columns: Any) -> None:
    a_failure(connection, ago, run, error_code=code, **columns)


def test_a_house_without_failures_says_so(client: FlaskClient) -> None:
    assert "No failures here" in client.get("/errors").text
    assert items_of(client, "/errors.json") == []
    assert "No failure with this code" in client.get("/errors/BOOM").text


def test_failures_are_counted_by_code_and_type(client: FlaskClient, connection: Connection) -> None:
    failure(connection, "http_503", "3 hours", error="first")
    failure(connection, "http_503", "1 hour", error="newest", outcome="timed_out")
    failure(connection, "http_503", "2 hours", job_type="report", outcome="lost")
    failure(connection, "40P01", "5 minutes")
    failure(connection, "40P01", "2 days")
    failure(connection, "nothing", "1 hour", outcome="cancelled")
    found = groups(client)
    counts = {key: item["count"] for key, item in found.items()}
    assert counts == {("http_503", "mail"): 2, ("http_503", "report"): 1, ("40P01", "mail"): 1}
    busiest = found["http_503", "mail"]
    assert busiest["message"] == "newest" and busiest["first_seen_at"] < busiest["last_seen_at"]
    assert sum(busiest["buckets"]) == 2 and len(busiest["buckets"]) == 24
    assert groups(client, "since=7d")["40P01", "mail"]["count"] == 2
    assert set(groups(client, "type=report")) == {("http_503", "report")}
    assert set(groups(client, "error=40P01")) == {("40P01", "mail")}
    assert set(groups(client, "since=7d&until=1d")) == {("40P01", "mail")}


def test_a_failure_stands_in_the_bar_of_its_time(client: FlaskClient, connection: Connection) -> None:
    failure(connection, "x", "30 minutes")
    failure(connection, "x", "1410 minutes")
    buckets = groups(client)["x", "mail"]["buckets"]
    assert (buckets[0], buckets[23], sum(buckets)) == (1, 1, 2)


def test_a_window_shorter_than_its_bars_counts_what_failed_in_it(
    client: FlaskClient, connection: Connection
) -> None:
    failure(connection, "x", "1 hour")
    (moment,) = connection.execute("SELECT finished_at FROM wakeboard.job_attempts").fetchone() or ()
    since, until = (
        (moment + timedelta(milliseconds=step)).isoformat().replace("+00:00", "Z") for step in (-2, 3)
    )
    buckets = groups(client, f"since={since}&until={until}")["x", "mail"]["buckets"]
    assert (buckets[2], sum(buckets), len(buckets)) == (1, 1, 24)


def test_groups_that_fail_as_often_keep_their_order(client: FlaskClient, connection: Connection) -> None:
    for code, job_type in (("b", "mail"), ("a", "report"), ("B", "mail"), ("a", "mail")):
        failure(connection, code, "1 hour", job_type=job_type)
    assert list(groups(client)) == [("B", "mail"), ("a", "mail"), ("a", "report"), ("b", "mail")]


def test_runs_that_fail_now_are_counted_even_when_they_failed_long_ago(
    client: FlaskClient, connection: Connection
) -> None:
    dead = a_run(connection, "dead", error_code="KeyError", last_error="no vat")
    age(connection, dead, "9 days")
    a_run(connection, "failed", error_code="KeyError")
    a_run(connection, "succeeded", error_code="KeyError")
    item = groups(client)["KeyError", "mail"]
    assert (item["dead"], item["failed"]) == (1, 1)
    page = client.get("/errors").text
    assert 'href="/runs?status=dead&amp;type=mail&amp;error=KeyError"' in page
    (shown,) = items_of(client, "/runs.json?status=dead&type=mail&error=KeyError")
    assert shown["id"] == dead


def test_an_old_failure_still_shows_its_message(client: FlaskClient, connection: Connection) -> None:
    dead = a_run(connection, "dead", error_code="KeyError", last_error="no vat")
    age(connection, dead, "9 days")
    item = groups(client)["KeyError", "mail"]
    assert (item["count"], item["dead"], item["message"], item["last_seen_at"]) == (0, 1, "no vat", None)


def test_one_code_has_its_newest_failures_and_a_trace(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection)
    failure(connection, "40P01", "2 hours", run, error="deadlock", traceback="File crm.py, line 88")
    failure(connection, "40P01", "1 hour", run, outcome="lost", error="deadlock again")
    failure(connection, "other", "1 hour", run, error="unrelated")
    page = client.get("/errors/40P01").text
    for words in ("File crm.py, line 88", "deadlock again", f"/runs/{run}", "status=failed%2Cdead"):
        assert words in page
    assert "unrelated" not in page
    body = client.get("/errors/40P01.json").get_json()
    assert [each["error"] for each in body["newest"]] == ["deadlock again", "deadlock"]
    assert set(groups(client, path="/errors/40P01")) == {("40P01", "mail")}


def test_a_code_with_slashes_has_its_page(client: FlaskClient, connection: Connection) -> None:
    failure(connection, "urn:x/y z", "1 hour", error="odd")
    page = client.get("/errors").text
    assert 'href="/errors/urn%3Ax/y%20z"' in page
    assert "odd" in client.get("/errors/urn%3Ax/y%20z").text


@pytest.mark.parametrize(
    "query", ["status=dead", "since=tomorrow", "since=1h&until=2h", "since=400d", "cursor=x&since=0x"]
)
def test_a_window_that_cannot_be_is_refused(client: FlaskClient, query: str) -> None:
    for path in ("/errors", "/errors.json", "/errors.csv", "/errors/BOOM", "/_fragments/errors/groups"):
        assert client.get(f"{path}?{query}").status_code == 400, path


def test_the_groups_come_as_csv(client: FlaskClient, connection: Connection) -> None:
    failure(connection, "40P01", "1 hour", error="=cmd")
    head, line = client.get("/errors.csv").text.splitlines()
    assert head == (
        "fingerprint,state,error_code,job_type,count,failed,dead,first_seen_at,last_seen_at,template,frame,"
        "muted_until,message"
    )
    assert line.startswith(",,40P01,mail,1,0,0,") and line.endswith(",'=cmd")


def test_what_is_shown_live_is_what_is_shown_at_first(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    failure(connection, "40P01", "1 hour", error="deadlock")
    a_run(connection, "dead")
    for path in ("/errors", "/errors?type=mail", "/errors/40P01", "/errors/40P01?since=7d"):
        assert_fragments_match(client, path)


def test_counting_stops_at_its_cap_and_says_so(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "CAP", 3)
    for number in range(4):
        failure(connection, "x", f"{number + 1} minutes")
    assert groups(client)["x", "mail"]["count"] == 3
    assert "newest 3 failures" in client.get("/errors").text


@pytest.mark.parametrize(
    ("path", "most", "words"),
    [("/errors", 5, "newest 3 of each state are counted"), ("/errors/x", 3, "newest 3 are counted")],
)
def test_counting_runs_that_fail_stops_at_its_cap_and_says_so(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch, path: str, most: int,
    words: str,
) -> None:  # fmt: skip
    def told() -> tuple[int, bool, bool]:
        body, page = client.get(f"{path}.json").get_json(), client.get(path).text
        runs = sum(item["dead"] + item["failed"] for item in body["items"])
        return runs, body["runs_capped"], f"runs that fail now the {words}" in page

    monkeypatch.setattr(errors, "RUNS_CAP", 3)
    for status in ("dead", "failed"):
        a_run(connection, status, error_code="x")
    assert told() == (2, False, False)
    for status in ("dead", "failed", "dead"):
        a_run(connection, status, error_code="x")
    assert told() == (most, True, True)


def test_hostile_text_stays_text(client: FlaskClient, connection: Connection) -> None:
    failure(connection, HOSTILE, "1 hour", error=HOSTILE, traceback=HOSTILE, job_type=HOSTILE)
    a_run(connection, "dead", error_code=HOSTILE, job_type=HOSTILE, last_error=HOSTILE)
    listed = client.get("/errors").text
    link = listed.split('<a class="mono" href="')[1].split('"')[0]
    page = client.get(link.split("?since")[0])
    assert page.status_code == 200
    for html in (listed, page.text):
        assert "<img src=x" not in html and "\u202e" not in html and "&lt;img src=x" in html


def test_secrets_are_in_no_shape_of_the_pages(client: FlaskClient, connection: Connection) -> None:
    url = "https://app:hunter2@crm.example.com"
    failure(connection, "x", "1 hour", error=url, traceback=url)
    for path in ("/errors", "/errors.json", "/errors.csv", "/errors/x", "/errors/x.json"):
        assert b"hunter2" not in client.get(path).data, path


def test_no_page_of_errors_reads_a_whole_table(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, finished_at, error_code)
        SELECT 'type' || n % 9, CASE WHEN n % 50 = 0 THEN 'dead' ELSE 'succeeded' END, now(), 'code' || n % 7
        FROM generate_series(1, 50000) AS n"""
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error)
        SELECT id, 1, 1, job_type, 'w1', now(), now(), now() - (id % 9000) * interval '1 min',
            CASE WHEN id % 10 = 0 THEN 'failed' ELSE 'succeeded' END, error_code, 'no'
        FROM wakeboard.job_runs"""
    )
    connection.execute("ANALYZE wakeboard.job_runs, wakeboard.job_attempts")
    asked: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: asked.append((sql, values)))
    for path in (
        "/errors",
        "/errors?since=1h",
        "/errors?type=type3&error=code3",
        "/errors/code3",
        "/errors/no",
    ):
        assert client.get(path).status_code == 200
    looked_at = [(sql, values) for sql, values in asked if "job_runs" in sql or "job_attempts" in sql]
    assert len(looked_at) >= 10
    for sql, values in looked_at:
        plan = [line for (line,) in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall()]
        walks = [line for line in plan if re.search(r"Seq Scan on job_(runs|attempts)\b", line)]
        assert not walks, "\n".join([sql, *plan])


def test_a_line_follows_its_failures_its_runs_and_the_readers_zone(
    client: FlaskClient, connection: Connection
) -> None:
    def line(path: str) -> str:
        return client.get(path).text.split("BOOM</a>")[1].split("</tr>")[0]

    failure(connection, "BOOM", "2 hours", error="first <b>")
    for path in ("/errors", "/night?since=24h"):
        assert "first &lt;b&gt;" in line(path) and "UTC" in line(path) and " dead" not in line(path)
    client.set_cookie("wakeboard_zone", "Asia/Tokyo")
    for path in ("/errors", "/night?since=24h"):
        assert "JST" in line(path)
    failure(connection, "BOOM", "1 hour", error="second")
    for path in ("/errors", "/night?since=24h"):
        assert "second" in line(path) and "first &lt;" not in line(path) and ">2</td>" in line(path)
    a_run(connection, "dead", error_code="BOOM")
    for path in ("/errors", "/night?since=24h"):
        assert "1 dead" in line(path)
