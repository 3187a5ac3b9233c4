"""What each rule asks of the tables: when it is so, when it is not, and in which words."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import (
    a_definition,
    a_group,
    a_run,
    a_type,
    a_worker,
    age,
    an_attempt,
    from_now,
    insert,
)
from wakeboard.alerts import checks
from wakeboard.alerts.checks import check_rule
from wakeboard.alerts.finding import Finding
from wakeboard.core.rule_types import KINDS
from wakeboard.reporting.broken_schedules import BROKEN
from wakeboard.schedules import scheduler

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"

WATCHED = [name for name, kind in KINDS.items() if not kind.is_report]


def look(connection: Connection, kind: str, **settings: float) -> Finding:
    return check_rule(connection, kind, KINDS[kind].values(settings))


def missed(connection: Connection, definition: int, reason: str = "misfire", ago: str = "-1 minute") -> None:
    count = connection.execute("SELECT count(*) FROM wakeboard.missed_fires").fetchone()
    assert count is not None
    insert(
        connection,
        "missed_fires",
        {
            "definition_id": definition,
            "scheduled_for": from_now(f"-{count[0]} minutes"),
            "reason": reason,
            "noted_at": from_now(ago),
        },
    )


def statistics(
    connection: Connection, runs: int, ago: str, outcome: str = "failed", job_type: str = "mail"
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.statistics_rollups VALUES
        (now() - %s::interval, %s, %s, 20, 20, %s, 1, 1, 1, 1)""",
        (ago, job_type, outcome, runs),
    )


def test_a_quiet_house_has_no_findings(connection: Connection) -> None:
    for kind in WATCHED:
        found = look(connection, kind)
        assert not found.firing, found
        assert found.sentence.endswith(".")


def test_due_work_that_no_live_worker_takes_is_found(connection: Connection) -> None:
    run_id = a_run(connection, job_type="mail")
    assert not look(connection, "no_worker").firing, "it has not waited long"
    age(connection, run_id, "10 minutes")
    found = look(connection, "no_worker")
    assert (found.firing, found.names) == (True, ("mail",))
    assert "No live worker takes 1 type with due work: mail." in found.sentence
    assert 590 < found.value < 700


@pytest.mark.parametrize(
    ("worker", "firing"),
    [
        ({"job_types": ["mail"]}, False),
        ({"job_types": ["report"]}, True),
        ({"seen": "-5 minutes"}, True),
        ({"stopped_at": "-1 second"}, True),
        ({"drain_requested_at": "-1 second"}, True),
        ({"stopping_at": "-1 second"}, True),
        ({"stop_requested_at": "-1 second"}, True),
        ({"seen": "-23 seconds", "heartbeat_seconds": 10}, False),
        ({"seen": "-27 seconds", "heartbeat_seconds": 10}, True),
        ({"is_tick": True, "seen": "-1 minute", "stopped_at": "-1 minute"}, False),
        ({"is_tick": True, "seen": "-10 minutes", "stopped_at": "-10 minutes"}, True),
    ],
)
def test_only_a_worker_that_would_take_it_counts(
    connection: Connection, worker: dict[str, Any], firing: bool
) -> None:
    age(connection, a_run(connection, job_type="mail"), "10 minutes")
    a_worker(connection, **worker)
    assert look(connection, "no_worker").firing is firing


def test_what_a_draining_worker_would_take_is_to_be_undrained(connection: Connection) -> None:
    def advice() -> str:
        return look(connection, "no_worker").sentence.split(". ", 2)[2]

    age(connection, a_run(connection, job_type="mail"), "10 minutes")
    a_worker(connection, stopping_at="-1 second", drain_requested_at="-1 minute")
    assert advice().startswith("None has ever registered it: is its name right?"), "it cannot be paused"
    a_type(connection, "mail")
    assert advice() == "Start a worker whose app defines it, or pause the type."
    a_worker(connection, drain_requested_at="-1 minute")
    assert advice() == "A draining worker defines it: undrain it, start another, or pause the type."
    age(connection, a_run(connection, job_type="report"), "10 minutes")
    assert advice().startswith("Draining workers define 1 of them: undrain those, start others for the rest,")
    a_worker(connection, drain_requested_at="-1 minute", job_types=["report"])
    assert advice() == "Draining workers define them: undrain those, start others, or pause the types."


