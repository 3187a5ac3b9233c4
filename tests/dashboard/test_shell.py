"""The shell: static files as published, strict templates, fragments, twins, CSV, filters, links, errors."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import MultiDict

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from wakeboard.config.settings import Settings
from wakeboard.database.tables import job_runs
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard import create_app
from wakeboard_dashboard.app import ui_root
from wakeboard_dashboard.pages.live import fragment_tag
from wakeboard_dashboard.queries.keyset import Cursor, read_cursor, read_page
from wakeboard_dashboard.text import formats
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.params import read_filters
from wakeboard_dashboard.web.responses import local_path

ROOT = Path(__file__).parents[2]
FIELDS = {"status": params.STATUS, "type": params.TEXT, "since": params.MOMENT, "payload.": params.TEXT}


def test_vendored_files_are_the_published_ones() -> None:
    lines = [line for line in (ROOT / "static/vendor.txt").read_text().splitlines() if line[0] != "#"]
    names = {line.split()[0] for line in lines}
    assert {f"vendor/{file.name}" for file in (ROOT / "static/vendor").iterdir()} | {"icons.svg"} == names
    for line in lines:
        name, _package, _version, _licence, expected = line.split()
        assert hashlib.sha256((ROOT / "static" / name).read_bytes()).hexdigest() == expected, name


def test_every_icon_a_template_names_is_in_the_sprite() -> None:
    symbols = set(re.findall(r'<symbol id="([\w-]+)"', (ROOT / "static/icons.svg").read_text()))
    templates = "".join(file.read_text() for file in (ROOT / "templates").rglob("*.html"))
    used = set(re.findall(r'icon\("([\w-]+)"\)', templates))
    for mapping in re.findall(r"set (?:verb_)?icons = (\{.*?\})", templates, re.S):
        used |= set(json.loads(mapping).values())
    assert used and used <= symbols


FORBIDDEN = (
    r"\sstyle=",
    r"<style",
    r"\son\w+=",
    r"hx-on",
    r"hx-vals=.js:",
    r"\|\s*safe\b",
    r"hx-trigger=\"[^\"]*\[",
)


def test_no_line_of_a_template_is_longer_than_120_characters() -> None:
    for file in (ROOT / "templates").rglob("*.html"):
        lines = enumerate(file.read_text().splitlines(), start=1)
        assert [number for number, line in lines if len(line) > 120] == [], file


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_template_has_what_the_policy_forbids(pattern: str) -> None:
    for file in (ROOT / "templates").rglob("*.html"):
        assert not re.search(pattern, file.read_text()), file.name


def test_every_script_of_the_page_is_a_file_of_ours(client: FlaskClient) -> None:
    html = client.get("/").text
    scripts = re.findall(r"<script\b([^>]*)>(.*?)</script>", html, re.S)
    assert len(scripts) == 1
    assert all(body == "" and 'src="/static/' in attributes for attributes, body in scripts)
    assert "://" not in re.sub(r'xmlns="[^"]*"', "", html)


def test_the_script_writes_no_html_and_evaluates_nothing() -> None:
    script = (ROOT / "static/app.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function|document\.write\(", script
    )


def test_the_interface_is_found_in_a_checkout() -> None:
    assert ui_root() == ROOT


def test_the_dashboard_says_so_when_it_has_no_database() -> None:
    with pytest.raises(RuntimeError, match="WAKEBOARD_DATABASE_URL"):
        create_app(Settings.load({}, environ={}))


# Filters


def filters(query: str, fields: dict[str, params.Field] | None = None) -> params.Filters:
    pairs = [pair.split("=", 1) for pair in query.split("&") if pair]
    return read_filters(MultiDict([(name, value) for name, value in pairs]), fields or FIELDS)


def test_a_pasted_link_restores_the_same_filters() -> None:
    first = filters("type=send_invoice&status=dead,failed&payload.tenant.id=9&since=24h")
    assert first.query == "status=dead,failed&type=send_invoice&since=1d&payload.tenant.id=9"
    assert filters(first.query).values == first.values


def test_several_states_may_be_repeated_or_separated_by_commas() -> None:
    assert filters("status=dead&status=failed").values == filters("status=dead,failed").values


def test_empty_fields_of_a_form_are_no_filters() -> None:
    arguments = MultiDict([("status", ""), ("type", ""), ("since", "")])
    assert not read_filters(arguments, FIELDS, is_form=True)
    with pytest.raises(FilterError, match="The filter “status” is empty"):
        read_filters(arguments, FIELDS)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("colour=red", "There is no filter “colour” here"),
        ("status=broken", "it must be some of queued, running"),
        ("since=yesterday", "it must be a time such as"),
        ("since=0001-01-01T00:00%2B14:00", "it must be a time"),
        ("since=999999w", "it must be a time"),
        ("type=a&type=b", "give it once"),
        ("type=" + "x" * 501, "text of 1 to 500"),
        ("limit=0", "from 1 to 200"),
        ("limit=201", "from 1 to 200"),
        ("payload.=1", "names nothing: write payload.<path>"),
        ("type=\0", "it must be text"),
    ],
)
def test_a_wrong_filter_is_refused_in_a_sentence(query: str, words: str) -> None:
    with pytest.raises(FilterError) as refused:
        filters(query)
    assert words in str(refused.value)


def test_an_age_is_counted_from_the_databases_clock() -> None:
    now = datetime(2026, 11, 21, 9, tzinfo=UTC)
    assert filters("since=90m").get("since").at(now) == now - timedelta(minutes=90)


@given(st.text(max_size=300))
def test_no_text_breaks_the_reading_of_a_moment(value: str) -> None:
    try:
        params.moment(value)
    except ValueError:
        pass


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading_of_a_cursor(value: str) -> None:
    try:
        read_cursor(value, [datetime, int])
    except FilterError:
        pass


@given(
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")),
)
def test_a_cursor_comes_back_as_it_was_given_out(number: int, text: str) -> None:
    cursor = Cursor("older", (datetime(2026, 1, 2, 3, tzinfo=UTC), number, text))
    assert read_cursor(cursor.encode(), [datetime, int, str]) == cursor


def test_a_link_changes_one_filter_and_keeps_the_others() -> None:
    found = filters("status=dead&type=a b&cursor=abc")
    assert found.link("/runs", type=None) == "/runs?status=dead"
    assert found.link("/runs", cursor="x") == "/runs?status=dead&type=a%20b&cursor=x"


# Keyset pages


def test_pages_walk_to_the_end_and_back_without_losing_or_repeating_a_row(
    app: Flask, connection: Connection
) -> None:
    connection.execute("INSERT INTO wakeboard.job_runs (job_type) SELECT 'x' FROM generate_series(1, 23)")
    engine = app.extensions["wakeboard_database"].primary
    statement = job_runs.select().with_only_columns(job_runs.c.id)

    def page(cursor: str | None) -> tuple[list[int], str | None, str | None]:
        asked = params.Filters(cursor_text=cursor, limit=5)
        with engine.connect() as reading:
            rows = read_page(reading, statement, [job_runs.c.id], asked)
        return [row["id"] for row in rows.items], rows.older, rows.newer

    forth = [page(None)]
    while forth[-1][1]:
        forth.append(page(forth[-1][1]))
    every = [row for rows, _, _ in forth for row in rows]
    assert every == sorted(every, reverse=True) and len(set(every)) == 23
    assert forth[0][2] is None
    back = [forth[-1]]
    while back[-1][2]:
        back.append(page(back[-1][2]))
    assert [rows for rows, _, _ in reversed(back)] == [rows for rows, _, _ in forth]


# Words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "12 ms"),
        (30, "30 s"),
        (30.04, "30.0 s"),
        (242, "4 min 2 s"),
        (11_520, "3 h 12 min"),
        (172_800, "2 d"),
        (None, "–"),
        (59.97, "1 min"),
    ],
)
def test_a_duration_is_said_as_people_say_it(seconds: float | None, words: str) -> None:
    assert formats.duration(seconds) == words


@pytest.mark.parametrize("start", list("=+-@\t\r"))
def test_a_cell_that_a_spreadsheet_would_run_is_led_by_an_apostrophe(start: str) -> None:
    assert formats.cell(f"{start}cmd|' /C calc'!A0").startswith("'")
    assert formats.cell(-12) == "-12"


def test_a_share_never_rounds_to_all_or_nothing() -> None:
    assert formats.percent(99_999, 100_000) == "> 99.9\u202f%"
    assert formats.percent(1, 100_000) == "< 0.1\u202f%"
    assert formats.percent(0, 0) == "–"


def test_the_hour_that_comes_twice_is_told_apart_although_its_moments_are_remembered() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    second = first.replace(fold=1)
    assert first == second, "that is how Python compares times of one zone"
    assert formats.local(first, berlin) == "2026-10-25 02:30:00 CEST"
    assert formats.local(second, berlin) == "2026-10-25 02:30:00 CET"
    assert formats.here_and_both(first, UTC) == ("2026-10-25 00:30:00 UTC",) * 2
    assert formats.here_and_both(second, UTC) == ("2026-10-25 01:30:00 UTC",) * 2
    assert 'datetime="2026-10-25T00:30:00+00:00"' in formats.brief(first, berlin)
    assert 'datetime="2026-10-25T01:30:00+00:00"' in formats.brief(second, berlin)


def test_control_and_bidi_characters_are_made_visible() -> None:
    assert formats.visible("a\x1b[31m\u202eb\nc") == "a\\u001b[31m\\u202eb\nc"


@pytest.mark.parametrize(
    "address",
    [
        "//evil.test",
        "/\\evil.test",
        "https://evil.test",
        "javascript:alert(1)",
        "\\evil",
        "/a\r\nb",
        "",
        None,
        "evil",
        "/ /evil",
        "/\tevil",
    ],
)
def test_a_way_back_never_leads_to_another_site(address: str | None) -> None:
    assert local_path(address) is None


def test_equal_html_has_an_equal_tag() -> None:
    assert fragment_tag("<p>a</p>") == fragment_tag("<p>a</p>") != fragment_tag("<p>b</p>")


# Errors


def test_addresses_can_be_built_from_routes_though_no_link_is(app: Flask) -> None:
    adapter = app.url_map.bind("localhost")
    found, values = adapter.match("/runs/48210/payload")
    assert adapter.build(found, values) == "/runs/48210/payload"
    found, values = adapter.match("/types/a%2Fb")
    assert adapter.build(found, values | {"since": "1h"}).endswith("?since=1h")


def test_an_unknown_address_is_a_page_or_json_as_asked(client: FlaskClient) -> None:
    page = client.get("/nothing")
    assert page.status_code == 404 and "There is nothing at this address" in page.text
    body = client.get("/nothing.json")
    assert body.status_code == 404 and body.get_json()["message"].startswith("There is nothing")


def test_a_mistake_of_ours_shows_an_id_and_no_trace(app: Flask, as_role: AsRole) -> None:
    @app.get("/broken")
    def broken() -> str:
        raise ZeroDivisionError("secret detail")

    answer = as_role("admin").get("/broken")
    text = answer.text
    assert answer.status_code == 500 and answer.headers["X-Request-Id"] in text
    assert "secret detail" not in text and "Traceback" not in text


def test_a_database_that_is_away_is_a_page_and_json_within_three_seconds() -> None:
    away = create_app(Settings.load({"database_url": "postgresql://x@127.0.0.1:1/x"}, environ={}))
    client = away.test_client()
    client.set_cookie("wakeboard_any", "x")
    started = datetime.now(UTC)
    page, body, live = (
        client.get("/"),
        client.get("/overview.json"),
        client.get("/_fragments/overview/tiles", headers={"HX-Request": "true"}),
    )
    assert datetime.now(UTC) - started < timedelta(seconds=9)
    assert page.status_code == body.status_code == live.status_code == 503
    assert "The database does not answer" in page.text
    assert body.get_json()["error"] == "Database unreachable"
    assert live.mimetype == "text/plain"
    assert client.get("/healthz").status_code == 200


def test_a_database_without_tables_says_how_to_make_them(empty_database: str) -> None:
    app = create_app(Settings.load({"database_url": empty_database}, environ={}))
    answer = app.test_client().get("/", headers={"Cookie": "a=b"})
    page = answer.text
    assert answer.status_code == 503 and "wakeboard db upgrade" in page
    assert "No tables here yet" in page and "unreachable" not in page, "it answered"
    app.extensions["wakeboard_database"].dispose()


def test_a_slow_statement_is_stopped_and_said(app: Flask, as_role: AsRole) -> None:
    from sqlalchemy import text

    from wakeboard_dashboard.web.connection import reading

    @app.get("/slow")
    def slow() -> str:
        reading().execute(text("SET LOCAL statement_timeout = '50ms'"))
        reading().execute(text("SELECT pg_sleep(5)"))
        return ""

    answer = as_role("admin").get("/slow")
    assert answer.status_code == 503 and "took too long" in answer.text


def test_a_page_can_not_write(app: Flask, as_role: AsRole) -> None:
    from sqlalchemy import text

    from wakeboard_dashboard.web.connection import reading

    @app.get("/writes")
    def writes() -> str:
        reading().execute(text("DELETE FROM wakeboard.job_runs"))
        return ""

    assert as_role("admin").get("/writes").status_code == 500
