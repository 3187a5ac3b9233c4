"""One move on many runs: only what was confirmed is moved, each once, and what is left has a reason."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, a_type, an_attempt, claim, fail, insert, row, rows, status
from tests.support.processes import wait_until_blocked
from tests.support.workers.bulk_operations import (
    ANNA,
    asked,
    begin,
    database_now,
    finish,
    look_at,
    make_due,
    operation,
    step,
)
from wakeboard.bulk import advance, control, matching, rules
from wakeboard.bulk.matching import Preview
from wakeboard.bulk.start import ConfirmedOperation, check_confirmation, start
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel, retry_now
from wakeboard.runtime.duties.operations import Operations


@pytest.mark.parametrize(
    ("counted", "typed", "said"),
    [
        (101, None, "101 runs: type 101 to confirm."),
        (101, "100", "101 runs, not 100: type 101 to confirm."),
        (18, "3", "18 runs, not 3: type 18 to confirm."),
        (1, "2", "1 run, not 2: type 1 to confirm."),
        (18, "abc", "18 runs, “abc” is no number: type 18 to confirm."),
        (18, "", "18 runs: type 18 to confirm."),
        (100, None, None),
        (18, "18", None),
        (1214, "1 214", None),
        (1214, "1,214", None),
    ],
)
def test_a_number_that_is_typed_has_to_be_that_of_the_runs(
    counted: int, typed: str | None, said: str | None
) -> None:
    assert check_confirmation(counted, typed) == (said and f"{said} Nothing was changed.")


def many(connection: Connection, count: int, job_type: str = "mail") -> list[int]:
    """Insert ``count`` dead runs in one statement; return their ids."""
    found = connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, lease_epoch, started_at,
            finished_at, failed_at, error_code)
        SELECT %s, 'dead', 1, 1, 1, now(), now(), now(), 'smtp_down' FROM generate_series(1, %s)
        RETURNING id""",
        (job_type, count),
    ).fetchall()
    return [each[0] for each in found]


def ended(connection: Connection, run_id: int, outcome: str) -> None:
    """Write the attempt that a worker makes of a retried run."""
    was = row(connection, run_id)
    connection.execute(
        "UPDATE wakeboard.job_runs SET lease_epoch = lease_epoch + 1, attempts = attempts + 1 WHERE id = %s",
        (run_id,),
    )
    an_attempt(
        connection, run_id, attempt=was["attempts"] + 1, lease_epoch=was["lease_epoch"] + 1, outcome=outcome,
        **({} if outcome == "succeeded" else {"error_code": "smtp_down", "error": "no"}),
    )  # fmt: skip


# What would happen


def reasons(found: Preview) -> dict[tuple[str, str | None], int]:
    return {(each.why, each.status): each.runs for each in found.skipped}


def test_a_preview_says_what_is_moved_and_what_is_left_and_why(connection: Connection) -> None:
    a_type(connection, "mail")
    a_type(connection, "paused", paused_by="anna")
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now() WHERE name = 'paused'")
    dead, delayed = a_run(connection, "dead"), a_run(connection, "failed")
    a_run(connection)
    a_run(connection, "succeeded")
    a_run(connection, "running")
    a_run(connection, "dead", job_type="paused")
    unsure = a_run(connection, "dead")
    effect = {"key": "x", "attempt": 1, "lease_epoch": 1, "status": "started", "run_id": unsure}
    insert(connection, "effects", effect | {"scope": f"run:{unsure}"})
    found = look_at(connection, "retry", since="1d")
    assert (found.moves, found.states) == (2, {"dead": 1, "failed": 1})
    assert sorted(found.examples) == [dead, delayed]
    assert reasons(found) == {
        ("due", None): 1, ("paused", None): 1, ("unconfirmed", None): 1,
        ("state", "running"): 1, ("state", "succeeded"): 1,
    }  # fmt: skip
    assert look_at(connection, "retry", also=("paused", "unconfirmed"), since="1d").moves == 4


def test_a_preview_of_a_cancel_counts_what_was_asked_already(connection: Connection) -> None:
    a_run(connection)
    a_run(connection, "running")
    a_run(connection, "running", cancel_requested_at="-1 second")
    a_run(connection, "dead")
    a_run(connection, "succeeded")
    found = look_at(connection, "cancel", type="mail")
    assert found.states == {"queued": 1, "running": 1, "dead": 1}
    assert reasons(found) == {("asked", None): 1, ("state", "succeeded"): 1}


