"""The connection that never waits: scripts, refusals, losses."""

from __future__ import annotations

import select
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.support.factories import Connection, a_run, a_type
from tests.support.postgres.wire_proxy import Way, between
from tests.support.processes import wait_until
from wakeboard.database import db
from wakeboard.queue.engine import claims, endings, fence, reaping
from wakeboard.runtime.loop.channel import (
    OLDEST_PLANS_SECONDS,
    PLANS_ROWS,
    PLANS_SECONDS,
    Channel,
    ChannelLost,
    Plans,
    Rows,
    Script,
    StatementFailed,
    Transaction,
    array,
    numbers,
)


@pytest.fixture
def channel(database: str) -> Iterator[Channel]:
    """A channel of its own on the test's database."""
    opened = Channel(db.connect(database, name="wakeboard channel"))
    yield opened
    opened.close()


def outcome(channel: Channel, script: Script) -> Any:
    """Run a script to its end; return its value or what it failed with."""
    told: list[Any] = []
    channel.run(script, told.append, told.append)
    while not told:
        select.select([channel.fileno()], [], [], 10)
        channel.pump()
    return told[0]


def pump_until_lost(channel: Channel) -> None:
    """Run its loop until it says that the connection is lost."""
    with pytest.raises(ChannelLost):
        while True:
            select.select([channel.fileno()], [], [], 5)
            channel.pump()


def ask(statement: str, *values: bytes | None) -> Script:
    rows: Rows = yield statement, values
    return rows


def test_a_script_is_sent_the_rows_of_each_statement(channel: Channel) -> None:
    def script() -> Script:
        one: Rows = yield "SELECT 1 + $1::int", (b"1",)
        two: Rows = yield "SELECT $1::text || '!', NULL", (b"%d" % one[0][0],)
        return two

    assert outcome(channel, script()) == [("2!", None)]
    assert outcome(channel, script()) == [("2!", None)], "prepared statements are used again"


def test_an_empty_script_ends_at_once(channel: Channel) -> None:
    def script() -> Script:
        return "nothing"
        yield

    assert outcome(channel, script()) == "nothing"
    assert not channel.is_busy


def test_a_refused_statement_reaches_the_script_and_the_connection_lives(channel: Channel) -> None:
    def script() -> Script:
        try:
            yield "SELECT 1 / $1::int", (b"0",)
        except StatementFailed as failure:
            return failure.sqlstate
        return "no error"

    assert outcome(channel, script()) == "22012"
    failure = outcome(channel, ask("SELECT no_such_column"))
    assert isinstance(failure, StatementFailed)
    assert failure.sqlstate == "42703"
    assert outcome(channel, ask("SELECT 1")) == [(1,)]


def test_a_refused_statement_inside_a_transaction_is_rolled_back(channel: Channel) -> None:
    def script() -> Script:
        yield "BEGIN", ()
        try:
            yield "SELECT 1 / 0", ()
        except StatementFailed:
            yield "ROLLBACK", ()
            raise

    assert isinstance(outcome(channel, script()), StatementFailed)
    assert outcome(channel, ask("SELECT 1")) == [(1,)]


def together(*statements: tuple[str, tuple[bytes | None, ...]]) -> Script:
    return (yield Transaction(statements))


def test_statements_together_are_one_transaction_and_answered_one_by_one(channel: Channel) -> None:
    outcome(channel, ask("CREATE TEMPORARY TABLE made (n int, by xid8)"))
    insert = "INSERT INTO pg_temp.made VALUES ($1::int, pg_current_xact_id()) RETURNING n"
    asked = together((insert, (b"1",)), (insert, (b"2",)), ("SELECT count(*)::int FROM pg_temp.made", ()))
    assert outcome(channel, asked) == [[(1,)], [(2,)], [(2,)]]
    assert outcome(channel, ask("SELECT count(DISTINCT by)::int FROM pg_temp.made")) == [(1,)]


