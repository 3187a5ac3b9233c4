"""once() and transaction(): what a handler does happens once, and ends together with its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import text

from tests.conftest import Connection
from tests.support import factories
from tests.support.postgres.embedded import FAST, short_folder
from tests.support.processes import wait_until, wait_until_blocked, wakeboard
from wakeboard.core.outcome import Cancelled, Retryable
from wakeboard.core.states import Role
from wakeboard.database import db, embedded, migrations
from wakeboard.database.audit import Actor
from wakeboard.database.db import DatabaseError
from wakeboard.handlers.context import Context
from wakeboard.handlers.effects import LeaseLost, UnconfirmedEffect
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.registry import JobType
from wakeboard.handlers.transaction import TransactionEnded
from wakeboard.queue import handler_connection
from wakeboard.queue.effects import settle
from wakeboard.queue.enqueue import enqueue


@pytest.fixture(autouse=True)
def handler_process(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process plays a handler's: it finds the database where a child does."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    handler_connection.close_thread_connection()
    yield
    handler_connection.close_thread_connection()


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """A table of the operator's own, in the same database."""
    connection.execute("SET search_path = public")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL)")
    return connection


def attempt_of(connection: Connection, run_id: int) -> Context:
    """The context of a run's running attempt."""
    run = factories.row(connection, run_id)
    return Context(
        run_id=run_id,
        attempt=run["attempts"],
        lease_epoch=run["lease_epoch"],
        worker_id=run["locked_by"],
        job_type=run["job_type"],
        timeout_seconds=30,
    )


def running(connection: Connection, **columns: Any) -> Context:
    return attempt_of(connection, factories.a_run(connection, "running", **columns))


def next_attempt(connection: Connection, context: Context) -> Context:
    """The worker of ``context`` is gone: its lease is reaped, and another worker claims the run."""
    connection.execute(
        "UPDATE wakeboard.job_runs SET lease_epoch = lease_epoch + 2, attempts = attempts + 1,"
        " locked_by = 'w2' WHERE id = %s",
        (context.run_id,),
    )
    return attempt_of(connection, context.run_id)


def ledger(connection: Connection) -> list[dict[str, Any]]:
    query = "SELECT * FROM wakeboard.effects ORDER BY id"
    return connection.cursor(row_factory=dict_row).execute(query).fetchall()


