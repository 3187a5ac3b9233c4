"""Text made to break a page: in every column that outsiders write, on every page, in every shape."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import count, cycle

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app
from tests.support.every_page import APART, Filling, Text, addresses, furnish
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard_dashboard.web.connection import Database

EVALUATED = str(7919 * 7907)
MARKUP = "\"'><img src=x onerror=alert(1)></td></table></pre><script>alert(2)</script>{{ 7919*7907 }}{% x %}"
BIDI = "\u202egnp.exe\u2066\u200f"
CONTROLS = "\x1b[31m\x07\x7f\x85"
FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1")
LEADING = ("href", "src", "action", "formaction", "hx-get", "hx-post")
INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
VOID = {"meta", "link", "img", "input", "br", "use", "rect", "line", "hr", "path", "circle", "polyline"}
# What is typed there is sent on to the list.
FORMS = ("/audit/find", "/runs/find")
# Elements that nobody's text may bring in; the house has each of them in its own shell.
SHELL = {"script": 1, "img": 1, "main": 1, "h1": 1, "header": 1, "footer": 1, "body": 1}


def hostile(*, plain: bool) -> Text:
    """Return a text that gives everything at once, each time under another start and never twice."""
    starts, numbers = cycle(each for each in FORMULAS if not plain or each.isprintable()), count()
    middle = f"{MARKUP} {BIDI}" + ("" if plain else f"\n{CONTROLS}\r\n")

    def give(most: int) -> str:
        # The number comes first after the start, so that short columns stay unique.
        text = f"{next(starts)}{next(numbers)} {middle} "
        return (text + "w\u00f6rd " * most)[:most]

    return give


@pytest.fixture(scope="module")
def house(shared_database: str, shared: Connection) -> Iterator[tuple[Flask, FlaskClient, Filling]]:
    """A dashboard over a database full of hostile text, and a browser signed in under such a name."""
    filling = furnish(shared, hostile(plain=False), hostile(plain=True))
    app = an_app(database_url=shared_database)
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(shared, hostile(plain=False)(200), Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(shared)}", cookie)
    yield app, client, filling
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


class Structure(HTMLParser):
    """Reads a page as a browser does, and notes what is not as the house writes it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.counted: dict[str, int] = {}
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_of_forms = re.fullmatch(r"/static/forms\.js\?v=[0-9a-f]{12}", dict(attrs).get("src") or "")
        counted = "script of forms" if tag == "script" and is_of_forms else tag
        self.counted[counted] = self.counted.get(counted, 0) + 1
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self.open.append(tag)
        for name, value in attrs:
            if not re.fullmatch(r"[a-z][a-z0-9-]*|viewBox|preserveAspectRatio", name, re.IGNORECASE):
                self.wrong.append(f"<{tag}> has an attribute {name!r}")
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.wrong.append(f"<{tag}> has {name}={value!r}")
            if name in LEADING and not re.match(r"[#?]|/(?!/)", value or ""):
                self.wrong.append(f"<{tag}> leads to {value!r}")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def faults(html: str, *, whole: bool) -> list[str]:
    """Return what of a page or fragment is not as the house wrote it."""
    read = Structure()
    read.feed(html)
    read.close()
    wrong = [*read.wrong, *(f"<{tag}> stays open" for tag in read.open)]
    twice = {each for each in read.ids if read.ids.count(each) > 1}
    wrong += [f"the id {each!r} is there twice" for each in twice]
    if whole:
        found = {tag: read.counted.get(tag, 0) for tag in SHELL}
        wrong += [
            f"{tag}: {found[tag]} instead of {most}" for tag, most in SHELL.items() if found[tag] != most
        ]
        if read.counted.get("script of forms", 0) > 1:
            wrong.append("the script of forms is there twice")
    elif any(read.counted.get(tag) for tag in ("script", "script of forms", "img")):
        wrong.append("a fragment brings a script or an image")
    hidden = INVISIBLE.search("".join(read.said).replace("\r", "\n"))
    if hidden:
        wrong.append(f"{hidden[0]!r} is written as it is")
    return wrong + (["a template was evaluated"] if EVALUATED in html else [])


def listed(wrong: dict[str, str]) -> str:
    return "\n".join(f"{address}: {why}" for address, why in wrong.items())


def test_every_page_and_fragment_keeps_its_structure(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    wrong: dict[str, str] = {}
    seen = 0
    for rule, found in addresses(app, filling).items():
        if rule.endswith((".json", ".csv")):
            continue
        for address in found:
            answer = client.get(address)
            if answer.status_code != 200:
                if rule not in FORMS or answer.status_code != 303:
                    wrong[address[:90]] = str(answer.status_code)
                continue
            seen += 1
            html = answer.text
            if found_wrong := faults(html, whole=not rule.startswith("/_fragments")):
                wrong[address[:90]] = str(found_wrong[:5])
    assert not wrong, listed(wrong)
    assert seen > 60


def test_every_twin_is_json_with_the_text_as_it_is(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    wrong: dict[str, str] = {}
    for rule, found in addresses(app, filling).items():
        if not rule.endswith(".json"):
            continue
        for address in found:
            answer = client.get(address)
            try:
                body = json.loads(answer.data)
            except ValueError as broken:
                wrong[address[:90]] = str(broken)
                continue
            if answer.status_code != 200 or not isinstance(body, dict) or "as_of" not in body:
                wrong[address[:90]] = str(answer.status_code)
    assert not wrong, listed(wrong)


def test_no_cell_of_any_csv_is_a_formula(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    wrong: dict[str, str] = {}
    texts = 0
    for rule, (address, *_) in addresses(app, filling).items():
        if not rule.endswith(".csv"):
            continue
        answer = client.get(address)
        assert answer.status_code == 200, address
        header, *lines = list(csv.reader(io.StringIO(answer.text, newline="")))
        assert lines, f"{address} is empty: everything.furnish() should write rows for it"
        for line in lines:
            texts += sum(cell.startswith("'") for cell in line)
            dangerous = [
                cell[:40]
                for cell in line
                if cell[:1] in tuple("=+-@\t\r\n") and not re.fullmatch(r"-?[0-9.e+-]+", cell)
            ]
            if dangerous or len(line) != len(header):
                wrong[address] = str(dangerous or f"{len(line)} cells under {len(header)} columns")
    assert not wrong, listed(wrong)
    assert texts > 50


@pytest.mark.parametrize("start", FORMULAS)
def test_each_start_of_a_formula_is_made_text(
    house: tuple[Flask, FlaskClient, Filling], shared: Connection, start: str
) -> None:
    _, client, _ = house
    shared.execute(
        "INSERT INTO wakeboard.job_runs (job_type, enqueued_by) VALUES ('formula', %s)", (f"{start} x",)
    )
    answer = client.get("/runs.csv?type=formula&limit=1")
    cells = [cell for line in csv.reader(io.StringIO(answer.text, newline="")) for cell in line]
    assert f"'{start} x" in cells


def test_hostile_filters_are_answered_and_written_as_text(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, _ = house
    text = hostile(plain=True)(400)
    for rule in app.url_map.iter_rules():
        path = rule.rule
        if "<" in path or APART.search(path) or "GET" not in (rule.methods or ()):
            continue
        for name in ("q", "type", "error", "worker", "key", "who", "since", "cursor", "nonsense"):
            answer = client.get(path, query_string={name: text})
            assert answer.status_code in (200, 303, 400, 404), (path, name)
            if answer.mimetype == "text/html" and answer.status_code != 303:
                html = answer.text
                assert faults(html, whole=html.startswith("<!doctype")) == [], (path, name)
