"""The front door: one run, or many, inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import ROOT, wait_until
from wakeboard.core.run_spec import RunColumns, payload_limit
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.queue import EnqueueError, NewRun, enqueue, enqueue_many
from wakeboard.queue.manual_enqueue import enqueue_by_hand

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HOSTILE = "<script>alert('1')</script> \" ' \\ %s {} $1 ünï 🚨 \u202e"


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = db.engine(database, name="wakeboard test")
    yield made
    made.dispose()


def nested(levels: int) -> Any:
    inner: Any = 0
    for _ in range(levels):
        inner = [inner]
    return inner


def waits_for_somebody(connection: Connection, other: Connection) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    (waits,) = connection.execute(query, (other.info.backend_pid,)).fetchone() or (False,)
    return bool(waits)


def count(connection: Connection) -> int:
    (number,) = connection.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() or (0,)
    return int(number)


# One run


def test_a_run_needs_no_more_than_a_type(shared: Connection) -> None:
    found = factories.row(shared, enqueue(shared, "mail"))
    assert (found["job_type"], found["payload"], found["status"]) == ("mail", {}, "queued")
    assert (found["priority"], found["attempts"], found["max_attempts"]) == (2, 0, None)


def test_a_run_keeps_all_that_was_asked(shared: Connection) -> None:
    moment = datetime(2031, 3, 4, 5, 6, 7, 891011, UTC)
    run = enqueue(
        shared, HOSTILE, {"text": HOSTILE, "n": None}, run_at=moment, key=HOSTILE, priority=0, max_attempts=3,
        enqueued_by=HOSTILE,
    )  # fmt: skip
    found = factories.row(shared, run)
    assert found["payload"] == {"text": HOSTILE, "n": None}
    assert found["job_type"] == found["idempotency_key"] == found["enqueued_by"] == HOSTILE
    assert (found["run_at"], found["priority"], found["max_attempts"]) == (moment, 0, 3)


def test_a_run_without_options_takes_the_short_way(shared: Connection) -> None:
    """Its statement has two values. A field whose default differs from that of the table would end that."""
    assert NewRun("mail").columns(payload_limit())[2:] == RunColumns("mail", "{}")[2:]
    run = enqueue(shared, "mail")
    defaults = RunColumns("mail", "{}")._asdict()
    found = factories.row(shared, run)
    columns = [name for name in RunColumns._fields[2:] if name not in ("run_at", "delay", "key")]
    assert {name: found[name] for name in columns} == {name: defaults[name] for name in columns}


@pytest.mark.parametrize("many", [0, 1, 3, 2000])
def test_a_trace_goes_along_and_what_is_none_is_left_out(connection: Connection, many: int) -> None:
    """One by one, alike, and by COPY. The header is a stranger's: it must not cost the run."""
    for trace, kept in ((TRACE, TRACE), (TRACE.replace("00-", "cc-", 1) + "-more", ...), ("00-1-2-01", None)):
        runs = [NewRun("mail", {"n": n}, traceparent=trace) for n in range(many)]
        ids = enqueue_many(connection, runs) if many else [enqueue(connection, "mail", traceparent=trace)]
        found = {factories.row(connection, run)["traceparent"] for run in (ids[0], ids[-1])}
        assert found == {trace if kept is ... else kept}
    mixed = enqueue_many(connection, [NewRun("mail", traceparent=each) for each in (None, TRACE)])
    assert [factories.row(connection, run)["traceparent"] for run in mixed] == [None, TRACE]


