"""Every move of ``wakeboard.core.states.MOVES`` against every status: it moves, or nothing is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support import factories
from wakeboard import queue as transitions
from wakeboard.core.states import MOVES, VERBS, Move, Outcome, Role, Status, Verb, is_allowed
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard.queue.engine.fence import NOTE_REFUSAL

OPERATOR = Actor("alice", Role.OPERATOR, "web")
_types = (f"type{number}" for number in itertools.count())


@dataclass(frozen=True)
class Way:
    """One way to make a move: what the run needs beside its status, and the move itself.

    ``make`` returns the id of the run that is what the move made of it, None when it did not happen.
    """

    target: str
    make: Callable[[Connection, int, str], int | None]
    columns: dict[str, Any] = field(default_factory=dict)
    only: tuple[Status, ...] = ()


def _claim(connection: Connection, _run: int, job_type: str) -> int | None:
    claimed = factories.claim(connection, [job_type])
    return claimed[0].id if claimed else None


def _held(connection: Connection, run: int) -> factories.Held:
    return run, factories.row(connection, run)["lease_epoch"]


def _by_engine(move: Callable[..., Any], **values: Any) -> Callable[[Connection, int, str], int | None]:
    def make(connection: Connection, run: int, _job_type: str) -> int | None:
        return run if move(connection, _held(connection, run), **values) else None

    return make


def _by_operator(move: Callable[..., Answer]) -> Callable[[Connection, int, str], int | None]:
    def make(connection: Connection, run: int, _job_type: str) -> int | None:
        answer = move(connection, run, OPERATOR)
        assert answer.result in ("done", "asked", "already", "forbidden")
        assert answer.message.endswith(".")
        return int(answer.id) if answer.changed else None

    return make


ASKED = {"cancel_requested_at": "-1 second"}
ENDED_LEASE = {"locked_until": "-1 second"}
RUNNING = (Status.RUNNING,)
NOT_RUNNING = tuple(status for status in Status if status != Status.RUNNING)
FAILED, DEAD, CANCELLED = Status.FAILED, Status.DEAD, Status.CANCELLED
BACK_TO_QUEUED = (Status.QUEUED, DEAD, CANCELLED)

WAYS: dict[str, list[Way]] = {
    "claim": [Way("running", _claim, {"run_at": "-1 second"})],
    "renew": [Way("running", _by_engine(factories.renew))],
    "succeed": [
        Way("succeeded", _by_engine(factories.succeed)),
        Way("succeeded", _by_engine(factories.succeed), ASKED, RUNNING),
    ],
    "fail": [
        Way("failed", _by_engine(factories.fail)),
        Way("failed", _by_engine(factories.fail, outcome="timed_out")),
        Way("dead", _by_engine(factories.fail, permanent=True)),
        Way("dead", _by_engine(factories.fail, most=1)),
        Way("cancelled", _by_engine(factories.fail), ASKED, RUNNING),
        Way("cancelled", _by_engine(factories.fail, outcome="timed_out"), ASKED, RUNNING),
        Way("cancelled", _by_engine(factories.fail, outcome="cancelled"), ASKED, RUNNING),
    ],
    "release": [
        Way("queued", _by_engine(factories.release)),
        Way("queued", _by_engine(factories.release, started=False)),
        Way("cancelled", _by_engine(factories.release), ASKED, RUNNING),
        Way("cancelled", _by_engine(factories.release, started=False), ASKED, RUNNING),
    ],
    "reap": [
        Way("failed", _by_engine(factories.reap), ENDED_LEASE, RUNNING),
        Way("dead", _by_engine(factories.reap, most=1), ENDED_LEASE, RUNNING),
        Way("cancelled", _by_engine(factories.reap), ENDED_LEASE | ASKED, RUNNING),
        Way("failed", _by_engine(factories.reap), {}, NOT_RUNNING),
    ],
    "cancel": [
        Way("cancelled", _by_operator(transitions.cancel), {}, (Status.QUEUED, FAILED, DEAD)),
        Way("running", _by_operator(transitions.cancel), {}, RUNNING),
        Way("cancelled", _by_operator(transitions.cancel), {}, (Status.SUCCEEDED, CANCELLED)),
    ],
    "retry_now": [
        Way("queued", _by_operator(transitions.retry_now), {"run_at": "1 hour"}, BACK_TO_QUEUED),
        Way("failed", _by_operator(transitions.retry_now), {"run_at": "1 hour"}, (FAILED,)),
        Way("queued", _by_operator(transitions.retry_now), {}, (Status.RUNNING, Status.SUCCEEDED)),
    ],
    "release_lease": [
        Way("failed", _by_operator(transitions.release_lease)),
        Way("dead", _by_operator(transitions.release_lease), {"max_attempts": 1}, RUNNING),
        Way("cancelled", _by_operator(transitions.release_lease), ASKED, RUNNING),
    ],
    "run_again": [Way("queued", _by_operator(transitions.run_again))],
}  # fmt: skip
CASES = [
    pytest.param(MOVES[name], way, status, id=f"{name} to {way.target} from {status} {number}")
    for name, ways in WAYS.items()
    for number, way in enumerate(ways)
    for status in (way.only or Status)
]


def everything(connection: Connection, run: int) -> list[Any]:
    """Return all that a move of ``run`` could write, with the row's version: equal means nothing written."""
    found = connection.execute(
        "SELECT r.xmin, r.ctid, r::text FROM wakeboard.job_runs AS r WHERE id = %s", (run,)
    ).fetchall()
    history = connection.execute(
        "SELECT a.xmin, a::text FROM wakeboard.job_attempts AS a WHERE run_id = %s ORDER BY lease_epoch",
        (run,),
    ).fetchall()
    counted = connection.execute("SELECT count(*) FROM wakeboard.statistics_deltas").fetchall()
    runs = connection.execute("SELECT max(id) FROM wakeboard.job_runs").fetchall()
    return [found, history, counted, runs]


