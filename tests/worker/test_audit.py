"""The audit log: each verb leaves one row in its own transaction, and no row is ever changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support import factories
from wakeboard import queue as transitions
from wakeboard.config import log as lines
from wakeboard.core.errors.error_groups import format_fingerprint
from wakeboard.core.states import VERBS, Role
from wakeboard.database.audit import ENGINE, Actor, record, terminal_actor
from wakeboard.queue import Answer, definitions, error_groups, saved_views, types, workers

ALICE = Actor("alice", Role.OPERATOR, "web", request_id="r1")
HOSTILE = "<script>alert('1')</script> \" ' \\ %s {} $1 ünï 🚨"
VERB = Callable[[Connection, Actor], Answer]


def on_run(move: Callable[..., Answer], status: str) -> VERB:
    return lambda connection, actor: move(connection, factories.a_run(connection, status), actor, "why")


def on_type(move: Callable[..., Answer], *values: Any, **columns: Any) -> VERB:
    return lambda connection, actor: move(
        connection, factories.a_type(connection, **columns), *values, actor, "why"
    )


def on_definition(move: Callable[..., Answer], **columns: Any) -> VERB:
    def act(connection: Connection, actor: Actor) -> Answer:
        factories.a_definition(connection, "nightly", **columns)
        return move(connection, "nightly", actor, "why")

    return act


def on_worker(move: Callable[..., Answer], **columns: Any) -> VERB:
    return lambda connection, actor: move(connection, factories.a_worker(connection, **columns), actor, "why")


def add(connection: Connection, actor: Actor) -> Answer:
    return definitions.add(connection, definitions.Definition("nightly", "mail", "0 2 * * *"), actor, "why")


def remove_view(connection: Connection, actor: Actor) -> Answer:
    values = {"page": "runs", "name": "Dead mail", "query": "status=dead", "created_by": "alice"}
    return saved_views.remove(connection, factories.insert(connection, "saved_views", values), actor, "why")


def a_group(connection: Connection, **columns: Any) -> str:
    return format_fingerprint(factories.a_group(connection, **columns))


VERBS_MADE: dict[str, VERB] = {
    "run.retry": on_run(transitions.retry_now, "dead"),
    "run.cancel": on_run(transitions.cancel, "queued"),
    "run.again": on_run(transitions.run_again, "succeeded"),
    "lease.release": on_run(transitions.release_lease, "running"),
    "schedule.edit": add,
    "schedule.run": on_definition(definitions.run_now),
    "schedule.pause": on_definition(definitions.pause),
    "schedule.resume": on_definition(definitions.resume, enabled=False),
    "schedule.remove": on_definition(definitions.remove),
    "type.pause": on_type(types.pause),
    "type.resume": on_type(types.resume, paused_at=factories.from_now("-1 minute")),
    "type.limit": on_type(types.limit, 3),
    "worker.drain": on_worker(workers.drain),
    "worker.undrain": on_worker(workers.undrain, drain_requested_at="-1 minute"),
    "worker.stop": on_worker(workers.stop),
    "error.mute": lambda connection, actor: error_groups.mute(
        connection, a_group(connection), 3600, actor, "why"
    ),
    "error.unmute": lambda connection, actor: error_groups.unmute(
        connection, a_group(connection, muted_until=factories.from_now("1 hour")), actor, "why"
    ),
    "view.save": lambda connection, actor: saved_views.save(
        connection, "runs", "Dead mail", "status=dead", actor, "why"
    ),
    "view.remove": remove_view,
}


def log(connection: Connection) -> list[factories.Row]:
    return factories.rows(connection, "audit_log", order="id")


@pytest.mark.parametrize("action", VERBS_MADE)
def test_a_verb_leaves_one_row_that_tells_who_what_and_why(connection: Connection, action: str) -> None:
    actor = Actor("alice", Role.ADMIN, "web", ip="192.0.2.7", request_id="r-1")
    answer = VERBS_MADE[action](connection, actor)
    assert answer.changed
    (row,) = log(connection)
    assert (row["actor"], row["role"], row["source"], row["action"]) == ("alice", "admin", "web", action)
    assert (row["reason"], row["ip"], row["request_id"]) == ("why", "192.0.2.7", "r-1")
    assert row["result"] == answer.result
    assert row["target_type"] in ("run", "schedule", "type", "worker", "view", "error")


@pytest.mark.parametrize("action", VERBS_MADE)
def test_a_verb_and_its_row_are_kept_or_lost_together(connection: Connection, action: str) -> None:
    with connection.transaction(force_rollback=True):
        assert VERBS_MADE[action](connection, Actor("alice", Role.ADMIN, "web")).changed
        assert len(log(connection)) == 1
    assert log(connection) == []


@pytest.mark.parametrize("action", VERBS_MADE)
def test_a_verb_above_ones_role_does_nothing_but_leave_a_row(connection: Connection, action: str) -> None:
    needed = VERBS[action].role
    for role in Role:
        if role.covers(needed):
            continue
        answer = VERBS_MADE[action](connection, Actor(f"bob {HOSTILE}", role, "api"))
        assert (answer.result, answer.http_status, answer.changed) == ("denied", 403, False)
        row = log(connection)[-1]
        assert (row["action"], row["result"], row["role"]) == (action, "denied", role)
        _clear(connection)


def _clear(connection: Connection) -> None:
    for table in ("job_runs", "job_attempts", "job_types", "job_definitions", "workers"):
        connection.execute(f"DELETE FROM wakeboard.{table}".encode())


def test_a_denied_verb_leaves_its_target_as_it_was(connection: Connection) -> None:
    run = factories.a_run(connection, "dead")
    before = factories.row(connection, run)
    transitions.retry_now(connection, run, Actor("bob", Role.VIEWER, "web"))
    assert factories.row(connection, run) == before


def test_a_row_shows_what_was_and_what_became_of_it(connection: Connection) -> None:
    run = factories.a_run(connection, "dead")
    transitions.retry_now(connection, run, Actor("alice", Role.OPERATOR, "web"))
    (row,) = log(connection)
    assert (row["before"]["status"], row["after"]["status"]) == ("dead", "queued")
    assert row["target_id"] == str(run)


def test_a_lost_race_and_a_missing_target_are_logged_too(connection: Connection) -> None:
    alice = Actor("alice", Role.OPERATOR, "web")
    transitions.retry_now(connection, factories.a_run(connection, "succeeded"), alice)
    transitions.cancel(connection, 10**15, alice)
    assert [row["result"] for row in log(connection)] == ["forbidden", "missing"]


def test_hostile_text_is_kept_as_text_within_bounds(connection: Connection) -> None:
    actor = Actor(HOSTILE, Role.ADMIN, "web")
    for reason in (HOSTILE, "a\x00b\nc\x1b[31m", "\udc80 half", "x" * 10_000):
        record(connection, actor, "run.retry", "run", 1, reason=reason, before={"text": HOSTILE})
    reasons = [row["reason"] for row in log(connection)]
    assert reasons[0] == log(connection)[0]["actor"] == HOSTILE
    assert reasons[1] == "a b c [31m"
    assert len(reasons[3]) == 500


@pytest.mark.parametrize("statement", ["UPDATE {} SET actor = 'x'", "DELETE FROM {}", "TRUNCATE {}"])
@pytest.mark.parametrize("who", ["connection", "superuser"])
def test_no_row_is_changed_or_removed(request: pytest.FixtureRequest, statement: str, who: str) -> None:
    connection: Connection = request.getfixturevalue(who)
    record(connection, Actor("alice", Role.ADMIN, "web"), "run.retry")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        connection.execute(statement.format("wakeboard.audit_log").encode())
    assert len(log(connection)) == 1


def test_retention_alone_may_remove_old_rows(connection: Connection) -> None:
    record(connection, Actor("alice", Role.ADMIN, "web"), "run.retry")
    with connection.transaction():
        connection.execute("SET LOCAL wakeboard.retention = 'on'")
        connection.execute("DELETE FROM wakeboard.audit_log")
    assert log(connection) == []
    with connection.transaction(force_rollback=True), pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SET LOCAL wakeboard.retention = 'on'")
        record(connection, Actor("alice", Role.ADMIN, "web"), "run.retry")
        connection.execute("UPDATE wakeboard.audit_log SET actor = 'x'")


def test_a_command_in_a_terminal_is_its_os_users_with_every_right() -> None:
    actor = terminal_actor()
    assert actor.name.startswith("cli:")
    assert (actor.role, actor.source) == (Role.ADMIN, "cli")


def test_each_act_is_a_line_in_the_log_with_who_what_and_what_came_of_it(
    connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    lines.configure("text")
    dead, ended = factories.a_run(connection, "dead"), factories.a_run(connection, "succeeded")
    factories.a_type(connection, "mail")
    capsys.readouterr()
    transitions.retry_now(connection, dead, ALICE, "the password is hunter2")
    transitions.cancel(connection, ended, ALICE)
    types.pause(connection, "mail", Actor("bob", Role.VIEWER, "api"))
    definitions.pause(connection, "gone", Actor("cli:carl", Role.ADMIN, "cli"))
    transitions.retry_now(connection, dead, ENGINE)
    said = [line[9:] for line in capsys.readouterr().err.splitlines()]
    alice = "by=alice role=operator source=web"
    assert said == [
        f"run.retry {alice} target=run:{dead} result=done request_id=r1",
        f"run.cancel {alice} target=run:{ended} result=forbidden request_id=r1",
        "type.pause by=bob role=viewer source=api target=type:mail result=denied",
        "schedule.pause by=cli:carl role=admin source=cli target=schedule:gone result=missing",
    ]


def test_hostile_names_stay_on_the_line_of_their_act(
    connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    lines.configure("text")
    capsys.readouterr()
    record(
        connection, Actor("eve\nrun.retry by=root", Role.VIEWER, "web"), "login", "session", "a\x1b[31m\r\nb"
    )
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said
    assert 'login by="eve run.retry by=root"' in said