def test_a_run_that_a_person_enqueues_keeps_all_that_was_asked(connection: Connection) -> None:
    factories.a_type(connection, "mail")
    moment = datetime(2031, 3, 4, 5, 6, 7, 891011, UTC)
    asked = NewRun("mail", {"n": 1}, moment, None, "by hand", 1, 3, None, TRACE)
    answer = enqueue_by_hand(connection, asked, Actor("olivia", Role.OPERATOR, "web"))
    found = factories.row(connection, int(answer.id or 0))
    assert (found["payload"], found["run_at"], found["idempotency_key"]) == ({"n": 1}, moment, "by hand")
    assert (found["priority"], found["max_attempts"], found["enqueued_by"]) == (1, 3, "olivia")
    assert found["traceparent"] == TRACE


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_counts_from_the_databases_now(shared: Connection, delay: float | timedelta) -> None:
    run = enqueue(shared, "mail", delay=delay)
    (away,) = shared.execute(
        "SELECT extract(epoch FROM run_at - created_at)::float8 FROM wakeboard.job_runs WHERE id = %s", (run,)
    ).fetchone() or (None,)
    assert away == 90


# The caller's transaction


def through_psycopg(url: str) -> Any:
    return psycopg.connect(url)


def through_psycopg_with_dictionaries(url: str) -> Any:
    return psycopg.connect(url, row_factory=dict_row)


def through_sqlalchemy(url: str) -> Any:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool).connect()


@pytest.mark.parametrize("connect", [through_psycopg, through_psycopg_with_dictionaries])
@pytest.mark.parametrize("keep", [True, False])
def test_a_run_joins_a_psycopg_transaction(
    database: str, connection: Connection, connect: Callable[[str], Any], keep: bool
) -> None:
    with connect(database) as own:
        enqueue(own, "mail", key="invoice:812")
        enqueue(own, "mail", key="invoice:812")
        enqueue_many(own, [NewRun("mail"), NewRun("mail", key="invoice:812")])
        assert count(connection) == 0
        own.commit() if keep else own.rollback()
    assert count(connection) == (2 if keep else 0)


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_joins_a_sqlalchemy_connections_transaction(
    engine: Engine, connection: Connection, keep: bool
) -> None:
    with engine.connect() as own:
        enqueue(own, "mail")
        enqueue_many(own, [{"job_type": "mail"}])
        assert own.in_transaction()
        assert count(connection) == 0
        own.commit() if keep else own.rollback()
    assert count(connection) == (2 if keep else 0)


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_joins_a_sqlalchemy_sessions_transaction(
    engine: Engine, connection: Connection, keep: bool
) -> None:
    with Session(engine) as own:
        enqueue(own, "mail")
        enqueue_many(own, [NewRun("mail")])
        assert count(connection) == 0
        own.commit() if keep else own.rollback()
    assert count(connection) == (2 if keep else 0)


def test_a_savepoint_rolled_back_takes_its_runs_along(database: str, connection: Connection) -> None:
    with psycopg.connect(database) as own:
        kept = enqueue(own, "mail")
        with own.transaction(force_rollback=True):
            enqueue(own, "mail")
    assert [one["id"] for one in factories.rows(connection, "job_runs")] == [kept]


@pytest.mark.parametrize("target", ["a text", 7, object()])
def test_nothing_but_a_connection_will_do(target: object) -> None:
    with pytest.raises(EnqueueError, match="hand over a SQLAlchemy connection or session"):
        enqueue(target, "mail")


def test_a_connection_of_asyncio_is_refused_in_a_sentence(database: str) -> None:
    async def ask() -> None:
        asynchronous = create_async_engine("postgresql+psycopg://")
        async with await psycopg.AsyncConnection.connect(database) as own:
            for target in (own, asynchronous.connect(), AsyncSession(asynchronous)):
                with pytest.raises(EnqueueError, match="one of asyncio"):
                    enqueue(target, "mail")
                with pytest.raises(EnqueueError, match="one of asyncio"):
                    enqueue_many(target, [NewRun("mail", key="k")] * 2000)

    # A browser's test leaves a loop running in the thread of all tests.
    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, ask()).result()


# Keys


def test_the_same_key_gives_the_same_run_whatever_became_of_it(shared: Connection) -> None:
    for number, status in enumerate(("queued", "running", "failed", "dead", "succeeded", "cancelled")):
        run = factories.a_run(shared, status, idempotency_key=f"invoice:{number}")
        assert enqueue(shared, "mail", key=f"invoice:{number}") == run
        assert enqueue_many(shared, [{"job_type": "mail", "key": f"invoice:{number}"}]) == [run]