def test_commands_of_users_are_to_get_a_worker_of_that_user(connection: Connection) -> None:
    age(connection, a_run(connection, job_type="command:www-data"), "10 minutes")
    assert look(connection, "no_worker").sentence.endswith(
        "Start a worker as that user, or a worker as root with WAKEBOARD_RUN_AS_USERS=www-data."
    )
    age(connection, a_run(connection, job_type="command:backup"), "9 minutes")
    assert look(connection, "no_worker").sentence.endswith(
        "Start a worker as each of these users, or a worker as root with "
        "WAKEBOARD_RUN_AS_USERS=www-data,backup."
    )
    age(connection, a_run(connection, job_type="command:root"), "8 minutes")
    assert look(connection, "no_worker").sentence.endswith(
        "Start a worker as root with WAKEBOARD_RUN_AS_USERS=www-data,backup."
    )
    age(connection, a_run(connection, job_type="mail"), "8 minutes")
    assert "Start a worker whose app defines them" in look(connection, "no_worker").sentence


@pytest.mark.parametrize("kind", ["no_worker", "queue_age"])
def test_paused_types_delayed_runs_and_messengers_are_no_backlog(connection: Connection, kind: str) -> None:
    a_type(connection, "paused", paused_at=from_now("-1 hour"))
    age(connection, a_run(connection, job_type="paused"), "1 day")
    age(connection, a_run(connection, job_type="alert"), "1 day")
    a_run(connection, job_type="later", run_at="1 hour", created_at=from_now("-1 day"))
    assert not look(connection, kind).firing


def test_schedules_that_nobody_fires_are_found_without_any_run(connection: Connection) -> None:
    a_definition(connection, updated_at=from_now("-1 hour"))
    found = look(connection, "no_worker")
    assert (found.firing, found.names) == (True, ("schedules",))
    a_worker(connection)
    assert not look(connection, "no_worker").firing


def test_an_old_queue_names_its_types_oldest_first(connection: Connection) -> None:
    for name, waits in (("mail", "20 minutes"), ("report", "3 hours"), ("fresh", "1 minute")):
        age(connection, a_run(connection, job_type=name, priority=4), waits)
    found = look(connection, "queue_age")
    assert (found.firing, found.names) == (True, ("report", "mail"))
    assert "report 3 h, mail 20 m" in found.sentence
    assert not look(connection, "queue_age", waited_seconds=86_400).firing


def test_runs_that_the_database_lets_not_start_are_found_though_none_is_due_for_long(
    connection: Connection,
) -> None:
    a_type(connection, "paused", paused_at=from_now("-1 hour"))
    for name, ago, ahead in (
        ("invoice", "-5 minutes", "11 minutes"), ("invoice", "-1 minute", "16 minutes"),
        ("mail", "-1 minute", "3 minutes"), ("paused", "-1 minute", "1 hour"),
    ):  # fmt: skip
        a_run(
            connection,
            job_type=name,
            run_at=ahead,
            updated_at=from_now(ago),
            error_code="claim_refused",
            last_error="no",
        )
    found = look(connection, "queue_age")
    assert (found.firing, found.value, found.names) == (True, 960, ("invoice",))
    assert found.sentence.startswith("The database refuses to let 2 runs start: invoice 2. The page of each")
    age(connection, a_run(connection, job_type="report"), "3 hours")
    both = look(connection, "queue_age")
    assert both.names == ("report", "invoice")
    assert both.sentence.startswith("Due runs wait longer than 10 m: report 3 h. ")
    assert "The database refuses to let 2 runs start" in both.sentence
    assert not look(connection, "queue_age", waited_seconds=86_400).firing


def test_dead_runs_count_from_the_number_and_within_the_time_of_the_rule(connection: Connection) -> None:
    for name in ("mail", "mail", "report", "alert"):
        a_run(connection, "dead", job_type=name)
    age(connection, a_run(connection, "dead"), "2 hours")
    found = look(connection, "dead_runs")
    assert (found.firing, found.value, found.names) == (True, 3, ("mail", "report"))
    assert "3 runs died in the last 1 h: mail 2, report 1." in found.sentence
    assert look(connection, "dead_runs", within_seconds=86_400).value == 4
    found = look(connection, "dead_runs", count=4)
    assert (found.firing, found.value, found.limit) == (False, 3, 4)


