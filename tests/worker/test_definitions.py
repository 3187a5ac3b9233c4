"""Schedules: adding one twice is adding it once, and each verb says what is so now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import wait_until_blocked
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition, DefinitionError

ADMIN = Actor("root", Role.ADMIN, "cli")
BOB = Actor("bob", Role.ADMIN, "cli")
OPERATOR = Actor("alice", Role.OPERATOR, "web")
HOSTILE = "<script>alert('1')</script> \" ' \\ %s {} $1 ünï 🚨"
NIGHTLY = Definition(
    "nightly", "clean_up", "0 2 * * *", {"text": HOSTILE, "n": [1, None]}, "Europe/Paris", "all", 120, "wait",
    3, 60.0, 1,
)  # fmt: skip


def the(connection: Connection, name: str = "nightly") -> factories.Row:
    (found,) = factories.rows(connection, "job_definitions", "name = %s", name)
    return found


def now(connection: Connection) -> datetime:
    (value,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


def test_what_is_added_is_what_is_there(connection: Connection) -> None:
    answer = definitions.add(connection, NIGHTLY, ADMIN)
    assert (answer.result, answer.status) == ("done", "created")
    found = the(connection)
    for name in ("job_type", "schedule", "payload", "timezone", "misfire", "grace_seconds", "overlap",
                 "max_attempts", "timeout_seconds", "priority"):  # fmt: skip
        assert found[name] == getattr(NIGHTLY, name)
    assert found["enabled"]
    assert found["next_fire_at"] > now(connection)


def test_adding_twice_changes_nothing(connection: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    before = the(connection)
    answer = definitions.add(connection, NIGHTLY, ADMIN)
    assert (answer.result, answer.status, answer.ok) == ("already", "unchanged", True)
    assert the(connection) == before


@pytest.mark.parametrize(
    ("change", "result", "status"), [({}, "already", "unchanged"), ({"priority": 4}, "forbidden", None)]
)
def test_of_two_who_add_one_name_at_once_one_creates_and_the_other_is_told(
    connection: Connection, other: Connection, change: dict[str, Any], result: str, status: str | None
) -> None:
    with ThreadPoolExecutor(1) as beside:
        with connection.transaction():
            assert definitions.add(connection, NIGHTLY, ADMIN).status == "created"
            pid, theirs = other.info.backend_pid, replace(NIGHTLY, **change)
            second = beside.submit(definitions.add, other, theirs, BOB)
            wait_until_blocked(connection, pid)
        answer = second.result(timeout=10)
    assert (answer.result, answer.status) == (result, status)
    assert ("There is a schedule nightly already" in answer.message) == (result == "forbidden")
    assert the(connection)["priority"] == NIGHTLY.priority
    audit = factories.rows(connection, "audit_log", "target_id = 'nightly'")
    assert [row["result"] for row in audit] == ["done", result]
    if change:
        assert definitions.add(connection, theirs, ADMIN).status == "changed"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"dry_run": True}, {"dry_run": 1}),
        ({"n": [0, {"deep": False}]}, {"n": [0, {"deep": 0}]}),
        ({"n": 1}, {"n": 1.0}),
    ],
    ids=str,
)
def test_a_payload_is_compared_as_json(
    connection: Connection, before: dict[str, Any], after: dict[str, Any]
) -> None:
    definitions.add(connection, replace(NIGHTLY, payload=before), ADMIN)
    assert definitions.add(connection, replace(NIGHTLY, payload=after), ADMIN).status == "changed"
    assert repr(the(connection)["payload"]) == repr(after)


@pytest.mark.parametrize(
    "change",
    [
        {"job_type": "other"}, {"payload": {}}, {"schedule": "0 3 * * *"}, {"schedule": None},
        {"timezone": "UTC"}, {"misfire": "none"}, {"grace_seconds": 1}, {"overlap": "skip"},
        {"max_attempts": None}, {"timeout_seconds": None}, {"priority": 4},
    ],
    ids=str,
)  # fmt: skip
def test_any_change_is_a_change(connection: Connection, change: dict[str, Any]) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    assert definitions.add(connection, replace(NIGHTLY, **change), ADMIN).status == "changed"
    ((name, value),) = change.items()
    assert the(connection)[name] == value
    assert definitions.add(connection, replace(NIGHTLY, **change), ADMIN).status == "unchanged"


def test_a_change_elsewhere_keeps_a_fire_that_is_due(connection: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = now() - interval '5 minutes'")
    due = the(connection)["next_fire_at"]
    definitions.add(connection, replace(NIGHTLY, priority=0), ADMIN)
    assert the(connection)["next_fire_at"] == due
    definitions.add(connection, replace(NIGHTLY, schedule="0 3 * * *"), ADMIN)
    assert the(connection)["next_fire_at"] > now(connection)


def test_a_definition_without_a_schedule_never_fires(connection: Connection) -> None:
    definitions.add(connection, Definition("by-hand", "clean_up", None), ADMIN)
    assert the(connection, "by-hand")["next_fire_at"] is None
    assert definitions.run_now(connection, "by-hand", OPERATOR).result == "done"


def test_a_paused_schedule_stays_paused_when_it_is_changed(connection: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    assert [definitions.pause(connection, "nightly", OPERATOR).result for _ in range(2)] == [
        "done",
        "already",
    ]
    definitions.add(connection, replace(NIGHTLY, schedule="0 3 * * *"), ADMIN)
    assert not the(connection)["enabled"]


def test_a_resumed_schedule_fires_from_now_on(connection: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    definitions.pause(connection, "nightly", OPERATOR)
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = now() - interval '9 days'")
    assert [definitions.resume(connection, "nightly", OPERATOR).result for _ in range(2)] == [
        "done",
        "already",
    ]
    found = the(connection)
    assert found["enabled"]
    assert found["next_fire_at"] > now(connection)


def test_run_now_makes_one_run_beside_the_schedule(connection: Connection, other: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    fire = the(connection)["next_fire_at"]
    other.execute("LISTEN wakeboard_wake")
    answer = definitions.run_now(connection, "nightly", OPERATOR)
    run = factories.row(connection, int(answer.id))
    for name in ("job_type", "payload", "priority", "max_attempts", "timeout_seconds"):
        assert run[name] == getattr(NIGHTLY, name)
    assert (run["definition_id"], run["scheduled_for"], run["enqueued_by"]) == (
        the(connection)["id"], None, "alice",
    )  # fmt: skip
    assert the(connection)["next_fire_at"] == fire
    assert list(other.notifies(timeout=10, stop_after=1))


def test_a_removed_schedule_leaves_its_history(connection: Connection) -> None:
    definitions.add(connection, NIGHTLY, ADMIN)
    run = int(definitions.run_now(connection, "nightly", OPERATOR).id)
    assert [definitions.remove(connection, "nightly", ADMIN).result for _ in range(2)] == ["done", "missing"]
    assert factories.rows(connection, "job_definitions") == []
    assert factories.status(connection, run) == "queued"
    (removal,) = factories.rows(connection, "audit_log", "action = 'schedule.remove' AND result = 'done'")
    assert removal["before"]["schedule"] == "0 2 * * *"


@pytest.mark.parametrize("verb", ["pause", "resume", "run_now", "remove"])
def test_a_schedule_that_does_not_exist_is_missing(connection: Connection, verb: str) -> None:
    answer = getattr(definitions, verb)(connection, f"none {HOSTILE}", ADMIN)
    assert (answer.result, answer.http_status) == ("missing", 404)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "Nightly"}, "1 to 100 of a-z"),
        ({"name": "nightly\n"}, "1 to 100 of a-z"),
        ({"name": ""}, "1 to 100 of a-z"),
        ({"job_type": ""}, "1 to 200 characters"),
        ({"job_type": "a\x00b"}, "1 to 200 characters"),
        ({"schedule": "61 * * * *"}, "61"),
        ({"schedule": "every night"}, "."),
        ({"schedule": ""}, "."),
        ({"schedule": "*/90 * * * *"}, "it would fire at minute 0 alone. Write 0 for that"),
        ({"schedule": "0 0 31 2 *"}, "'0 0 31 2 \\*' never comes: none of its months has that day"),
        ({"timezone": "Europe/Atlantis"}, "Europe/Atlantis"),
        ({"timezone": "../../etc/passwd"}, "passwd"),
        ({"payload": []}, "not a JSON object"),
        ({"payload": {"text": "\x00"}}, "cannot store"),
        ({"payload": {"text": "x" * 70_000}}, "allowed: 65,536"),
        ({"misfire": "twice"}, "misfire is 'twice'; allowed: one, all, none"),
        ({"overlap": "queue"}, "overlap is 'queue'; allowed: skip, allow, wait"),
        ({"grace_seconds": -1}, "grace is -1"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"timeout_seconds": 0.0}, "timeout is 0"),
        ({"timeout_seconds": float("nan")}, "timeout is nan"),
        ({"priority": 5}, "priority is 5; allowed: 0 to 4"),
    ],
    ids=str,
)
def test_nonsense_is_refused_in_a_sentence_and_nothing_is_written(
    shared: Connection, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DefinitionError, match=sentence):
        definitions.add(shared, replace(NIGHTLY, **change), ADMIN)
    assert factories.rows(shared, "job_definitions") == []
    assert factories.rows(shared, "audit_log") == []


@pytest.mark.parametrize(
    ("job_type", "payload", "says"),
    [
        ("command", {}, "'argv' must be a list of texts"),
        ("command", {"argv": "ls -l"}, "'argv' must be a list of texts"),
        ("command", {"argv": ["ls", 1]}, "every word of 'argv'"),
        ("command", {"argv": ["ls"], "shell": True}, "'shell' is not known; allowed: argv, env, stdin, cwd"),
        ("command", {"argv": ["ls"], "env": {"A": 1}}, "'env' must be an object of texts"),
        ("command", {"argv": ["ls"], "cwd": 7}, "'cwd' must be text"),
        ("command:www-data", {"argv": "ls -l"}, "'argv' must be a list of texts"),
        ("command", {"argv": ["ls"], "ok_codes": 1}, "'ok_codes' must be a list of exit codes from 0 to 255"),
        ("command", {"argv": ["ls"], "ok_codes": []}, "such as [0, 1]"),
        ("command", {"argv": ["ls"], "ok_codes": [0, True]}, "such as [0, 1]"),
        ("command", {"argv": ["ls"], "ok_codes": [0, 256]}, "such as [0, 1]"),
        ("command:www-data", {"argv": ["ls"], "ok_codes": ["1"]}, "such as [0, 1]"),
        ("http", {}, "'url' must be an address"),
        ("http", {"url": "ftp://x"}, "'url' must be an address"),
        ("http", {"url": "http://x/", "method": "BREW"}, "the method is 'BREW'"),
        ("http", {"url": "http://x/", "body": "a", "json": {}}, "not both"),
        ("http", {"url": "http://x/", "headers": {"A": "b\r\nC: d"}}, "line break"),
        ("http", {"url": "http://x/", "argv": ["ls"]}, "'argv' is not known"),
    ],
)
def test_instructions_that_no_run_could_follow_are_refused_before_the_first_fire(
    connection: Connection, job_type: str, payload: dict[str, Any], says: str
) -> None:
    with pytest.raises(DefinitionError, match="The instructions cannot be followed: ") as refused:
        definitions.add(connection, Definition("sick", job_type, "@daily", payload), ADMIN)
    assert says in str(refused.value)
    assert factories.rows(connection, "job_definitions") == []


@pytest.mark.parametrize("user", ["33", "", "www data", "-x"])
def test_a_command_of_no_user_is_refused(connection: Connection, user: str) -> None:
    with pytest.raises(DefinitionError, match="is not the name of an OS user"):
        definitions.add(connection, Definition("sick", f"command:{user}", "@daily", {"argv": ["ls"]}), ADMIN)


def test_an_edit_keeps_instructions_that_can_be_followed(connection: Connection) -> None:
    definitions.add(connection, Definition("disk", "command", "@daily", {"argv": ["df"]}), ADMIN)
    answer = definitions.edit(connection, "disk", {"payload": {"argv": "df -h"}}, ADMIN)
    assert (answer.result, "'argv' must be a list" in answer.message) == ("invalid", True)
    assert the(connection, "disk")["payload"] == {"argv": ["df"]}
    assert definitions.edit(connection, "disk", {"payload": {"argv": ["df", "-h"]}}, ADMIN).result == "done"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timeout_seconds": 0.0}, "timeout is 0 s; allowed: 0.001s to 3650d."),
        ({"timeout_seconds": 0.0005}, "timeout is 0.0005 s; allowed: 0.001s to 3650d."),
        ({"grace_seconds": 366 * 86_400}, "grace is 31622400 s; allowed: 0s to 365d."),
        ({"max_attempts": 0}, "max_attempts is 0; allowed: 1 to 2147483647."),
        ({"priority": 5}, "priority is 5; allowed: 0 to 4."),
    ],
)
def test_what_is_allowed_is_said_as_people_write_it(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        replace(NIGHTLY, **change).check()
    assert str(refused.value) == says
