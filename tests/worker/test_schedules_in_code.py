"""``@job(schedule=…)``: a type has a schedule of its own, and the code touches nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from tests.support.factories import Connection, rows
from tests.support.postgres.write_refusals import refuse
from wakeboard.config import log
from wakeboard.core.job_options import schedule_names
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition, edit
from wakeboard.schedules import code_schedules

ADMIN = Actor("ada", Role.ADMIN, "cli")


def definitions_of(connection: Connection) -> dict[str, tuple[str, str]]:
    """Return (type, text) of each definition by its name."""
    found = rows(connection, "job_definitions")
    return {one["name"]: (one["job_type"], one["schedule"]) for one in found}


def audited(connection: Connection, name: str) -> list[tuple[str, Any, Any]]:
    """Return (result, before, after) of each audit row of a schedule, in order."""
    found = rows(connection, "audit_log", "target_type = 'schedule' AND target_id = %s", name)
    return [(one["result"], one["before"], one["after"]) for one in found]


def publish(connection: Connection, *policies: tuple[str, str | None], timezone: str | None = None) -> None:
    """Register the types as a worker does that starts with them, all with schedules in one zone."""
    given = [{"name": name, "schedule": text, "timezone": timezone} for name, text in policies]
    code_schedules.sync(connection, given)
    for name, text in policies:
        connection.execute(
            "INSERT INTO wakeboard.job_types (name, schedule, timezone) VALUES (%s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET schedule = excluded.schedule, timezone = excluded.timezone",
            (name, text, timezone),
        )


def zone_of(connection: Connection, name: str) -> str:
    """Return the zone of a definition."""
    (found,) = rows(connection, "job_definitions", "name = %s", name)
    return str(found["timezone"])


def forget(connection: Connection) -> None:
    """Remove every audit row, as retention does after years."""
    with connection.transaction():
        connection.execute("SET LOCAL wakeboard.retention = 'on'")
        connection.execute("DELETE FROM wakeboard.audit_log")


OTHER = "send-report-4119bc"


@pytest.mark.parametrize("first", ["send-report", "send.report"])
def test_two_types_of_a_release_never_share_a_schedule(connection: Connection, first: str) -> None:
    said = {"send-report": "@daily", "send.report": "@hourly"}
    publish(connection, *sorted(said.items(), key=lambda each: each[0] != first))
    made = {"send-report": ("send-report", "@daily"), OTHER: ("send.report", "@hourly")}
    assert definitions_of(connection) == made
    publish(connection, ("send-report", "@weekly"), ("send.report", "@monthly"))
    made = {"send-report": ("send-report", "@weekly"), OTHER: ("send.report", "@monthly")}
    assert definitions_of(connection) == made
    (row,) = rows(connection, "audit_log", "target_id = %s AND before IS NULL", OTHER)
    assert row["reason"] == "registered in code; send-report is a schedule of the type send-report"


def test_types_without_a_plain_letter_have_schedules_of_their_own(connection: Connection) -> None:
    publish(connection, ("日本", "@weekly"), ("中国", "@monthly"), ("…", "@daily"))
    found = definitions_of(connection)
    assert sorted(found.values()) == [("…", "@daily"), ("中国", "@monthly"), ("日本", "@weekly")]
    assert all(name.startswith("schedule") for name in found)


def test_types_that_differ_behind_the_hundredth_letter_have_schedules_of_their_own(
    connection: Connection,
) -> None:
    publish(connection, ("a" * 150, "@weekly"), ("a" * 151, "@monthly"), ("a" * 100, "@daily"))
    found = definitions_of(connection)
    assert found["a" * 100] == ("a" * 100, "@daily") and len(found) == 3
    assert {len(name) for name in found} == {100}


def test_what_is_there_keeps_its_name(connection: Connection) -> None:
    """An older version gave the plain name to whichever type came first."""
    publish(connection, ("send.report", "@hourly"))
    assert definitions_of(connection) == {"send-report": ("send.report", "@hourly")}
    publish(connection, ("send.report", "@daily"), ("send-report", "@weekly"))
    other = schedule_names("send-report")[1]
    assert definitions_of(connection) == {
        "send-report": ("send.report", "@daily"),
        other: ("send-report", "@weekly"),
    }


def test_the_code_leaves_a_persons_schedule_of_another_type(connection: Connection) -> None:
    definitions.add(connection, Definition("send-report", "http", "0 7 * * mon", {"url": "http://a"}), ADMIN)
    (before,) = rows(connection, "job_definitions")
    publish(connection, ("send.report", "*/1 * * * *"))
    publish(connection, ("send.report", "*/2 * * * *"))
    publish(connection, ("send.report", None))
    assert rows(connection, "job_definitions", "name = 'send-report'") == [before]
    assert definitions_of(connection)[OTHER] == ("send.report", "*/2 * * * *")


def test_the_code_leaves_a_persons_schedule_of_its_type_and_says_so(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    definitions.add(connection, Definition("send-report", "send.report", "0 7 * * mon"), ADMIN)
    for text in ("@hourly", "@daily"):
        publish(connection, ("send.report", text))
        log.flush()
        said = capfd.readouterr().err
        assert "somebody made or changed the one under its name" in said and text in said
    assert definitions_of(connection) == {"send-report": ("send.report", "0 7 * * mon")}
    assert len(audited(connection, "send-report")) == 1
    # Years later the audit log has forgotten who made it.
    forget(connection)
    publish(connection, ("send.report", "@hourly"))
    assert definitions_of(connection) == {"send-report": ("send.report", "0 7 * * mon")}


def test_the_code_names_a_zone_changes_it_and_gives_it_up(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(log, "note", lambda what, **of: said.append(of.get("says") or of["after"]))
    publish(connection, ("report", "0 7 * * *"), timezone="Europe/Paris")
    assert zone_of(connection, "report") == "Europe/Paris"
    (made,) = rows(connection, "job_definitions")
    assert made["next_fire_at"].astimezone(ZoneInfo("Europe/Paris")).hour == 7
    publish(connection, ("report", "0 7 * * *"), timezone="Asia/Tokyo")
    assert zone_of(connection, "report") == "Asia/Tokyo"
    assert audited(connection, "report")[-1] == (
        "done", {"timezone": "Europe/Paris"}, {"timezone": "Asia/Tokyo"},
    )  # fmt: skip
    publish(connection, ("report", "0 7 * * *"))
    assert zone_of(connection, "report") == "UTC"
    assert said == ["0 7 * * * in Europe/Paris", "0 7 * * * in Asia/Tokyo", "0 7 * * *"]


def test_code_without_a_zone_leaves_the_zone_to_people(connection: Connection) -> None:
    publish(connection, ("report", "@daily"))
    edit(connection, "report", {"timezone": "Europe/Paris"}, ADMIN)
    publish(connection, ("report", "@hourly"))
    assert definitions_of(connection) == {"report": ("report", "@hourly")}
    assert zone_of(connection, "report") == "Europe/Paris"


def test_a_zone_that_a_person_changed_stays_until_the_code_says_another(connection: Connection) -> None:
    publish(connection, ("report", "@daily"), timezone="Europe/Paris")
    edit(connection, "report", {"timezone": "UTC"}, ADMIN)
    publish(connection, ("report", "@daily"), timezone="Europe/Paris")
    assert zone_of(connection, "report") == "UTC"
    publish(connection, ("report", "@daily"), timezone="Asia/Tokyo")
    assert zone_of(connection, "report") == "Asia/Tokyo"


def test_what_plain_sql_made_is_a_persons(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule)"
        " VALUES ('report', 'report', '@daily')"
    )
    publish(connection, ("report", "@hourly"))
    assert definitions_of(connection) == {"report": ("report", "@daily")}


def test_the_code_changes_its_own_schedule_once_the_audit_log_has_forgotten_it(
    connection: Connection,
) -> None:
    publish(connection, ("report", "@hourly"))
    forget(connection)
    publish(connection, ("report", "@daily"))
    assert definitions_of(connection) == {"report": ("report", "@daily")}


def test_where_both_names_are_taken_nothing_is_written_and_that_is_said(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("send-report", OTHER):
        definitions.add(connection, Definition(name, "mail", "@weekly"), ADMIN)
    publish(connection, ("send.report", "@hourly"))
    log.flush()
    assert f"Both send-report and {OTHER} are schedules of other types" in capfd.readouterr().err
    assert {kind for kind, _ in definitions_of(connection).values()} == {"mail"}


def test_two_workers_that_start_at_once_write_a_schedule_once(database: str, connection: Connection) -> None:
    def start(text: str, *names: str) -> None:
        with psycopg.connect(database, autocommit=True) as own:
            code_schedules.sync(own, [{"name": name, "schedule": text} for name in names])

    for text in ("@daily", "@weekly"):
        with ThreadPoolExecutor(8) as workers:
            jobs = [
                workers.submit(start, text, name) for name in ("send report", "send.report", "report") * 3
            ]
            for each in jobs:
                each.result()
    found = definitions_of(connection)
    assert sorted(found.values()) == [(name, "@weekly") for name in ("report", "send report", "send.report")]
    for name in found:
        assert [result for result, _, _ in audited(connection, name)] == ["done", "done"], name


def test_a_schedule_that_a_release_changes_is_told_once_by_log_and_audit_log(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(connection, ("code_sched", "0 7 * * mon"))
    said: list[tuple[str, object, object]] = []
    monkeypatch.setattr(log, "note", lambda what, **of: said.append((what, of["before"], of["after"])))
    for each in (connection, other):
        code_schedules.sync(each, [{"name": "code_sched", "schedule": "0 9 * * mon"}])
    assert said == [("A schedule was changed in code.", "0 7 * * mon", "0 9 * * mon")]
    (_, changed) = rows(connection, "audit_log", "target_id = 'code_sched'")
    assert (changed["before"], changed["after"]) == ({"schedule": "0 7 * * mon"}, {"schedule": "0 9 * * mon"})
    assert (changed["actor"], changed["action"], changed["reason"]) == (
        "engine", "schedule.edit", "changed in code",
    )  # fmt: skip


def test_a_change_that_is_not_written_leaves_no_audit_row(connection: Connection) -> None:
    publish(connection, ("code_sched", "0 7 * * mon"))
    with pytest.raises(ZeroDivisionError), connection.transaction():
        code_schedules.sync(connection, [{"name": "code_sched", "schedule": "0 9 * * mon"}])
        raise ZeroDivisionError
    assert definitions_of(connection) == {"code_sched": ("code_sched", "0 7 * * mon")}
    assert len(audited(connection, "code_sched")) == 1


def test_a_schedule_that_somebody_holds_is_written_when_it_is_free(
    connection: Connection, other: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    publish(connection, ("code_sched", "0 7 * * mon"))
    connection.execute("SET lock_timeout = '50ms'")
    said = [{"name": "code_sched", "schedule": "0 9 * * mon"}]
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_definitions FOR UPDATE")
        locked = code_schedules.sync(connection, said)
        locked = code_schedules.resync(connection, said, locked)
        assert list(locked) == ["code_sched"]
    assert len(audited(connection, "code_sched")) == 1
    assert code_schedules.resync(connection, said, locked) == []
    assert definitions_of(connection) == {"code_sched": ("code_sched", "0 9 * * mon")}
    log.flush()
    assert "A registered schedule is written later." in capfd.readouterr().err


def test_a_rule_of_the_database_that_refuses_one_schedule_stops_no_worker(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    refuse(connection, "new.name = 'first'", "not this type", "INSERT OR UPDATE", "job_types")
    said = [{"name": name, "schedule": "@daily"} for name in ("first", "second")]
    assert code_schedules.sync(connection, said) == []
    assert set(definitions_of(connection)) == {"second"}
    log.flush()
    assert 'A registered schedule was refused. type=first error="not this type"' in capfd.readouterr().err