def test_an_error_alone_means_runs_that_fail_now(connection: Connection) -> None:
    a_run(connection, "dead")
    a_run(connection, "succeeded", error_code="smtp_down")
    found = look_at(connection, "again", error="smtp_down")
    assert (found.moves, found.skipped) == (1, [])


def test_no_more_is_taken_than_an_operation_may_have(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST_RUNS", 3)
    ids = many(connection, 5)
    found = look_at(connection, "retry", status="dead")
    assert (found.moves, found.matched.is_all, found.matched.ids) == (3, False, ids[:1:-1])


def test_what_no_index_serves_is_looked_for_in_windows(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakeboard.reporting.filters.search.WINDOW", 4)
    ids = many(connection, 30)
    found = look_at(connection, "retry", status="dead", since="1h")
    assert found.matched.ids == ids[:9:-1]
    assert (found.matched.is_all, found.matched.is_cut_short) == (False, True)
    some = look_at(connection, "retry", status="dead", q=str(ids[-1]))
    assert some.matched.ids == [ids[-1]]


# Starting


def test_runs_that_match_only_later_are_not_touched(connection: Connection) -> None:
    before = [a_run(connection, "dead") for _ in range(3)]
    as_of = database_now(connection)
    later = a_run(connection, "dead")
    found = finish(connection, begin(connection, "retry", as_of=as_of))
    assert (found["status"], found["total"], found["done"]) == ("finished", 3, 3)
    assert [status(connection, each) for each in (*before, later)] == ["queued"] * 3 + ["dead"]


def test_a_run_that_its_handler_ended_since_they_were_counted_has_changed(
    connection: Connection, other: Connection
) -> None:
    a_type(connection)
    run_id = a_run(connection)
    (claimed,) = claim(connection)
    with other.transaction():
        # A handler's transaction() begins with its work, and says at its end how that came out.
        other.execute("SELECT 1")
        moment = database_now(connection)
        fail(other, (claimed.id, claimed.lease_epoch), permanent=True)
    assert row(connection, run_id)["status"] == "dead"
    assert row(connection, run_id)["updated_at"] > moment


def test_runs_that_changed_since_they_were_counted_are_skipped_and_counted(connection: Connection) -> None:
    early, late, calm = (a_run(connection, "dead") for _ in range(3))
    as_of = database_now(connection)
    seen = matching.preview(connection, "retry", asked(status="dead"), as_of)
    retry_now(connection, early, ANNA)
    answer = start(connection, ConfirmedOperation("retry", "status=dead", as_of, 3), seen.matched.ids, ANNA)
    number = int(answer.id)
    retry_now(connection, late, ANNA)
    cancel(connection, late, ANNA)
    found = finish(connection, number)
    assert (found["total"], found["done"], found["skips"]) == (3, 1, {"changed": 2})
    assert [status(connection, each) for each in (early, late, calm)] == ["queued", "cancelled", "queued"]


def test_a_run_removed_meanwhile_is_said_to_be(connection: Connection) -> None:
    gone, _ = a_run(connection, "dead"), a_run(connection, "dead")
    number = begin(connection, "retry")
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (gone,))
    assert finish(connection, number)["skips"] == {"missing": 1}


def test_the_start_is_one_audit_row_and_each_moved_run_names_the_operation(connection: Connection) -> None:
    runs = [a_run(connection, "dead") for _ in range(2)]
    number = begin(connection, "retry", canary=False, per_minute=600)
    finish(connection, number)
    (begun,) = rows(connection, "audit_log", "action = 'operation.start'")
    assert (begun["target_type"], begun["target_id"], begun["actor"]) == ("operation", str(number), "anna")
    assert begun["reason"] == "CRM is back"
    assert begun["after"] == begun["after"] | {"filter": "status=dead", "runs": 2, "per_minute": 600}
    moved = rows(connection, "audit_log", "action = 'run.retry'")
    assert [each["target_id"] for each in moved] == [str(run) for run in runs]
    assert {(each["reason"], each["actor"]) for each in moved} == {
        (f"operation {number}: CRM is back", "anna")
    }


def test_a_confirmation_that_is_sent_twice_begins_one_operation(
    connection: Connection, other: Connection
) -> None:
    runs = many(connection, 3)
    wanted = ConfirmedOperation("again", "status=dead", database_now(connection), 3)
    with ThreadPoolExecutor() as pool, connection.transaction():
        first = start(connection, wanted, runs, ANNA)
        second = pool.submit(start, other, wanted, runs, ANNA)
        wait_until_blocked(connection, other.info.backend_pid)
    again = second.result(10)
    assert (first.result, again.result, again.id) == ("done", "already", first.id)
    assert "Look again to begin another" in again.message
    assert len(rows(connection, "operations")) == 1


def test_nothing_left_to_do_makes_no_operation(connection: Connection) -> None:
    run = a_run(connection, "dead")
    as_of = database_now(connection)
    retry_now(connection, run, ANNA)
    answer = start(connection, ConfirmedOperation("retry", "status=dead", as_of, 1), [run], ANNA)
    assert (answer.result, rows(connection, "operations")) == ("forbidden", [])


def test_more_than_was_confirmed_makes_no_operation(connection: Connection) -> None:
    ids = many(connection, 3)
    wanted = ConfirmedOperation("retry", "status=dead", database_now(connection), 2)
    answer = start(connection, wanted, ids, ANNA)
    assert answer.result == "forbidden" and "3 runs match now and 2 were confirmed" in answer.message
    assert rows(connection, "operation_runs") == []


@pytest.mark.parametrize(
    "wrong",
    [{"per_minute": 0}, {"stop_above_percent": 100}, {"counted": 0}, {"verb": "delete"}, {"also": ("all",)}],
)
def test_numbers_that_cannot_be_are_refused(connection: Connection, wrong: dict[str, object]) -> None:
    run = a_run(connection, "dead")
    wanted = replace(ConfirmedOperation("retry", "status=dead", database_now(connection), 1), **wrong)  # type: ignore[arg-type]
    assert start(connection, wanted, [run], ANNA).result == "invalid"


def test_a_viewer_starts_nothing_and_it_is_audited(connection: Connection) -> None:
    run = a_run(connection, "dead")
    viewer = Actor("vera", Role.VIEWER, "web")
    wanted = ConfirmedOperation("retry", "status=dead", database_now(connection), 1)
    assert start(connection, wanted, [run], viewer).result == "denied"
    assert [each["result"] for each in rows(connection, "audit_log")] == ["denied"]


# Moving


def test_each_verb_moves_what_it_may(connection: Connection) -> None:
    waiting, runs, dead = a_run(connection), a_run(connection, "running"), a_run(connection, "dead")
    found = finish(connection, begin(connection, "cancel", query={"type": "mail"}))
    assert (found["done"], found["asked"], status(connection, waiting)) == (3, 1, "cancelled")
    assert status(connection, dead) == "cancelled"
    assert row(connection, runs)["cancel_requested_at"]
    old = a_run(connection, "succeeded", job_type="report")
    finish(connection, begin(connection, "again", query={"type": "report"}))
    (made,) = rows(connection, "job_runs", "origin_run_id = %s", old)
    (noted,) = rows(connection, "operation_runs", "run_id = %s", old)
    assert noted["watched_run_id"] == made["id"]


def test_a_large_operation_goes_in_batches_behind_a_cursor(connection: Connection) -> None:
    ids = many(connection, 250)
    number = begin(connection, "retry")
    done = [step(connection, number)["done"] for _ in range(2)]
    assert done == [advance.BATCH, 2 * advance.BATCH]
    assert operation(connection, number)["cursor"] == ids[199]
    found = finish(connection, number)
    assert (found["done"], found["skipped"]) == (250, 0)
    assert len(rows(connection, "audit_log", "action = 'run.retry'")) == 250


def test_a_step_that_breaks_off_has_not_happened(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = many(connection, 3)
    number = begin(connection, "retry")

    def die(*_: object) -> None:
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(advance, "_save", die)
    with pytest.raises(psycopg.OperationalError):
        step(connection, number)
    assert [status(other, run) for run in runs] == ["dead"] * 3
    assert rows(other, "audit_log", "action = 'run.retry'") == []
    monkeypatch.undo()
    assert finish(connection, number)["done"] == 3


def test_a_run_that_somebody_holds_is_waited_for_and_not_left_out(
    connection: Connection, other: Connection
) -> None:
    runs = many(connection, 3)
    number = begin(connection, "retry")
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (runs[1],))
        assert step(connection, number)["done"] == 1
        assert step(connection, number)["done"] == 1
    assert finish(connection, number)["done"] == 3


def test_an_operation_is_advanced_by_one_worker_at_a_time(connection: Connection, other: Connection) -> None:
    many(connection, 3)
    number = begin(connection, "retry")
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.operations FOR UPDATE")
        assert advance.advance(connection, number) is None
    assert finish(connection, number)["done"] == 3


def test_the_pace_is_kept_and_an_outage_is_not_made_up(connection: Connection) -> None:
    many(connection, 100)
    number = begin(connection, "retry", per_minute=60)
    assert step(connection, number)["done"] == 1
    assert step(connection, number)["done"] == 1
    connection.execute("UPDATE wakeboard.operations SET paced_at = paced_at - interval '1 hour'")
    assert step(connection, number)["done"] == 1 + 3
    found = step(connection, number)
    assert found["done"] == 4
    assert found["paced_at"] > database_now(connection)


def test_an_operation_that_fails_keeps_no_other_one_waiting(connection: Connection) -> None:
    bad_run, good_run = a_run(connection, "dead"), a_run(connection, "dead", job_type="report")
    bad = begin(connection, "retry", query={"type": "mail", "status": "dead"})
    good = begin(connection, "retry", query={"type": "report", "status": "dead"})
    connection.execute(
        f"ALTER TABLE wakeboard.operations ADD CONSTRAINT odd CHECK (id <> {bad} OR done = 0)".encode()
    )
    make_due(connection, bad)
    make_due(connection, good)
    duty = Operations()
    with pytest.raises(psycopg.errors.CheckViolation):
        duty.step(connection)
    # Where the machine is slow the other one has used up the time.
    with suppress(psycopg.errors.CheckViolation):
        duty.step(connection)
    assert (status(connection, bad_run), status(connection, good_run)) == ("dead", "queued")
    assert operation(connection, good)["status"] == "finished"


RULE = "ALTER TABLE wakeboard.job_runs ADD CONSTRAINT odd CHECK (id <> {} OR status = 'dead')"
TRIGGER = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.id = {} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
CREATE TRIGGER odd BEFORE UPDATE ON wakeboard.job_runs FOR EACH ROW EXECUTE FUNCTION public.refuse()
"""


AT_COMMIT = TRIGGER.replace("TRIGGER odd BEFORE", "CONSTRAINT TRIGGER odd AFTER").replace(
    "FOR EACH ROW", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
)


@pytest.mark.parametrize("refusal", [RULE, TRIGGER, AT_COMMIT], ids=["rule", "trigger", "at commit"])
def test_a_run_the_database_refuses_stops_nobody(connection: Connection, refusal: str) -> None:
    bad, good = a_run(connection, "dead"), a_run(connection, "dead")
    number = begin(connection, "retry")
    connection.execute(refusal.format(bad).encode())
    found = finish(connection, number)
    assert (found["done"], found["skips"]) == (1, {"refused": 1})
    assert status(connection, good) == "queued"


# The canary, and stopping


def test_a_canary_is_moved_alone_and_its_success_lets_the_others_go(connection: Connection) -> None:
    runs = many(connection, 4)
    number = begin(connection, "retry", canary=True)
    assert [step(connection, number)["done"] for _ in range(3)] == [1, 1, 1]
    assert operation(connection, number)["canary_run_id"] == runs[0]
    ended(connection, runs[0], "succeeded")
    assert finish(connection, number)["done"] == 4


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "lost"])
def test_a_canary_that_fails_stops_the_operation_and_it_says_so(connection: Connection, outcome: str) -> None:
    runs = many(connection, 4)
    number = begin(connection, "retry", canary=True)
    step(connection, number)
    ended(connection, runs[0], outcome)
    found = finish(connection, number)
    assert (found["status"], found["done"]) == ("stopped", 1)
    assert found["note"] == f"The canary, run {runs[0]}, failed with smtp_down."
    (stopped,) = rows(connection, "audit_log", "action = 'operation.stop'")
    assert (stopped["actor"], stopped["target_id"], stopped["reason"]) == (
        "engine",
        str(number),
        found["note"],
    )


def test_a_canary_that_was_only_released_is_waited_for(connection: Connection) -> None:
    runs = many(connection, 2)
    number = begin(connection, "retry", canary=True)
    step(connection, number)
    ended(connection, runs[0], "released")
    assert step(connection, number)["status"] == "running"
    ended(connection, runs[0], "succeeded")
    assert finish(connection, number)["done"] == 2


def test_a_canary_that_is_cancelled_stops_the_operation(connection: Connection) -> None:
    runs = many(connection, 2)
    number = begin(connection, "retry", canary=True)
    step(connection, number)
    cancel(connection, runs[0], ANNA)
    assert "was cancelled" in finish(connection, number)["note"]


def test_the_canary_of_run_again_is_the_new_run(connection: Connection) -> None:
    many(connection, 2)
    number = begin(connection, "again", canary=True)
    canary = step(connection, number)["canary_run_id"]
    (made,) = rows(connection, "job_runs", "origin_run_id IS NOT NULL")
    assert canary == made["id"]
    ended(connection, canary, "failed")
    assert finish(connection, number)["status"] == "stopped"


def test_too_many_failures_stop_it(connection: Connection) -> None:
    runs = many(connection, 130)
    number = begin(connection, "retry", stop_above_percent=20)
    step(connection, number)
    for run in runs[:4]:
        ended(connection, run, "failed")
    connection.execute("UPDATE wakeboard.operations SET status = 'paused'")
    assert step(connection, number)["failed"] == 4
    connection.execute("UPDATE wakeboard.operations SET status = 'running'")
    ended(connection, runs[4], "succeeded")
    found = step(connection, number)
    assert (found["status"], found["done"], found["succeeded"]) == ("stopped", 100, 1)
    assert found["note"] == "4 of 5 that ended failed again: 80 %, more than 20 %."


def test_how_the_moved_ones_ended_is_counted_after_its_end_too(connection: Connection) -> None:
    runs = many(connection, 3)
    number = begin(connection, "retry")
    assert finish(connection, number)["is_open"] is True
    ended(connection, runs[0], "succeeded")
    ended(connection, runs[1], "failed")
    cancel(connection, runs[2], ANNA)
    found = step(connection, number)
    assert (found["succeeded"], found["failed"], found["dropped"]) == (1, 1, 1)
    assert found["is_open"] is False


def test_nobody_watches_what_was_cancelled(connection: Connection) -> None:
    a_run(connection)
    assert finish(connection, begin(connection, "cancel", query={"type": "mail"}))["is_open"] is False


# Pause, resume, abort


def test_a_paused_operation_moves_nothing_until_it_is_resumed(connection: Connection) -> None:
    many(connection, 150)
    number = begin(connection, "retry")
    step(connection, number)
    assert control.pause(connection, number, ANNA, "lunch").changed
    assert step(connection, number)["done"] == 100
    assert control.pause(connection, number, ANNA).result == "already"
    assert control.resume(connection, number, ANNA).changed
    assert finish(connection, number)["done"] == 150


def test_an_aborted_operation_leaves_the_rest_as_it_is(connection: Connection) -> None:
    runs = many(connection, 150)
    number = begin(connection, "retry")
    step(connection, number)
    answer = control.abort(connection, number, ANNA, "wrong filter")
    assert answer.message == f"Operation {number} is aborted: 100 moved, 50 left as they are."
    assert step(connection, number)["done"] == 100
    assert status(connection, runs[100]) == "dead"
    assert control.abort(connection, number, ANNA).result == "already"
    for verb in (control.pause, control.resume):
        assert verb(connection, number, ANNA).result == "forbidden"


@pytest.mark.parametrize("verb", [control.pause, control.resume, control.abort])
def test_what_people_do_to_it_is_audited_and_needs_an_operator(connection: Connection, verb: object) -> None:
    many(connection, 1)
    number = begin(connection, "retry")
    if verb is control.resume:
        control.pause(connection, number, ANNA)
    assert verb(connection, number, Actor("vera", Role.VIEWER, "web")).result == "denied"  # type: ignore[operator]
    assert verb(connection, number, ANNA, "because").changed  # type: ignore[operator]
    audited = rows(connection, "audit_log", "target_type = 'operation' AND reason = 'because'")
    assert [(each["target_id"], each["result"]) for each in audited] == [(str(number), "done")]
    assert verb(connection, 999, ANNA).result == "missing"  # type: ignore[operator]
