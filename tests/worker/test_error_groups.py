"""Error groups are kept with the failures: made once, seen again at most once a minute, in nobody's way."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import (
    a_group,
    a_run,
    a_type,
    attempts,
    claim,
    end_lease,
    fail,
    from_now,
    reap,
    row,
    rows,
    status,
)
from wakeboard import queue as transitions
from wakeboard.core.errors.error_groups import format_fingerprint, group_of, lost_group
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.queue import error_groups
from wakeboard.runtime.loop import result_queue
from wakeboard.runtime.loop.result_queue import ErrorGroupThrottle

ANNA = Actor("anna", Role.OPERATOR, "web")


def a_failure(connection: Connection, group: int = 7, template: str | None = "gone", **columns: Any) -> int:
    """Let a run of its own fail once, so that it will be tried again; return its id."""
    a_type(connection, "mail") if not rows(connection, "job_types") else None
    run_id = a_run(connection)
    (claimed,) = claim(connection)
    fail(connection, claimed.held, group=group, template=template, **columns)
    return run_id


def the_group(connection: Connection, number: int = 7) -> dict[str, Any]:
    (found,) = rows(connection, "error_groups", "id = %s", number)
    return found


def test_the_first_failure_makes_its_group(connection: Connection) -> None:
    run_id = a_failure(connection, code="OSError", frame="crm.py in send")
    found = the_group(connection)
    assert row(connection, run_id)["error_group"] == attempts(connection, run_id)[0]["error_group"] == 7
    assert found["fingerprint"] == format_fingerprint(7) == "0000000000007"
    assert (found["error_code"], found["job_type"], found["template"]) == ("OSError", "mail", "gone")
    assert (found["frame"], found["first_run_id"], found["returned_at"]) == ("crm.py in send", run_id, None)
    assert found["first_seen_at"] == found["last_seen_at"]


def test_a_later_failure_moves_when_it_was_last_seen_and_nothing_else(connection: Connection) -> None:
    a_failure(connection, frame="crm.py in send")
    before = the_group(connection)
    a_failure(connection, template="another text", frame="other.py in other")
    after = the_group(connection)
    assert after.pop("last_seen_at") > before.pop("last_seen_at")
    assert after == before


def test_a_failure_whose_group_was_told_lately_does_not_touch_it(connection: Connection) -> None:
    a_failure(connection)
    before = the_group(connection)
    run_id = a_failure(connection, template=None)
    assert the_group(connection) == before
    assert row(connection, run_id)["error_group"] == 7


def test_a_batch_makes_each_of_its_groups_once(connection: Connection) -> None:
    a_type(connection, "mail")
    for _ in range(3):
        a_run(connection)
    held = [claimed.held for claimed in claim(connection)]
    fail(connection, *held, group=9, template="gone")
    assert len(rows(connection, "error_groups")) == 1


@pytest.mark.parametrize(("silent", "is_back"), [("8 days", True), ("6 days", False)])
def test_a_group_is_back_when_it_was_silent_for_a_week(
    connection: Connection, silent: str, is_back: bool
) -> None:
    a_failure(connection)
    connection.execute(
        "UPDATE wakeboard.error_groups SET first_seen_at = now() - interval '90 days',"
        f" last_seen_at = now() - interval '{silent}'".encode()
    )
    before = the_group(connection)
    a_failure(connection)
    after = the_group(connection)
    assert (after["returned_at"] is not None) is is_back
    assert after["quiet_from_at"] == (before["last_seen_at"] if is_back else None)
    a_failure(connection)
    assert the_group(connection)["returned_at"] == after["returned_at"], "it came back once"


def test_who_holds_a_groups_row_keeps_no_failure_waiting(database: str, connection: Connection) -> None:
    a_failure(connection)
    before = the_group(connection)
    with db.connect(database, name="wakeboard test") as other, other.transaction():
        other.execute("SELECT 1 FROM wakeboard.error_groups FOR UPDATE")
        connection.execute("SET lock_timeout = '2s'")
        run_id = a_failure(connection)
    assert status(connection, run_id) == "failed"
    assert the_group(connection) == before


def test_workers_that_meet_the_same_new_groups_at_once_write_each_of_them_once(
    database: str, connection: Connection
) -> None:
    a_type(connection, "mail")
    for _ in range(80):
        a_run(connection)
    held = [claimed.held for claimed in claim(connection, limit=80)]
    failures: list[BaseException] = []

    def write(mine: list[tuple[int, int]], numbers: list[int]) -> None:
        try:
            with db.connect(database, name="wakeboard test") as own:
                for pair in range(0, len(mine), 2):
                    for one, number in zip(mine[pair : pair + 2], numbers, strict=True):
                        fail(own, one, group=number + pair, template="gone")
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=write, args=(held[:40], [100, 101])),
        threading.Thread(target=write, args=(held[40:], [101, 100])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and not any(thread.is_alive() for thread in threads)
    assert len(rows(connection, "error_groups")) == 40


def test_what_was_stopped_on_request_belongs_to_no_group_and_keeps_the_last_one(
    connection: Connection,
) -> None:
    run_id = a_failure(connection)
    connection.execute("UPDATE wakeboard.job_runs SET run_at = now()")
    (claimed,) = claim(connection)
    fail(connection, claimed.held, outcome="cancelled", code="cancelled", group=None)
    assert [each["error_group"] for each in attempts(connection, run_id)] == [7, None]
    assert row(connection, run_id)["error_group"] == 7


def test_a_lost_lease_is_one_group_whether_the_reaper_or_a_person_noticed(connection: Connection) -> None:
    a_type(connection, "mail")
    runs = [a_run(connection), a_run(connection)]
    first, second = sorted(claim(connection), key=lambda claimed: claimed.id)
    for run_id in runs:
        end_lease(connection, run_id)
    reap(connection, first.held)
    assert transitions.release_lease(connection, second.id, ANNA).changed
    number = lost_group("mail").id
    assert {row(connection, run_id)["error_group"] for run_id in runs} == {number}
    found = the_group(connection, number)
    assert (found["error_code"], found["frame"], found["first_run_id"]) == ("lease_lost", None, runs[0])


def test_a_process_tells_a_group_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(result_queue, "monotonic", lambda: now)
    known = ErrorGroupThrottle()
    assert known.is_due(7)
    known.note([7, 8])
    now += 59
    assert not known.is_due(7) and known.is_due(9)
    now += 1
    assert known.is_due(7)


def test_what_is_remembered_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_queue, "MOST_GROUPS", 3)
    known = ErrorGroupThrottle()
    for number in range(1000):
        known.note([number])
    assert sum(not known.is_due(number) for number in range(1000)) <= 4


# ---- mute -------------------------------------------------------------------------------------------


def test_a_mute_has_an_end_a_reason_and_a_name(connection: Connection) -> None:
    number = a_group(connection)
    answer = error_groups.mute(connection, format_fingerprint(number), 3600, ANNA, "provider is down")
    assert (answer.result, answer.status, answer.id) == ("done", "muted", format_fingerprint(number))
    found = the_group(connection, number)
    assert (found["muted_by"], found["muted_reason"]) == ("anna", "provider is down")
    assert found["muted_until"] - found["muted_at"] == timedelta(hours=1)
    (noted,) = rows(connection, "audit_log")
    assert (noted["action"], noted["target_type"], noted["target_id"]) == ("error.mute", "error", answer.id)
    assert noted["after"]["muted_until"] == found["muted_until"].isoformat()


@pytest.mark.parametrize("seconds", [0, -1, 59, 91 * 86_400, float("inf"), float("nan"), 1e300])
def test_a_mute_without_a_sensible_end_is_refused(connection: Connection, seconds: float) -> None:
    number = a_group(connection)
    answer = error_groups.mute(connection, format_fingerprint(number), seconds, ANNA)
    assert answer.result == "invalid" and "1 minute to 90 days" in answer.message
    assert the_group(connection, number)["muted_until"] is None


def test_muting_again_moves_the_end(connection: Connection) -> None:
    fingerprint = format_fingerprint(a_group(connection))
    error_groups.mute(connection, fingerprint, 86_400, ANNA, "why")
    assert error_groups.mute(connection, fingerprint, 60, Actor("bob", Role.ADMIN, "web")).changed
    found = rows(connection, "error_groups")[0]
    assert (found["muted_by"], found["muted_reason"]) == ("bob", None)


def test_unmuting_what_is_not_muted_changes_nothing(connection: Connection) -> None:
    fingerprint = format_fingerprint(a_group(connection, muted_until=from_now("-1 second")))
    assert error_groups.unmute(connection, fingerprint, ANNA).result == "already"
    error_groups.mute(connection, fingerprint, 60, ANNA)
    assert error_groups.unmute(connection, fingerprint, ANNA).result == "done"
    found = rows(connection, "error_groups")[0]
    assert {found[f"muted_{name}"] for name in ("until", "at", "by", "reason")} == {None}


@pytest.mark.parametrize(
    "fingerprint", ["0000000000001", "", "x", "' OR 1=1", "0" * 400, "9223372036854775808"]
)
def test_a_group_that_does_not_exist_is_missing(connection: Connection, fingerprint: str) -> None:
    for answer in (
        error_groups.mute(connection, fingerprint, 60, ANNA),
        error_groups.unmute(connection, fingerprint, ANNA),
    ):
        assert answer.result == "missing"


def test_the_server_itself_holds_one_row_per_group(connection: Connection) -> None:
    number = a_group(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        a_group(connection)
    assert number == group_of("mail", "smtp_down", "The mail server did not answer.").id