def test_a_loop_that_fell_silent_is_named(connection: Connection) -> None:
    values = {"process_id": a_worker(connection), "name": "schedule", "interval_seconds": 1}
    insert(connection, "loops", {**values, "last_success_at": from_now("-1 minute")}, "name")
    insert(connection, "loops", {**values, "name": "reap"}, "name")
    found = look(connection, "late_loop")
    assert (found.firing, found.value) == (True, 1)
    assert found.names == (f"schedule of {values['process_id']}",)


def test_failures_rise_against_the_same_hour_of_the_days_before(connection: Connection) -> None:
    statistics(connection, 1, "9 days", "succeeded")
    for day, runs in enumerate((8, 10, 12, 9, 11, 500, 10), 1):
        statistics(connection, runs, f"{day} days 30 minutes")
        statistics(connection, 1000, f"{day} days 3 hours")
    statistics(connection, 30, "20 minutes")
    found = look(connection, "failures_rise")
    assert not found.firing, "three times the usual is not yet more"
    assert "30 attempts failed in the last hour (usual at this time: 10)" in found.sentence
    statistics(connection, 1, "10 minutes", "lost", "report")
    statistics(connection, 9999, "10 minutes", "succeeded")
    statistics(connection, 9999, "10 minutes", "failed", "alert")
    found = look(connection, "failures_rise")
    assert (found.firing, found.value, found.names) == (True, 31, ("mail", "report"))
    assert not look(connection, "failures_rise", count=32).firing
    assert not look(connection, "failures_rise", factor=4).firing


def test_a_young_installation_compares_with_the_days_it_has(connection: Connection) -> None:
    statistics(connection, 12, "20 minutes")
    found = look(connection, "failures_rise")
    assert found.firing and "no day before to compare with" in found.sentence
    statistics(connection, 1, "1 day 2 hours", "succeeded")
    statistics(connection, 6, "1 day 30 minutes")
    found = look(connection, "failures_rise")
    assert not found.firing and "usual at this time: 6" in found.sentence