class Mails:
    """What the outside world saw."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self) -> dict[str, Any]:
        self.sent += 1
        return {"mail": self.sent, "to": ("a", "b")}


@pytest.fixture
def mails() -> Mails:
    return Mails()


def dies_half_way() -> None:
    """What a killed process leaves: BaseException is not an answer of the provider."""
    raise Cancelled("stopped")


# -- once() ------------------------------------------------------------------------------------------


def test_an_effect_is_made_once_and_its_result_is_the_same_for_the_retry(
    connection: Connection, mails: Mails
) -> None:
    first = running(connection)
    result = first.once("mail", mails.send)
    again = next_attempt(connection, first).once("mail", mails.send)
    assert result == again == {"mail": 1, "to": ["a", "b"]}
    assert mails.sent == 1
    (row,) = ledger(connection)
    assert (row["scope"], row["key"], row["status"]) == (f"run:{first.run_id}", "mail", "done")
    assert row["finished_at"] is not None


def test_no_transaction_is_open_while_the_effect_is_made(connection: Connection) -> None:
    context = running(connection)
    query = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )
    assert context.once("look", lambda: connection.execute(query).fetchall()) == []


def test_an_effect_that_raised_counts_as_not_made_and_is_tried_again(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)

    def refused() -> None:
        raise ConnectionRefusedError("no mail server")

    with pytest.raises(ConnectionRefusedError):
        context.once("mail", refused)
    assert ledger(connection) == []
    assert next_attempt(connection, context).once("mail", mails.send)["mail"] == 1


def leaves(mails: Mails, status: object) -> Callable[[], None]:
    """A function that sends a mail and then leaves as a program does."""

    def send() -> None:
        mails.send()
        sys.exit(status)  # type: ignore[arg-type]

    return send


def test_an_effect_that_ends_as_a_command_that_went_well_is_done_and_so_is_the_run(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)
    for _ in range(2):
        answer = invoke(JobType("t", lambda ctx: ctx.once("mail", leaves(mails, 0)) or 7), context)
    assert (answer.kind, answer.result) == ("returned", "7")
    assert [(row["status"], row["result"]) for row in ledger(connection)] == [("done", None)]
    assert invoke(JobType("t", lambda ctx: ctx.once("m", leaves(mails, 0))), Context()).kind == "returned"


def test_an_effect_that_ends_with_another_status_is_unconfirmed(connection: Connection, mails: Mails) -> None:
    context = running(connection)
    answer = invoke(JobType("t", lambda ctx: ctx.once("mail", leaves(mails, 3))), context)
    assert (answer.kind, answer.error_code) == ("raised", "exit_3")
    assert [row["status"] for row in ledger(connection)] == ["started"]


def test_an_effect_that_ran_out_of_memory_is_unconfirmed_and_not_made_again(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)

    def sends_and_then_wants_too_much() -> None:
        mails.send()
        raise MemoryError

    with pytest.raises(MemoryError):
        context.once("mail", sends_and_then_wants_too_much)
    assert [row["status"] for row in ledger(connection)] == ["started"]
    assert next_attempt(connection, context).once("mail", mails.send) is None
    assert mails.sent == 1
    without_a_worker = Context()
    with pytest.raises(MemoryError):
        without_a_worker.once("mail", sends_and_then_wants_too_much)
    assert without_a_worker.once("mail", mails.send) is None
    assert mails.sent == 2


def test_an_unconfirmed_effect_is_skipped_and_left_for_an_operator(
    connection: Connection, mails: Mails, capfd: pytest.CaptureFixture[str]
) -> None:
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("mail", dies_half_way)
    (before,) = ledger(connection)
    assert next_attempt(connection, context).once("mail", mails.send) is None
    assert mails.sent == 0
    assert ledger(connection) == [before]
    assert before["status"] == "started"


def test_an_unconfirmed_effect_is_made_again_where_the_author_allows_it(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("mail", dies_half_way)
    later = next_attempt(connection, context)
    assert later.once("mail", mails.send, if_unconfirmed="redo")["mail"] == 1
    (row,) = ledger(connection)
    assert (row["status"], row["attempt"], row["lease_epoch"]) == ("done", 2, later.lease_epoch)


def test_the_provider_is_asked_about_an_unconfirmed_effect_and_its_answer_is_kept(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("charge", dies_half_way)
    asked: list[UnconfirmedEffect] = []

    def look(found: UnconfirmedEffect) -> dict[str, str]:
        asked.append(found)
        return {"charge": "ch_1"}

    later = next_attempt(connection, context)
    assert later.once("charge", mails.send, if_unconfirmed=look) == {"charge": "ch_1"}
    assert later.once("charge", mails.send) == {"charge": "ch_1"}
    assert mails.sent == 0
    assert (asked[0].key, asked[0].run_id, asked[0].attempt) == ("charge", context.run_id, 1)


def test_an_effect_that_the_provider_does_not_know_is_made(connection: Connection, mails: Mails) -> None:
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("charge", dies_half_way)
    later = next_attempt(connection, context)
    assert later.once("charge", mails.send, if_unconfirmed=lambda found: None)["mail"] == 1


def test_an_effect_stays_unconfirmed_when_the_provider_cannot_be_asked(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("charge", dies_half_way)

    def unreachable(found: UnconfirmedEffect) -> None:
        raise ConnectionError("provider is away")

    second = next_attempt(connection, context)
    with pytest.raises(ConnectionError):
        second.once("charge", mails.send, if_unconfirmed=unreachable)
    (row,) = ledger(connection)
    assert row["status"] == "started"
    assert next_attempt(connection, second).once("charge", mails.send) is None
    assert mails.sent == 0


def test_a_global_effect_is_made_once_by_all_runs_that_name_it(connection: Connection, mails: Mails) -> None:
    for _ in range(3):
        assert running(connection).once("welcome:7", mails.send, scope="global")["mail"] == 1
    assert mails.sent == 1


def test_an_effect_of_a_run_is_none_of_another_run(connection: Connection, mails: Mails) -> None:
    running(connection).once("mail", mails.send)
    running(connection).once("mail", mails.send)
    assert mails.sent == 2


def test_a_global_effect_that_another_live_run_is_making_is_waited_for_by_a_retry(
    connection: Connection, mails: Mails
) -> None:
    first, second = running(connection), running(connection)

    def meanwhile() -> str:
        with pytest.raises(Retryable, match="is being made by run") as refused:
            second.once("welcome:7", mails.send, scope="global")
        assert refused.value.error_code == "effect_in_progress"
        return "made"

    assert first.once("welcome:7", meanwhile, scope="global") == "made"
    assert second.once("welcome:7", mails.send, scope="global") == "made"
    assert mails.sent == 0


def test_a_global_effect_inside_of_another_runs_open_transaction_is_waited_for_by_a_retry(
    connection: Connection, database: str, other: Connection, mails: Mails
) -> None:
    context = running(connection)
    with handler_connection.own_connection() as mine:
        mine.execute("SET lock_timeout = '200ms'")
    with other.transaction():
        other.execute(
            "INSERT INTO wakeboard.effects (scope, key, run_id, attempt, lease_epoch, status) "
            "VALUES ('global', 'charge:1', %s, 1, 1, 'started')",
            (running(connection).run_id,),
        )
        with pytest.raises(Retryable, match="in another run's transaction") as refused:
            context.once("charge:1", mails.send, scope="global")
    assert (refused.value.error_code, mails.sent) == ("effect_in_progress", 0)


def test_an_attempt_that_lost_its_lease_starts_no_effect(connection: Connection, mails: Mails) -> None:
    stale = running(connection)
    next_attempt(connection, stale)
    with pytest.raises(LeaseLost) as lost:
        stale.once("mail", mails.send)
    assert lost.value.error_code == "lease_lost"
    assert (mails.sent, ledger(connection)) == (0, [])


def test_an_attempt_of_a_worker_that_is_not_the_owner_starts_no_effect(
    connection: Connection, mails: Mails
) -> None:
    context = running(connection)
    context.worker_id = "w9"
    with pytest.raises(LeaseLost):
        context.once("mail", mails.send)
    assert mails.sent == 0


def test_an_attempt_that_lost_its_lease_does_not_redo_an_unconfirmed_effect(
    connection: Connection, mails: Mails
) -> None:
    first = running(connection)
    with pytest.raises(Cancelled):
        first.once("mail", dies_half_way)
    second = next_attempt(connection, first)
    next_attempt(connection, second)
    with pytest.raises(LeaseLost):
        second.once("mail", mails.send, if_unconfirmed="redo")
    assert mails.sent == 0


def test_an_effect_that_happened_is_recorded_even_when_the_lease_was_lost_meanwhile(
    connection: Connection, mails: Mails
) -> None:
    first = running(connection)

    def slow() -> int:
        next_attempt(connection, first)
        return int(mails.send()["mail"])

    assert first.once("mail", slow) == 1
    assert attempt_of(connection, first.run_id).once("mail", mails.send) == 1
    assert mails.sent == 1


def test_a_failed_effect_of_a_stale_attempt_stays_for_its_successor_to_judge(connection: Connection) -> None:
    first = running(connection)

    def slow() -> None:
        next_attempt(connection, first)
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError):
        first.once("mail", slow)
    (row,) = ledger(connection)
    assert row["status"] == "started"


def test_a_stale_attempt_whose_effect_is_being_redone_is_told_that_both_may_have_happened(
    connection: Connection,
) -> None:
    first = running(connection)

    def slow() -> int:
        second = next_attempt(connection, first)
        with pytest.raises(Cancelled):
            second.once("mail", dies_half_way, if_unconfirmed="redo")
        return 1

    with pytest.raises(LeaseLost, match="lost its lease meanwhile"):
        first.once("mail", slow)


def test_what_an_operator_settled_meanwhile_as_done_stays_done(connection: Connection) -> None:
    context = running(connection)

    def settled_meanwhile() -> int:
        connection.execute(
            "UPDATE wakeboard.effects SET status = 'done', settled_by = 'ops', finished_at = now()"
        )
        return 1

    assert context.once("mail", settled_meanwhile) == 1


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 9000, "nul \x00", "half \ud800", {1: {2j}}])
def test_a_result_that_cannot_be_kept_is_named_and_the_effect_is_done_all_the_same(
    connection: Connection, mails: Mails, value: Any
) -> None:
    context = running(connection)
    with pytest.raises(TypeError, match="happened and is kept as done"):
        context.once("mail", lambda: value)
    assert context.once("mail", mails.send) is None
    assert mails.sent == 0


def test_an_async_function_is_refused_before_anything_is_recorded(connection: Connection) -> None:
    async def send() -> int:
        return 1

    with pytest.raises(TypeError, match="async"):
        running(connection).once("mail", send)
    assert ledger(connection) == []


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("", {}),
        ("x" * 201, {}),
        ("a\nb", {}),
        (7, {}),
        ("k", {"scope": "team"}),
        ("k", {"if_unconfirmed": "ask"}),
    ],
)
def test_a_wrong_use_of_once_is_said_in_a_sentence(connection: Connection, key: Any, more: Any) -> None:
    with pytest.raises(ValueError, match=r"once\(\)|if_unconfirmed"):
        running(connection).once(key, list, **more)


def test_a_database_that_restarts_during_an_effect_still_learns_that_it_is_done(
    connection: Connection, superuser: Connection, mails: Mails
) -> None:
    context = running(connection)

    def cut() -> int:
        superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (f"wakeboard handler {os.getpid()}",),
        )
        return int(mails.send()["mail"])

    assert context.once("mail", cut) == 1
    assert [row["status"] for row in ledger(connection)] == ["done"]


CHILD = """
import os, sys
from wakeboard.handlers.context import Context
context = Context(run_id=int(sys.argv[1]), lease_epoch=1, worker_id="w1", timeout_seconds=60)
def send():
    with open(sys.argv[2], "a") as mailbox:
        mailbox.write("sent\\n")
    print("sent", flush=True)
    sys.stdin.read()
