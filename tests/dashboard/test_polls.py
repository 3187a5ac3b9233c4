"""Polls of live regions: many viewers get one rendering, and what changes shows within seconds."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from time import sleep
from urllib.parse import urlsplit

import pytest
from flask import Flask

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, fragments_of
from tests.support.browsers import serving
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_type
from tests.support.processes import wait_until
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import cancel
from wakeboard_dashboard.pages import fragments
from wakeboard_dashboard.pages.fragments import FragmentCache, Rendering
from wakeboard_dashboard.web.poll_sessions import PollSessions
from wakeboard_dashboard.web.security import HEADERS

ANNA = Actor("anna", Role.OPERATOR, "web")
LIST = "/_fragments/runs/list"


class Viewer:
    """A browser with a session and one connection."""

    def __init__(self, url: str, connection: Connection, role: Role = Role.OPERATOR) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        self.session = sessions.open_session(connection, "anna", role)
        name = f"wakeboard_{users.install_id(connection)}"
        self.cookie = f"{name}={self.session}"
        self._own = {"Cookie": self.cookie, "Sec-Fetch-Site": "same-origin"}

    def open(self, page: str) -> dict[str, str]:
        """Return the live regions of a page, each with its tag."""
        self._http.request("GET", page, headers=self._own)
        return fragments_of(self._http.getresponse().read().decode())

    def ask(self, address: str, tag: str) -> http.client.HTTPResponse:
        """Poll one region."""
        self._http.request("GET", address, headers=self._own | {"HX-Request": "true", "HX-PTag": tag})
        answer = self._http.getresponse()
        answer.read()
        return answer


@pytest.fixture
def url(database: str) -> Iterator[str]:
    with serving(database) as dashboard:
        yield dashboard.url


def opened(viewer: Viewer, page: str = "/runs") -> tuple[str, str]:
    """Open a page and poll its region until nothing is new; return the region and its tag."""
    ((address, tag),) = viewer.open(page).items()
    wait_until(lambda: viewer.ask(address, tag).status == 304, 20, "nothing is new")
    return address, tag


def test_a_poll_that_finds_nothing_new_says_all_that_every_answer_says(
    url: str, connection: Connection
) -> None:
    a_run(connection)
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    said = viewer.ask(address, tag).headers
    assert {name: said[name] for name in HEADERS} == HEADERS
    assert (said["HX-PTag"], said["Cache-Control"]) == (tag, "no-store")
    assert said["X-Request-Id"] and said["X-Wakeboard-As-Of"] and said["X-Wakeboard-Clock"]
    assert 0 <= float(said["X-Wakeboard-Age"]) < 10


def test_what_a_person_does_shows_for_everybody_who_polls(url: str, connection: Connection) -> None:
    a_type(connection)
    run_id = a_run(connection)
    viewers = [Viewer(url, connection) for _ in range(3)]
    places = [opened(viewer) for viewer in viewers]
    cancel(connection, run_id, ANNA)
    for viewer, (address, tag) in zip(viewers, places, strict=True):
        wait_until(lambda v=viewer, a=address, t=tag: v.ask(a, t).status == 200, 10, "it shows")  # type: ignore[misc]


def test_who_is_signed_out_elsewhere_is_told_so_at_the_next_polls(url: str, connection: Connection) -> None:
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    sessions.close_session(connection, viewer.session)
    wait_until(lambda: viewer.ask(address, tag).status == 401, 10, "the session has ended")


def test_a_stranger_learns_nothing_from_what_others_were_told(url: str, connection: Connection) -> None:
    viewer, stranger = Viewer(url, connection), Viewer(url, connection)
    address, tag = opened(viewer)
    stranger._own["Cookie"] = stranger._own["Cookie"].replace(stranger.session, "somebody")
    assert [stranger.ask(address, tag).status for _ in range(3)] == [401, 401, 401]


def test_what_shows_the_verbs_of_one_role_is_not_given_to_another(url: str, connection: Connection) -> None:
    a_run(connection)
    operator, watcher = Viewer(url, connection), Viewer(url, connection, Role.VIEWER)
    (_, seen_by_operator), (address, seen_by_watcher) = opened(operator), opened(watcher)
    assert seen_by_operator != seen_by_watcher
    assert watcher.ask(address, seen_by_operator).headers["HX-PTag"] == seen_by_watcher


@pytest.mark.parametrize("change", ["ended", "role"])
def test_an_open_page_loses_what_its_session_loses(url: str, connection: Connection, change: str) -> None:
    a_run(connection)
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    if change == "ended":
        connection.execute("DELETE FROM wakeboard.sessions")
        wait_until(lambda: viewer.ask(address, tag).status == 401, 10, "the session has ended")
    else:
        connection.execute("UPDATE wakeboard.sessions SET role = 'viewer'")
        wait_until(lambda: viewer.ask(address, tag).status == 200, 10, "the verbs of the role show")


def test_two_viewers_are_given_one_rendering(app: Flask, as_role: AsRole) -> None:
    fragments.install(app)
    first, second = as_role("viewer"), as_role("viewer")
    for client in (first, second):
        client.get(LIST)
    asked: list[str] = []
    overhear(app, lambda sql, _values: asked.append(sql))
    answers = [client.get(LIST) for client in (first, second, first)]
    assert asked == [] and len({answer.get_data() for answer in answers}) == 1
    tag = answers[0].headers["HX-PTag"]
    assert first.get(LIST, headers={"HX-PTag": tag}).status_code == 304


def test_who_has_just_acted_is_given_a_rendering_of_their_own(
    app: Flask, as_role: AsRole, connection: Connection
) -> None:
    fragments.install(app)
    client = as_role("operator")
    client.get(LIST)
    run_id = a_run(connection)
    assert client.post(f"/runs/{run_id}/cancel").status_code == 303
    assert f'id="run-{run_id}"' in client.get(LIST).text


def a_rendering(html: str, made_at: float) -> Rendering:
    return Rendering(html, html, "2026-11-20T22:44:10+00:00", "2026-11-20 22:44:10 UTC", made_at)


def test_a_rendering_is_made_again_by_one_request_while_others_get_the_former(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("wakeboard_dashboard.pages.fragments.monotonic", lambda: now)
    cache, key = FragmentCache(2.0), ("/runs",)
    assert cache.find(key) is None
    old = a_rendering("old", 100.0)
    cache.keep(key, old)
    now = 101.9
    assert cache.find(key) is old
    now = 102.0
    assert (cache.find(key), cache.find(key)) == (None, old)
    now = 104.5
    assert (cache.find(key), cache.find(key)) == (None, old), "another request takes over"
    now = 120.0
    assert cache.find(key) is None and cache.find(key) is None, "what is too old is for nobody"
    cache.keep(key, a_rendering("new", 120.0))
    assert cache.find(key) == a_rendering("new", 120.0)


def test_sessions_that_poll_are_checked_by_one_statement(app: Flask, connection: Connection) -> None:
    polling = PollSessions(60.0, check_seconds=0.05)
    cookies = [sessions.open_session(connection, name, Role.VIEWER) for name in ("anna", "vera")]
    with app.app_context():
        for cookie in cookies:
            assert polling.find(cookie) is None
            polling.add(cookie, ANNA)
        sessions.close_session(connection, cookies[1])
        sleep(0.1)
        found = polling.find(cookies[0])
        assert found is not None and found.role is Role.VIEWER
        assert polling.find(cookies[1]) is None