def test_what_workers_wrote_a_moment_ago_counts_before_it_is_merged(connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.statistics_deltas VALUES
        (now(), 'mail', 'timed_out', 20, 20, 25, 1, 1, 1, 1)"""
    )
    assert look(connection, "failures_rise").value == 25


def test_muted_groups_are_left_out_of_failures_and_dead_runs_until_their_end(connection: Connection) -> None:
    loud = a_group(connection, muted_until=from_now("1 hour"))
    over = a_group(connection, "report", muted_until=from_now("-1 minute"))
    statistics(connection, 30, "20 minutes")
    statistics(connection, 5, "20 minutes", job_type="report")
    for number in range(25):
        an_attempt(connection, 900, lease_epoch=number, outcome="failed", error_code="x", error_group=loud)
    old = {"finished_at": "-2 hours", "outcome": "failed", "error_code": "x", "error_group": loud}
    an_attempt(connection, 900, lease_epoch=99, **old)
    an_attempt(connection, 901, job_type="report", outcome="failed", error_code="x", error_group=over)
    assert look(connection, "failures_rise").value == 10
    assert look(connection, "failures_rise", muted=0).value == 35
    assert look(connection, "dead_runs").value == 0
    for group, name in ((loud, "mail"), (over, "report"), (None, "other")):
        a_run(connection, "dead", job_type=name, error_group=group)
    found = look(connection, "dead_runs")
    assert (found.value, found.names) == (2, ("other", "report"))
    assert look(connection, "dead_runs", muted=0).value == 3


def test_a_type_of_which_all_is_muted_is_not_named(connection: Connection) -> None:
    loud = a_group(connection, muted_until=from_now("1 hour"))
    statistics(connection, 1, "20 minutes")
    an_attempt(connection, 1, outcome="failed", error_code="x", error_group=loud)
    found = look(connection, "failures_rise")
    assert (found.value, found.firing) == (0, False) and "mail" not in found.sentence


def test_missed_fires_name_their_schedules_and_overlaps_may_be_left_out(connection: Connection) -> None:
    nightly, hourly = a_definition(connection, "nightly"), a_definition(connection, "hourly")
    missed(connection, nightly, ago="-2 hours")
    assert not look(connection, "missed_runs").firing
    missed(connection, hourly, "overlap")
    assert look(connection, "missed_runs").names == ("hourly",)
    assert not look(connection, "missed_runs", overlaps=0).firing
    missed(connection, nightly, "capped")
    missed(connection, nightly, "misfire")
    found = look(connection, "missed_runs", overlaps=0)
    assert (found.firing, found.value, found.names) == (True, 2, ("nightly",))
    assert "2 fires were missed in the last 1 h: nightly 2." in found.sentence


def test_enabled_schedules_that_cannot_fire_are_named(connection: Connection) -> None:
    for name, enabled in (("mars", True), ("off", False), ("venus", True)):
        a_definition(connection, name, timezone="Mars/Base", next_fire_at=None, enabled=enabled)
    assert not look(connection, "cannot_fire").firing
    scheduler.settle(connection)
    found = look(connection, "cannot_fire")
    assert (found.firing, found.value, found.names) == (True, 2, ("mars", "venus"))
    assert found.sentence.startswith("2 schedules cannot fire: mars, venus. The page of each says why: ")


def test_leases_that_ended_and_stayed_are_found(connection: Connection) -> None:
    a_run(connection, "running", locked_until="-10 seconds")
    assert not look(connection, "stuck_leases").firing
    a_run(connection, "running", job_type="report", locked_until="-2 minutes")
    found = look(connection, "stuck_leases")
    assert (found.firing, found.names) == (True, ("report",))
    assert not look(connection, "stuck_leases", count=2).firing


def test_foreign_names_become_one_harmless_line(connection: Connection) -> None:
    a_run(connection, "dead", job_type=HOSTILE)
    a_run(connection, "dead", job_type="x" * 200)
    sentence = look(connection, "dead_runs").sentence
    assert "\u202e" not in sentence
    assert "x" * 100 not in sentence


WALKS = ("Seq Scan on job_runs", "Seq Scan on job_attempts", "Seq Scan on statistics_rollups")


@pytest.fixture(scope="module")
def large(shared: Connection) -> Connection:
    """50,000 ended runs in front of few that matter, and a month of statistics."""
    for status in ("queued", "running", "failed", "dead"):
        a_run(shared, status, job_type="rare")
    shared.execute("""
        INSERT INTO wakeboard.job_runs (job_type, status, attempts, started_at, finished_at)
        SELECT 'mail', 'succeeded', 1, now(), now() FROM generate_series(1, 50000)""")
    shared.execute("""
        INSERT INTO wakeboard.statistics_rollups
        SELECT now() - n * interval '1 minute', 'mail', 'failed', 20, 20, 1, 1, 1, 1, 1
        FROM generate_series(1, 43200) AS n""")
    shared.execute("ANALYZE wakeboard.job_runs, wakeboard.statistics_rollups")
    return shared


@pytest.mark.parametrize("kind", WATCHED)
def test_no_question_walks_a_large_table(large: Connection, kind: str) -> None:
    statement = {
        "no_worker": checks.WORKERLESS,
        "late_loop": "",
        "queue_age": checks.OLDEST,
        "dead_runs": checks.DEAD,
        "failures_rise": checks.USUAL,
        "missed_runs": checks.MISSED,
        "cannot_fire": BROKEN,
        "stuck_leases": checks.STUCK,
    }[kind]
    assert look(large, kind).sentence
    if statement:
        cursor = psycopg.ClientCursor(large)
        cursor.execute(f"EXPLAIN {statement}".encode(), KINDS[kind].values({}))
        plan = "\n".join(row[0] for row in cursor.fetchall())
        assert not any(walk in plan for walk in WALKS), plan
        assert "using job_runs_pkey" not in plan, plan


def test_runs_set_aside_are_found_by_their_code(large: Connection) -> None:
    cursor = psycopg.ClientCursor(large)
    cursor.execute(f"EXPLAIN {checks.SET_ASIDE}".encode(), KINDS["queue_age"].values({}))
    plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Scan using job_runs_by_error" in plan, plan


def test_dead_runs_are_counted_in_an_index_and_no_row_is_read(large: Connection) -> None:
    # What is not on the disk yet is not known to be visible to all.
    large.execute("SET synchronous_commit = on")
    large.execute("""
        INSERT INTO wakeboard.job_runs
            (job_type, status, attempts, started_at, finished_at, failed_at, error_code)
        SELECT 'mail', 'dead', 1, now(), now(), now(), 'x' FROM generate_series(1, 20000)""")
    large.execute("VACUUM ANALYZE wakeboard.job_runs")
    cursor = psycopg.ClientCursor(large)
    cursor.execute(f"EXPLAIN {checks.DEAD}".encode(), KINDS["dead_runs"].values({}))
    plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index Only Scan Backward using job_runs_by_status" in plan, plan
    assert look(large, "dead_runs").value == checks.CAP