@pytest.mark.parametrize(("move", "way", "status"), CASES)
def test_a_move_happens_from_its_sources_and_from_nowhere_else(
    shared: Connection, move: Move, way: Way, status: Status
) -> None:
    job_type = factories.a_type(shared, next(_types))
    run = factories.a_run(shared, status.value, job_type=job_type, **way.columns)
    before = everything(shared, run)
    moved = way.make(shared, run, job_type)
    if status in move.sources:
        assert moved is not None
        assert factories.status(shared, moved) == way.target
        assert Status(way.target) in move.targets
    else:
        assert moved is None
        assert everything(shared, run) == before


def test_the_cases_hold_every_move_every_status_and_every_target() -> None:
    assert set(WAYS) == set(MOVES) - {"enqueue"}
    for name, ways in WAYS.items():
        assert {Status(way.target) for way in ways} == set(MOVES[name].targets), name
        assert {status for way in ways for status in (way.only or Status)} == set(Status), name


def test_run_again_leaves_the_old_run_as_it_was(shared: Connection) -> None:
    run = factories.a_run(shared, "dead", idempotency_key="invoice_charge:812")
    before = everything(shared, run)[:2]
    new = int(transitions.run_again(shared, run, OPERATOR).id)
    assert everything(shared, run)[:2] == before
    found = factories.row(shared, new)
    assert (found["origin_run_id"], found["idempotency_key"], found["scheduled_for"]) == (run, None, None)
    assert (found["attempts"], found["failures"]) == (0, 0)


@pytest.mark.parametrize("verb", [verb for verb in VERBS.values() if verb.move], ids=lambda verb: verb.action)
@pytest.mark.parametrize("status", Status)
def test_the_buttons_shown_are_the_moves_allowed(verb: Verb, status: Status) -> None:
    assert verb.move is not None
    assert is_allowed(verb, status) == (status in MOVES[verb.move].sources)


FENCED: dict[str, Callable[..., Any]] = {
    "renew": factories.renew,
    "succeed": factories.succeed,
    "fail": factories.fail,
    "release": factories.release,
    "release unstarted": lambda connection, held, **values: factories.release(
        connection, held, started=False, **values
    ),
}


