"""The shell of every page: its title, its live count, its keys, its empty states, how a browser is set up."""

from __future__ import annotations

import re
import shlex
from html import unescape
from urllib.parse import parse_qs, urlsplit

import click
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from tests.support.dashboard_apps import an_app, overhear
from tests.support.factories import a_definition, a_run, from_now, insert, rows, status
from wakeboard.accounts import users
from wakeboard.cli import cli
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard_dashboard.pages import fragments
from wakeboard_dashboard.pages.navigation import PAGES, NavigationEntry
from wakeboard_dashboard.web.connection import reading

NOT_OF_THE_SHOP = [entry for entry in PAGES if entry.path != "/demo"]
COUNT = "/_fragments/shell/attention"


def title(client: FlaskClient, path: str) -> str:
    found = re.search(r"<title>(.*?)</title>", client.get(path).text)
    assert found is not None
    return unescape(found[1])


def forget(app: Flask) -> None:
    """Let what needs attention be counted anew."""
    app.extensions.pop("wakeboard_attention", None)


def test_every_page_without_an_argument_is_in_the_navigation_under_a_key_of_its_own(app: Flask) -> None:
    paths = {
        rule.rule.removesuffix(".json") for rule in app.url_map.iter_rules() if rule.rule.endswith(".json")
    }
    pages = {"/" if path == "/overview" else path for path in paths if "<" not in path}
    assert pages | {"/display"} == {entry.path for entry in PAGES}
    assert len({entry.key for entry in PAGES}) == len(PAGES)


@pytest.mark.parametrize("entry", NOT_OF_THE_SHOP, ids=lambda entry: entry.path)
def test_every_page_says_what_it_answers_and_counts_what_needs_a_person(
    app: Flask, client: FlaskClient, connection: Connection, entry: NavigationEntry
) -> None:
    html = client.get(entry.path).text
    assert f'<meta name="description" content="{entry.subtitle}">' in html
    assert f'hx-get="{COUNT}"' in html
    assert f'data-go="{entry.key}"' in html
    for _ in range(3):
        a_run(connection, "dead")
    forget(app)
    assert title(client, "/runs").startswith("(3) Runs – Wakeboard")
    assert title(client, entry.path).startswith("(3) ")


