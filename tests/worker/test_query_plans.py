"""The engine's hot statements on a large table take the indexes that were made for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support import factories
from wakeboard.queue.engine.claims import CLAIM_THESE, candidates, claim, claim_limited
from wakeboard.queue.engine.endings import FAIL, RELEASE, SUCCEED, SUCCEED_ALONE
from wakeboard.queue.engine.fence import RENEW
from wakeboard.queue.engine.reaping import ENDED_LEASES, GIVE_BACK, REAP
from wakeboard.queue.engine.unbegun import claim_and_list

IDS = "ARRAY[100, 200, 300]::bigint[], ARRAY[1, 1, 1]::bigint[]"
NOTHING = "ARRAY[NULL, NULL, NULL]"
SECONDS = "ARRAY[1, 1, 1]::float8[]"
FINISHING = {
    "renew": (RENEW, f"'w1', {IDS}, {SECONDS}, {NOTHING}::bigint[], {NOTHING}::bigint[]"),
    "succeed": (
        SUCCEED,
        f"""'w1', {IDS}, {SECONDS}, {SECONDS}, {NOTHING}::text[], {NOTHING}::text[], {NOTHING}::text[],
            {NOTHING}::int[], {NOTHING}::float8[]""",
    ),
    "fail": (
        FAIL,
        f"""'w1', {IDS}, {SECONDS}, {SECONDS}, ARRAY['failed', 'failed', 'failed'], {NOTHING}::text[],
            {NOTHING}::text[], ARRAY[false, false, false], {SECONDS}, {NOTHING}::text[], {NOTHING}::text[],
            {NOTHING}::text[], ARRAY[10, 10, 10], {NOTHING}::float8[], ARRAY[7, 7, 8]::bigint[],
            ARRAY['t', 't', 'u'], {NOTHING}::text[]""",
    ),
    "release": (
        RELEASE,
        f"'w1', {IDS}, {SECONDS}, {SECONDS}, {NOTHING}::text[], {NOTHING}::text[], ARRAY[true, true, true]",
    ),
    "reap": (REAP, f"{IDS}, {SECONDS}, ARRAY[10, 10, 10], 'silent', ARRAY[7, 7, 8]::bigint[], 't'"),
}
# A claim asks of the run of a schedule whether another one is under way.
OF_A_SCHEDULE = {"job_runs_under_way_of_definition"}


@pytest.fixture(scope="module")
def large(shared: Connection) -> Iterator[Connection]:
    """50,000 runs of ten types in every status, 500 of them running, freshly analysed."""
    for number in range(10):
        factories.a_type(shared, f"type{number}", max_running=50 if number == 9 else None)
    shared.execute("""
        INSERT INTO wakeboard.job_runs (job_type, priority, status, run_at, locked_by, locked_until,
            started_at, finished_at, error_code, lease_epoch)
        SELECT 'type' || n % 10, n % 5, s.status, now() + make_interval(secs => n % 7200 - 3600),
            CASE s.status WHEN 'running' THEN 'w' || n % 5 END,
            CASE s.status WHEN 'running' THEN now() + interval '30 seconds' END,
            CASE s.status WHEN 'running' THEN now() END,
            CASE WHEN s.status IN ('succeeded', 'dead', 'cancelled') THEN now() END,
            CASE WHEN s.status IN ('failed', 'dead') THEN 'smtp_down' END, 1
        FROM generate_series(1, 50000) AS n
        CROSS JOIN LATERAL (SELECT CASE WHEN n % 100 = 0 THEN 'running' WHEN n % 20 = 1 THEN 'queued'
            WHEN n % 50 = 3 THEN 'failed' WHEN n % 50 = 7 THEN 'dead' WHEN n % 50 = 9 THEN 'cancelled'
            ELSE 'succeeded' END AS status) AS s""")
    shared.execute("ANALYZE")
    yield shared


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Yield how each node of a plan reads ``job_runs``: the index's name, or the kind of scan."""
    kind = plan["Node Type"]
    if kind == "Bitmap Index Scan":
        yield plan["Index Name"]
    elif plan.get("Relation Name") == "job_runs" and "Scan" in kind and kind != "Bitmap Heap Scan":
        yield plan.get("Index Name") or kind
    for child in plan.get("Plans", []):
        yield from scans(child)