context.once("mail", send)
"""


def test_a_mail_sent_by_a_process_killed_before_it_could_say_so_is_not_sent_again(
    connection: Connection, database: str, tmp_path: Path, mails: Mails
) -> None:
    context = running(connection)
    mailbox = tmp_path / "mailbox"
    command = [sys.executable, "-c", CHILD, str(context.run_id), str(mailbox)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "sent\n"
        child.send_signal(signal.SIGKILL)
    later = next_attempt(connection, context)
    assert later.once("mail", mails.send) is None
    assert later.once("mail", mails.send, if_unconfirmed=lambda found: mailbox.read_text()) == "sent\n"
    assert mails.sent == 0


def test_outside_of_a_worker_the_same_handler_remembers_in_memory(
    monkeypatch: pytest.MonkeyPatch, mails: Mails
) -> None:
    monkeypatch.delenv("WAKEBOARD_DATABASE_URL")
    inline, other = Context(), Context()
    assert inline.once("mail", mails.send) == inline.once("mail", mails.send)
    other.once("mail", mails.send)
    assert mails.sent == 2


# -- an operator decides -----------------------------------------------------------------------------

OPERATOR = Actor("olga", Role.OPERATOR, "web")


def unconfirmed(connection: Connection) -> tuple[int, Context]:
    """An effect whose attempt died half-way, and the run's next attempt."""
    context = running(connection)
    with pytest.raises(Cancelled):
        context.once("mail", dies_half_way)
    return ledger(connection)[-1]["id"], next_attempt(connection, context)