def test_the_first_request_with_a_key_decides(shared: Connection) -> None:
    run = enqueue(shared, "mail", {"n": 1}, key="first")
    enqueue(shared, "mail", {"n": 2}, key="first", priority=0)
    assert (factories.row(shared, run)["payload"], factories.row(shared, run)["priority"]) == ({"n": 1}, 2)


def test_a_key_of_another_type_is_refused_by_the_run_that_has_it(shared: Connection) -> None:
    run = enqueue(shared, "mail", key="taken")
    with pytest.raises(EnqueueError, match=f"The key 'taken' belongs to run {run} of type 'mail', not 'sms'"):
        enqueue(shared, "sms", key="taken")
    with pytest.raises(EnqueueError, match=f"belongs to run {run} of type 'mail'"):
        enqueue_many(shared, [NewRun("sms", key="taken")])


def test_twenty_callers_at_once_with_one_key_get_one_run(database: str, connection: Connection) -> None:
    together = threading.Barrier(20)

    def call(number: int) -> int:
        with psycopg.connect(database) as own:
            together.wait()
            return enqueue(own, "mail", {"n": number}, key="report:2026-W03")

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(call, range(20)))) == 1
    assert count(connection) == 1


def test_a_key_whose_first_request_rolls_back_is_free_again(database: str, connection: Connection) -> None:
    with psycopg.connect(database) as first:
        lost = enqueue(first, "mail", key="k")
        first.rollback()
    assert enqueue(connection, "mail", key="k") != lost


# Many


def test_many_runs_come_back_in_the_order_given(shared: Connection) -> None:
    wanted = [
        NewRun("mail", {"n": n}, key=f"many:{n}" if n % 3 else None, priority=n % 5) for n in range(2500)
    ]
    ids = enqueue_many(shared, wanted)
    payloads = {one["id"]: one["payload"]["n"] for one in factories.rows(shared, "job_runs", "payload ? 'n'")}
    assert [payloads[run] for run in ids] == list(range(2500))


def test_many_runs_alike_keep_all_that_was_asked(shared: Connection) -> None:
    at = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    asked: dict[str, Any] = {"run_at": at, "priority": 0, "max_attempts": 3, "enqueued_by": "ann"}
    ids = enqueue_many(shared, [NewRun("mail", {"n": n}, key=f"alike:{n}", **asked) for n in range(3)])
    kept = [factories.row(shared, run) for run in ids]
    assert [one["payload"] for one in kept] == [{"n": n} for n in range(3)]
    assert [one["idempotency_key"] for one in kept] == [f"alike:{n}" for n in range(3)]
    for one in kept:
        assert {name: one[name] for name in asked} == asked


def test_the_two_half_past_twos_of_a_night_are_an_hour_apart(shared: Connection) -> None:
    first = datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    ids = enqueue_many(shared, [NewRun("mail", run_at=first), NewRun("mail", run_at=first.replace(fold=1))])
    one, two = (factories.row(shared, run)["run_at"] for run in ids)
    assert two - one == timedelta(hours=1)


@pytest.mark.parametrize("others", [0, 1500], ids=["inserted", "copied"])
@pytest.mark.parametrize("kinds", [["mail"], ["mail", "\\N sms"]], ids=["alike", "of two types"])
def test_many_runs_keep_signs_that_mean_something_in_an_array_or_a_copy(
    shared: Connection, kinds: list[str], others: int
) -> None:
    texts = [
        '"', "\\", '\\"', "{}", "{a,b}", ",", "NULL", "null", " ", "'", "%s", "%(a)s", "é€𝄞", "'; --", "\\N",
        "\\.", "\\t", "\\\\x41",
    ]  # fmt: skip
    wanted = [
        NewRun(kinds[n % len(kinds)], {text: f"{text}\t\r\n{text}"}, key=text, enqueued_by=text)
        for n, text in enumerate(texts)
    ]
    with shared.transaction(force_rollback=True):
        ids = enqueue_many(shared, [*wanted, *[NewRun("mail")] * others])
        kept = [factories.row(shared, run) for run in ids[: len(wanted)]]
    told = ("job_type", "payload", "enqueued_by")
    assert [[one[name] for name in told] for one in kept] == [
        [getattr(one, name) for name in told] for one in wanted
    ]
    assert [one["idempotency_key"] for one in kept] == texts