def _again_in_other_hands(connection: Connection, job_type: str) -> tuple[int, factories.Held]:
    """Claim, reap and claim again, both times as w1; return the run and what the first claim held."""
    run = factories.a_run(connection, job_type=job_type)
    (first,) = factories.claim(connection, [job_type])
    factories.end_lease(connection, run)
    factories.reap(connection, first.held)
    (second,) = factories.claim(connection, [job_type])
    assert second.lease_epoch == first.lease_epoch + 2
    return run, first.held


@pytest.mark.parametrize("move", FENCED)
def test_an_answer_under_an_old_epoch_writes_nothing(shared: Connection, move: str) -> None:
    run, old = _again_in_other_hands(shared, factories.a_type(shared, next(_types)))
    before = everything(shared, run)
    assert not FENCED[move](shared, old)
    assert everything(shared, run) == before


@pytest.mark.parametrize("move", FENCED)
def test_an_answer_of_another_worker_writes_nothing_even_under_the_same_epoch(
    shared: Connection, move: str
) -> None:
    run = factories.a_run(shared, "running", locked_by="w1", lease_epoch=7)
    before = everything(shared, run)
    assert not FENCED[move](shared, (run, 7), worker_id="w2")
    assert everything(shared, run) == before


@pytest.mark.parametrize("move", FENCED)
def test_an_answer_for_a_run_given_back_writes_nothing(shared: Connection, move: str) -> None:
    run = factories.a_run(shared, "running")
    factories.release(shared, (run, 1))
    before = everything(shared, run)
    assert not FENCED[move](shared, (run, 1))
    assert everything(shared, run) == before


@pytest.mark.parametrize("move", FENCED)
def test_an_answer_for_a_run_that_is_gone_writes_nothing(shared: Connection, move: str) -> None:
    assert not FENCED[move](shared, (10**15, 1))
    assert not factories.attempts(shared, 10**15)


def test_a_lease_renewed_after_the_reaper_looked_is_left_alone(shared: Connection) -> None:
    run = factories.a_run(shared, "running", locked_until="-1 second")
    assert factories.renew(shared, (run, 1)) == {run: False}
    before = everything(shared, run)
    assert not factories.reap(shared, (run, 1))
    assert everything(shared, run) == before


def test_a_lease_that_changed_hands_after_the_reaper_looked_is_left_alone(shared: Connection) -> None:
    run, old = _again_in_other_hands(shared, factories.a_type(shared, next(_types)))
    factories.end_lease(shared, run)
    before = everything(shared, run)
    assert not factories.reap(shared, old)
    assert everything(shared, run) == before


def test_a_worker_that_overslept_still_owns_a_lease_that_nobody_took(shared: Connection) -> None:
    run = factories.a_run(shared, "running", locked_until="-10 minutes")
    assert factories.succeed(shared, (run, 1)) == [run]


def test_a_late_answer_is_noted_once_on_the_attempt_that_lost_the_lease(shared: Connection) -> None:
    run = factories.a_run(shared, "running", locked_until="-1 second")
    factories.reap(shared, (run, 1))
    assert not factories.succeed(shared, (run, 1))
    _note(shared, run, Outcome.SUCCEEDED)
    _note(shared, run, Outcome.FAILED)
    (lost,) = factories.attempts(shared, run)
    assert (lost["outcome"], lost["refused_outcome"]) == ("lost", "succeeded")
    assert lost["refused_at"] is not None


def test_a_late_answer_is_never_noted_on_an_attempt_that_ended_well(shared: Connection) -> None:
    run = factories.a_run(shared, "succeeded")
    _note(shared, run, Outcome.FAILED)
    assert factories.attempts(shared, run)[0]["refused_at"] is None


def _note(connection: Connection, run: int, outcome: Outcome) -> None:
    psycopg.RawCursor(connection).execute(NOTE_REFUSAL.encode(), (run, 1, outcome.value))