def test_an_operator_who_saw_that_it_happened_ends_the_question(connection: Connection, mails: Mails) -> None:
    effect, later = unconfirmed(connection)
    answer = settle(connection, effect, OPERATOR, happened=True, reason="it is in the sent folder")
    assert (answer.result, answer.status) == ("done", "done")
    assert later.once("mail", mails.send, if_unconfirmed="redo") is None
    assert mails.sent == 0
    assert settle(connection, effect, OPERATOR, happened=True).result == "already"
    assert "settled by olga" in settle(connection, effect, OPERATOR, happened=False).message


def test_an_operator_who_saw_that_it_did_not_happen_lets_the_next_attempt_make_it(
    connection: Connection, mails: Mails
) -> None:
    effect, later = unconfirmed(connection)
    assert settle(connection, effect, OPERATOR, happened=False).result == "done"
    assert later.once("mail", mails.send)["mail"] == 1
    assert settle(connection, effect, OPERATOR, happened=True).result == "missing"
    rows = connection.execute("SELECT actor, result FROM wakeboard.audit_log ORDER BY id").fetchall()
    assert rows == [("olga", "done"), ("olga", "missing")]


def test_an_effect_that_is_being_made_cannot_be_settled(connection: Connection) -> None:
    def meanwhile() -> str:
        return settle(connection, ledger(connection)[0]["id"], OPERATOR, happened=False).result

    assert running(connection).once("mail", meanwhile) == "forbidden"


