"""The dashboard's test world: an app on a fresh database, and people with roles who are signed in to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Connection as Session

from tests.conftest import Connection
from tests.support.dashboard_apps import an_app
from tests.support.factories import an_attempt
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard_dashboard.web.connection import Database

# As a browser that stays on our pages sends it.
SAME_ORIGIN = {"HTTP_SEC_FETCH_SITE": "same-origin"}
# The numbers of a night's twin, in the order of the page's tiles.
NIGHT_TILES = (
    "attempts", "failed", "new", "dead", "recovered", "missed", "late", "overlapping", "slow", "taken_over",
)  # fmt: skip
AsRole = Callable[[str], FlaskClient]


@pytest.fixture
def app(database: str) -> Iterator[Flask]:
    """The dashboard on a fresh database."""
    made = an_app(database_url=database)
    yield made
    engines: Database = made.extensions["wakeboard_database"]
    engines.dispose()


@pytest.fixture
def session(app: Flask) -> Iterator[Session]:
    """A connection as pages have it; each statement sees what is there then."""
    engines: Database = app.extensions["wakeboard_database"]
    with engines.primary.connect() as opened:
        yield opened.execution_options(isolation_level="AUTOCOMMIT")


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    """A browser that nobody signed in."""
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    return client


@pytest.fixture
def as_role(app: Flask, connection: Connection) -> AsRole:
    """``as_role("viewer")``: a browser with a session of that role, for the person of the same name."""

    def sign_in(role: str) -> FlaskClient:
        client = app.test_client()
        client.environ_base.update(SAME_ORIGIN)
        cookie = sessions.open_session(connection, role, Role(role))
        client.set_cookie(f"wakeboard_{users.install_id(connection)}", cookie)
        return client

    return sign_in


@pytest.fixture
def client(as_role: AsRole) -> FlaskClient:
    """A browser signed in as an admin."""
    return as_role("admin")


def fragments_of(html: str) -> dict[str, str]:
    """Return {fragment address: the tag the page says it has} of a page's live regions, but the bar's."""
    found = {}
    for opening in re.findall(r"<\w+ [^>]*\bdata-live\b[^>]*>", html):
        address = re.search(r'hx-get="([^"]*)"', opening)
        tag = re.search(r'hx-ptag="([^"]*)"', opening)
        assert address and tag, opening
        if not address[1].startswith("/_fragments/shell/"):
            found[unescape(address[1])] = tag[1]
    return found


def page_of(client: FlaskClient, path: str) -> str:
    """Return the page at ``path``, which must be there."""
    answer = client.get(path)
    assert answer.status_code == 200, f"{path}: {answer.text[-3000:]}"
    return answer.text


def words_of(client: FlaskClient, path: str) -> str:
    """Return the text of the middle of the page at ``path`` as a reader sees it."""
    middle = page_of(client, path).split("<main")[1].split("</main>")[0]
    return one_line(unescape(re.sub(r"<[^>]+>", " ", middle)))


def items_of(client: FlaskClient, address: str) -> list[dict[str, Any]]:
    """Return the items of the JSON list at ``address``, which must be there."""
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.get_json()["items"]
    return items


def a_failure(connection: Connection, ago: str, run_id: int = 1, **columns: Any) -> None:
    """Insert a failed attempt that ended ``ago``, such as ``3 hours``, with a lease epoch of its own."""
    (number,) = connection.execute("SELECT count(*) + 100 FROM wakeboard.job_attempts").fetchone() or (100,)
    values = {"outcome": "failed", "error_code": "smtp_down", "finished_at": f"-{ago}"} | columns
    an_attempt(connection, run_id, attempt=number, lease_epoch=number, **values)


def along(client: FlaskClient, way: str, page: str) -> list[str]:
    """Return ``page`` and all that its links lead to, the one after the other; ``way``: 'next' or 'prev'."""
    pages = [page]
    while found := re.search(f'rel="{way}" href="([^"]+)"', pages[-1]):
        pages.append(page_of(client, unescape(found[1])))
    return pages


def rows_in(page: str) -> list[int]:
    """Return the ids of the runs that a page lists, in its order."""
    return [int(found) for found in re.findall(r'<tr id="run-(\d+)"', page)]


def one_line(html: str) -> str:
    """Return ``html`` with one space for each run of spaces and line breaks, as browsers show it."""
    return " ".join(html.split())


def assert_shown_as_text(client: FlaskClient, path: str) -> None:
    """Assert that the page at ``path`` shows hostile names as text, with their invisible characters visible.

    Attributes may carry them as they are: nobody reads those.
    """
    answer = client.get(path)
    assert answer.status_code == 200, path
    html = answer.text
    assert "<img src=x" not in html, path
    assert "\u202e" not in re.sub(r'="[^"]*"', "", html), path


def assert_fragments_match(client: FlaskClient, path: str) -> None:
    """Assert that every fragment of the page at ``path`` is, alone, exactly what the page shows."""
    html = client.get(path).text
    fragments = fragments_of(html)
    assert fragments, f"{path} has no live region"
    for address, tag in fragments.items():
        alone = client.get(address, headers={"HX-Request": "true"})
        assert alone.status_code == 200, address
        assert alone.text in html, f"{address} differs from its page"
        assert alone.headers["HX-PTag"] == tag
        again = client.get(address, headers={"HX-Request": "true", "HX-PTag": tag})
        assert again.status_code == 304, f"{address} is new although nothing changed"
