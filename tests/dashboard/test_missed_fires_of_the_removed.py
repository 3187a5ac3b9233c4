"""What a schedule missed outlives it: history tells it still, and nobody is asked to look after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.support.factories import a_definition, from_now, insert, rows
from wakeboard.alerts import checks
from wakeboard.core.rule_types import KINDS
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.maintenance.retention.other_rows import remove_batch, retention_rules
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.queue import definitions

ADMIN = Actor("ada", Role.ADMIN, "web")
FIRES = (("-2 hours", None), ("-3 hours", None), ("-50 hours", "-5 hours"))


def by_a_person(connection: Connection) -> None:
    assert definitions.remove(connection, "nightly", ADMIN).result == "done"


def by_plain_sql(connection: Connection) -> None:
    connection.execute("DELETE FROM wakeboard.job_definitions WHERE name = 'nightly'")


def a_schedule_that_missed(connection: Connection, name: str = "nightly") -> None:
    made = a_definition(connection, name)
    for fire, until in FIRES:
        values = {"definition_id": made, "scheduled_for": from_now(fire), "reason": "misfire"}
        insert(connection, "missed_fires", values | ({"until_at": from_now(until)} if until else {}))


def told(client: FlaskClient) -> list[tuple[str, int]]:
    night = client.get("/night.json?since=24h").get_json()
    return [(one["name"], one["fires"]) for one in night["missed_fires"]]


Remove = Callable[[Connection], None]


@pytest.mark.parametrize("remove", [by_a_person, by_plain_sql])
def test_a_night_tells_what_was_missed_after_the_schedule_was_removed(
    client: FlaskClient, connection: Connection, remove: Remove
) -> None:
    a_schedule_that_missed(connection)
    a_schedule_that_missed(connection, "other")
    before = told(client)
    assert before == [("nightly", 3), ("other", 3)]
    remove(connection)
    assert told(client) == before
    assert 'id="missed-nightly-misfire"' in client.get("/night?since=24h").text
    a_schedule_that_missed(connection)
    assert told(client) == [("nightly", 6), ("other", 3)]


@pytest.mark.parametrize("remove", [by_a_person, by_plain_sql])
def test_what_a_removed_schedule_missed_needs_nobody(
    client: FlaskClient, connection: Connection, remove: Remove
) -> None:
    a_schedule_that_missed(connection)
    assert client.get("/overview.json").get_json()["missed_fires"] == 3
    kind = KINDS["missed_runs"]
    assert checks.check_rule(connection, kind.name, kind.values({})).firing
    remove(connection)
    body = client.get("/overview.json").get_json()
    assert (body["missed_fires"], body["schedules_missed"]) == (0, 0)
    assert not checks.check_rule(connection, kind.name, kind.values({})).firing


def test_it_goes_with_what_other_schedules_missed(connection: Connection) -> None:
    a_schedule_that_missed(connection)
    by_a_person(connection)
    (rule,) = [one for one in retention_rules(RetentionPolicy(14, 90, 365)) if one.name == "missed_fires"]
    assert remove_batch(connection, rule, 0).rows == 0
    connection.execute("UPDATE wakeboard.missed_fires SET noted_at = now() - interval '91 days'")
    assert remove_batch(connection, rule, 0).rows == 3
    assert rows(connection, "missed_fires") == []
