"""Polls that find nothing new: answered from memory, and never longer than they may be."""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from flask import Flask

from tests.browser.places import serving
from tests.conftest import Connection
from tests.dashboard.conftest import fragments_of
from tests.factories import a_run, a_type
from tests.processes import wait_until
from wakeboard.accounts import users
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import cancel
from wakeboard_dashboard.server.board import CHOICE, Board, News, View, shared_memory
from wakeboard_dashboard.server.polls import Polls
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.security import HEADERS

ANNA = Actor("anna", Role.OPERATOR, "web")
TOLD = "X-Wakeboard-Age"


class Viewer:
    """A browser with a session and one connection."""

    def __init__(self, url: str, connection: Connection, role: Role = Role.OPERATOR) -> None:
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        self.session = users.open_session(connection, "anna", role)
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

    def is_told(self, address: str, tag: str) -> bool:
        """Poll, and return whether it was answered by what was known."""
        answer = self.ask(address, tag)
        return answer.status == 304 and answer.headers[TOLD] is not None


@pytest.fixture
def url(database: str) -> Iterator[str]:
    with serving(database) as dashboard:
        yield dashboard.url


def opened(viewer: Viewer, page: str = "/runs") -> tuple[str, str]:
    """Open a page and poll until polls are answered from memory; return the region and its tag."""
    ((address, tag),) = viewer.open(page).items()
    wait_until(lambda: viewer.is_told(address, tag), 20, "a poll is answered from memory")
    return address, tag


def test_the_watch_beside_a_page_leaves_no_connection_for_the_next_page(app: Flask) -> None:
    """That one would know no statement of the pages, and be taken because it was used last."""
    polls, pool = Polls(app, Board(shared_memory())), app.extensions["wakeboard_database"].primary.pool
    with app.app_context():
        with writing():
            polls._ask_for_news()
            polls._prove_sessions()
        assert (pool.checkedin(), pool.checkedout()) == (1, 0)
    assert polls._board.news.asked_at > 0


def test_a_poll_that_is_repeated_is_answered_from_memory_with_all_that_every_answer_says(
    url: str, connection: Connection
) -> None:
    a_run(connection)
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)

    def told() -> http.client.HTTPResponse | None:
        answer = viewer.ask(address, tag)
        return answer if answer.headers[TOLD] is not None else None

    answer = wait_until(told, 10)
    assert answer is not None
    said = answer.headers
    assert {name: said[name] for name in HEADERS} == HEADERS
    assert (said["HX-PTag"], said["Cache-Control"]) == (tag, "no-store")
    assert said["X-Request-Id"] and said["X-Wakeboard-As-Of"] and said["X-Wakeboard-Clock"]


def test_what_a_person_does_shows_for_everybody_who_polls(url: str, connection: Connection) -> None:
    a_type(connection)
    run_id = a_run(connection)
    viewers = [Viewer(url, connection) for _ in range(3)]
    places = [opened(viewer) for viewer in viewers]
    cancel(connection, run_id, ANNA)
    for viewer, (address, tag) in zip(viewers, places, strict=True):
        wait_until(lambda v=viewer, a=address, t=tag: v.ask(a, t).status == 200, 10, "it shows")  # type: ignore[misc]


def test_what_shows_after_news_is_answered_from_memory_again(url: str, connection: Connection) -> None:
    run_id = a_run(connection)
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    cancel(connection, run_id, ANNA)
    wait_until(lambda: viewer.ask(address, tag).status == 200, 10, "it shows")
    news = viewer.ask(address, tag).headers["HX-PTag"]
    wait_until(lambda: viewer.is_told(address, news), 20, "the new state is known")


def test_who_is_signed_out_elsewhere_is_told_so_at_the_next_polls(url: str, connection: Connection) -> None:
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    users.close_session(connection, viewer.session)
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