def test_of_statements_together_none_has_happened_when_one_is_refused(channel: Channel) -> None:
    outcome(channel, ask("CREATE TEMPORARY TABLE made (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    insert = "INSERT INTO pg_temp.made VALUES ($1::int)"
    for refused, sqlstate in (
        (("SELECT 1 / $1::int", (b"0",)), "22012"),
        (("SELECT no_such_column", ()), "42703"),
        # The refusal comes with the commit, when every statement has been answered.
        ((insert, (b"1",)), "23505"),
    ):
        failure = outcome(channel, together((insert, (b"1",)), refused, ("SELECT 2", ())))
        assert isinstance(failure, StatementFailed)
        assert failure.sqlstate == sqlstate
        assert outcome(channel, ask("SELECT count(*)::int FROM pg_temp.made")) == [(0,)]
    assert outcome(channel, together(("SELECT 2", ()), (insert, (b"1",)))) == [[(2,)], []]


def test_what_others_commit_meanwhile_is_seen_by_the_statements_that_follow(
    channel: Channel, connection: Connection
) -> None:
    told: list[Any] = []
    wait = "SELECT pg_advisory_xact_lock(1)"
    with connection.transaction():
        connection.execute(wait)
        channel.run(
            together((wait, ()), ("SELECT count(*)::int FROM wakeboard.job_runs", ())),
            told.append,
            told.append,
        )
        a_run(connection)
    while not told:
        select.select([channel.fileno()], [], [], 10)
        channel.pump()
    assert told[0][1] == [(1,)]


def test_plans_are_made_anew_when_nobody_waits_or_the_table_may_have_grown() -> None:
    plans = Plans(made_at=100.0, rows=PLANS_ROWS - 1)
    assert not plans.are_old(100.0 + PLANS_SECONDS - 0.1, is_background=True)
    assert plans.are_old(100.0 + PLANS_SECONDS, is_background=True)
    assert not plans.are_old(100.0 + PLANS_SECONDS, is_background=False), "somebody waits for this run"
    plans.rows += 1
    assert plans.are_old(100.0 + PLANS_SECONDS, is_background=False)
    assert Plans(made_at=100.0).are_old(100.0 + OLDEST_PLANS_SECONDS, is_background=False)


def test_new_plans_change_no_answer(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plans, "are_old", lambda *_, **__: True)
    assert [outcome(channel, ask("SELECT 1")) for _ in range(3)] == [[(1,)]] * 3


def test_one_script_at_a_time(channel: Channel) -> None:
    channel.run(ask("SELECT pg_sleep(0.01)"), lambda _: None, lambda _: None)
    with pytest.raises(RuntimeError, match="busy"):
        channel.run(ask("SELECT 1"), lambda _: None, lambda _: None)


def test_notifications_come_with_their_payload(channel: Channel, connection: Connection) -> None:
    outcome(channel, ask('LISTEN "wakeboard_wake"'))
    connection.execute("SELECT pg_notify('wakeboard_wake', 'now')")
    assert wait_until(channel.pump, 5) == [("wakeboard_wake", "now")]


@pytest.mark.parametrize("when", ["while idle", "under way"])
def test_a_killed_session_is_told_to_the_script_and_to_the_loop(
    channel: Channel, connection: Connection, superuser: Connection, when: str
) -> None:
    (pid,) = outcome(channel, ask("SELECT pg_backend_pid()"))[0]
    told: list[Any] = []
    if when == "under way":
        channel.run(ask("SELECT pg_sleep(60)"), told.append, told.append)
    superuser.execute("SELECT pg_terminate_backend(%s)", (int(pid),))
    wait_until(lambda: not rows_of(superuser, int(pid)), 5, "the session is gone")
    if when == "while idle":
        channel.run(ask("SELECT 1"), told.append, told.append)
    pump_until_lost(channel)
    assert isinstance(told[0], ChannelLost)
    assert channel.is_lost
    assert channel.fileno() >= 0
    assert not channel.is_busy


def test_a_limited_claim_whose_second_half_never_comes_is_ended_by_the_server_and_told(
    database: str, connection: Connection, superuser: Connection
) -> None:
    if connection.info.server_version < 170_000:
        pytest.skip("no transaction_timeout before PostgreSQL 17: the lock goes with the connection")
    a_type(connection, max_running=1)
    lock = claims.LOCK_LIMIT, (b"mail",)
    with between(database) as middleman:
        slow = Channel(db.connect(middleman.url, name="wakeboard channel"))
        (pid,) = outcome(slow, ask("SELECT pg_backend_pid()"))[0]
        middleman.cuts = lambda _, text: Way.STUCK if text == "SELECT 2" else None
        told: list[Any] = []
        slow.run(together(lock, ("SELECT 2", ())), told.append, told.append)
        wait_until(lambda: not rows_of(superuser, int(pid)), 10, "the session is gone")
        assert told == []
        middleman.heal()
        pump_until_lost(slow)
    assert isinstance(told[0], ChannelLost)
    assert slow.is_lost


def rows_of(connection: Connection, pid: int) -> bool:
    return connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None


def test_a_closed_connection_is_told_when_a_script_is_sent(database: str) -> None:
    raw = db.connect(database, name="wakeboard channel")
    channel = Channel(raw)
    told: list[Any] = []
    raw.close()
    channel.run(ask("SELECT 1"), told.append, told.append)
    assert isinstance(told[0], ChannelLost)
    assert channel.is_lost


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, None],
        [1.5, 1e-05, 1e300],
        [True, False, None],
        ["a", 'q"uote', "back\\slash", "NULL", "{,}", "", "é"],
    ],
)
def test_arrays_arrive_as_they_were_sent(channel: Channel, values: list[Any]) -> None:
    kind = {int: "bigint", float: "float8", bool: "boolean", str: "text"}[type(values[0])]
    found = outcome(channel, ask(f"SELECT u FROM unnest($1::{kind}[]) AS u", array(values)))
    assert [one for (one,) in found] == values


