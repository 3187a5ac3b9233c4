"""Edits, pauses, changes of zone: each slot of the rule that held is settled once, whoever edits and how."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.factories import Connection, Row, rows
from tests.support.workers import cron_oracle
from wakeboard.core.states import Role
from wakeboard.database.audit import ENGINE, Actor
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition
from wakeboard.schedules import code_schedules
from wakeboard.schedules import scheduler as schedule

ADMIN = Actor("ada", Role.ADMIN, "cli")
# Ageing by whole hours keeps their fires on the clock's minutes: none of them means an hour of its own.
RULES = ("0 * * * *", "*/20 * * * *", "5,35 * * * *", "50 * * * *", "0-59/7 * * * *")
PLACES = ("UTC", "Asia/Kathmandu", "Australia/Adelaide", "Asia/Kolkata")
AGE = """
UPDATE wakeboard.job_definitions
SET next_fire_at = next_fire_at - %(by)s, last_fire_at = last_fire_at - %(by)s,
    settled_at = settled_at - %(by)s, updated_at = updated_at - %(by)s,
    unsettled = (
        SELECT jsonb_agg(stretch || jsonb_build_object(
            'first', (stretch->>'first')::timestamptz - %(by)s,
            'after', (stretch->>'after')::timestamptz - %(by)s,
            'until', (stretch->>'until')::timestamptz - %(by)s) ORDER BY n)
        FROM jsonb_array_elements(unsettled) WITH ORDINALITY AS listed (stretch, n)
    )
