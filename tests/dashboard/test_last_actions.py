"""Who asked for what the last time: the newest row of each verb, and no row more is read than is needed."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.conftest import Connection
from tests.support.factories import insert
from wakeboard_dashboard.queries import audit
from wakeboard_dashboard.web.connection import reading


def act(connection: Connection, name: str, action: str, actor: str, **columns: Any) -> None:
    """Note in the log that ``actor`` did ``action`` to the schedule ``name``."""
    values = {"target_type": "schedule", "target_id": name, "action": action, "actor": actor, "source": "web"}
    insert(connection, "audit_log", values | columns)


def who(app: Flask, names: list[str], actions: list[str]) -> dict[tuple[str, str], str]:
    with app.test_request_context("/"):
        found = audit.find_last_actions(reading(), "schedule", names, actions)
        return {key: str(row["actor"]) for key, row in found.items()}


@pytest.fixture
def past(connection: Connection) -> None:
    """Two schedules that were paused and resumed by several people."""
    for name in ("nightly", "hourly"):
        for actor in ("anna", "bert"):
            act(connection, name, "schedule.pause", actor)
            act(connection, name, "schedule.resume", actor)
        act(connection, name, "schedule.pause", "carl", result="denied")
        act(connection, name, "run.retry", "carl")
    act(connection, "hourly", "schedule.edit", "dora", after={"enabled": False})
    act(connection, "hourly", "schedule.edit", "carl", after={"enabled": True})


@pytest.mark.usefixtures("past")
def test_the_last_one_who_asked_is_told_of_one_verb_and_of_several(app: Flask) -> None:
    names = ["nightly", "hourly", "never"]
    paused = {("nightly", "schedule.pause"): "bert", ("hourly", "schedule.pause"): "dora"}
    resumed = {("nightly", "schedule.resume"): "bert", ("hourly", "schedule.resume"): "bert"}
    assert who(app, names, ["schedule.pause"]) == paused
    assert who(app, names, ["schedule.resume"]) == resumed
    assert who(app, names, ["schedule.pause", "schedule.resume"]) == paused | resumed
    assert who(app, names, ["schedule.remove"]) == {}
    assert who(app, [], ["schedule.pause"]) == {}


@pytest.mark.usefixtures("past")
def test_what_was_asked_long_before_other_things_is_forgotten(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "NEWEST_OF_ONE", 3)
    assert who(app, ["nightly", "hourly"], ["schedule.pause"]) == {("hourly", "schedule.pause"): "dora"}
    monkeypatch.setattr(audit, "NEWEST_OF_ONE", 4)
    assert who(app, ["nightly"], ["schedule.pause"]) == {("nightly", "schedule.pause"): "bert"}


def test_of_one_verb_only_the_row_that_says_it_is_read(connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.audit_log (target_type, target_id, action, actor, source)
        SELECT 'schedule', 'nightly', 'schedule.pause', 'anna', 'web' FROM generate_series(1, 2000)"""
    )
    connection.execute("ANALYZE wakeboard.audit_log")
    values = {
        "names": ["nightly"],
        "kind": "schedule",
        "actions": ["schedule.pause"],
        "newest": audit.NEWEST_OF_ONE,
    }
    statement = str(audit._LAST_OF_ONE)
    for name in values:
        statement = statement.replace(f":{name}", f"%({name})s")
    plan = connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}".encode(), values).fetchall()
    (read,) = (line[0] for line in plan if "audit_log_by_target" in line[0])
    assert "actual rows=1.00" in read, plan