def test_who_may_only_look_settles_nothing(connection: Connection) -> None:
    effect, _ = unconfirmed(connection)
    viewer = Actor("victor", Role.VIEWER, "web")
    assert settle(connection, effect, viewer, happened=True).result == "denied"
    assert ledger(connection)[0]["status"] == "started"


# -- transaction() -----------------------------------------------------------------------------------


def test_the_handlers_writes_and_the_end_of_its_run_are_one_commit(orders: Connection) -> None:
    context = running(orders)
    with context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        assert factories.status(orders, context.run_id) == "running"
        assert orders.execute("SELECT * FROM orders").fetchall() == []
    assert context.committed
    assert factories.status(orders, context.run_id) == "succeeded"
    assert orders.execute("SELECT status FROM orders").fetchall() == [("PAID",)]
    (attempt,) = factories.attempts(orders, context.run_id)
    assert (attempt["outcome"], attempt["timeout_seconds"]) == ("succeeded", 30)


def test_an_exception_takes_back_the_writes_and_leaves_the_run_running(orders: Connection) -> None:
    context = running(orders)
    with pytest.raises(ZeroDivisionError), context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        raise ZeroDivisionError
    assert not context.committed
    assert factories.status(orders, context.run_id) == "running"
    assert orders.execute("SELECT * FROM orders").fetchall() == []
    with context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert factories.status(orders, context.run_id) == "succeeded"


@pytest.mark.parametrize(("status", "kept"), [(0, True), (None, True), (3, False), ("words", False)])
def test_leaving_the_block_with_status_0_commits_as_a_return_does(
    orders: Connection, status: object, kept: bool
) -> None:
    context = running(orders)

    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
            sys.exit(status)  # type: ignore[arg-type]

    answer = invoke(JobType("t", handler), context)
    assert answer.kind == ("returned" if kept else "raised")
    assert context.committed is kept
    assert len(orders.execute("SELECT FROM orders").fetchall()) == int(kept)
    assert factories.row(orders, context.run_id)["status"] == ("succeeded" if kept else "running")


def test_a_failed_statement_takes_back_the_block(orders: Connection) -> None:
    context = running(orders)
    with pytest.raises(Exception, match="duplicate key"), context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert (factories.status(orders, context.run_id), context.committed) == ("running", False)


def test_an_attempt_that_lost_its_lease_writes_nothing_at_all(orders: Connection) -> None:
    stale = running(orders)
    with pytest.raises(LeaseLost), stale.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        next_attempt(orders, stale)
    assert not stale.committed
    assert orders.execute("SELECT * FROM orders").fetchall() == []
    assert factories.status(orders, stale.run_id) == "running"
    assert factories.attempts(orders, stale.run_id)[1:] == []


HELD = "SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE"
RENEWED = "UPDATE wakeboard.job_runs SET locked_until = now() + interval '1 minute' WHERE id = %s"
TAKEN_OVER = "UPDATE wakeboard.job_runs SET lease_epoch = 2, attempts = 2, locked_by = 'w2' WHERE id = %s"