class Words(str, Enum):  # noqa: UP042 (whose str() is its name)
    """What a program may keep its names in."""

    MAIL = "mail"
    KEY = "k:1"


class Urgency(int, Enum):
    """As Words."""

    FIRST = 0


@pytest.mark.parametrize("others", [0, 1500], ids=["inserted", "copied"])
def test_names_of_an_enumeration_are_what_they_stand_for(connection: Connection, others: int) -> None:
    run = NewRun(Words.MAIL, key=Words.KEY, priority=Urgency.FIRST, enqueued_by=Words.MAIL)
    ids = enqueue_many(connection, [run, *[NewRun("mail")] * others])
    kept = factories.row(connection, ids[0])
    assert [kept[name] for name in ("job_type", "idempotency_key", "priority", "enqueued_by")] == [
        "mail", "k:1", 0, "mail",
    ]  # fmt: skip
    assert enqueue_many(connection, [run, *[NewRun("mail")] * others])[0] == ids[0]


@pytest.mark.parametrize(
    "setting", ["datestyle = 'German'", "client_encoding = 'SQL_ASCII'", "client_encoding = 'LATIN1'"]
)
def test_thousands_are_enqueued_whatever_a_session_writes_dates_and_letters_in(
    database: str, connection: Connection, setting: str
) -> None:
    with psycopg.connect(database) as own:
        own.execute(f"SET {setting}")
        ids = enqueue_many(own, [NewRun("maïl", {"ö": n}, delay=60) for n in range(1500)])
        own.commit()
    kept = factories.row(connection, ids[1499])
    assert (kept["job_type"], kept["payload"]) == ("maïl", {"ö": 1499})
    assert timedelta(seconds=55) < kept["run_at"] - datetime.now(UTC) < timedelta(seconds=60)


def test_large_payloads_are_copied_by_and_by(connection: Connection) -> None:
    sizes = [60_000 if n % 50 == 0 else n for n in range(1500)]
    ids = enqueue_many(
        connection, [NewRun("mail", {"text": "x" * size}, key=f"k:{n}") for n, size in enumerate(sizes)]
    )
    told = "SELECT id, length(payload ->> 'text') FROM wakeboard.job_runs"
    found = dict(connection.execute(told).fetchall())
    assert [found[run] for run in ids] == sizes


@pytest.mark.parametrize("others", [1, 1500], ids=["inserted", "copied"])
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_key_of_another_type_among_many_leaves_none_of_them_written(
    database: str, connection: Connection, autocommit: bool, others: int
) -> None:
    taken = enqueue(connection, "mail", key="taken")
    with psycopg.connect(database, autocommit=autocommit) as own:
        with pytest.raises(
            EnqueueError, match=f"The key 'taken' belongs to run {taken} of type 'mail', not 'sms'"
        ):
            enqueue_many(own, [*[NewRun("mail")] * others, NewRun("sms", key="taken")])
        own.commit()
    assert count(connection) == 1


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_key_that_another_type_takes_while_many_are_copied_leaves_none_of_them_written(
    database: str, connection: Connection, autocommit: bool
) -> None:
    with (
        psycopg.connect(database) as rival,
        psycopg.connect(database, autocommit=autocommit) as own,
        ThreadPoolExecutor() as pool,
    ):
        enqueue(rival, "sms", key="k:1400")
        many = pool.submit(enqueue_many, own, [NewRun("mail", key=f"k:{n:04}") for n in range(1500)])
        wait_until(lambda: waits_for_somebody(connection, own))
        rival.commit()
        with pytest.raises(EnqueueError, match="The key 'k:1400' belongs to run"):
            many.result()
        own.commit()
    assert count(connection) == 1


