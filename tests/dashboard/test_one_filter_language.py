"""One language of filters: the box, the address, its twins and the terminal find the same runs, or refuse."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import MultiDict

from tests.conftest import Connection
from tests.dashboard.conftest import items_of
from tests.support.factories import a_definition, a_run, a_worker, age, an_attempt
from wakeboard import cli
from wakeboard.cli.commands.runs import runs as runs_command
from wakeboard.reporting.filters import search
from wakeboard.reporting.filters.line import read_line, write_line
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard.reporting.filters.values import FilterError, read_pairs
from wakeboard_dashboard.web.params import read_filters

Terminal = Callable[..., tuple[int, str, str]]
LINES = (
    "", "status:dead", "status:dead,failed", "status:dead status:queued", "type:report",
    "status:queued type:report", "error:40P01", "error:40P01 status:dead", "key:invoice:812", "worker:w-7",
    "worker:db1", "worker:db1-77", "worker:w1", "worker:nobody", "attempts:3", "attempts:3+", "attempts:2-9",
    "since:1h", "until:1d", "since:7d until:1d", "payload.customer.id:7", 'payload.note:"100 % sure"',
    "deadlock", "DEADLOCK detected", '"deadlock detected"', "100", "status:dead deadlock type:mail",
    "type:none", '"status=dead"', "status:queued attempts:0 sure", "group:00000000000a1",
    "group:00000000000a1 status:dead", "group:00000000000a1 error:40P01", "group:00000000000a2 deadlock",
    "schedule:nightly", "schedule:nightly status:queued", "schedule:nightly type:mail", "schedule:#99",
    "failed-since:1h", "failed-until:1h", "failed-since:1h status:dead type:mail",
    "failed-since:2d failed-until:1m",
)  # fmt: skip
REFUSED = {
    "colour:red": "There is no filter “colour” here",
    "statu:dead": "Did you mean status?",
    "status:": "“status:” is followed by nothing",
    "status:,": "must be some of queued, running",
    "status: dead": "“status:” is followed by nothing",
    'type:"" status:dead': '“type:""” is empty: write text between the quotes, or leave it out.',
    'q:"" status:dead': '“q:""” is empty',
    'status:dead ""': '“""” is empty',
    "status=dead": "a filter is status:dead",
    "payload.id=7": "a filter is payload.id:7",
    "payload.:1": "“payload.” names nothing: write payload.<path>",
    "payload:1": "“payload” names nothing: write payload.<path>",
    "payload=1": "“payload=1” names nothing: write payload.<path>",
    "status:dead -payload:1": "there is no filter for what is not so",
    "group:0000000000000": "must be an error group, thirteen digits",
    "payload.=1": "“payload.=1” names nothing: write payload.<path>",
    "status:dead -type:mail": "there is no filter for what is not so",
    "!status=dead since:1d": "there is no filter for what is not so",
    "since:1h until:1d": "“since” (1h) is not before “until” (1d): no run can have been enqueued in between.",
    "failed-since:1h failed-until:1d": "(1h) is not before “failed-until” (1d): no run can have failed",
    "since:1d until:2026-01-01": "is not before “until” (2026-01-01T00:00:00Z)",
    "status:deadd": "must be some of queued, running",
    "since:yesterday": "must be a time such as",
    "schedule:Nightly": "must be a schedule's name",
    "group:a1": "must be an error group, thirteen digits",
    "attempts:many": "a number such as 3, or 3+",
    'type:"send mail': "opens a quote",
    "attempts:5-2": "“attempts” is 5-2: a range begins with the smaller number, 2-5.",
    "attempts:5-0": "a range begins with the smaller number, 0-5.",
    "type:a type:b": "give it once",
    "http://crm": "There is no filter “http” here",
    "payload" + ".a" * 51 + ":7": "at most 50",
}


@pytest.fixture
def wakeboard(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Run ``wakeboard runs …`` in this process: its code, output and errors."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.run(["runs", *words]), *capsys.readouterr()

    return run


@pytest.fixture
def some_runs(connection: Connection) -> list[int]:
    """Runs that differ in all that filters ask for."""
    worker = a_worker(connection, "db1-77", name="w-7", hostname="db1")
    nightly, payload = a_definition(connection, "nightly"), {"customer": {"id": 7}, "note": "100 % sure"}
    made = [
        a_run(connection, job_type="report", definition_id=nightly, payload=payload),
        a_run(connection, "running", locked_by=worker, idempotency_key="invoice:812"),
        a_run(connection, "failed", error_code="40P01", attempts=3, failures=3, error_group=0xA1),
        a_run(connection, "dead", error_code="40P01", last_error="deadlock detected", attempts=10),
        a_run(connection, "succeeded", job_type="report", payload={"text": "status=dead"}),
    ]
    age(connection, made[-1], "3 days")
    an_attempt(
        connection, made[0], worker_id="db1-77", outcome="lost", error_code="lease_lost", lease_epoch=9
    )
    return made


def address(client: FlaskClient, line: str) -> str:
    """Return the query string to which the box sends ``line``."""
    answer = client.get("/runs/find", query_string={"text": line})
    assert answer.status_code == 303, answer.text
    return urlsplit(answer.headers["Location"]).query


@pytest.mark.usefixtures("some_runs")
def test_box_address_json_csv_and_terminal_find_the_same_runs(
    client: FlaskClient, wakeboard: Terminal
) -> None:
    sizes = set()
    for line in LINES:
        query = address(client, line)
        twin = [item["id"] for item in items_of(client, f"/runs.json?{query}")]
        table = csv.DictReader(io.StringIO(client.get(f"/runs.csv?{query}").text))
        code, out, _ = wakeboard(line, "--json")
        assert code == 0, line
        assert [item["id"] for item in json.loads(out)["items"]] == twin, line
        assert [int(row["id"]) for row in table] == twin, line
        sizes.add(len(twin))
    assert sizes == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    "name", ["status", "type", "error", "group", "worker", "key", "attempts", "q", "failed-since"]
)
def test_an_option_that_is_an_unset_variable_lists_no_runs(name: str, wakeboard: Terminal) -> None:
    sentence = f"The filter “{name}” is empty: give it a value, or leave it out.\n"
    assert wakeboard(f"--{name}", "") == (2, "", sentence)
    assert wakeboard("status:dead", f"--{name}", "") == (2, "", sentence)


def test_every_filter_of_runs_is_an_option_of_the_terminal() -> None:
    options = {option for parameter in runs_command.params for option in parameter.opts}
    # --payload takes PATH=VALUE.
    assert {f"--{name.removesuffix('.')}" for name in FIELDS} <= options


@pytest.mark.parametrize("given", ["a.b", "", "=7", "="])
def test_a_payload_option_without_path_or_value_lists_no_runs(given: str, wakeboard: Terminal) -> None:
    code, out, err = wakeboard("--payload", given)
    assert (code, out) == (2, "") and "write PATH=VALUE, such as --payload customer.id=7." in err
    assert wakeboard("--payload", "a.b=") == (
        2, "", "The filter “payload.a.b” is empty: give it a value, or leave it out.\n",
    )  # fmt: skip


@pytest.mark.parametrize("lines", [('type:"" status:dead',), ("status:dead", ""), ("status:dead", " ")])
def test_an_operation_begins_on_nothing_where_a_filter_is_empty(
    lines: tuple[str, ...], wakeboard: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["operations", "start", "cancel", *lines, "--dry-run"]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("line", REFUSED)
def test_box_and_terminal_refuse_the_same_in_the_same_words(
    line: str, client: FlaskClient, wakeboard: Terminal
) -> None:
    answer = client.get("/runs/find", query_string={"text": line}, headers={"Accept": "application/json"})
    sentence = answer.get_json()["message"]
    assert answer.status_code == 400 and REFUSED[line] in sentence
    assert wakeboard(line) == (2, "", f"{sentence}\n")


def test_a_time_in_the_box_is_in_the_operators_zone_as_in_the_address(client: FlaskClient) -> None:
    client.set_cookie("wakeboard_zone", "America/New_York")
    typed = address(client, "since:2026-11-21T08:30")
    assert typed == "since=2026-11-21T13:30:00Z"
    page = client.get("/runs?since=2026-11-21T08:30").text
    assert "since:2026-11-21T13:30:00Z" in page


def test_a_terminal_search_says_where_it_stopped_and_goes_on_from_there(
    connection: Connection, wakeboard: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", 5)
    oldest = a_run(connection, "dead", last_error="the needle")
    others = [a_run(connection, "dead") for _ in range(6)]
    code, out, err = wakeboard("needle")
    assert (code, out) == (0, "")
    assert "No run matches so far." in err and f"--cursor {others[1]}" in err
    code, out, err = wakeboard("needle", "--cursor", str(others[1]), "--json")
    assert [item["id"] for item in json.loads(out)["items"]] == [oldest]
    assert json.loads(out)["next"] is None


def test_a_line_that_was_written_means_what_was_asked() -> None:
    for line in LINES:
        asked = read_pairs(read_line(line, FIELDS), FIELDS)
        assert read_pairs(read_line(write_line(asked.texts), FIELDS), FIELDS) == asked


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("", ""),
        ("status:failed since:24h", "status=failed&since=1d"),
        ("no answer", "q=no%20answer"),
        ('"http://crm" timeout', "q=http:%2F%2Fcrm%20timeout"),
        ('type:"send mail" attempts:3+', "type=send%20mail&attempts=3%2B"),
        ("payload.customer.id:7", "payload.customer.id=7"),
        ("status:dead status:failed", "status=dead,failed"),
        ("key:invoice:812", "key=invoice:812"),
    ],
)
def test_a_line_means_a_query(line: str, query: str) -> None:
    assert read_filters(MultiDict(read_line(line)), FIELDS).query == query


@given(
    st.sampled_from(("type", "key", "error", "q")),
    st.text(st.characters(codec="utf-8", exclude_characters='\0"'), min_size=1, max_size=40),
)
def test_the_line_of_a_filter_means_that_filter(name: str, value: str) -> None:
    filters = read_filters(MultiDict({name: value}), FIELDS)
    assert read_filters(MultiDict(read_line(filters.line)), FIELDS) == filters


def test_the_language_is_read_without_a_page() -> None:
    asked = read_pairs(read_line("status:dead since:90m no answer", FIELDS), FIELDS)
    assert asked.get("status") == ("dead",)
    assert asked.get("since").before_now == timedelta(minutes=90)
    assert asked.get("q") == "no answer"
    with pytest.raises(FilterError, match="There is no filter"):
        read_pairs(read_line("colour:red", FIELDS), FIELDS)


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_table_of_found_runs_holds_no_formula(
    client: FlaskClient, connection: Connection, first: str
) -> None:
    a_run(connection, "dead", last_error=f"{first}HYPERLINK(1)")
    text = client.get("/runs.csv?status=dead").text
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["last_error"] == f"'{first}HYPERLINK(1)"