@pytest.mark.parametrize(
    ("meanwhile", "said"), [(HELD, "committed"), (RENEWED, "committed"), (TAKEN_OVER, "lost")]
)
def test_the_end_waits_for_whoever_holds_the_runs_row_and_looks_whose_it_is_then(
    orders: Connection, other: Connection, meanwhile: str, said: str
) -> None:
    context = running(orders)
    with other.transaction():
        other.execute(meanwhile.encode(), (context.run_id,))
        with subprocess.Popen(
            [sys.executable, "-c", COMMITS, str(context.run_id)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            wait_until_blocked(orders, int(child.stdout.readline()))
            assert child.poll() is None
            other.execute("COMMIT")
            assert child.wait(10) == 0
            assert child.stdout.read() == f"{said}\n"
    has_ended = said == "committed"
    assert factories.status(orders, context.run_id) == ("succeeded" if has_ended else "running")
    assert len(orders.execute("SELECT FROM orders").fetchall()) == int(has_ended)


COMMITS = """
import sys
from wakeboard.handlers.context import Context
from wakeboard.handlers.effects import LeaseLost
context = Context(run_id=int(sys.argv[1]), lease_epoch=1, worker_id="w1", timeout_seconds=60)
try:
    with context.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO public.orders VALUES (1, 'PAID')")
        print(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one(), flush=True)
    print("committed")
except LeaseLost:
    print("lost")
"""


def test_the_end_of_a_block_is_planned_for_any_run_and_not_again_for_each(orders: Connection) -> None:
    for number in range(7):
        with running(orders).transaction() as connection:
            connection.execute(text(f"INSERT INTO orders VALUES ({number}, 'PAID')"))
    with handler_connection.own_connection() as mine:
        plans = mine.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements"
            " WHERE statement LIKE '%wakeboard.job_attempts%'"
        ).fetchall()
    assert plans == [(5, 2)]


@pytest.mark.parametrize("max_attempts", [None, 3])
def test_the_attempt_says_how_many_the_run_might_have_had(
    orders: Connection, max_attempts: int | None
) -> None:
    factories.a_type(orders, "pay", max_attempts=7)
    context = running(orders, job_type="pay", max_attempts=max_attempts)
    with context.transaction():
        pass
    (attempt,) = factories.attempts(orders, context.run_id)
    assert attempt["max_attempts"] == (max_attempts or 7)


def leave_every_transaction(connection: Any) -> None:
    """Commit past SQLAlchemy, and let each statement be a transaction of its own from then on."""
    driver = connection.connection.driver_connection
    driver.commit()
    driver.autocommit = True


def test_code_after_the_block_cannot_change_the_outcome(orders: Connection) -> None:
    context = running(orders)
    with context.transaction():
        pass
    factories.fail(orders, (context.run_id, context.lease_epoch), worker_id=context.worker_id)
    assert factories.status(orders, context.run_id) == "succeeded"
    assert len(factories.attempts(orders, context.run_id)) == 1
    with pytest.raises(RuntimeError, match="already"), context.transaction():
        pass


def test_a_cancel_asked_for_meanwhile_does_not_undo_what_was_committed(orders: Connection) -> None:
    context = running(orders, cancel_requested_at="-1 second")
    with context.transaction():
        pass
    assert factories.status(orders, context.run_id) == "succeeded"


@pytest.mark.parametrize(
    "ending",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.rollback(),
        lambda connection: connection.execute(text("COMMIT")),
        lambda connection: connection.exec_driver_sql("  rollback"),
        lambda connection: connection.exec_driver_sql("SELECT 1; COMMIT"),
        lambda connection: connection.connection.driver_connection.commit(),
        lambda connection: connection.connection.driver_connection.rollback(),
        lambda connection: connection.get_transaction().close(),
        leave_every_transaction,
    ],
)
@pytest.mark.parametrize("swallowed", [False, True])
def test_nothing_but_the_end_of_the_block_may_commit(
    orders: Connection, ending: Any, swallowed: bool
) -> None:
    context = running(orders)
    with pytest.raises(TransactionEnded, match="commits by itself"), context.transaction() as connection:
        connection.execute(text("SELECT 1"))
        try:
            ending(connection)
        except TransactionEnded:
            if not swallowed:
                raise
    assert not context.committed
    assert factories.status(orders, context.run_id) == "running"
    with context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert factories.status(orders, context.run_id) == "succeeded"


