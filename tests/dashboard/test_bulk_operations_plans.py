"""What previews and operations ask of a large table of runs: by an index, wherever the matches lie."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Select
from sqlalchemy.dialects.postgresql import psycopg as dialect

from tests.conftest import Connection
from tests.support.factories import a_type
from tests.support.workers.bulk_operations import asked, begin, database_now, operation
from wakeboard.bulk import advance, matching, rules, start
from wakeboard.reporting.filters import paging

DIALECT = dialect.dialect()
WALKS = (
    "Seq Scan on job_runs",
    "Seq Scan on job_attempts",
    "Seq Scan on operation_runs",
    "Seq Scan on effects",
)


@pytest.fixture
def much(connection: Connection) -> None:
    """60,000 runs that ended well, 3,000 dead ones among them, and effects of all."""
    a_type(connection, "mail")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, lease_epoch, started_at, finished_at,
            failed_at, error_code)
        SELECT 'mail', CASE WHEN i % 20 = 0 THEN 'dead' ELSE 'succeeded' END, 1, 1, now(), now(), now(), 'x'
        FROM generate_series(1, 60000) AS i"""
    )
    connection.execute(
        """INSERT INTO wakeboard.job_attempts
            (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at, finished_at, outcome)
        SELECT id, 1, 1, 'mail', 'w1', now(), now(), now(), 'succeeded' FROM wakeboard.job_runs"""
    )
    connection.execute(
        """INSERT INTO wakeboard.effects (scope, key, run_id, attempt, lease_epoch, status)
        SELECT 'run:' || id, 'mail', id, 1, 1, 'done' FROM wakeboard.job_runs LIMIT 30000"""
    )


def plan(connection: Connection, statement: str, values: dict[str, object]) -> str:
    return "\n".join(row[0] for row in connection.execute(f"EXPLAIN {statement}".encode(), values).fetchall())


@pytest.mark.usefixtures("much")
def test_no_step_of_an_operation_walks_a_large_table(connection: Connection) -> None:
    number = begin(connection, "retry")
    connection.execute(
        "ANALYZE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.effects, wakeboard.operation_runs"
    )
    advance.advance(connection, number)
    found = operation(connection, number)
    assert (found["total"], found["done"]) == (3000, advance.BATCH)
    ids = [row[0] for row in connection.execute("SELECT run_id FROM wakeboard.operation_runs").fetchall()]
    now = database_now(connection)
    judged = {"ids": ids, "as_of": now, "also": []}
    counted = matching.COUNT_VERDICTS.format(examples=5, verdict=rules.verdict("retry"))
    asked_for = [
        (counted, judged),
        (start.BIND.format(verdict=rules.verdict("retry")), judged | {"operation": number}),
        (advance.NEXT, {"id": number, "cursor": found["cursor"], "limit": 101}),
        (advance.EXISTING, {"ids": ids[:100]}),
        (advance.LOCK.format(verdict=rules.verdict("retry")), judged | {"ids": ids[:100]}),
        (advance.COUNT_OUTCOMES, {"id": number, "after": 0, "canary": None}),
        (advance.PENDING_OUTCOMES, {"id": number, "finished_at": now, "days": 1}),
    ]
    for statement, values in asked_for:
        told = plan(connection, statement, values)
        assert not any(walk in told for walk in WALKS), f"{statement}\n{told}"


@pytest.mark.usefixtures("much")
@pytest.mark.parametrize(
    "filters", [{"status": "dead"}, {"error": "x"}, {"type": "mail", "status": "dead"}], ids=str
)
def test_the_runs_of_a_filter_are_found_by_an_index(
    connection: Connection, filters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("ANALYZE wakeboard.job_runs")
    seen: list[str] = []
    read_select = paging.read_select

    def noted(there: Connection, statement: Select[Any]) -> list[dict[str, Any]]:
        compiled = statement.compile(dialect=DIALECT, compile_kwargs={"render_postcompile": True})
        seen.append(plan(there, str(compiled), compiled.params))
        return read_select(there, statement)

    monkeypatch.setattr(paging, "read_select", noted)
    found = matching.matching(connection, "retry", asked(**filters), database_now(connection))
    assert len(found.ids) == 3000 and seen
    for told in seen:
        assert re.search(r"Index (Only )?Scan", told) and not any(walk in told for walk in WALKS), told
