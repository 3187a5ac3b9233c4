"""A claim locks what it takes, in the order of all types together, and what others hold hides nothing."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.factories import a_type, claim
from wakeboard.queue.engine import claims
from wakeboard.runtime.loop.claim_batch import PAST_LOCKS, ClaimBatch
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_planner import ClaimPlan
from wakeboard.runtime.worker import Worker

TYPES = [f"type{number:02d}" for number in range(20)]


def fill(connection: Connection, each: int, types: list[str] = TYPES) -> None:
    """Make ``each`` due runs of every type, in turns, of two priorities."""
    for name in types:
        a_type(connection, name)
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, priority, run_at)
        SELECT name, 2 + n %% 2, now() - interval '1 hour' + n * interval '1 s'
        FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS name ORDER BY n, name""",
        (each, types),
    )


def free(connection: Connection) -> int:
    """Return how many runs nobody holds."""
    query = "SELECT count(*) FROM (SELECT id FROM wakeboard.job_runs FOR UPDATE SKIP LOCKED) AS free"
    (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)


@pytest.mark.parametrize("limit", [1, 10, 300])
def test_a_claim_locks_as_many_as_it_takes(connection: Connection, other: Connection, limit: int) -> None:
    fill(connection, each=40)
    with connection.transaction():
        assert len(claim(connection, TYPES, limit=limit)) == limit
        assert free(other) == 800 - limit


@pytest.mark.parametrize("oldest_first", [False, True])
def test_it_takes_what_comes_first_of_all_types_together(connection: Connection, oldest_first: bool) -> None:
    fill(connection, each=40)
    order = "run_at, id" if oldest_first else "priority, run_at, id"
    first = [
        run_id
        for (run_id,) in connection.execute(f"SELECT id FROM wakeboard.job_runs ORDER BY {order} LIMIT 300")
    ]
    taken = claim(connection, TYPES, limit=300, oldest_first=oldest_first)
    assert sorted(one.id for one in taken) == sorted(first)


def test_where_others_hold_all_that_it_looks_at_a_claim_past_locks_finds_the_rest(
    connection: Connection, other: Connection
) -> None:
    fill(connection, each=200, types=["mail"])
    with other.transaction():
        assert len(claim(other, limit=190)) == 190
        assert claim(connection, limit=1) == [], "it looked at what is held alone"
        found = claim(connection, worker_id="w2", limit=8, past_locks=True)
        assert len(found) == 8
        assert {one.id for one in found}.isdisjoint(held(other))


@pytest.mark.parametrize("limit", [10, 300])
def test_past_locks_a_claim_takes_what_comes_first_of_what_nobody_holds(
    connection: Connection, other: Connection, limit: int
) -> None:
    fill(connection, each=40)
    with other.transaction():
        claim(other, TYPES, "w2", limit=100)
        taken = claim(connection, TYPES, limit=limit, past_locks=True)
    left = connection.execute(
        """SELECT id FROM wakeboard.job_runs WHERE locked_by IS DISTINCT FROM 'w2'
        ORDER BY priority, run_at, id LIMIT %s""",
        (limit,),
    )
    assert sorted(one.id for one in taken) == sorted(run_id for (run_id,) in left)


def held(connection: Connection) -> set[int]:
    return {
        run_id for (run_id,) in connection.execute("SELECT id FROM wakeboard.job_runs WHERE locked_by = 'w1'")
    }


def test_an_empty_queue_is_one_that_a_claim_past_locks_finds_empty() -> None:
    script = ClaimBatch(ClaimPlan(["mail"], limit=24, round=1), Worker("w1"), ClaimCursor()).script()
    statement, _ = next(script)
    assert statement == claims.claim(24)
    statement, _ = script.send([])
    assert statement == claims.claim(PAST_LOCKS, past_locks=True)
    with pytest.raises(StopIteration) as ended:
        script.send([])
    assert not ended.value.value.is_full


def test_a_claim_that_only_proves_itself_is_one_statement() -> None:
    script = ClaimBatch(
        ClaimPlan(["mail"], limit=24, round=1), Worker("w1"), ClaimCursor(), is_probe=True
    ).script()
    next(script)
    with pytest.raises(StopIteration) as ended:
        script.send([])
    assert not ended.value.value.is_full
