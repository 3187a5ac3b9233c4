"""Every page, fragment and confirm page is valid HTML, over rows of every kind and for every role."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.browser.test_every_page import NOT_PAGES, fill, furnish
from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app
from tests.support.html_validity import faults
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.demo import history, shop
from wakeboard_dashboard.web.connection import Database

LIVE = re.compile(r"<(\w+) [^>]*\bdata-live\b[^>]*>")
# Where to leave the pages for another checker to see: a folder; nowhere unless it is named.
LEAVE_IN = os.environ.get("VALIDITY_FOLDER")
BROKEN = {
    "<p>a<div>b</div></p>": "unexpected-end-tag",
    "<table><tr><td>1</table><table><div>x</div></table>": "voodoo",
    "<a href='/x'><a href='/y'>z</a></a>": "unexpected-start-tag",
    "<form><form></form></form>": "unexpected-start-tag",
    "<button type='button' type='submit'>x</button>": "duplicate-attribute",
    "a &b; c": "expected-named-entity",
    "<b>c": "end-tag-too-early",
    "<meter></meter>": "no value",
    "<p id='a'></p><p id='a'></p>": "used 2 times",
    "<label for='nowhere'>x</label>": "not there",
    "<div id='d'></div><label for='d'>x</label>": "cannot have one",
    "<span><div>x</div></span>": "<div> stands inside <span>",
    "<a href='/x'><button>y</button></a>": "inside a link",
    "<label>x<label>y</label></label>": "inside another",
    "<label>x<input><input></label>": "several fields",
    "<ul><p>x</p></ul>": "<p> stands in <ul>",
    "<div><li>x</li></div>": "<li> stands in <div>",
    "<details><p>x</p></details>": "summary",
    "<dl><dd>x</dd></dl>": "terms",
    "<table><tbody><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></tbody></table>": "[1, 2] columns",
    "<p align='left'>x</p>": "no attribute 'align'",
    "<td>x</td>": "unexpected-start-tag",
    "<input type='words'>": "is not 'words'",
    "<input maxlength='many'>": "no number",
    "<input disabled='false'>": "never 'false'",
    "<a href='/a b'>x</a>": "no address",
    "<time datetime='yesterday'>x</time>": "no moment",
    "<img src='/x'>": "no alt",
    "<progress value='3' max='2'></progress>": "shows 3",
    "<center>x</center>": "obsolete",
    "<h1>two</h1>": "2 times <h1>",
}
WHOLE = (
    "<!doctype html><html lang=en><head><title>t</title></head><body><main><h1>t</h1>{}</main></body></html>"
)


@pytest.fixture(scope="module")
def pages(shared_database: str, shared: Connection) -> Iterator[tuple[Flask, list[str]]]:
    """The dashboard over a week's past and rows of every kind, and the addresses of its pages."""
    shop.create_tables(shared)
    history.write_history(shared)
    filling = furnish(shared)
    app = an_app(database_url=shared_database)
    rules = [rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    found = {address for rule in rules if not NOT_PAGES.search(rule) for address in fill(rule, filling)}
    yield app, sorted(found)
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


def signed_in(app: Flask, connection: Connection, role: Role) -> FlaskClient:
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    name = f"wakeboard_{users.install_id(connection)}"
    client.set_cookie(name, sessions.open_session(connection, "anna", role))
    return client


@pytest.mark.parametrize("role", list(Role))
def test_every_page_and_each_of_its_fragments_is_valid(
    pages: tuple[Flask, list[str]], shared: Connection, role: Role
) -> None:
    app, addresses = pages
    client, found, fragments = signed_in(app, shared, role), [], 0
    for address in [*addresses, "/nothing", "/runs?status=wrong"]:
        answer = client.get(address, follow_redirects=True)
        html = answer.text
        leave(f"{role.value}{address}", html)
        found += [f"{address}: {fault}" for fault in faults(html)]
        for opening in LIVE.finditer(html):
            asked = re.search(r'hx-get="([^"]*)"', opening[0])
            assert asked, opening[0]
            part = client.get(unescape(asked[1])).text
            found += [f"{unescape(asked[1])}: {fault}" for fault in faults(part, container=opening[1])]
            fragments += 1
    assert not found, "\n".join(dict.fromkeys(found))
    assert fragments > 20


def leave(name: str, html: str) -> None:
    if LEAVE_IN:
        Path(LEAVE_IN, re.sub(r"[^\w]+", "-", name)[:150] + ".html").write_text(html)


def test_the_sign_in_page_is_valid(pages: tuple[Flask, list[str]]) -> None:
    app, _ = pages
    for address in ("/login", "/login?next=%2Fruns", "/login?token=wrong"):
        assert faults(app.test_client().get(address).text) == []


@pytest.mark.parametrize("html", BROKEN, ids=list(BROKEN.values()))
def test_what_is_not_valid_is_told(html: str) -> None:
    assert BROKEN[html] in "\n".join(faults(WHOLE.format(html)))


def test_what_is_valid_passes() -> None:
    good = """<form><label>x <input name="a" required></label><button>y</button></form>
    <table><thead><tr><th scope="col">a</th><th>b</th></tr></thead>
    <tbody><tr><td colspan="2">c</td></tr></tbody></table>
    <table><tbody><tr><th rowspan="2">a</th><td>b</td></tr><tr><td>c</td></tr></tbody></table>
    <a href="/x?a=b&amp;c=%20"><div>block</div></a><dl><dt>a</dt><dd>b</dd></dl>
    <details><summary>s</summary><p>t</p></details><time datetime="2026-11-21T08:00:00+01:00">x</time>"""
    assert faults(WHOLE.format(good)) == []
    assert faults("<tr><td>1</td></tr>", container="tbody") == []
