"""What each move leaves behind: counts, times, attempts and statistics of a run."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support import factories
from wakeboard import queue as transitions
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.engine import endings, fence, reaping
from wakeboard.reporting.statistics import ENDLESS, FINE
from wakeboard.runtime.duties.worker_row import PUBLISH

OPERATOR = Actor("alice", Role.OPERATOR, "web")
ADMIN = Actor("root", Role.ADMIN, "cli")
VIEWER = Actor("bob", Role.VIEWER, "web")
HOSTILE = "<script>alert('1')</script> \" ' \\ %s {} $1 ünï 🚨 \u202e"
_types = (f"type{number}" for number in itertools.count())


def now(connection: Connection) -> datetime:
    (value,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


def seconds_away(connection: Connection, moment: datetime) -> float:
    return (moment - now(connection)).total_seconds()


@pytest.fixture
def job_type(shared: Connection) -> str:
    """A job type that only this test uses."""
    return factories.a_type(shared, next(_types))


# Claim


def test_a_claim_takes_the_lease_and_counts_the_attempt(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type, payload={"invoice_id": 812}, idempotency_key="i:812")
    (claimed,) = factories.claim(shared, [job_type], "w7", lease_seconds=30)
    found = factories.row(shared, run)
    assert (found["locked_by"], found["lease_epoch"], found["attempts"], found["failures"]) == ("w7", 1, 1, 0)
    assert 25 < seconds_away(shared, found["locked_until"]) <= 30
    assert -5 < seconds_away(shared, found["started_at"]) <= 0
    assert (claimed.attempts, claimed.payload, claimed.idempotency_key) == (1, '{"invoice_id": 812}', "i:812")


def test_a_type_may_ask_for_a_longer_lease_but_not_for_a_shorter_one(shared: Connection) -> None:
    for lease, wanted in ((600.0, 600), (5.0, 30)):
        job_type = factories.a_type(shared, next(_types), lease_seconds=lease)
        run = factories.a_run(shared, job_type=job_type)
        factories.claim(shared, [job_type], lease_seconds=30)
        assert seconds_away(shared, factories.row(shared, run)["locked_until"]) == pytest.approx(
            wanted, abs=3
        )


def test_a_claim_takes_only_what_is_due(shared: Connection, job_type: str) -> None:
    factories.a_run(shared, job_type=job_type, run_at="1 minute")
    factories.a_run(shared, "failed", job_type=job_type, run_at="1 minute")
    assert factories.claim(shared, [job_type]) == []


def test_a_claim_takes_only_the_types_asked_for(shared: Connection, job_type: str) -> None:
    factories.a_run(shared, job_type=factories.a_type(shared, next(_types)))
    assert factories.claim(shared, [job_type]) == []
    assert factories.claim(shared, []) == []


def test_a_type_that_nobody_registered_is_not_claimed(shared: Connection) -> None:
    factories.a_run(shared, job_type="unknown")
    assert factories.claim(shared, ["unknown"]) == []


def test_the_oldest_due_run_comes_first_within_its_priority(shared: Connection, job_type: str) -> None:
    newer = factories.a_run(shared, job_type=job_type, run_at="-1 minute")
    older = factories.a_run(shared, job_type=job_type, run_at="-2 minutes")
    urgent = factories.a_run(shared, job_type=job_type, run_at="-1 second", priority=0)
    idle = factories.a_run(shared, job_type=job_type, run_at="-1 day", priority=4)
    order = [factories.claim(shared, [job_type], limit=1)[0].id for _ in range(4)]
    assert order == [urgent, older, newer, idle]


def test_a_better_priority_wins_across_types(shared: Connection) -> None:
    slow, quick = (factories.a_type(shared, next(_types)) for _ in range(2))
    factories.a_run(shared, job_type=slow, run_at="-1 day")
    urgent = factories.a_run(shared, job_type=quick, priority=1)
    assert [one.id for one in factories.claim(shared, [slow, quick], limit=1)] == [urgent]


def test_a_claim_by_age_ignores_priority_so_that_nothing_starves(shared: Connection, job_type: str) -> None:
    factories.a_run(shared, job_type=job_type, priority=0, run_at="-1 minute")
    starved = factories.a_run(shared, job_type=job_type, priority=4, run_at="-1 day")
    assert [one.id for one in factories.claim(shared, [job_type], limit=1, oldest_first=True)] == [starved]


def test_a_claim_takes_no_more_than_its_limit(shared: Connection, job_type: str) -> None:
    for _ in range(7):
        factories.a_run(shared, job_type=job_type)
    assert [len(factories.claim(shared, [job_type], limit=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_a_paused_type_is_not_claimed_until_it_is_resumed(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)
    transitions.types.pause(shared, job_type, OPERATOR, "mail server moves")
    assert factories.claim(shared, [job_type]) == []
    transitions.types.resume(shared, job_type, OPERATOR)
    assert [one.id for one in factories.claim(shared, [job_type])] == [run]


def test_a_paused_limited_type_is_not_claimed(shared: Connection) -> None:
    job_type = factories.a_type(shared, next(_types), max_running=2)
    factories.a_run(shared, job_type=job_type)
    transitions.types.pause(shared, job_type, OPERATOR)
    assert factories.claim_limited(shared, job_type) == []


def test_a_limited_type_is_claimed_up_to_its_limit_and_in_order(shared: Connection) -> None:
    job_type = factories.a_type(shared, next(_types), max_running=2)
    late = factories.a_run(shared, job_type=job_type, priority=4)
    first = factories.a_run(shared, job_type=job_type, priority=0)
    second = factories.a_run(shared, job_type=job_type, priority=1)
    assert factories.claim(shared, [job_type]) == []
    claimed = factories.claim_limited(shared, job_type)
    assert {one.id for one in claimed} == {first, second}
    assert factories.claim_limited(shared, job_type) == []
    factories.succeed(shared, claimed[0].held)
    assert [one.id for one in factories.claim_limited(shared, job_type)] == [late]


def test_the_operators_limit_wins_over_the_codes(shared: Connection) -> None:
    job_type = factories.a_type(shared, next(_types), max_running=5)
    for _ in range(5):
        factories.a_run(shared, job_type=job_type)
    transitions.types.limit(shared, job_type, 0, OPERATOR)
    assert factories.claim_limited(shared, job_type) == []
    transitions.types.limit(shared, job_type, 1, OPERATOR)
    assert len(factories.claim_limited(shared, job_type)) == 1
    transitions.types.limit(shared, job_type, None, OPERATOR)
    assert len(factories.claim_limited(shared, job_type)) == 4


def test_a_limited_type_stays_limited_when_a_worker_publishes_it_again(shared: Connection) -> None:
    job_type = factories.a_type(shared, next(_types))
    transitions.types.limit(shared, job_type, 1, OPERATOR)
    transitions.types.pause(shared, job_type, OPERATOR, "why")
    publish = PUBLISH + " RETURNING t.name"
    values = ([job_type], [3], [60.0], [None], ["fixed 30s"], [None], [None], [None], [None])
    assert factories.send(shared, publish, *values) == [(job_type,)]
    (found,) = factories.rows(shared, "job_types", "name = %s", job_type)
    assert (found["max_running_operator"], found["paused_reason"], found["max_attempts"]) == (1, "why", 3)
    assert factories.send(shared, publish, *values) == []


def test_an_unreadable_payload_is_handed_over_as_text_beside_the_others(
    shared: Connection, job_type: str
) -> None:
    payloads: list[dict[str, Any]] = [{"n": 10**400}, {"text": HOSTILE}, {"__proto__": None, "": [[[]]]}]
    for payload in payloads:
        factories.a_run(shared, job_type=job_type, payload=payload)
    assert len(factories.claim(shared, [job_type])) == 3


# Renew


def test_a_renewal_moves_the_lease_and_tells_progress_and_cancels(shared: Connection) -> None:
    one, two = factories.a_run(shared, "running"), factories.a_run(shared, "running")
    transitions.cancel(shared, two, OPERATOR)
    assert factories.renew(shared, (one, 1), (two, 1), lease_seconds=90, progress=(3, 10)) == {
        one: False,
        two: True,
    }
    found = factories.row(shared, one)
    assert seconds_away(shared, found["locked_until"]) == pytest.approx(90, abs=3)
    assert (found["progress_done"], found["progress_total"]) == (3, 10)
    factories.renew(shared, (one, 1))
    assert factories.row(shared, one)["progress_done"] == 3


# Succeed


def test_a_success_frees_the_lease_and_writes_one_attempt(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type, run_at="-1 hour")
    (claimed,) = factories.claim(shared, [job_type])
    factories.succeed(
        shared, claimed.held, ago=2, took=5, result={"text": HOSTILE}, output=HOSTILE, note="cancel was late"
    )
    found, (attempt,) = factories.row(shared, run), factories.attempts(shared, run)
    assert (found["locked_by"], found["locked_until"], found["attempts"]) == (None, None, 1)
    assert found["finished_at"] == attempt["finished_at"]
    assert (attempt["finished_at"] - attempt["started_at"]).total_seconds() == pytest.approx(5, abs=0.001)
    assert seconds_away(shared, attempt["finished_at"]) == pytest.approx(-2, abs=1)
    assert (attempt["result"], attempt["output_tail"]) == ({"text": HOSTILE}, HOSTILE)
    assert (attempt["outcome"], attempt["note"]) == ("succeeded", "cancel was late")
    assert (attempt["max_attempts"], attempt["timeout_seconds"], attempt["worker_id"]) == (10, 300, "w1")
    assert attempt["due_at"] == found["run_at"]


def test_a_success_keeps_the_last_failure_in_sight(shared: Connection) -> None:
    run = factories.a_run(
        shared, "running", failures=1, attempts=2, lease_epoch=2, failed_at="-1 minute",
        error_code="smtp_down", last_error="No answer.",
    )  # fmt: skip
    factories.succeed(shared, (run, 2))
    found = factories.row(shared, run)
    assert (found["status"], found["error_code"], found["last_error"]) == (
        "succeeded",
        "smtp_down",
        "No answer.",
    )
    assert found["failed_at"] is not None


def test_a_success_wins_over_a_cancel_that_was_asked(shared: Connection) -> None:
    run = factories.a_run(shared, "running", cancel_requested_at="-1 second")
    assert factories.succeed(shared, (run, 1)) == [run]
    assert factories.status(shared, run) == "succeeded"


def test_an_answer_sent_twice_counts_once(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    assert factories.succeed(shared, (run, 1)) == [run]
    assert factories.succeed(shared, (run, 1)) == []
    assert len(factories.attempts(shared, run)) == 1


def test_an_empty_batch_is_no_trouble(shared: Connection) -> None:
    assert factories.succeed(shared) == []
    assert factories.fail(shared) == {}
    assert factories.renew(shared) == {}
    assert factories.release(shared) == {}
    assert factories.reap(shared) == {}


# Fail


def test_a_failure_says_why_and_when_it_is_tried_again(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    factories.fail(shared, (run, 1), code="http_503", message=HOSTILE, delay=75, traceback=HOSTILE * 100)
    found, (attempt,) = factories.row(shared, run), factories.attempts(shared, run)
    assert (found["status"], found["failures"], found["error_code"]) == ("failed", 1, "http_503")
    assert found["last_error"] == attempt["error"] == HOSTILE
    assert seconds_away(shared, found["run_at"]) == pytest.approx(75, abs=3)
    assert (found["finished_at"], attempt["next_run_at"]) == (None, found["run_at"])
    assert found["failed_at"] == attempt["finished_at"]
    assert attempt["traceback"] == HOSTILE * 100


def test_the_last_allowed_failure_gives_up(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)
    seen = []
    for _ in range(3):
        factories.make_due(shared, run)
        (claimed,) = factories.claim(shared, [job_type])
        seen.append(factories.fail(shared, claimed.held, most=3)[run])
    assert seen == ["failed", "failed", "dead"]
    found = factories.row(shared, run)
    assert (found["failures"], found["attempts"]) == (3, 3)
    assert found["finished_at"] is not None
    assert factories.attempts(shared, run)[-1]["next_run_at"] is None


def test_a_permanent_failure_is_never_tried_again(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    assert factories.fail(shared, (run, 1), permanent=True) == {run: "dead"}


def test_a_time_out_is_a_failure_with_its_own_outcome(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    factories.fail(shared, (run, 1), outcome="timed_out", code="timed_out", message="It took over 300 s.")
    assert factories.row(shared, run)["failures"] == 1
    assert factories.attempts(shared, run)[0]["outcome"] == "timed_out"


def test_a_cancelled_attempt_is_no_failure(shared: Connection) -> None:
    run = factories.a_run(shared, "running", cancel_requested_at="-1 second")
    factories.fail(shared, (run, 1), outcome="cancelled", code=None, message=None)
    found = factories.row(shared, run)
    assert (found["status"], found["failures"], found["error_code"], found["failed_at"]) == (
        "cancelled", 0, None, None,
    )  # fmt: skip
    assert factories.attempts(shared, run)[0]["outcome"] == "cancelled"


def test_one_batch_may_hold_every_kind_of_failure(shared: Connection) -> None:
    runs = [factories.a_run(shared, "running") for _ in range(3)]
    moved = factories.fail(shared, *[(run, 1) for run in runs], (10**15, 1))
    assert set(moved) == set(runs)


# Release


def test_a_release_of_what_never_started_costs_nothing(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)
    (claimed,) = factories.claim(shared, [job_type])
    factories.release(shared, claimed.held, started=False)
    found = factories.row(shared, run)
    assert (found["status"], found["attempts"], found["failures"]) == ("queued", 0, 0)
    assert factories.attempts(shared, run) == []
    (again,) = factories.claim(shared, [job_type])
    assert (again.attempts, again.lease_epoch) == (1, 2)


def test_a_release_of_what_was_cut_short_is_an_attempt_but_no_failure(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    factories.release(shared, (run, 1), note="the worker was stopped")
    found, (attempt,) = factories.row(shared, run), factories.attempts(shared, run)
    assert (found["status"], found["attempts"], found["failures"]) == ("queued", 1, 0)
    assert (attempt["outcome"], attempt["note"]) == ("released", "the worker was stopped")
    assert found["run_at"] == attempt["due_at"]


def test_one_batch_may_release_started_and_unstarted_runs(shared: Connection) -> None:
    begun, fresh = factories.a_run(shared, "running"), factories.a_run(shared, "running")
    values = ([begun, fresh], [1, 1], [0.0] * 2, [1.0] * 2, [None] * 2, [None] * 2, [True, False])
    factories.send(shared, endings.RELEASE, "w1", *values)
    assert [factories.row(shared, run)["attempts"] for run in (begun, fresh)] == [1, 0]
    assert [len(factories.attempts(shared, run)) for run in (begun, fresh)] == [1, 0]


# Reap


def test_the_first_lost_lease_is_taken_over_at_once(shared: Connection) -> None:
    run = factories.a_run(shared, "running", locked_until="-1 second")
    factories.reap(shared, (run, 1), delay=600, why=HOSTILE)
    found, (attempt,) = factories.row(shared, run), factories.attempts(shared, run)
    assert (found["status"], found["failures"], found["lease_epoch"]) == ("failed", 1, 2)
    assert (found["error_code"], found["last_error"]) == ("lease_lost", HOSTILE)
    assert seconds_away(shared, found["run_at"]) <= 0
    assert (attempt["outcome"], attempt["lease_epoch"], attempt["worker_id"]) == ("lost", 1, "w1")
    assert attempt["started_at"] == found["started_at"]


def test_a_lease_lost_after_a_failure_waits_for_its_backoff(shared: Connection) -> None:
    run = factories.a_run(shared, "running", failures=1, attempts=2, lease_epoch=2, locked_until="-1 second")
    factories.reap(shared, (run, 2), delay=600)
    assert seconds_away(shared, factories.row(shared, run)["run_at"]) == pytest.approx(600, abs=3)


def test_a_run_that_kills_its_workers_is_given_up(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)
    for _ in range(3):
        factories.make_due(shared, run)
        (claimed,) = factories.claim(shared, [job_type])
        factories.end_lease(shared, run)
        factories.reap(shared, claimed.held, most=3)
    assert factories.status(shared, run) == "dead"


def test_ended_leases_come_with_the_policy_of_their_type(connection: Connection) -> None:
    factories.a_type(connection, "mail", max_attempts=4, backoff="fixed 30s")
    own = factories.a_run(connection, "running", locked_until="-3 seconds", max_attempts=2)
    typed = factories.a_run(connection, "running", locked_until="-2 seconds")
    unknown = factories.a_run(connection, "running", locked_until="-1 second", job_type="gone")
    factories.a_run(connection, "running")
    found = factories.send(connection, reaping.ENDED_LEASES, 100, [])
    assert [(one[0], one[5], one[6]) for one in found] == [
        (own, 2, "fixed 30s"),
        (typed, 4, "fixed 30s"),
        (unknown, 10, "exponential 10s cap 30m"),
    ]
    assert len(factories.send(connection, reaping.ENDED_LEASES, 2, [])) == 2


# The whole life


def test_attempts_are_numbered_without_gaps_over_a_whole_life(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)

    def claimed() -> factories.Held:
        factories.make_due(shared, run)
        return factories.claim(shared, [job_type])[0].held

    factories.fail(shared, claimed())
    factories.release(shared, claimed(), started=False)
    factories.release(shared, claimed())
    held = claimed()
    factories.end_lease(shared, run)
    factories.reap(shared, held)
    factories.fail(shared, claimed(), permanent=True)
    transitions.retry_now(shared, run, OPERATOR)
    factories.fail(shared, claimed())
    factories.succeed(shared, claimed())
    found = factories.attempts(shared, run)
    assert [one["attempt"] for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one["outcome"] for one in found] == [
        "failed", "released", "lost", "failed", "failed", "succeeded",
    ]  # fmt: skip
    assert (factories.row(shared, run)["attempts"], factories.row(shared, run)["failures"]) == (6, 1)


def test_the_statistics_add_up_to_the_attempts(connection: Connection) -> None:
    runs = [factories.a_run(connection, "running", locked_until="-1 second") for _ in range(9)]
    held = [(run, 1) for run in runs]
    factories.succeed(connection, *held[:3], took=2)
    factories.succeed(connection, held[3], took=0.004)
    factories.fail(connection, *held[4:6], took=1)
    factories.fail(connection, held[6], outcome="timed_out", took=300)
    factories.reap(connection, held[7])
    factories.release(connection, held[8])
    counted = connection.execute(
        "SELECT outcome, sum(runs)::int, round(sum(duration_ms))::int, round(max(duration_max_ms))::int"
        " FROM wakeboard.statistics_deltas GROUP BY outcome ORDER BY outcome"
    ).fetchall()
    truth = connection.execute(
        "SELECT outcome, count(*)::int, round(sum(extract(epoch FROM finished_at - started_at) * 1000))::int,"
        " round(max(extract(epoch FROM finished_at - started_at) * 1000))::int"
        " FROM wakeboard.job_attempts WHERE outcome <> 'released' GROUP BY outcome ORDER BY outcome"
    ).fetchall()
    assert counted == truth
    assert {one[0] for one in truth} == {"succeeded", "failed", "timed_out", "lost"}


@pytest.mark.parametrize("took", [0.0, 0.0000001, 0.0005, 1.0, 86_400.0, 31_536_000.0])
def test_a_duration_of_any_length_falls_into_a_bucket(shared: Connection, job_type: str, took: float) -> None:
    factories.a_run(shared, job_type=job_type, run_at="-30 years")
    (claimed,) = factories.claim(shared, [job_type])
    factories.succeed(shared, claimed.held, took=took)
    (found,) = factories.rows(shared, "statistics_deltas", "job_type = %s", job_type)
    assert FINE <= found["duration_bucket"] <= ENDLESS
    assert FINE <= found["wait_bucket"] <= ENDLESS
    assert found["wait_ms"] >= 0


# The operator


def test_a_run_that_waits_is_cancelled_at_once_and_never_claimed(shared: Connection, job_type: str) -> None:
    run = factories.a_run(shared, job_type=job_type)
    answer = transitions.cancel(shared, run, OPERATOR, HOSTILE)
    assert (answer.result, answer.status) == ("done", "cancelled")
    assert factories.claim(shared, [job_type]) == []
    assert transitions.cancel(shared, run, OPERATOR).result == "already"


def test_a_dead_run_is_put_away_with_its_error_and_comes_back_by_a_retry(shared: Connection) -> None:
    run = factories.a_run(shared, "dead")
    before = factories.row(shared, run)
    answer = transitions.cancel(shared, run, OPERATOR, "the customer left")
    assert (answer.result, answer.status) == ("done", "cancelled")
    found = factories.row(shared, run)
    assert found["finished_at"] > before["finished_at"]
    kept = ("error_code", "last_error", "error_group", "failed_at", "failures", "attempts", "started_at")
    assert [found[name] for name in kept] == [before[name] for name in kept]
    (line,) = factories.rows(shared, "audit_log", "action = 'run.cancel' AND target_id = %s", str(run))
    assert (line["before"]["status"], line["after"]["status"]) == ("dead", "cancelled")
    assert transitions.cancel(shared, run, OPERATOR).result == "already"
    assert transitions.retry_now(shared, run, OPERATOR).status == "queued"
    found = factories.row(shared, run)
    assert (found["failures"], found["finished_at"], found["cancel_requested_at"]) == (0, None, None)


def test_a_running_run_is_asked_once_to_stop(shared: Connection) -> None:
    run = factories.a_run(shared, "running")
    answer = transitions.cancel(shared, run, OPERATOR)
    assert (answer.result, answer.status, answer.http_status) == ("asked", "running", 202)
    assert factories.send(shared, fence.CANCELS, [run]) == [(run, 1)]
    assert transitions.cancel(shared, run, OPERATOR).result == "already"
    assert factories.row(shared, run)["locked_by"] == "w1"


def test_a_cancel_asked_of_an_earlier_attempt_does_not_haunt_the_next(
    shared: Connection, job_type: str
) -> None:
    run = factories.a_run(shared, "running", job_type=job_type)
    transitions.cancel(shared, run, OPERATOR)
    factories.release(shared, (run, 1))
    assert factories.status(shared, run) == "cancelled"
    transitions.retry_now(shared, run, OPERATOR)
    (claimed,) = factories.claim(shared, [job_type])
    assert factories.renew(shared, claimed.held) == {run: False}
    assert factories.fail(shared, claimed.held) == {run: "failed"}


def test_a_retry_of_a_dead_run_starts_its_count_anew(shared: Connection) -> None:
    run = factories.a_run(shared, "dead")
    assert transitions.retry_now(shared, run, OPERATOR).status == "queued"
    found = factories.row(shared, run)
    assert (found["failures"], found["attempts"], found["lease_epoch"]) == (0, 10, 10)
    assert (found["finished_at"], found["error_code"]) == (None, "smtp_down")
    assert seconds_away(shared, found["run_at"]) <= 0


def test_a_retry_of_a_paused_type_says_that_the_run_waits_all_the_same(
    shared: Connection, job_type: str
) -> None:
    shared.execute("UPDATE wakeboard.job_types SET paused_at = now() WHERE name = %s", (job_type,))
    run = factories.a_run(shared, "dead", job_type=job_type)
    waits = f"but its type {job_type} is paused: it waits until somebody resumes that."
    again = transitions.run_again(shared, run, OPERATOR)
    assert again.message == f"Run {again.id} was enqueued, like run {run}, {waits}"
    assert transitions.retry_now(shared, run, OPERATOR).message == f"Run {run} is due now, {waits}"
    assert transitions.retry_now(shared, run, OPERATOR).message == f"Run {run} is already due, {waits}"
    assert "paused" not in transitions.cancel(shared, run, OPERATOR).message


def test_a_retry_of_a_failed_run_only_ends_its_wait(shared: Connection) -> None:
    run = factories.a_run(shared, "failed", failures=3, attempts=3, lease_epoch=3)
    assert transitions.retry_now(shared, run, OPERATOR).status == "failed"
    assert factories.row(shared, run)["failures"] == 3
    assert transitions.retry_now(shared, run, OPERATOR).result == "already"


def test_losing_a_race_is_answered_in_a_sentence(shared: Connection) -> None:
    run = factories.a_run(shared, "succeeded")
    finished = factories.row(shared, run)["finished_at"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    for move in (transitions.retry_now, transitions.cancel):
        answer = move(shared, run, OPERATOR)
        assert (answer.result, answer.http_status, answer.status) == ("forbidden", 409, "succeeded")
        assert finished in answer.message


@pytest.mark.parametrize("move", ["cancel", "retry_now", "release_lease", "run_again"])
def test_a_run_that_does_not_exist_is_missing(shared: Connection, move: str) -> None:
    answer = getattr(transitions, move)(shared, 10**15, OPERATOR)
    assert (answer.result, answer.http_status) == ("missing", 404)


def test_a_lease_is_taken_only_from_a_worker_that_is_silent(shared: Connection) -> None:
    alive = factories.a_worker(shared, heartbeat_seconds=10.0, seen="-19 seconds")
    silent = factories.a_worker(shared, heartbeat_seconds=10.0, seen="-21 seconds")
    stopped = factories.a_worker(shared, stopped_at="-1 second")
    kept = factories.a_run(shared, "running", locked_by=alive)
    assert transitions.release_lease(shared, kept, OPERATOR).result == "forbidden"
    for worker in (silent, stopped, "never seen"):
        run = factories.a_run(shared, "running", locked_by=worker)
        assert transitions.release_lease(shared, run, OPERATOR).result == "done"
        assert factories.row(shared, run)["lease_epoch"] == 2
        assert factories.attempts(shared, run)[0]["outcome"] == "lost"


def test_a_lease_that_ended_is_taken_also_from_a_living_worker(shared: Connection) -> None:
    alive = factories.a_worker(shared)
    run = factories.a_run(shared, "running", locked_by=alive, locked_until="-1 second")
    assert transitions.release_lease(shared, run, OPERATOR).status == "failed"


def test_a_second_failure_of_a_released_lease_waits_by_the_types_rule(shared: Connection) -> None:
    job_type = factories.a_type(shared, next(_types), backoff="1m,5m,30m")
    run = factories.a_run(shared, "running", job_type=job_type, failures=1, attempts=2, lease_epoch=2)
    assert transitions.release_lease(shared, run, OPERATOR).status == "failed"
    assert 235 < seconds_away(shared, factories.row(shared, run)["run_at"]) < 365


def test_run_again_copies_what_the_run_was_and_not_what_became_of_it(shared: Connection) -> None:
    old = factories.a_run(
        shared,
        "dead",
        definition_id=5,
        payload={"text": HOSTILE},
        priority=1,
        max_attempts=3,
        timeout_seconds=60.0,
    )
    new = factories.row(shared, int(transitions.run_again(shared, old, OPERATOR).id))
    for name in ("definition_id", "job_type", "payload", "priority", "max_attempts", "timeout_seconds"):
        assert new[name] == factories.row(shared, old)[name]
    assert (new["origin_run_id"], new["enqueued_by"], new["failures"]) == (old, "alice", 0)
    assert (new["error_code"], new["started_at"], new["locked_by"]) == (None, None, None)


def test_only_an_admin_may_run_again_with_another_payload(shared: Connection) -> None:
    old = factories.a_run(shared, "succeeded", payload={"n": 1})
    refused = transitions.run_again(shared, old, OPERATOR, payload={"n": 2})
    assert (refused.result, refused.http_status) == ("denied", 403)
    assert refused.message.startswith("'alice' is an operator; to ")
    new = transitions.run_again(shared, old, ADMIN, payload={"n": 2})
    assert factories.row(shared, int(new.id))["payload"] == {"n": 2}


# Types and workers


def test_a_type_nobody_registered_cannot_be_paused(shared: Connection) -> None:
    moves: list[Any] = [transitions.types.pause, transitions.types.resume]
    for move in moves:
        assert move(shared, "no such type", OPERATOR).result == "missing"
    assert transitions.types.limit(shared, "no such type", 1, OPERATOR).result == "missing"
    assert transitions.types.keep(shared, "no such type", ADMIN, dead_days=1).result == "missing"


def test_pausing_limiting_and_resuming_twice_is_no_trouble(shared: Connection, job_type: str) -> None:
    types = transitions.types
    assert types.resume(shared, job_type, OPERATOR).result == "already"
    assert [types.pause(shared, job_type, OPERATOR).result for _ in range(2)] == ["done", "already"]
    assert [types.limit(shared, job_type, 4, OPERATOR).result for _ in range(2)] == ["done", "already"]
    assert types.limit(shared, job_type, -1, OPERATOR).result == "invalid"
    assert types.limit(shared, job_type, 10**7, OPERATOR).result == "invalid"


def test_days_to_keep_are_an_admins_and_what_is_not_named_stays(shared: Connection, job_type: str) -> None:
    keep = transitions.types.keep
    assert keep(shared, job_type, OPERATOR, succeeded_days=3).result == "denied"
    first = [keep(shared, job_type, ADMIN, succeeded_days=3).result for _ in range(2)]
    assert first == ["done", "already"]
    assert keep(shared, job_type, ADMIN, dead_days=7).changed
    for wrong in (0, -1, 36_501):
        assert keep(shared, job_type, ADMIN, dead_days=wrong).result == "invalid"
    (found,) = factories.rows(shared, "job_types", "name = %s", job_type)
    assert (found["keep_succeeded_days"], found["keep_dead_days"]) == (3, 7)
    assert keep(shared, job_type, ADMIN, succeeded_days=None, dead_days=None).changed
    (found,) = factories.rows(shared, "job_types", "name = %s", job_type)
    assert (found["keep_succeeded_days"], found["keep_dead_days"]) == (None, None)


def test_a_worker_is_asked_once_to_drain_and_to_stop(shared: Connection) -> None:
    worker, gone = factories.a_worker(shared), factories.a_worker(shared, stopped_at="-1 second")
    for move, actor in ((transitions.workers.drain, OPERATOR), (transitions.workers.stop, ADMIN)):
        assert [move(shared, worker, actor).result for _ in range(2)] == ["asked", "already"]
        assert move(shared, gone, actor).result == "already"
        assert move(shared, "nobody", actor).result == "missing"
    assert transitions.workers.stop(shared, worker, OPERATOR).result == "denied"


@pytest.mark.parametrize("move", [transitions.retry_now, transitions.run_again])
def test_an_ended_run_that_breaks_a_rule_is_refused_in_a_sentence_and_audited(
    shared: Connection, move: Any
) -> None:
    run_id = factories.insert(
        shared, "job_runs",
        {"job_type": "mail", "payload": "[1]", "status": "dead", "finished_at": now(shared),
         "error_code": "x"},
    )  # fmt: skip
    answer = move(shared, run_id, OPERATOR)
    assert (answer.result, answer.is_refused, answer.changed) == ("forbidden", True, False)
    assert answer.message == (
        f"The database refuses this for run {run_id}: the rule “job_runs_payload_is_a_small_object” of its "
        "table is broken. Nothing was changed."
    )
    (audited,) = factories.rows(shared, "audit_log", "target_id = %s", str(run_id))
    assert audited["result"] == "forbidden"