def test_a_poll_with_a_body_goes_the_long_way_so_that_its_body_is_no_request(
    url: str, connection: Connection
) -> None:
    a_run(connection)
    viewer = Viewer(url, connection)
    address, tag = opened(viewer)
    place = urlsplit(url)
    head = (
        f"GET {address} HTTP/1.1\r\nHost: {place.netloc}\r\nCookie: {viewer.cookie}\r\nHX-Request: true\r\n"
        f"Sec-Fetch-Site: same-origin\r\nHX-PTag: {tag}\r\nContent-Length: 18\r\n\r\n"
    ).encode()
    with socket.create_connection((place.hostname, place.port), timeout=20) as client:
        for _ in range(10):
            client.sendall(head)
            select.select([client], [], [], 0.1)
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(65_536).startswith((b"HTTP/1.1 304", b"HTTP/1.1 200"))
        assert not select.select([client], [], [], 0.5)[0], "the body was answered as a request"


def test_a_region_that_changes_at_every_look_of_one_viewer_is_no_crowd(
    url: str, connection: Connection
) -> None:
    viewer = Viewer(url, connection)
    a_run(connection)
    address, tag = opened(viewer)
    for n in range(13):
        connection.execute("UPDATE wakeboard.job_runs SET job_type = %s", (f"kind-{n}",))
        tag = wait_until(lambda t=tag: _new(viewer.ask(address, t)), 4, "what changed shows")  # type: ignore[misc]


def _new(answer: http.client.HTTPResponse) -> str | None:
    return answer.headers["HX-PTag"] if answer.status == 200 else None


A_VIEW = View(b"k" * 16, 12.5, 5.0, "tag", "2026-11-20T22:44:10.123456+00:00", "2026-11-20 22:44:10 UTC")


def test_a_board_gives_back_what_it_was_given() -> None:
    board = Board(shared_memory())
    board.keep(A_VIEW)
    board.tell(News(1.0, 2.0, 3.0, 4, -5))
    assert board.view(A_VIEW.key) == A_VIEW
    assert board.news == News(1.0, 2.0, 3.0, 4, -5)


def test_a_place_that_is_half_written_counts_as_empty() -> None:
    memory = shared_memory()
    board = Board(memory)
    board.keep(A_VIEW)
    held = bytes(memory)
    at = held.index(b"22:44:10 UTC")
    memory[at : at + 2] = b"23"
    assert board.view(A_VIEW.key) is None


def test_views_that_want_the_same_places_share_them_and_the_oldest_goes_when_they_are_too_many() -> None:
    board = Board(shared_memory())
    views = [replace(A_VIEW, key=b"same" + bytes([n]) * 12, looked_at=100.0 + n) for n in range(CHOICE + 1)]
    for view in views[:-1]:
        board.keep(view)
    assert [board.view(view.key) for view in views[:-1]] == views[:-1]
    board.keep(views[-1])
    assert [board.view(view.key) for view in views] == [None, *views[1:]]
    newer = replace(views[1], looked_at=200.0, tag="newer")
    board.keep(newer)
    assert [board.view(view.key) for view in views] == [None, newer, *views[2:]]


def test_views_that_want_the_same_places_have_turns_of_their_own() -> None:
    board = Board(shared_memory())
    other = replace(A_VIEW, key=A_VIEW.key[:8] + b"o" * 8)
    board.keep(A_VIEW)
    board.keep(other)
    assert board.take_turn(A_VIEW.key, 100.0, 1.0) and board.take_turn(other.key, 100.0, 1.0)
    assert board.is_turn_taken(A_VIEW.key, 100.5, 1.0)


def test_a_turn_to_look_is_one_persons_for_a_while() -> None:
    board = Board(shared_memory())
    assert board.take_turn(A_VIEW.key, 100.0, 1.0)
    assert not board.take_turn(A_VIEW.key, 100.5, 1.0)
    assert board.take_turn(A_VIEW.key, 101.5, 1.0)