def test_numbers_arrive_as_they_were_sent(channel: Channel) -> None:
    values = [1, 2.5, 1e-05, 1e300, float("inf"), "1234567e-6", "0.000001"]
    found = outcome(channel, ask("SELECT u FROM unnest($1::float8[]) AS u", numbers(values)))
    assert [one for (one,) in found] == [float(one) for one in values]
    assert outcome(channel, ask("SELECT u FROM unnest($1::bigint[]) AS u", numbers([]))) == []


@pytest.mark.parametrize("count", [0, 300])
def test_plans_made_on_a_small_table_find_rows_by_their_key(connection: Connection, count: int) -> None:
    for _ in range(count):
        a_run(connection, "running")
    if count:
        connection.execute("ANALYZE wakeboard.job_runs")
    db.configure(connection, db.PLANNING)
    moves = {
        "succeed": endings.SUCCEED,
        "fail": endings.FAIL,
        "release": endings.RELEASE,
        "renew": fence.RENEW,
        "reap": reaping.REAP,
    }
    for name, move in moves.items():
        statement = f"EXPLAIN (GENERIC_PLAN) {move}"
        plan = [one[0] for one in psycopg.RawCursor(connection).execute(statement.encode()).fetchall()]
        scans = [
            (line.strip(), after.strip())
            for line, after in pairwise(plan)
            if " on job_runs" in line and "Scan" in line
        ]
        assert scans
        for scan, condition in scans:
            if "Tid Scan" in scan:
                assert condition == "TID Cond: (h.tid = ctid)", (name, plan)
                continue
            assert "job_runs_pkey" in scan, (name, plan)
            assert condition.startswith("Index Cond: (id = "), (name, plan)


def test_a_claim_walks_its_own_index_once_the_table_was_analyzed(connection: Connection) -> None:
    a_type(connection)
    enqueue = "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, %s)"
    connection.execute(enqueue, (3_000,))
    connection.execute("UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now()")
    connection.execute(enqueue, (10,))
    connection.execute("ANALYZE wakeboard.job_runs")
    db.configure(connection, db.PLANNING)
    explain = f"EXPLAIN (GENERIC_PLAN) {claims.claim(8)}"
    plan = [one[0] for one in psycopg.RawCursor(connection).execute(explain.encode()).fetchall()]
    assert any("job_runs_claimable" in line for line in plan), plan
    assert any("TID Cond: (head.tid = ctid)" in line for line in plan), plan
    assert not any("job_runs_by_status" in line for line in plan), plan
