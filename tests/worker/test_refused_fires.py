"""A rule of the database's owner refuses the run of a schedule: the others fire, and this one says why."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.support.factories import Connection, Row, a_definition, rows
from tests.support.postgres.write_refusals import refuse, refuse_at_commit, refuse_no_more
from wakeboard.config import log
from wakeboard.database.poison_rows import is_refusal, is_row_error
from wakeboard.schedules import scheduler

REPORT = "new.job_type = 'report' AND NOT new.payload ? 'customer'"
SENTENCE = "a report names its customer"


@pytest.mark.parametrize(
    ("state", "is_one"),
    [
        *((state, True) for state in ("22003", "23514", "23505", "44000", "P0001", "P0004", "UE001")),
        *((state, True) for state in ("09000", "20000", "2F005")),
        *((state, False) for state in ("40001", "40P01", "55P03", "57014", "57P01", "08006", "53100")),
        *((state, False) for state in ("42501", "25P02", "25006", "")),
    ],
)  # fmt: skip
def test_only_what_speaks_of_a_row_is_a_refusal(state: str, is_one: bool) -> None:
    assert is_row_error(state) == is_one


def test_what_the_driver_cannot_send_is_a_refusal(connection: Connection) -> None:
    with pytest.raises(psycopg.Error) as refused:
        connection.execute("SELECT %s", ("\0",))
    assert is_refusal(refused.value)


def due(connection: Connection, name: str, ago: str = "0 minutes", **columns: Any) -> int:
    made = a_definition(connection, name=name, schedule="* * * * *", **columns)
    connection.execute(
        "UPDATE wakeboard.job_definitions SET next_fire_at = date_trunc('minute', now() - %s::interval)"
        " WHERE id = %s",
        (ago, made),
    )
    return made


def fires(connection: Connection, definition: int) -> list[datetime]:
    return [one["scheduled_for"] for one in rows(connection, "job_runs", "definition_id = %s", definition)]


def found(connection: Connection, definition: int) -> Row:
    (one,) = rows(connection, "job_definitions", "id = %s", definition)
    return one


def a_minute_later(connection: Connection) -> None:
    connection.execute(
        "UPDATE wakeboard.job_definitions SET settled_at = settled_at - interval '60 s'"
        " WHERE error IS NOT NULL"
    )


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_run_that_is_refused_holds_up_its_own_schedule_alone(
    connection: Connection, capfd: pytest.CaptureFixture[str], rule: Any, place: int
) -> None:
    rule(connection, REPORT, SENTENCE, "INSERT")
    log.configure()
    name = f"{rule.__name__}-{place}-"
    made = [due(connection, f"{name}{n}", job_type="report" if n == place else "mail") for n in range(7)]
    refused = made[place]
    before = found(connection, refused)
    assert scheduler.settle(connection).due == 7
    assert [len(fires(connection, one)) for one in made] == [int(one != refused) for one in made]
    held = found(connection, refused)
    assert held["next_fire_at"] == before["next_fire_at"], "the fire is not lost"
    assert f"refuses its run ({SENTENCE})" in held["error"]
    log.flush()
    told = capfd.readouterr().err
    assert f'schedule={name}{place} type=report error="{SENTENCE}"' in told
    assert told.count(" fire run=") == 6, "what was rolled back is not told"


def test_a_refused_fire_is_tried_each_minute_and_made_once_the_rule_has_gone(connection: Connection) -> None:
    refuse(connection, REPORT, SENTENCE, "INSERT")
    made = due(connection, "report", job_type="report", grace_seconds=3600)
    at = found(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    assert scheduler.settle(connection).due == 0, "not at each look"
    a_minute_later(connection)
    assert scheduler.settle(connection).due == 1
    refuse_no_more(connection)
    a_minute_later(connection)
    connection.execute("UPDATE wakeboard.job_definitions SET overlap = 'allow'")
    assert scheduler.settle(connection).due == 1
    assert at in fires(connection, made)
    mended = found(connection, made)
    assert (mended["error"], mended["last_fire_at"]) == (None, max(fires(connection, made)))


def test_what_a_refused_schedule_misses_is_told_at_once(connection: Connection) -> None:
    refuse(connection, REPORT, SENTENCE, "INSERT")
    made = due(connection, "report", "10 minutes", job_type="report", overlap="allow")
    first = found(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    told = rows(connection, "missed_fires", "definition_id = %s", made)
    assert len(told) >= 8
    assert {one["reason"] for one in told} == {"misfire"}
    held = found(connection, made)
    assert held["next_fire_at"] == max(one["scheduled_for"] for one in told) + timedelta(minutes=1)
    assert held["next_fire_at"] > first, "the latest of the late ones is made up for later"


def test_a_schedule_whose_own_row_is_refused_too_holds_up_no_other(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    sealed, well = due(connection, "sealed"), due(connection, "well")
    refuse(connection, "new.name = 'sealed'", "nobody touches this", "UPDATE", "job_definitions")
    for _ in range(3):
        scheduler.settle(connection)
    assert (len(fires(connection, sealed)), len(fires(connection, well))) == (0, 1)
    log.flush()
    assert capfd.readouterr().err.count("refuses the run of a schedule") == 1, "told once a minute"


def test_a_first_fire_that_is_refused_is_set_and_not_forgotten(connection: Connection) -> None:
    refuse(connection, "true", SENTENCE, "INSERT")
    made = a_definition(connection, schedule="* * * * *")
    connection.execute(
        "UPDATE wakeboard.job_definitions SET next_fire_at = NULL, settled_at = now() - interval '2 minutes'"
    )
    scheduler.settle(connection)
    held = found(connection, made)
    assert held["error"]
    assert held["next_fire_at"] is not None
    refuse_no_more(connection)
    a_minute_later(connection)
    scheduler.settle(connection)
    assert fires(connection, made)


def test_a_pause_tells_of_the_fire_that_was_refused(connection: Connection) -> None:
    refuse(connection, REPORT, SENTENCE, "INSERT")
    made = due(connection, "report", job_type="report")
    at = found(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    connection.execute("UPDATE wakeboard.job_definitions SET enabled = false")
    scheduler.settle(connection)
    told = rows(connection, "missed_fires", "definition_id = %s", made)
    assert [(one["scheduled_for"], one["reason"]) for one in told] == [(at, "paused")]


@pytest.mark.parametrize("change", ["schedule = '0 0 1 1 *'", "timezone = 'Asia/Kathmandu'"])
def test_an_edit_keeps_the_fire_that_was_refused(connection: Connection, change: str) -> None:
    refuse(connection, REPORT, SENTENCE, "INSERT")
    made = due(connection, "report", job_type="report", grace_seconds=3600)
    at = found(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    connection.execute(f"UPDATE wakeboard.job_definitions SET {change}".encode())
    refuse_no_more(connection)
    scheduler.settle(connection)
    missed = [one["scheduled_for"] for one in rows(connection, "missed_fires", "definition_id = %s", made)]
    assert at in fires(connection, made) + missed
    assert fires(connection, made)


def test_what_comes_due_by_a_new_rule_while_the_old_ones_fire_is_refused_is_not_lost(
    connection: Connection,
) -> None:
    refuse(connection, REPORT, SENTENCE, "INSERT")
    made = due(connection, "report", job_type="report", overlap="allow", grace_seconds=86_400)
    old = found(connection, made)["next_fire_at"]
    # By plain SQL: the rule has no next time yet, and the fire of the old one is unsettled.
    connection.execute("UPDATE wakeboard.job_definitions SET schedule = '*/1 * * * *'")
    assert found(connection, made)["next_fire_at"] is None
    connection.execute(
        "UPDATE wakeboard.job_definitions SET settled_at = date_trunc('minute', now()) - interval '90 s'"
    )
    scheduler.settle(connection)
    held = found(connection, made)
    assert held["unsettled"] and held["error"]
    first = held["next_fire_at"]
    assert first is not None, "the new rule goes on from its own first fire"
    refuse_no_more(connection)
    a_minute_later(connection)
    scheduler.settle(connection)
    assert {old, first} <= set(fires(connection, made))