def reads(connection: Connection, statement: str, values: str, mode: str) -> set[str]:
    """Return how ``statement`` reads ``job_runs`` when it is planned for any values, or for these."""
    with connection.transaction():
        connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan".encode())
        connection.execute(f"PREPARE hot AS {statement}".encode())
        try:
            explain = f"EXPLAIN (FORMAT JSON) EXECUTE hot({values})"
            (plan,) = connection.execute(explain.encode()).fetchone() or ([],)
        finally:
            connection.execute("DEALLOCATE hot")
    return set(scans(plan[0]["Plan"]))


@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("move", FINISHING)
def test_an_answer_finds_its_runs_by_their_ids(large: Connection, move: str, mode: str) -> None:
    # Once: the update goes to where the locked row stands (a lease that ended is taken by its id).
    again = set() if move == "reap" else {"Tid Scan"}
    assert reads(large, *FINISHING[move], mode) == {"job_runs_pkey"} | again


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_the_end_of_a_handlers_transaction_finds_its_run_by_its_id(large: Connection, mode: str) -> None:
    assert reads(large, SUCCEED_ALONE, "'w1', 100, 1, 0.5, NULL, 300, 'mark'", mode) == {"job_runs_pkey"}


@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("limit", [1, 10, 500])
@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("past_locks", [False, True])
def test_a_claim_walks_the_claimable_runs_alone(
    large: Connection, limit: int, mode: str, oldest_first: bool, past_locks: bool
) -> None:
    statement = claim(limit, oldest_first=oldest_first, past_locks=past_locks)
    values = "ARRAY['type0', 'type1', 'type2'], 'w1', 30, ARRAY[now()], ARRAY[7], ARRAY[9]"
    assert reads(large, statement, values, mode) == {"job_runs_claimable", "Tid Scan"} | OF_A_SCHEDULE


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_a_claim_that_lists_what_it_brings_walks_no_more(large: Connection, mode: str) -> None:
    values = "ARRAY['type0', 'type1'], 'w1', 30, ARRAY[now()], ARRAY[7], ARRAY[9], ARRAY['type1']"
    found = reads(large, claim_and_list(claim(10), 7), values, mode)
    assert found == {"job_runs_claimable", "Tid Scan"} | OF_A_SCHEDULE


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_what_has_not_begun_is_given_back_by_the_ids_of_its_runs(large: Connection, mode: str) -> None:
    assert reads(large, GIVE_BACK, "'{1,2,3}', '{1,1,1}'", mode) == {"job_runs_pkey"}


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_a_limited_claim_counts_what_runs_by_its_own_index(large: Connection, mode: str) -> None:
    found = reads(large, claim_limited(10), "'type9', 'w1', 30", mode)
    assert found == {"job_runs_claimable", "job_runs_leased", "Tid Scan"} | OF_A_SCHEDULE


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_the_reaper_looks_at_leases_alone(large: Connection, mode: str) -> None:
    assert reads(large, ENDED_LEASES, "100, '{1,2,3}'", mode) == {"job_runs_leased"}


@pytest.mark.parametrize("mode", ["generic", "custom"])
def test_a_claim_in_parts_reads_the_claims_own_index_and_then_runs_by_their_ids(
    large: Connection, mode: str
) -> None:
    found = reads(large, candidates(10), "'{type1,type2}', '{1,2,3}', false", mode)
    assert found == {"job_runs_claimable"}
    found = reads(large, CLAIM_THESE, "'{1,2,3}', 'w1', 30, 'type9'", mode)
    assert found == {"job_runs_pkey", "job_runs_leased", "Tid Scan"} | OF_A_SCHEDULE