def test_thousands_of_runs_are_due_when_each_was_asked_for(database: str, connection: Connection) -> None:
    at = datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    asked = ({"run_at": at}, {"delay": 90.5}, {"delay": timedelta(days=400)}, {})
    with psycopg.connect(database) as own:
        own.execute("SET TIME ZONE 'America/New_York'")
        now: datetime = own.execute("SELECT now()").fetchall()[0][0]
        ids = enqueue_many(own, [NewRun("mail", **asked[n % 4]) for n in range(2000)])  # type: ignore[arg-type]
        own.commit()
    due = {one["id"]: one["run_at"] for one in factories.rows(connection, "job_runs")}
    wanted = (
        at.astimezone(UTC),
        now + timedelta(seconds=90.5),
        now.astimezone(UTC) + timedelta(days=400),
        now,
    )
    assert [due[run] for run in ids] == [wanted[n % 4] for n in range(2000)]


def test_a_role_that_may_insert_and_take_no_ids_enqueues_thousands_as_well(superuser: Connection) -> None:
    with superuser.transaction(force_rollback=True):
        superuser.execute("CREATE ROLE may_insert")
        superuser.execute("GRANT USAGE ON SCHEMA wakeboard TO may_insert")
        superuser.execute("GRANT SELECT, INSERT ON wakeboard.job_runs TO may_insert")
        superuser.execute("SET LOCAL ROLE may_insert")
        ids = enqueue_many(superuser, [NewRun("mail", {"n": n}, key=f"k:{n}") for n in range(1500)])
        assert len(set(ids)) == count(superuser) == 1500


def test_a_program_may_enqueue_with_the_rights_that_the_page_on_deploying_names(
    superuser: Connection,
) -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    rights = re.findall(r"^GRANT .* TO shop;$", page, re.M)
    with superuser.transaction(force_rollback=True):
        superuser.execute("CREATE ROLE shop")
        for right in rights:
            superuser.execute(right.encode())
        superuser.execute("SET LOCAL ROLE shop")
        first = enqueue(superuser, "mail", {"n": 1}, key="k")
        assert enqueue(superuser, "mail", {"n": 2}, key="k") == first != enqueue(superuser, "mail")
        assert len(enqueue_many(superuser, [{"job_type": "mail"}] * 3)) == 3
    assert len(rights) == 2


def test_in_pipeline_mode_thousands_are_enqueued_as_well(database: str, connection: Connection) -> None:
    with psycopg.connect(database) as own, own.pipeline():
        ids = enqueue_many(own, [NewRun("mail", key=f"k:{n}") for n in range(1500)])
        plain = enqueue_many(own, [NewRun("mail")] * 1500)
        assert count(connection) == 0
    assert len({*ids, *plain}) == count(connection) == 3000


def test_two_callers_with_the_same_keys_in_two_orders_never_stop_each_other(
    database: str, connection: Connection
) -> None:
    wanted = [NewRun("mail", key=f"{sign}:{n}") for n in range(150) for sign in "aBäÖ_-Z"]

    def call(runs: list[NewRun]) -> list[int]:
        with psycopg.connect(database) as mine:
            return enqueue_many(mine, runs)

    with ThreadPoolExecutor() as pool:
        forth, back = pool.map(call, [wanted, wanted[::-1]])
    assert forth == back[::-1]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_key_that_turns_up_while_many_are_inserted_gives_its_run_and_loses_none(
    database: str, connection: Connection, autocommit: bool
) -> None:
    wanted = [NewRun("mail", key=f"k:{n:04}") for n in range(2500)]
    with (
        psycopg.connect(database) as rival,
        psycopg.connect(database, autocommit=autocommit) as own,
        ThreadPoolExecutor() as pool,
    ):
        taken = enqueue(rival, "mail", key="k:2400")
        before = enqueue(own, "mail", key="mine")
        many = pool.submit(enqueue_many, own, wanted)
        wait_until(lambda: waits_for_somebody(connection, own))
        rival.commit()
        ids = many.result()
        assert ids[2400] == taken
        own.commit()
    assert factories.row(connection, before)["idempotency_key"] == "mine"
    assert count(connection) == 2501


