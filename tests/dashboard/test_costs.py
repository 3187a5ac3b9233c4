"""What the dashboard costs: told by page and by process, of all processes, and forgotten after an hour."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any
from urllib.request import Request, urlopen

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.browser.places import serving
from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from tests.processes import wait_until
from wakeboard.accounts import users
from wakeboard.core.states import Role
from wakeboard_dashboard.views.system import _spent
from wakeboard_dashboard.web import costs as room
from wakeboard_dashboard.web.costs import CELLS, STEP_SECONDS, Costs, Page, Spent
from wakeboard_dashboard.web.measuring import names, of

NAMES = ["/", "/runs", "POST /runs/<id>/retry", "no page"]


def spent(milliseconds: float, status: int = 200, address: str = "/runs") -> Spent:
    return Spent(status, milliseconds / 1000, milliseconds / 2000, 3, address)


def answer(costs: Costs, name: str, *all_spent: Spent) -> None:
    for each in all_spent:
        costs.begin()
        costs.end(name, each)


def told(client: FlaskClient, name: str) -> dict[str, Any]:
    pages = client.get("/system.json").get_json()["pages"]
    found: dict[str, Any] = next(page for page in pages if page["name"] == name)
    return found


def test_answers_are_counted_and_their_times_bounded() -> None:
    costs = Costs(NAMES)
    answer(costs, "/runs", *(spent(10) for _ in range(90)), *(spent(100) for _ in range(9)))
    answer(costs, "/runs", spent(3000, 503, "/runs?q"), spent(1, 404))
    (page,) = costs.pages()
    assert (page.name, page.answers, page.refused, page.failed) == ("/runs", 101, 1, 1)
    median, p95 = page.percentile(0.5), page.percentile(0.95)
    assert median is not None and 10 <= median < 10 * 1.26
    assert p95 is not None and 100 <= p95 < 100 * 1.26
    assert (page.slowest_ms, page.slowest_address, page.slowest_pid) == (3000, "/runs?q", os.getpid())
    assert page.statements == 303 and abs(page.database_ms - page.all_ms / 2) < 1e-6
    assert page.percentile(1.0) == 3000


def test_an_hour_is_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, now = Costs(NAMES), time.time()
    for ago, milliseconds in ((CELLS * STEP_SECONDS, 9000), (STEP_SECONDS, 20), (0, 30)):
        monkeypatch.setattr(time, "time", lambda ago=ago: now - ago)
        answer(costs, "/", spent(milliseconds))
    (page,) = costs.pages()
    assert (page.answers, page.slowest_ms) == (2, 30)


def test_what_is_unknown_is_counted_as_no_page() -> None:
    costs = Costs(NAMES)
    answer(costs, "/nowhere", spent(1, 404))
    assert [(page.name, page.refused) for page in costs.pages()] == [("no page", 1)]


def test_processes_tell_of_each_other_until_they_are_gone() -> None:
    memory = room.shared_memory()
    costs = Costs(NAMES)
    costs.share(memory, 7)
    answer(costs, "/runs", spent(10))
    ready, go = os.pipe()
    done, stop = os.pipe()
    child = os.fork()
    if child == 0:  # another process of the same dashboard, whose number leads to a place that is taken
        try:
            own = Costs(NAMES)
            own.share(memory, 7 + room.PLACES)
            answer(own, "/runs", spent(50, address="/runs?theirs"), spent(60, 500))
            own.begin()
            os.write(go, b"!")
            os.read(done, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    (page,) = costs.pages()
    assert (page.answers, page.failed, page.slowest_pid) == (3, 1, child)
    here, there = costs.processes()
    assert (here.pid, here.is_this, here.answers) == (os.getpid(), True, 1)
    assert (there.pid, there.is_this, there.answers, there.failed, there.busy) == (child, False, 2, 1, 1)
    assert there.memory_bytes > 1_000_000
    os.write(stop, b"!")
    os.waitpid(child, 0)
    assert [process.pid for process in costs.processes()] == [os.getpid()]
    assert [page.answers for page in costs.pages()] == [1]


def test_who_takes_the_place_of_a_process_that_is_gone_counts_from_nothing() -> None:
    memory = room.shared_memory()
    child = os.fork()
    if child == 0:
        try:
            gone = Costs(NAMES)
            gone.share(memory, 3)
            answer(gone, "/", spent(10))
            answer(gone, "/runs", spent(10), spent(20))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    costs = Costs(NAMES)
    costs.share(memory, 3)
    assert costs.pages() == []
    answer(costs, "/runs", spent(30))
    assert [(page.name, page.answers, page.all_ms) for page in costs.pages()] == [("/runs", 1, 30)]


def test_each_page_is_told_with_its_time_in_the_database(client: FlaskClient, app: Flask) -> None:
    client.get("/runs?q=secret-word")
    client.get("/runs/7")
    page = told(client, "/runs")
    assert page["answers"] == 1 and page["statements"] >= 2
    assert 0 < page["database_seconds"] < page["slowest_seconds"]
    assert page["median_seconds"] <= page["p95_seconds"] <= page["slowest_seconds"]
    assert page["slowest_address"] == "/runs?q"
    assert told(client, "/runs/<id>")["refused"] == 1
    html = client.get("/system").get_data(as_text=True)
    assert "What this dashboard costs" in html and "/runs/&lt;id&gt;" in html and "secret-word" not in html
    (process,) = client.get("/system.json").get_json()["processes"]
    assert process["pid"] == os.getpid() and process["busy"] == 1 and process["memory_bytes"] > 10_000_000
    assert len(names(app)) < room.MOST_PAGES and len(set(names(app))) == len(names(app))


def test_an_error_of_a_page_is_counted(client: FlaskClient, app: Flask, as_role: AsRole) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    app.view_functions["overview.overview"] = broken
    assert client.get("/").status_code == 500
    assert told(client, "/")["failed"] == 1
    (process,) = of(app).processes()
    assert process.failed == 1 and process.busy == 0


def test_every_role_sees_what_the_dashboard_costs(as_role: AsRole) -> None:
    for role in ("viewer", "operator", "admin"):
        assert as_role(role).get("/_fragments/system/costs").status_code == 200


def test_the_processes_of_a_served_dashboard_tell_of_each_other(
    database: str, connection: Connection
) -> None:
    cookie = users.open_session(connection, "anna", Role.VIEWER)
    headers = {"Cookie": f"wakeboard_{users.install_id(connection)}={cookie}"}
    asked = 0
    with serving(database) as served:

        def get(path: str) -> Any:
            nonlocal asked
            asked += 1
            with urlopen(Request(served.url + path, headers=headers), timeout=30) as answer:
                return json.load(answer)

        def both() -> Any:
            get("/types.json")
            body = get("/system.json")
            return body if len([one for one in body["processes"] if one["answers"]]) == 2 else None

        body = wait_until(both, 60, "both processes have answered")
        assert sum(one["is_this"] for one in body["processes"]) == 1
        # The answer that tells it is not counted yet.
        assert sum(one["answers"] for one in body["processes"]) == asked - 1
        assert sum(page["answers"] for page in body["pages"]) == asked - 1
        gone = next(one["pid"] for one in body["processes"] if not one["is_this"])
        os.kill(gone, signal.SIGKILL)
        wait_until(lambda: gone not in [one["pid"] for one in get("/system.json")["processes"]], 30)


def test_a_page_whose_first_answer_is_half_written_costs_nothing_yet() -> None:
    told = _spent(Page("runs"))
    assert (told["answers"], told["database_seconds"], told["statements"], told["median_seconds"]) == (
        0,
        0,
        0,
        0,
    )
