"""One handler, three engines: inline, in a pool, in the database worker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.support.factories import Connection, attempts
from tests.support.processes import ROOT, run_wakeboard, surroundings
from tests.support.workers.apps import invoices
from tests.support.workers.pool_handlers import PATIENCE_SECONDS
from wakeboard import Pool, enqueue, run_now
from wakeboard.handlers.pool import NoResult

GOOD = {"invoice_id": 812, "lines": [1900, 99]}
BAD = {"invoice_id": 813, "lines": []}


def inline() -> list[tuple[str | None, str | None]]:
    answers = [run_now(invoices.total, payload, key="k") for payload in (GOOD, BAD)]
    return [(answer.result, answer.error_code) for answer in answers]


def pooled() -> list[tuple[str | None, str | None]]:
    with Pool(1) as pool:
        futures = [pool.submit("total", payload) for payload in (GOOD, BAD)]
        results = []
        for future in futures:
            try:
                results.append((json.dumps(future.result(PATIENCE_SECONDS)), None))
            except NoResult as ended:
                results.append((None, ended.error_code))
        return results


def test_the_same_handler_answers_the_same_inline_in_a_pool_and_in_the_table(
    database: str, connection: Connection
) -> None:
    expected = [("1999", None), (None, "no_lines")]
    assert inline() == pooled() == expected
    ids = [enqueue(connection, "total", payload) for payload in (GOOD, BAD)]
    connection.commit()
    done = run_wakeboard(
        "tick", database=database, environment={"WAKEBOARD_APP": "tests.support.workers.apps.invoices"}
    )
    assert done.returncode == 0, done.stderr
    in_the_table = [attempts(connection, run_id)[0] for run_id in ids]
    found = [
        (None if one["result"] is None else json.dumps(one["result"]), one["error_code"])
        for one in in_the_table
    ]
    assert found == expected


def test_an_inline_run_is_told_of_its_type_its_attempt_and_its_key() -> None:
    answer = run_now("who", {}, key="who:1", attempt=3)
    assert json.loads(str(answer.result)) == ["who", 3, "who:1", True]


def test_an_inline_run_is_told_what_its_schedule_meant() -> None:
    night = datetime(2026, 3, 29, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert run_now("whose_day", scheduled_for=night).result == '"2026-03-29"'
    assert run_now("whose_day").error_code == "AttributeError"
    with pytest.raises(ValueError, match="has no time zone"):
        run_now("whose_day", scheduled_for=night.replace(tzinfo=None))


def test_the_traceback_of_an_async_handler_begins_with_its_own_error() -> None:
    answer = run_now("who_fails")
    assert answer.error_code == "KeyError"
    assert str(answer.traceback).startswith("Traceback")
    assert "event loop" not in str(answer.traceback) and "another exception" not in str(answer.traceback)


def test_an_async_handler_runs_inline_where_an_event_loop_runs_already() -> None:
    async def notebook() -> str | None:
        return run_now("who", {}, key="who:2").result

    # In another thread: a loop of other tests may be running in this one.
    with ThreadPoolExecutor(1) as apart:
        found = apart.submit(asyncio.run, notebook()).result()
    assert json.loads(str(found)) == ["who", 1, "who:2", True]


def test_an_inline_run_refuses_what_enqueue_refuses() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        run_now("who", {"x": object()})
    with pytest.raises(LookupError, match="No handler is registered"):
        run_now("nobody")


@pytest.mark.parametrize("engine", ["wakeboard.runtime.supervisor", "wakeboard.runtime.processes.spawn"])
def test_a_worker_loads_no_pool(engine: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import sys, {engine}; print('wakeboard.handlers.pool' in sys.modules)"],
        cwd=ROOT, env=surroundings(None), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.stdout == "False\n", said.stderr
