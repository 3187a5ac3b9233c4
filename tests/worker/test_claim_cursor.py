"""Claims that begin behind what was taken: what it saves under an old snapshot, and that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import Claimed, a_run, a_type, claim, send, succeed
from wakeboard.database import db
from wakeboard.database.index_predicates import PRIORITIES
from wakeboard.queue.engine import claims
from wakeboard.queue.engine.claims import ClaimedRow
from wakeboard.runtime.loop import claim_cursor
from wakeboard.runtime.loop.claim_batch import ClaimBatch
from wakeboard.runtime.loop.claim_cursor import FIRST_ROW, LOOK_EXTRA, ClaimCursor, ClaimStart
from wakeboard.runtime.loop.claim_planner import ClaimPlan
from wakeboard.runtime.worker import Worker

MORNING, NOON = "2026-01-01 08:00:00+00", "2026-01-01 12:00:00+00"
NORMAL = 2


def row(run_id: int, run_at: str = NOON, job_type: str = "mail", priority: int = NORMAL) -> ClaimedRow:
    """Return a row as a claim brings it."""
    return ClaimedRow(
        run_id, 1, 1, 0, job_type, "{}", None, None, None, NOON, None, None, None, priority, run_at
    )


def after(cursor: ClaimCursor, types: Sequence[str] = ("mail",), limit: int = 4) -> list[ClaimStart]:
    return list(cursor.starts(types, limit))


def test_the_first_claim_begins_at_the_first_row() -> None:
    assert after(ClaimCursor()) == [FIRST_ROW]


def test_after_a_full_claim_the_next_begins_behind_the_last_run_taken_of_each_type_and_priority() -> None:
    cursor = ClaimCursor()
    assert after(cursor, ["mail", "report"]) == [FIRST_ROW]
    cursor.advance([row(7), row(9), row(8), row(5, MORNING, "report", 0)], 4)
    behind, whole = after(cursor, ["mail", "report"])
    assert (behind.run_ats[NORMAL], behind.ids[NORMAL]) == (NOON, 9)
    assert (behind.run_ats[PRIORITIES], behind.ids[PRIORITIES]) == (MORNING, 5)
    assert sum(moment == "-infinity" for moment in behind.run_ats) == 2 * PRIORITIES - 2
    assert whole == FIRST_ROW, "when there is nothing behind, there may be something before"


def test_a_claim_that_was_not_full_lets_the_next_begin_at_the_first_row() -> None:
    cursor = ClaimCursor()
    after(cursor)
    cursor.advance([row(7)], 1)
    cursor.advance([row(8)], 4)
    assert after(cursor) == [FIRST_ROW]


def test_a_run_that_turned_up_before_the_front_does_not_move_it_back() -> None:
    cursor = ClaimCursor()
    after(cursor)
    cursor.advance([row(9)], 1)
    cursor.advance([row(3, MORNING)], 1)
    assert after(cursor)[0].ids[NORMAL] == 9


def test_once_a_second_a_claim_begins_at_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, clock = ClaimCursor(), [10_000_000_000]
    monkeypatch.setattr(claim_cursor, "boottime_ns", lambda: clock[0])
    after(cursor)
    cursor.advance([row(7)], 1)
    clock[0] += 999_000_000
    assert next(cursor.starts(["mail"], 4)) != FIRST_ROW
    clock[0] += 2_000_000
    assert next(cursor.starts(["mail"], 4)) == FIRST_ROW


def test_claims_from_the_first_row_on_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, clock = ClaimCursor(), [10_000_000_000]
    monkeypatch.setattr(claim_cursor, "boottime_ns", lambda: clock[0])
    assert next(cursor.starts(["mail"], 4)) == FIRST_ROW
    clock[0] += 500_000_000
    cursor.advance([row(7)], 1)
    clock[0] += 4_400_000_000
    assert next(cursor.starts(["mail"], 4)) != FIRST_ROW
    clock[0] += 200_000_000
    assert next(cursor.starts(["mail"], 4)) == FIRST_ROW
    clock[0] += 60_000_000_000
    cursor.advance([row(8)], 1)
    assert next(cursor.starts(["mail"], 4)) == FIRST_ROW, "however long it takes, it is not left out for long"


def test_each_type_has_its_second_when_they_are_asked_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, clock = ClaimCursor(), [10_000_000_000]
    monkeypatch.setattr(claim_cursor, "boottime_ns", lambda: clock[0])
    after(cursor, ["mail"])
    clock[0] += 600_000_000
    after(cursor, ["report"])
    cursor.advance([row(7), row(8, job_type="report")], 2)
    clock[0] += 600_000_000
    assert next(cursor.starts(["mail"], 4)) == FIRST_ROW
    assert next(cursor.starts(["report"], 4)) != FIRST_ROW


def test_few_runs_behind_the_front_do_not_pass_for_the_end_of_the_queue() -> None:
    cursor = ClaimCursor()
    after(cursor)
    cursor.advance([row(7)], 1)
    script = ClaimBatch(ClaimPlan(["mail"], limit=4, round=1), Worker("w1"), cursor).script()
    next(script)
    with pytest.raises(StopIteration) as ended:
        script.send([row(8)])
    assert ended.value.value.is_full, "the next claim follows at once"
    assert after(cursor) == [FIRST_ROW]


def test_the_next_claim_looks_at_twice_as_many_of_each_as_came() -> None:
    cursor = ClaimCursor()
    assert list(cursor.starts(["mail", "report"], 100)) == [FIRST_ROW]
    cursor.advance(
        [row(n, job_type="mail") for n in range(90)] + [row(n, job_type="report") for n in range(90, 100)],
        100,
    )
    shares = next(cursor.starts(["mail", "report"], 100)).shares
    assert [share for share in shares if share != LOOK_EXTRA] == [2 * 90 + LOOK_EXTRA, 2 * 10 + LOOK_EXTRA]
    assert len(shares) == 2 * PRIORITIES


def test_of_what_gave_all_that_a_claim_looked_at_the_next_looks_at_four_times_as_many() -> None:
    cursor = ClaimCursor()
    list(cursor.starts(["mail", "report"], 100))
    cursor.advance([row(n, job_type="mail") for n in range(100)], 100)
    next(cursor.starts(["mail", "report"], 100))
    cursor.advance(
        [row(n, job_type="report", priority=0) for n in range(100, 100 + LOOK_EXTRA)]
        + [row(n, job_type="mail") for n in range(92)],
        100,
    )
    shares = next(cursor.starts(["mail", "report"], 100)).shares
    assert shares[PRIORITIES] == 4 * LOOK_EXTRA + LOOK_EXTRA, (
        "all may be of this type and priority from now on"
    )


def test_where_others_held_much_claims_pass_by_what_is_locked_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cursor, clock = ClaimCursor(), [10_000_000_000]
    monkeypatch.setattr(claim_cursor, "boottime_ns", lambda: clock[0])
    list(cursor.starts(["mail"], 100))
    cursor.advance([row(n) for n in range(60)], 100)
    clock[0] += 900_000_000
    behind, whole = after(cursor, limit=100)
    assert behind.past_locks and whole.past_locks
    assert max(behind.shares) == 125 + LOOK_EXTRA, "what it looks at it locks: little more than it takes"
    cursor.advance([row(n) for n in range(100, 200)], 100)
    clock[0] += 200_000_000
    assert not any(places.past_locks for places in after(cursor, limit=100))


def test_a_claim_that_brought_few_lets_the_next_look_at_all_of_it() -> None:
    cursor = ClaimCursor()
    list(cursor.starts(["mail"], 100))
    cursor.advance([row(n) for n in range(60)], 100)
    list(cursor.starts(["mail"], 100))
    cursor.advance([row(n) for n in range(60, 100)], 100)
    assert after(cursor, limit=100) == [FIRST_ROW]


def test_claims_by_age_look_at_what_claims_by_age_have_taken() -> None:
    cursor = ClaimCursor()
    list(cursor.starts(["mail"], 100))
    cursor.advance([row(n, job_type="mail", priority=0) for n in range(100)], 100)
    list(cursor.starts(["mail"], 100, oldest_first=True))
    cursor.advance(
        [row(n, job_type="mail", priority=4) for n in range(60)]
        + [row(n, job_type="mail", priority=3) for n in range(40)],
        100,
        oldest_first=True,
    )
    assert next(cursor.starts(["mail"], 100)).shares[0] == 2 * 100 + LOOK_EXTRA
    assert next(cursor.starts(["mail"], 100, oldest_first=True)).shares[3:] == [
        2 * 40 + LOOK_EXTRA,
        2 * 60 + LOOK_EXTRA,
    ]


def test_a_small_claim_looks_at_the_usual_number_of_each() -> None:
    cursor = ClaimCursor()
    list(cursor.starts(["mail", "report"], 2))
    cursor.advance([row(1, job_type="mail"), row(2, job_type="mail")], 2)
    assert next(cursor.starts(["mail", "report"], 2)).shares == (), "twice as many as it may take, and some"


def test_once_a_second_more_is_looked_at_of_what_brought_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, clock = ClaimCursor(), [10_000_000_000]
    monkeypatch.setattr(claim_cursor, "boottime_ns", lambda: clock[0])
    list(cursor.starts(["mail", "report"], 100))
    cursor.advance([row(n, job_type="mail") for n in range(100)], 100)
    assert min(next(cursor.starts(["mail", "report"], 100)).shares) == LOOK_EXTRA
    clock[0] += 2_000_000_000
    assert min(next(cursor.starts(["mail", "report"], 100)).shares) == 100 + LOOK_EXTRA, (
        "others may hold the first"
    )


def test_a_claim_begins_behind_the_place_it_is_given(connection: Connection) -> None:
    a_type(connection)
    first, second, third = (a_run(connection, run_at="-1 hour") for _ in range(3))
    connection.execute("UPDATE wakeboard.job_runs SET run_at = now() - interval '1 hour'")
    (_, moment) = connection.execute("SELECT id, run_at FROM wakeboard.job_runs LIMIT 1").fetchone() or (0, 0)
    assert [found.id for found in behind(connection, moment, second)] == [third]
    assert sorted(found.id for found in claim(connection)) == [first, second]


def behind(connection: Connection, moment: object, run_id: int) -> list[Claimed]:
    """Claim runs of the type ``mail`` behind a moment and an id."""
    places = ([moment] * PRIORITIES, [run_id] * PRIORITIES, [])
    return [Claimed(*found) for found in send(connection, claims.claim(10), ["mail"], "w1", 30, *places)]


def pages_read(connection: Connection, *places: object) -> int:
    """Return how many pages a claim of ten reads; it is rolled back."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {claims.claim(10)}"
    with connection.transaction(force_rollback=True):
        cursor = psycopg.RawCursor(connection)
        found = cursor.execute(explain.encode(), (["mail"], "w1", 30.0, *places)).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_under_an_old_snapshot_a_claim_behind_the_front_walks_past_nothing(
    database: str, connection: Connection
) -> None:
    a_type(connection)
    with (
        db.connect(database, name="wakeboard worker") as worker,
        db.connect(database, name="report", autocommit=False) as report,
    ):
        db.configure(worker, db.PLANNING)
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT count(*) FROM wakeboard.job_runs")
        # Large ones: a page of the table has seven of them.
        worker.execute("""INSERT INTO wakeboard.job_runs (job_type, payload)
            SELECT 'mail', jsonb_build_object('text', repeat('x', 900)) FROM generate_series(1, 3000)""")
        fresh = pages_read(worker, *claims.FROM_FIRST)
        for _ in range(5):
            taken = claim(worker, limit=500)
            succeed(worker, *(one.held for one in taken))
        last = max((one.run_at, one.id) for one in taken)
        whole = pages_read(worker, *claims.FROM_FIRST)
        behind = pages_read(worker, [last[0]] * PRIORITIES, [last[1]] * PRIORITIES, [])
        report.rollback()
    assert whole > fresh + 2500 / 7
    assert behind < fresh + 10