def test_a_savepoint_may_fail_inside_the_block(orders: Connection) -> None:
    context = running(orders)
    with context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
        with pytest.raises(Exception, match="duplicate"), connection.begin_nested():
            connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert orders.execute("SELECT * FROM orders").fetchall() == [(1, "PAID")]
    assert factories.status(orders, context.run_id) == "succeeded"


def test_an_error_that_was_swallowed_does_not_pass_for_success(orders: Connection) -> None:
    context = running(orders)
    with (
        pytest.raises(TransactionEnded, match="swallowed"),
        context.transaction() as connection,
        pytest.raises(Exception, match="no_such_table"),
    ):
        connection.execute(text("SELECT * FROM no_such_table"))
    assert factories.status(orders, context.run_id) == "running"


def test_the_block_reads_what_others_committed_meanwhile(orders: Connection) -> None:
    context = running(orders)
    with context.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
        orders.execute("INSERT INTO orders VALUES (1, 'NEW')")
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 1
        assert connection.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"


def test_runs_enqueued_and_effects_made_inside_the_block_go_with_it(orders: Connection, mails: Mails) -> None:
    context = running(orders)
    with pytest.raises(ZeroDivisionError), context.transaction():
        enqueue(None, "mail", {"order": 1})
        context.once("mark", mails.send)
        raise ZeroDivisionError
    assert ledger(orders) == []
    assert orders.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() == (1,)
    with context.transaction() as connection:
        run_id = enqueue(None, "mail", {"order": 1})
        assert enqueue(connection, "mail", key="k") == enqueue(None, "mail", key="k")
        context.once("mark", mails.send)
        assert orders.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s", (run_id,)).fetchone() is None
    assert factories.status(orders, run_id) == "queued"
    assert [row["status"] for row in ledger(orders)] == ["done"]


def test_an_effect_that_fails_inside_the_block_may_be_handled_there(orders: Connection) -> None:
    context = running(orders)
    with context.transaction(), pytest.raises(ZeroDivisionError):
        context.once("mark", lambda: 1 / 0)
    assert (ledger(orders), factories.status(orders, context.run_id)) == ([], "succeeded")


def test_blocks_do_not_nest(orders: Connection) -> None:
    context = running(orders)
    with context.transaction(), pytest.raises(RuntimeError, match="already"), context.transaction():
        pass
    assert factories.status(orders, context.run_id) == "succeeded"


def test_a_stop_in_the_middle_of_a_statement_rolls_back_and_the_next_run_has_a_working_connection(
    orders: Connection,
) -> None:
    def stop(_number: int, _frame: Any) -> None:
        raise Cancelled("stopped")

    context = running(orders)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = monotonic()
        with pytest.raises(Cancelled), context.transaction() as connection:
            connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
            connection.execute(text("SELECT pg_sleep(3)"))
        assert monotonic() - began < 2.5
    finally:
        signal.signal(signal.SIGALRM, before)
    assert orders.execute("SELECT * FROM orders").fetchall() == []
    with context.transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert factories.status(orders, context.run_id) == "succeeded"


def test_outside_of_a_worker_the_block_is_an_ordinary_transaction(orders: Connection) -> None:
    with Context().transaction() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'PAID')"))
    assert orders.execute("SELECT * FROM orders").fetchall() == [(1, "PAID")]


# -- the connection ----------------------------------------------------------------------------------


def handlers_sessions(connection: Connection) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    (count,) = connection.execute(query, (f"wakeboard handler {os.getpid()}",)).fetchone() or (0,)
    return int(count)


def test_a_handlers_process_opens_one_connection_and_only_when_it_needs_one(
    connection: Connection, mails: Mails
) -> None:
    assert handlers_sessions(connection) == 0
    context = running(connection)
    context.once("mail", mails.send)
    enqueue(None, "mail")
    with context.transaction():
        enqueue(None, "mail")
        assert handlers_sessions(connection) == 1


def test_a_fork_does_not_use_its_parents_connection(connection: Connection) -> None:
    enqueue(None, "mail")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            enqueue(None, "mail")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    enqueue(None, "mail")
    assert connection.execute("SELECT count(*) FROM wakeboard.job_runs").fetchone() == (3,)


