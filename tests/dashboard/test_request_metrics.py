"""What the dashboard costs, by page and by process, over all processes: on /system and for Prometheus."""

from __future__ import annotations

import json
import os
import signal
from typing import Any
from urllib.request import Request, urlopen

from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from tests.support.browsers import serving
from tests.support.processes import wait_until
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard_dashboard.web.request_metrics import PageMetrics, RequestMetrics, request_metrics


def told(client: FlaskClient, name: str) -> dict[str, Any]:
    pages = client.get("/system.json").get_json()["pages"]
    found: dict[str, Any] = next(page for page in pages if page["name"] == name)
    return found


def test_answers_are_counted_and_their_times_bounded() -> None:
    metrics = RequestMetrics()
    for seconds, status, address in (
        *[(0.010, 200, "/runs")] * 90, *[(0.1, 200, "/runs")] * 9, (3.0, 503, "/runs?q"),
        (0.001, 404, "/runs"),
    ):  # fmt: skip
        metrics.begin()
        metrics.end("/runs", address, status, seconds, seconds / 2, 3)
    (page,) = metrics.pages()
    assert (page.name, page.answers, page.refused, page.failed) == ("/runs", 101, 1, 1)
    assert 0.010 <= page.percentile(0.5) < 0.010 * 1.5
    assert 0.1 <= page.percentile(0.95) < 0.1 * 1.5
    assert page.percentile(1.0) == 3
    assert (page.slowest_seconds, page.slowest_address, page.slowest_pid) == (3, "/runs?q", os.getpid())
    assert page.statements == 303 and abs(page.database_seconds - page.seconds / 2) < 1e-6
    assert PageMetrics("/runs").percentile(0.5) == 0


def test_each_page_is_told_with_its_time_in_the_database(client: FlaskClient) -> None:
    client.get("/runs?q=secret-word")
    client.get("/runs/7")
    page = told(client, "/runs")
    assert page["answers"] == 1 and page["statements"] >= 2
    assert 0 < page["database_seconds"] < page["slowest_seconds"]
    assert page["median_seconds"] <= page["p95_seconds"] <= page["slowest_seconds"]
    assert page["slowest_address"] == "/runs?q"
    assert told(client, "/runs/<id>")["refused"] == 1
    html = client.get("/system").text
    assert "What this dashboard costs" in html and "/runs/&lt;id&gt;" in html and "secret-word" not in html
    (process,) = client.get("/system.json").get_json()["processes"]
    assert process["pid"] == os.getpid() and process["busy"] == 1 and process["memory_bytes"] > 10_000_000


def test_an_error_of_a_page_is_counted(client: FlaskClient, app: Flask, as_role: AsRole) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    app.view_functions["overview.overview"] = broken
    assert client.get("/").status_code == 500
    assert told(client, "/")["failed"] == 1
    with app.app_context():
        (process,) = request_metrics().processes()
    assert process.failed == 1 and process.busy == 0


def test_every_role_sees_what_the_dashboard_costs(as_role: AsRole) -> None:
    for role in ("viewer", "operator", "admin"):
        assert as_role(role).get("/_fragments/system/costs").status_code == 200


def test_the_processes_of_a_served_dashboard_tell_of_each_other(
    database: str, connection: Connection
) -> None:
    cookie = sessions.open_session(connection, "anna", Role.VIEWER)
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
        with urlopen(Request(served.url + "/metrics", headers=headers), timeout=30) as answer:
            asked += 1
            metrics = answer.read().decode()
        assert 'wakeboard_page_answers_total{page="/types.json",result="done"}' in metrics
        gone = next(one["pid"] for one in body["processes"] if not one["is_this"])
        os.kill(gone, signal.SIGKILL)
        wait_until(lambda: gone not in [one["pid"] for one in get("/system.json")["processes"]], 30)
