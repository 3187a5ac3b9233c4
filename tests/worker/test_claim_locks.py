"""A claim locks what it takes, in the order of all types together, and what others hold hides nothing."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.factories import Claimed, a_type, claim, send
from worker.loop import front as front_module
from worker.loop.claiming import PAST_LOCKS, claim_script
from worker.loop.claims import Plan
from worker.loop.front import MORE, WHOLE, Front
from worker.transitions.engine import claims
from worker.transitions.engine.claims import PRIORITIES

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
    values = (["mail"], "w2", 30.0)
    with other.transaction():
        assert len(claim(other, limit=190)) == 190
        assert claim(connection, limit=1) == [], "it looked at what is held alone"
        found = [Claimed(*row) for row in send(connection, claims.claim_past_locks(8), *values)]
        assert len(found) == 8
        assert {one.id for one in found}.isdisjoint(held(other))


def held(connection: Connection) -> set[int]:
    return {
        run_id for (run_id,) in connection.execute("SELECT id FROM wakeboard.job_runs WHERE locked_by = 'w1'")
    }


def test_an_empty_queue_is_one_that_a_claim_past_locks_finds_empty() -> None:
    script = claim_script(Plan(["mail"], limit=24, round=1), "w1", 30, Front(), announce=None)
    statement, _ = next(script)
    assert statement == claims.claim(24)
    statement, _ = script.send([])
    assert statement == claims.claim_past_locks(PAST_LOCKS)
    with pytest.raises(StopIteration) as ended:
        script.send([])
    assert not ended.value.value.is_full


def row(run_id: int, job_type: str, priority: int = 2) -> tuple[object, ...]:
    """Return a row as a claim brings it."""
    return (run_id, 1, 1, 0, job_type, *[None] * 8, priority, "2026-01-01 12:00:00+00")


def test_the_next_claim_looks_at_twice_as_many_of_each_as_came() -> None:
    front = Front()
    assert list(front.tries(["mail", "report"], 100)) == [WHOLE]
    front.took([row(n, "mail") for n in range(90)] + [row(n, "report") for n in range(90, 100)], 100)
    shares = next(front.tries(["mail", "report"], 100)).shares
    assert [share for share in shares if share != MORE] == [2 * 90 + MORE, 2 * 10 + MORE]
    assert len(shares) == 2 * PRIORITIES


def test_of_what_gave_all_that_a_claim_looked_at_the_next_looks_at_four_times_as_many() -> None:
    front = Front()
    list(front.tries(["mail", "report"], 100))
    front.took([row(n, "mail") for n in range(100)], 100)
    next(front.tries(["mail", "report"], 100))
    front.took(
        [row(n, "report", 0) for n in range(100, 100 + MORE)] + [row(n, "mail") for n in range(92)], 100
    )
    shares = next(front.tries(["mail", "report"], 100)).shares
    assert shares[PRIORITIES] == 4 * MORE + MORE, "all may be of this type and priority from now on"


def test_claims_by_age_look_at_what_claims_by_age_have_taken() -> None:
    front = Front()
    list(front.tries(["mail"], 100))
    front.took([row(n, "mail", 0) for n in range(100)], 100)
    list(front.tries(["mail"], 100, oldest_first=True))
    front.took(
        [row(n, "mail", 4) for n in range(60)] + [row(n, "mail", 3) for n in range(40)],
        100,
        oldest_first=True,
    )
    assert next(front.tries(["mail"], 100)).shares[0] == 2 * 100 + MORE
    assert next(front.tries(["mail"], 100, oldest_first=True)).shares[3:] == [2 * 40 + MORE, 2 * 60 + MORE]


def test_a_small_claim_is_exact() -> None:
    front = Front()
    list(front.tries(["mail", "report"], 2))
    front.took([row(1, "mail"), row(2, "mail")], 2)
    assert next(front.tries(["mail", "report"], 2)).shares == (), "it looks at as many of each as it takes"


def test_once_a_second_more_is_looked_at_of_what_brought_none(monkeypatch: pytest.MonkeyPatch) -> None:
    front, clock = Front(), [10_000_000_000]
    monkeypatch.setattr(front_module, "boottime_ns", lambda: clock[0])
    list(front.tries(["mail", "report"], 100))
    front.took([row(n, "mail") for n in range(100)], 100)
    assert min(next(front.tries(["mail", "report"], 100)).shares) == MORE
    clock[0] += 2_000_000_000
    assert min(next(front.tries(["mail", "report"], 100)).shares) == 100 + MORE, "others may hold the first"