def test_the_count_is_the_overviews_and_tells_alerts_that_no_number_tells(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    a_run(connection, "dead")
    missed = {"definition_id": a_definition(connection), "scheduled_for": from_now("-1 minute")}
    insert(connection, "missed_fires", missed | {"reason": "misfire"})
    connection.execute(
        """UPDATE wakeboard.alert_rules SET state = 'firing', fired_at = now()
        WHERE kind IN ('dead_runs', 'late_loop')"""
    )
    answer = client.get(COUNT, headers={"HX-Request": "true"})
    assert 'data-attention="3"' in answer.text
    assert 'data-attention="3"' in client.get("/").text
    again = client.get(COUNT, headers={"HX-Request": "true", "HX-PTag": answer.headers["HX-PTag"]})
    assert again.status_code == 304


def test_many_tabs_share_one_count(app: Flask, client: FlaskClient) -> None:
    fragments.install(app)
    asked: list[str] = []
    overhear(app, lambda sql, _values: asked.append(sql))
    for _ in range(5):
        assert client.get(COUNT).status_code == 200
    assert sum("missed_fires" in sql for sql in asked) == 1


def test_a_count_that_cannot_be_had_costs_no_page(
    app: Flask, client: FlaskClient, superuser: Connection
) -> None:
    superuser.execute("REVOKE SELECT ON wakeboard.missed_fires FROM PUBLIC")
    superuser.execute("ALTER TABLE wakeboard.missed_fires RENAME TO elsewhere")
    assert title(client, "/audit") == "Audit – Wakeboard"
    assert client.get(COUNT, headers={"HX-Request": "true"}).status_code == 503


def test_the_count_survives_an_error_page(app: Flask, client: FlaskClient) -> None:
    @app.get("/breaks")
    def breaks() -> str:
        reading().execute(text("SELECT 1 / 0"))
        return ""

    answer = client.get("/breaks")
    assert answer.status_code == 500
    assert "<title>Something broke here – Wakeboard" in answer.text


def test_a_filtered_list_says_its_filter_in_the_title(client: FlaskClient) -> None:
    assert title(client, "/runs?status=dead&type=a%3Cb") == "Runs: status dead, type a<b – Wakeboard"


def test_the_environment_is_in_ribbon_brand_title_and_questions(
    database: str, connection: Connection, as_role: AsRole
) -> None:
    app = an_app(database_url=database, environment="production red")
    client = app.test_client()
    for cookie in as_role("admin")._cookies.values():  # type: ignore[union-attr]
        client.set_cookie(cookie.key, cookie.value)
    run_id = a_run(connection, "queued")
    html = client.get(f"/runs/{run_id}/cancel").text
    assert html.count('class="where red"') == 3
    assert '<div class="ribbon red">production</div>' in html
    assert "– Wakeboard production</title>" in html
    app.extensions["wakeboard_database"].dispose()


# Empty states


COMMANDS = {
    "/runs": "enqueue",
    "/leases": "worker",
    "/schedules": "schedule add",
    "/types": "worker",
    "/workers": "worker",
    "/effects": "effects list",
    "/alerts": "alerts test",
    "/system": "worker",
    "/night": "tick",
}


@pytest.mark.parametrize("path", COMMANDS)
def test_an_empty_page_teaches_the_command_that_fills_it(client: FlaskClient, path: str) -> None:
    html = client.get(path).text
    found = re.search(r'class="try"><code>(.*?)</code>', html)
    assert found is not None
    words = shlex.split(unescape(found[1]))
    assert words[0] == "wakeboard" and " ".join(words[1:]).startswith(COMMANDS[path])
    assert_parses(words[1:])


def assert_parses(words: list[str]) -> None:
    """Assert that the command line knows these words and their options."""
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(list(words))


# How a browser is set up


def test_a_browser_is_set_up_by_a_form_and_goes_back(client: FlaskClient) -> None:
    chosen = {"theme": "dark", "density": "comfortable", "times": "absolute", "zone": "Asia/Tokyo"}
    answer = client.post("/display", data={**chosen, "next": "/runs?status=dead"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs?status=dead")
    html = client.get("/runs").text
    assert re.search(
        r'<html lang="en"\s+data-theme="dark"\s+data-density="comfortable"\s+data-times="absolute"', html
    )
    assert " JST</span>" in html
    page = client.get("/display").text
    assert re.search(r'<option value="Asia/Tokyo"\s+selected>Asia/Tokyo \(\d\d:\d\d now\)', page)


@pytest.mark.parametrize(("name", "value"), [("theme", "pink"), ("zone", "Asia/Nowhere"), ("zone", "../x")])
def test_what_cannot_be_chosen_is_refused(client: FlaskClient, name: str, value: str) -> None:
    answer = client.post("/display", data={name: value})
    assert answer.status_code == 400
    assert f"There is no {name} “{value}”." in answer.text


def test_the_way_back_stays_on_this_site(client: FlaskClient) -> None:
    answer = client.post("/display", data={"next": "//evil.test/"})
    assert answer.headers["Location"] == "/display"


# A form that comes too late


def test_a_form_without_session_does_nothing_and_keeps_the_reason(
    anonymous: FlaskClient, connection: Connection
) -> None:
    run_id = a_run(connection, "queued")
    late = anonymous.post(f"/runs/{run_id}/cancel", data={"reason": "no <b>&</b> never", "next": "/runs"})
    html = late.text
    assert late.status_code == 401 and "Nothing was done." in html
    assert "no &lt;b&gt;&amp;&lt;/b&gt; never" in html
    link = re.search(r'href="/login\?next=([^"]*)"', html)
    assert link and link[1].startswith(f"%2Fruns%2F{run_id}%2Fcancel%3Freason%3Dno%2B")
    assert status(connection, run_id) == "queued"
    assert rows(connection, "audit_log", "action = 'run.cancel'") == []


def test_the_question_is_asked_again_with_the_reason(client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection, "queued")
    html = client.get(f"/runs/{run_id}/cancel?reason=no+%22never%22&next=/runs").text
    assert 'value="no &#34;never&#34;"' in html


def test_only_the_reason_and_the_runs_go_into_an_address(anonymous: FlaskClient) -> None:
    given = {"payload": '{"token": "s3cret"}', "reason": "x"}
    html = anonymous.post("/runs/7/again", data=given).text
    assert "s3cret" not in html


QUESTIONS = (
    "/schedules/nightly/edit",
    "/runs/bulk/retry?status=dead&type=mail",
    "/runs/bulk/cancel?run=7&run=9",
    "/runs/enqueue?type=mail",
    "/runs/views/save?query=status%3Ddead%26type%3Dmail",
    "/display?next=%2Fruns",
)


@pytest.mark.parametrize("address", QUESTIONS)
def test_the_question_of_a_late_form_is_asked_again_as_it_was(
    anonymous: FlaskClient, client: FlaskClient, connection: Connection, address: str
) -> None:
    a_definition(connection, "nightly")
    a_run(connection, "dead", job_type="mail")
    form = {"by": "admin"} if address.startswith("/display") else {"by": "admin", "reason": "quiet & dark"}
    late = anonymous.post(address, data=form | {"next": "/runs"})
    link = re.search(r'href="(/login[^"]*)"', late.text)
    assert late.status_code == 401 and link
    # Who is signed in already, in another tab, goes on at once.
    back = client.get(unescape(link[1])).headers["Location"]
    asked, was = parse_qs(urlsplit(back).query), parse_qs(urlsplit(address).query)
    assert urlsplit(back).path == urlsplit(address).path
    assert {name: asked.get(name) for name in was} == was
    page = client.get(back)
    assert page.status_code == 200
    assert ('value="quiet &amp; dark"' in page.text) is ("reason" in form)


def test_a_reason_goes_along_for_who_typed_it_alone(
    anonymous: FlaskClient, as_role: AsRole, connection: Connection
) -> None:
    run_id = a_run(connection, "queued")
    form = {"reason": "hers alone", "by": "admin"}
    html = anonymous.post(f"/runs/{run_id}/cancel", data=form).text
    assert "Sign in as admin, and the same question is asked again, with your reason." in html
    link = re.search(r'href="(/login[^"]*)"', html)
    assert link
    other = as_role("operator").get(unescape(link[1])).headers["Location"]
    assert other == f"/runs/{run_id}/cancel"
    same = as_role("admin").get(unescape(link[1])).headers["Location"]
    assert same == f"/runs/{run_id}/cancel?reason=hers+alone"


def test_who_signs_in_as_somebody_else_is_given_no_reason(
    anonymous: FlaskClient, connection: Connection
) -> None:
    password = "seven small boats at dawn"
    for name in ("anna", "ben"):
        users.create_user(connection, Actor("cli:boss", Role.ADMIN, "cli"), name, Role.ADMIN, password)
    way = {"next": "/runs/7/cancel?reason=hers&next=%2Fruns", "whose": "anna"}
    page = anonymous.get("/login", query_string=way).text
    assert '<input type="hidden" name="whose" value="anna">' in page
    for name, goal in {"ben": "/runs/7/cancel?next=%2Fruns", "anna": way["next"]}.items():
        entered = anonymous.post("/login", data=way | {"name": name, "password": password})
        assert entered.headers["Location"] == goal


def test_what_does_not_come_along_is_said(anonymous: FlaskClient) -> None:
    def says(path: str, form: dict[str, str], **headers: str) -> str:
        return anonymous.post(path, data=form, headers=headers).text

    lost = "does not come along"
    assert lost not in says("/runs/7/cancel", {"reason": "x", "next": "/runs", "by": "anna"})
    assert f"The rest of what you typed or chose {lost}" in says(
        "/runs/enqueue", {"type": "mail", "reason": "x"}
    )
    # An address has room for so much.
    long = says("/runs/7/cancel", {"reason": "道" * 500})
    assert f"What you typed or chose {lost}" in long and "reason%3D" not in long
    many = says("/runs/bulk/retry?" + "&".join(f"run={10**18 + n}" for n in range(250)), {"reason": "x"})
    assert "its address is too long" in many and 'href="/login?next=%2F"' in many


def test_a_button_without_a_form_leads_back_as_well(anonymous: FlaskClient) -> None:
    sent = anonymous.post("/runs/7/retry", headers={"Referer": "http://localhost/runs?status=dead"})
    html = sent.text
    assert sent.status_code == 401 and "Nothing was done." in html
    assert 'href="/login?next=%2Fruns%2F7%2Fretry%3Fnext%3D%252Fruns%253Fstatus%253Ddead"' in html


def test_signing_out_twice_leads_to_sign_in(anonymous: FlaskClient) -> None:
    answer = anonymous.post("/logout", data={})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