@pytest.mark.parametrize("key", ["k:{}", None], ids=["with keys", "without"])
def test_many_runs_are_taken_back_with_their_callers_transaction(
    database: str, connection: Connection, key: str | None
) -> None:
    with psycopg.connect(database) as own:
        enqueue_many(own, [NewRun("mail", key=key and key.format(n)) for n in range(2500)])
        own.rollback()
    assert count(connection) == 0


def test_many_runs_may_repeat_a_key_among_themselves_and_across_calls(shared: Connection) -> None:
    old = enqueue(shared, "mail", key="again:1")
    ids = enqueue_many(
        shared, [{"job_type": "mail", "key": f"again:{n}"} for n in (1, 2, 2)] + [{"job_type": "mail"}] * 2
    )
    assert ids[0] == old
    assert ids[1] == ids[2]
    assert len(set(ids)) == 4
    assert enqueue_many(shared, [{"job_type": "mail", "key": "again:2"}]) == [ids[1]]


def test_a_key_repeated_a_thousand_runs_later_is_still_one_run(shared: Connection) -> None:
    ids = enqueue_many(
        shared, [NewRun("mail", key="far"), *[NewRun("mail")] * 1500, NewRun("mail", key="far")]
    )
    assert ids[0] == ids[-1]


@pytest.mark.parametrize("through", [through_psycopg, through_sqlalchemy])
def test_thousands_of_runs_have_their_ids_in_the_order_given(
    database: str, through: Callable[[str], Any]
) -> None:
    order = [n * 7 % 2500 for n in range(2500)]
    with through(database) as own:
        ids = enqueue_many(own, [NewRun("mail", {"n": n}, key=f"{through.__name__}:{n}") for n in order])
        again = enqueue_many(own, [NewRun("mail", key=f"{through.__name__}:{n}") for n in reversed(order)])
        own.commit()
    assert again == ids[::-1]
    with psycopg.connect(database) as one:
        found = one.execute("SELECT id, payload ->> 'n' FROM wakeboard.job_runs WHERE id = ANY(%s)", (ids,))
        numbers = dict(found.fetchall())
    assert [int(numbers[each]) for each in ids] == order


@pytest.mark.parametrize("runs", [None, 812])
def test_what_is_no_list_of_runs_is_refused_in_a_sentence(runs: Any, connection: Connection) -> None:
    with pytest.raises(EnqueueError, match=f"^{runs} is no list of runs; give one"):
        enqueue_many(connection, runs)


def test_one_wrong_run_among_many_is_named_and_nothing_is_written(connection: Connection) -> None:
    with pytest.raises(EnqueueError, match="Run number 3: Priority 9 is not known"):
        enqueue_many(connection, [NewRun("mail"), NewRun("mail"), NewRun("mail", priority=9)])
    for wrong, sentence in (
        ({"job_type": "mail", "data": {}}, "a run has no field 'data'; known: job_type, payload, run_at"),
        ({"payload": {}}, "it has no job_type"),
        (812, "int is no run; give a mapping of what enqueue"),
    ):
        with pytest.raises(EnqueueError, match=f"Run number 2: {sentence}"):
            enqueue_many(connection, [NewRun("mail"), wrong])  # type: ignore[list-item]
    with pytest.raises(EnqueueError, match="The key 'k' is given to type 'mail' and to 'sms'"):
        enqueue_many(connection, [NewRun("mail", key="k"), NewRun("sms", key="k")])
    assert count(connection) == 0