WHERE id = %(id)s
"""


def the(connection: Connection, name: str) -> Row:
    (found,) = rows(connection, "job_definitions", "name = %s", name)
    return found


def update(connection: Connection, name: str, **columns: Any) -> None:
    """Edit a definition as somebody at psql does."""
    for column, value in columns.items():
        connection.execute(
            f"UPDATE wakeboard.job_definitions SET {column} = %s WHERE name = %s".encode(), (value, name)
        )


@dataclass
class Rule:
    """What a definition said, and since when."""

    schedule: str
    timezone: str
    enabled: bool
    since: datetime


@dataclass
class History:
    """What happened to one definition, in the time that its rows have now been aged to."""

    connection: Connection
    definition: Row
    rule: Rule
    wanted: list[datetime] = field(default_factory=list)
    kept: list[tuple[datetime, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    def age(self, by: timedelta) -> None:
        """Let time pass: everything that was is so much longer ago."""
        self.connection.execute(AGE, {"by": by, "id": self.definition["id"]})
        self.rule.since -= by
        self.wanted = [at - by for at in self.wanted]
        self.kept = [(at - by, what) for at, what in self.kept]

    def edited(self, **changed: Any) -> None:
        """Take note of an edit: until then the old rule held."""
        now = the(self.connection, self.name)
        self._close(now["settled_at"])
        self.rule = Rule(**{**vars(self.rule), **changed, "since": now["settled_at"]})

    def tick(self) -> None:
        """Let the scheduler look, and take what it wrote, so that no unique index hides a second one."""
        schedule.settle(self.connection)
        for table, what in (("job_runs", "'fired'"), ("missed_fires", "reason")):
            self.kept += self.connection.execute(
                f"DELETE FROM wakeboard.{table} WHERE definition_id = %s"
                f" RETURNING scheduled_for, {what}".encode(),
                (self.definition["id"],),
            ).fetchall()
        found = the(self.connection, self.name)
        assert found["unsettled"] is None
        if found["enabled"]:
            self._close(found["settled_at"])
            self.rule.since = found["settled_at"]

    def _close(self, until: datetime) -> None:
        if self.rule.enabled:
            start = self.rule.since.replace(second=0, microsecond=0)
            fires = cron_oracle.every_minute(
                self.rule.schedule, self.rule.timezone, start, until + timedelta(microseconds=1)
            )
            self.wanted += [at for at in fires if at > self.rule.since]


def begin(connection: Connection, name: str, **policy: Any) -> History:
    """Make the schedule of the type ``name`` as its code does: people and the code edit it from then on."""
    definitions.add(connection, Definition(name, name, "0 * * * *", **policy), ENGINE)
    made = the(connection, name)
    return History(connection, made, Rule("0 * * * *", "UTC", True, made["settled_at"]))


def by_schedule_add(history: History, chance: random.Random) -> None:
    text, timezone = chance.choice(RULES), chance.choice(PLACES)
    known = the(history.connection, history.name)
    definition = Definition(
        history.name,
        history.name,
        text,
        timezone=timezone,
        misfire=known["misfire"],
        overlap=known["overlap"],
    )
    definitions.add(history.connection, definition, ADMIN)
    if (text, timezone) != (known["schedule"], known["timezone"]):
        history.edited(schedule=text, timezone=timezone)


def by_plain_sql(history: History, chance: random.Random) -> None:
    for column, choices in chance.sample([("schedule", RULES), ("timezone", PLACES)], 2):
        value = chance.choice(choices)
        differs = the(history.connection, history.name)[column] != value
        update(history.connection, history.name, **{column: value})
        if differs:
            history.edited(**{column: value})


def in_code(history: History, chance: random.Random) -> None:
    before = the(history.connection, history.name)["schedule"]
    said = [{"name": history.name, "schedule": chance.choice(RULES)}]
    code_schedules.sync(history.connection, said)
    # What it has said before does not undo an edit of others.
    after = the(history.connection, history.name)["schedule"]
    if after != before:
        history.edited(schedule=after)


def pause_or_resume(history: History, chance: random.Random) -> None:
    enabled = not history.rule.enabled
    if chance.random() < 0.5:
        update(history.connection, history.name, enabled=enabled)
    else:
        move = definitions.resume if enabled else definitions.pause
        assert move(history.connection, history.name, ADMIN).result == "done"
    history.edited(enabled=enabled)


def tick(history: History, chance: random.Random) -> None:
    history.tick()


ACTIONS: tuple[Callable[[History, random.Random], None], ...] = (
    by_schedule_add,
    by_plain_sql,
    in_code,
    pause_or_resume,
    tick,
    tick,
)


@pytest.mark.parametrize("seed", range(30))
def test_each_slot_is_settled_once_whatever_is_edited_between_ticks(shared: Connection, seed: int) -> None:
    chance = random.Random(seed)
    misfire, overlap = chance.choice(["one", "all", "none"]), chance.choice(["skip", "allow", "wait"])
    history = begin(shared, f"edited-{seed}", misfire=misfire, overlap=overlap)
    for _ in range(12):
        chance.choice(ACTIONS)(history, chance)
        history.age(timedelta(hours=chance.choice([0, 0, 1, 2, 5])))
    history.tick()
    assert sorted(at for at, _ in history.kept) == sorted(set(history.wanted))
    if (misfire, overlap) == ("all", "allow"):
        assert {what for _, what in history.kept} <= {"fired", "paused", "capped"}
    definitions.remove(shared, history.name, ADMIN)


def test_an_edit_at_psql_takes_effect_at_the_next_tick(connection: Connection) -> None:
    begin(connection, "report", grace_seconds=120)
    update(connection, "report", schedule="0 0 1 1 *")
    schedule.settle(connection)
    yearly = the(connection, "report")["next_fire_at"]
    assert (yearly.month, yearly.day, yearly.hour) == (1, 1, 0)
    update(connection, "report", timezone="Asia/Kathmandu")
    schedule.settle(connection)
    assert the(connection, "report")["next_fire_at"] == yearly - timedelta(hours=5, minutes=45)


def test_what_was_due_before_an_edit_still_fires(connection: Connection) -> None:
    history = begin(connection, "report")
    history.age(timedelta(hours=1))
    update(connection, "report", schedule="0 0 1 1 *")
    schedule.settle(connection)
    assert len(rows(connection, "job_runs")) == 1
    assert not rows(connection, "missed_fires")


def test_what_was_due_before_a_pause_does_not_fire_and_is_told(connection: Connection) -> None:
    history = begin(connection, "report")
    history.age(timedelta(hours=2))
    definitions.pause(connection, "report", ADMIN)
    schedule.settle(connection)
    assert not rows(connection, "job_runs")
    assert [one["reason"] for one in rows(connection, "missed_fires")] == ["paused", "paused"]
    assert schedule.settle(connection).due == 0


def test_a_pause_and_resume_at_psql_make_up_for_nothing(connection: Connection) -> None:
    history = begin(connection, "report")
    update(connection, "report", enabled=False)
    history.age(timedelta(hours=3))
    update(connection, "report", enabled=True)
    schedule.settle(connection)
    assert not rows(connection, "job_runs")
    assert not rows(connection, "missed_fires")
    assert the(connection, "report")["next_fire_at"] > the(connection, "report")["settled_at"]


def test_an_unreadable_edit_stops_the_schedule_until_it_is_mended(connection: Connection) -> None:
    history = begin(connection, "report", misfire="all", overlap="allow")
    update(connection, "report", timezone="Mars/Base")
    schedule.settle(connection)
    assert "Mars/Base" in the(connection, "report")["error"]
    history.age(timedelta(hours=2))
    update(connection, "report", timezone="UTC")
    assert the(connection, "report")["error"] is None
    schedule.settle(connection)
    assert not rows(connection, "job_runs"), "a rule that could not be read had no fires"
    assert the(connection, "report")["next_fire_at"] is not None


def test_an_edit_of_anything_else_keeps_a_fire_that_is_due(connection: Connection) -> None:
    history = begin(connection, "report")
    history.age(timedelta(hours=1))
    due = the(connection, "report")["next_fire_at"]
    update(connection, "report", payload='{"to": "all"}', grace_seconds=5)
    assert the(connection, "report")["next_fire_at"] == due
    schedule.settle(connection)
    assert [run["payload"] for run in rows(connection, "job_runs")] == [{"to": "all"}]


# On the page


def test_an_edit_of_the_schedule_leaves_the_payload_digit_by_digit(connection: Connection) -> None:
    begin(connection, "report")
    update(connection, "report", payload='{"rate": 0.12345678901234567890}')
    assert definitions.edit(connection, "report", {"grace_seconds": 5}, ADMIN).result == "done"
    kept = connection.execute("SELECT payload ->> 'rate' FROM wakeboard.job_definitions").fetchone()
    assert kept == ("0.12345678901234567890",)


def test_an_edit_from_true_to_one_is_an_edit(connection: Connection) -> None:
    begin(connection, "report")
    update(connection, "report", payload='{"all": true}')
    assert definitions.edit(connection, "report", {"payload": {"all": True}}, ADMIN).result == "already"
    assert definitions.edit(connection, "report", {"payload": {"all": 1}}, ADMIN).result == "done"
    kept = connection.execute("SELECT payload::text FROM wakeboard.job_definitions").fetchone()
    assert kept == ('{"all": 1}',)
