"""What runs stands in its place in every list of runs, though the indexes of lists do not have it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import along, fragments_of, page_of, rows_in
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_type
from wakeboard.core.states import Status

EVEN = "payload ->> 'is' = 'even'"
# What a list is asked for, and what that means.
ASKED = {
    "type=mail": "job_type = 'mail'",
    "type=nothing": "false",
    **{f"status={status.value}": f"status = '{status.value}'" for status in Status},
    **{f"type=mail&status={each.value}": f"job_type = 'mail' AND status = '{each.value}'" for each in Status},
    "status=running,queued": "status IN ('running', 'queued')",
    "status=running,failed,dead,succeeded": "status IN ('running', 'failed', 'dead', 'succeeded')",
    "type=mail&status=running,dead": "job_type = 'mail' AND status IN ('running', 'dead')",
    "type=mail&q=even": f"job_type = 'mail' AND {EVEN}",
    "type=mail&q=even&status=running": f"job_type = 'mail' AND {EVEN} AND status = 'running'",
    "q=even&status=running,queued": f"{EVEN} AND status IN ('running', 'queued')",
    "type=mail&attempts=1": "job_type = 'mail' AND attempts = 1",
    "status=running&attempts=1": "status = 'running' AND attempts = 1",
    "type=mail&error=smtp_down&status=running": "false",
    "type=mail&key=k20": "job_type = 'mail' AND idempotency_key = 'k20'",
}


@pytest.fixture
def mixed(connection: Connection) -> None:
    """120 runs of two types, one of each status after the other."""
    for name in ("mail", "report"):
        a_type(connection, name)
    for number in range(120):
        a_run(
            connection,
            tuple(Status)[number % 6].value,
            job_type="mail" if number // 6 % 3 else "report",
            payload={"is": "even" if number % 2 == 0 or number % 5 == 0 else "odd"},
            idempotency_key=f"k{number}",
        )


def meant(connection: Connection, condition: str) -> list[int]:
    """Return the ids of the runs that meet ``condition``, newest first."""
    found = connection.execute(
        f"SELECT id FROM wakeboard.job_runs WHERE {condition} ORDER BY id DESC".encode()
    )
    return [id_ for (id_,) in found.fetchall()]


def live_list(page: str) -> str:
    (address,) = fragments_of(page)
    return address


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("asked", ASKED)
def test_a_list_has_what_runs_in_its_place_on_every_page_there_and_back(
    client: FlaskClient, connection: Connection, asked: str
) -> None:
    wanted = meant(connection, ASKED[asked])
    pages = along(client, "next", page_of(client, f"/runs?{asked}&limit=7"))
    assert [id_ for page in pages for id_ in rows_in(page)] == wanted
    back = along(client, "prev", pages[-1])
    assert [id_ for page in reversed(back) for id_ in rows_in(page)] == wanted
    assert len(back) == len(pages)
    assert f"{len(wanted)} match" in pages[0] or "q=" in asked or not wanted


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("asked", ["type=mail", "status=running", "type=mail&status=running,queued"])
def test_a_list_says_how_many_are_new_those_that_run_among_them(
    client: FlaskClient, connection: Connection, asked: str
) -> None:
    live = live_list(page_of(client, f"/runs?{asked}&limit=7"))
    assert "new" not in re.sub(r"<[^>]+>", "", page_of(client, live)).split()
    a_run(connection, "running", job_type="mail")
    a_run(connection, "running", job_type="mail")
    assert "2 new" in page_of(client, live)


@pytest.mark.usefixtures("mixed")
def test_the_page_of_a_type_has_what_runs_among_its_latest_runs(
    client: FlaskClient, connection: Connection
) -> None:
    page = page_of(client, "/types/mail")
    latest = [int(found) for found in re.findall(r'href="/runs/([0-9]+)"', page[page.index("Latest runs") :])]
    assert list(dict.fromkeys(latest))[:10] == meant(connection, "job_type = 'mail'")[:10]


@pytest.fixture
def far_off(connection: Connection) -> None:
    """Few that run, at the old end, behind 50,000 of 51 types that ended or wait."""
    for name in ("mail", "rare"):
        a_type(connection, name)
        for _ in range(3):
            a_run(connection, "running", job_type=name)
        for status in ("failed", "dead", "cancelled"):
            a_run(connection, status, job_type=name)
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, started_at, finished_at)
        SELECT CASE WHEN n % 51 = 0 THEN 'mail' ELSE 'type_' || n % 51 END, status, 1, now(),
            CASE status WHEN 'succeeded' THEN now() END
        FROM (SELECT n, CASE WHEN n % 50 = 0 THEN 'queued' ELSE 'succeeded' END AS status
            FROM generate_series(1, 50000) AS n) AS made"""
    )
    connection.execute("VACUUM (ANALYZE) wakeboard.job_runs")


@pytest.mark.usefixtures("far_off")
@pytest.mark.parametrize("explain", ["EXPLAIN", "EXPLAIN (GENERIC_PLAN)"])
def test_no_list_by_type_or_status_walks_past_other_runs_to_what_runs(
    app: Flask, client: FlaskClient, connection: Connection, explain: str
) -> None:
    asked: list[tuple[str, str, Any]] = []
    here = ""
    overhear(app, lambda sql, values: asked.append((here, sql, values)))
    paths = [f"/runs?{each}" for each in ASKED if "key=" not in each]
    paths += [path.replace("mail", "rare") for path in paths if "mail" in path]
    for here in [*paths, "/types/mail", "/types/rare", "/"]:
        page = page_of(client, here)
        if here.startswith("/runs"):
            page_of(client, live_list(page))
            for cursor in re.findall(r"cursor=([\w%-]+)", page)[:1]:
                page_of(client, f"{here}&cursor={cursor}")
    looked = {
        (path, sql): values
        for path, sql, values in asked
        if "wakeboard.job_runs" in sql and "job_runs.id = ANY" not in sql and "effects" not in sql
    }
    assert {path for path, _ in looked} >= set(paths)
    for (path, sql), values in looked.items():
        if "GENERIC" in explain:
            places = {name: f"${place}" for place, name in enumerate(values, 1)}
            cursor_ = connection.execute(f"{explain} {sql % places}".encode())
        else:
            cursor_ = connection.execute(f"{explain} {sql}".encode(), values)
        plan = "\n".join(line for (line,) in cursor_.fetchall())
        # Nearly all succeeded, and who looks at 20,000 runs may look at all: any way to them is as good. A
        # stretch of ids is no walk.
        if not any(each in path for each in ("succeeded", "q=", "attempts=")):
            assert "Seq Scan on job_runs" not in plan, f"{path}\n{sql}\n{plan}"
            assert not re.search(r"job_runs_pkey on .*\n +Filter", plan), f"{path}\n{sql}\n{plan}"
        assert not re.search(r"Filter: .*status = 'running'", plan), f"{path}\n{sql}\n{plan}"
        if "status = 'running'" in sql:
            assert "job_runs_leased" in plan, f"{path}\n{sql}\n{plan}"