def test_no_transaction_of_ours_waits_for_whoever_makes_the_runs(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    others: list[int] = []

    def made() -> Iterator[NewRun]:
        others.append(len(connection.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND xact_start IS NOT NULL AND backend_type = 'client backend'"
        ).fetchall()))  # fmt: skip
        yield NewRun("mail")

    assert len(enqueue_many(None, made())) == 1
    assert others == [0]


def test_no_runs_are_no_trouble(shared: Connection) -> None:
    assert enqueue_many(shared, []) == []


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("key", ["k:{}", None], ids=["with keys", "without"])
def test_a_payload_that_is_wrong_far_back_takes_back_all_the_others(
    database: str, connection: Connection, autocommit: bool, key: str | None
) -> None:
    runs = [NewRun("mail", {"n": n}, key=key and key.format(n)) for n in range(4000)]
    runs[3210] = runs[3210]._replace(payload={"n": {3210}})
    with psycopg.connect(database, autocommit=autocommit) as own:
        before = enqueue(own, "mail", key="mine")
        with pytest.raises(EnqueueError, match="Run number 3211: The payload is not JSON"):
            enqueue_many(own, runs)
        after = enqueue(own, "mail", {"still": "usable"})
        own.commit()
    assert {one["id"] for one in factories.rows(connection, "job_runs")} == {before, after}


def test_a_payload_is_judged_even_where_its_key_has_a_run(shared: Connection) -> None:
    enqueue(shared, "mail", key="has:0")
    runs = [NewRun("mail", key=f"has:{n}") for n in range(1500)]
    known, repeated = NewRun("mail", {"n": {1}}, key="has:0"), NewRun("mail", {"n": {1}}, key="has:7")
    with pytest.raises(EnqueueError, match="Run number 1: The payload is not JSON"):
        enqueue_many(shared, [known, *runs[1:]])
    with pytest.raises(EnqueueError, match="Run number 1501: The payload is not JSON"):
        enqueue_many(shared, [*runs, repeated])
    assert len(factories.rows(shared, "job_runs", "idempotency_key LIKE 'has:%%'")) == 1