def test_a_connection_that_the_server_closed_is_replaced(
    connection: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(None, "mail")
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
        (f"wakeboard handler {os.getpid()}",),
    )
    wait_until(lambda: handlers_sessions(connection) == 0)
    monkeypatch.setattr(handler_connection, "_TRUSTED_SECONDS", 0.0)
    enqueue(None, "mail")


def test_without_a_database_url_the_error_says_what_to_start_or_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WAKEBOARD_DATABASE_URL")
    monkeypatch.setenv("WAKEBOARD_DATA_DIR", str(tmp_path))
    with pytest.raises(DatabaseError) as refused:
        enqueue(None, "mail")
    assert "WAKEBOARD_DATABASE_URL is not set" in str(refused.value)
    assert f"no embedded database runs in {tmp_path}. Start it with 'wakeboard up'" in str(refused.value)
    assert 'export WAKEBOARD_DATABASE_URL="$(wakeboard db url)"' in str(refused.value)
    assert list(tmp_path.iterdir()) == [], "nothing is started"


def test_without_a_database_url_the_embedded_database_is_found_where_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WAKEBOARD_DATABASE_URL")
    with short_folder() as folder:
        monkeypatch.setenv("WAKEBOARD_DATA_DIR", str(folder))
        server = embedded.start(folder, settings=FAST)
        migrations.migrate(server.url)
        run_id = enqueue(None, "mail")
        handler_connection.close_thread_connection()
        with db.connect(server.url, name="wakeboard test") as there:
            assert there.execute("SELECT id, job_type FROM wakeboard.job_runs").fetchall() == [
                (run_id, "mail")
            ]


def test_a_handlers_connection_has_its_roles_own_search_path(connection: Connection) -> None:
    role = connection.execute("SELECT current_user").fetchone()
    assert role is not None
    connection.execute(
        psycopg.sql.SQL("ALTER ROLE {} SET search_path = shop, public").format(
            psycopg.sql.Identifier(role[0])
        )
    )
    try:
        with handler_connection.own_connection() as mine:
            assert mine.execute("SHOW search_path").fetchone() == ("shop, public",)
    finally:
        connection.execute(
            psycopg.sql.SQL("ALTER ROLE {} RESET search_path").format(psycopg.sql.Identifier(role[0]))
        )


# -- in a real worker --------------------------------------------------------------------------------

HANDLERS = """
import os, signal
from wakeboard import job

@job("pay", max_attempts=1)
def pay(ctx):
    print("paying")
    with ctx.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (%s, 'PAID')", (ctx.payload["order"],))
    if ctx.payload["then"] == "raise":
        raise RuntimeError("too late to matter")
    os.kill(os.getpid(), signal.SIGKILL)

@job("mail", max_attempts=3, backoff="fixed 1s")
def mail(ctx):
    def send():
        with open(ctx.payload["mailbox"], "a") as mailbox:
            mailbox.write("sent\\n")
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return ctx.once("mail", send)
"""


def test_a_real_worker_lets_what_was_committed_stand_and_a_killed_mail_unsent_twice(
    orders: Connection, database: str, tmp_path: Path
) -> None:
    (tmp_path / "shop_handlers.py").write_text(HANDLERS)
    mailbox = tmp_path / "mailbox"
    pays = [enqueue(orders, "pay", {"order": n, "then": then}) for n, then in ((1, "raise"), (2, "die"))]
    mail = enqueue(orders, "mail", {"mailbox": str(mailbox)})
    with wakeboard("worker", "--app", "shop_handlers", database=database, folder=tmp_path):
        wait_until(
            lambda: all(factories.status(orders, run_id) == "succeeded" for run_id in (*pays, mail)), 30
        )
    assert orders.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,)]
    for run_id in pays:
        (attempt,) = factories.attempts(orders, run_id)
        assert (attempt["outcome"], attempt["output_tail"]) == ("succeeded", "paying\n")
    assert mailbox.read_text() == "sent\n"
    assert [one["outcome"] for one in factories.attempts(orders, mail)] == ["failed", "succeeded"]
    assert [row["status"] for row in ledger(orders)] == ["started"]