# What is refused


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"payload": [1]}, "not a JSON object"),
        ({"payload": "{"}, "not a JSON object"),
        ({"payload": {"n": float("nan")}}, "not JSON"),
        ({"payload": {"n": float("inf")}}, "not JSON"),
        ({"payload": {"n": object()}}, "not JSON"),
        ({"payload": {("a", "b"): 1}}, "not JSON"),
        ({"payload": {"text": "a\x00b"}}, "PostgreSQL cannot store"),
        ({"payload": {"a\x00b": 1}}, "PostgreSQL cannot store"),
        ({"payload": {"text": "\ud800"}}, "PostgreSQL cannot store"),
        ({"payload": {"text": "\udbff"}}, "PostgreSQL cannot store"),
        ({"payload": {"deep": [{"text": ("\udc80",)}]}}, "PostgreSQL cannot store"),
        ({"payload": {"list": nested(500)}}, "nested deeper than 500 levels"),
        ({"payload": {"list": nested(5_000)}}, "not JSON"),
        ({"payload": {"n": 10**5_000}}, "not JSON"),
        ({"payload": {"n": [5e-324] * 4_000}}, "written without exponents; allowed: 1,048,576"),
        ({"payload": {"text": "x" * 65_536}}, "The payload has 65,548 bytes; allowed: 65,536"),
        ({"job_type": ""}, "1 to 200 characters"),
        ({"job_type": "x" * 201}, "1 to 200 characters"),
        ({"job_type": "a\nb"}, "control characters"),
        ({"job_type": "a\x00b"}, "control characters"),
        ({"job_type": "\udc80"}, "control characters"),
        ({"job_type": "a\x85b"}, "control characters"),
        ({"job_type": "a\u2028b"}, "control characters"),
        ({"job_type": None}, "1 to 200 characters"),
        ({"key": ""}, "1 to 200 characters"),
        ({"key": "x" * 201}, "1 to 200 characters"),
        ({"key": "a\x00b"}, "control characters"),
        ({"key": 812}, "idempotency key is text"),
        ({"priority": 5}, "0 .first. to 4 .last."),
        ({"priority": -1}, "0 .first. to 4 .last."),
        ({"priority": None}, "0 .first. to 4 .last."),
        ({"priority": True}, "0 .first. to 4 .last."),
        ({"max_attempts": 0}, "max_attempts is 0; allowed: 1 to 2,147,483,647"),
        ({"max_attempts": 10**12}, "allowed: 1 to 2,147,483,647"),
        ({"run_at": "2026-01-14T00:00:00Z"}, "run_at is a str; give a datetime"),
        ({"delay": "5m"}, "delay is '5m'; give seconds .300. or a timedelta"),
        ({"delay": True}, "delay is True; give seconds .300. or a timedelta"),
        ({"max_attempts": 2**31}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"delay": -1}, "0 to ten years"),
        ({"delay": float("nan")}, "0 to ten years"),
        ({"delay": 1e300}, "0 to ten years"),
        ({"run_at": datetime(2026, 1, 14)}, "no time zone"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "allowed: the years 1 to 9999"),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, "allowed: the years 1 to 9999"),
        ({"run_at": datetime(2026, 1, 14, tzinfo=UTC), "delay": 1}, "not both"),
        ({"enqueued_by": "a\x00b"}, "enqueued_by"),
        ({"traceparent": 7}, "traceparent is 7; give the text of that header"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(shared: Connection, values: dict[str, Any], sentence: str) -> None:
    before = count(shared)
    with pytest.raises(EnqueueError, match=sentence):
        enqueue(shared, **({"job_type": "mail"} | values))
    with pytest.raises(EnqueueError, match=sentence):
        enqueue_many(shared, [{"job_type": "mail"} | values])
    assert count(shared) == before


@pytest.fixture
def payload_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the limit as a process that has not enqueued yet finds it."""

    def is_set_to(value: str) -> None:
        monkeypatch.setenv("WAKEBOARD_PAYLOAD_BYTES", value)
        payload_limit.cache_clear()

    yield is_set_to
    payload_limit.cache_clear()


def test_the_limit_of_a_payload_is_a_setting(
    shared: Connection, payload_bytes: Callable[[str], None]
) -> None:
    payload_bytes("20")
    enqueue(shared, "mail", {"n": 1})
    with pytest.raises(EnqueueError, match=r"allowed: 20\. Store the data elsewhere"):
        enqueue(shared, "mail", {"text": "x" * 20})


def test_the_limit_is_of_bytes_in_whatever_script(shared: Connection) -> None:
    run_id = enqueue(shared, "mail", {"text": "ж" * 32_000})
    assert factories.row(shared, run_id)["payload"] == {"text": "ж" * 32_000}
    with pytest.raises(EnqueueError, match="has 66,012 bytes; allowed: 65,536"):
        enqueue(shared, "mail", {"text": "ж" * 33_000})


@pytest.mark.parametrize("setting", ["1048576", "30000000"])
def test_the_largest_payload_of_all_is_refused_in_a_sentence_too(
    shared: Connection, payload_bytes: Callable[[str], None], setting: str
) -> None:
    payload_bytes(setting)
    with pytest.raises(EnqueueError, match="allowed: 1,048,576"):
        enqueue(shared, "mail", {"list": [0] * 500_000})


def test_a_payload_may_be_deep_and_hold_numbers_of_any_size(shared: Connection) -> None:
    payload = {"list": nested(499), "n": [10**4_299, 5e-324, 1e22, -(2**70)]}
    assert factories.row(shared, enqueue(shared, "mail", payload))["payload"] == payload


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(), values, max_size=4))
def test_a_payload_comes_back_as_it_was_or_is_refused_in_a_sentence(
    shared: Connection, payload: dict[str, Any]
) -> None:
    try:
        run = enqueue(shared, "mail", payload)
    except EnqueueError as refused:
        assert "cannot store" in str(refused)
        return
    assert factories.row(shared, run)["payload"] == payload
