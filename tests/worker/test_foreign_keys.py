"""Tables of an application that refer to runs: they hold no move up, and keep retention from no other run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, a_type, claim, fail, rows, send, status, succeed
from tests.support.factories import renew as renewed
from wakeboard import queue as transitions
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.sweep import Retention
from wakeboard.queue.engine import reaping

OLIVIA = Actor("olivia", Role.OPERATOR, "web")


@pytest.fixture
def referring(database: str, connection: Connection) -> Iterator[Connection]:
    """An application's session; its table ``public.reports`` refers to runs."""
    refers = "REFERENCES wakeboard.job_runs DEFERRABLE INITIALLY DEFERRED"
    connection.execute(f"CREATE TABLE public.reports (run_id bigint {refers})".encode())
    with db.connect(database, name="an application", autocommit=False) as opened:
        yield opened


def refer(referring: Connection, run_id: int) -> None:
    """Write a report of a run and leave the transaction open: PostgreSQL holds the key of the run's row."""
    referring.execute("SET CONSTRAINTS ALL IMMEDIATE")
    referring.execute("INSERT INTO public.reports VALUES (%s)", (run_id,))


def test_an_open_reference_to_a_run_stops_none_of_its_moves(
    connection: Connection, referring: Connection
) -> None:
    a_type(connection)
    for run_id in (waiting := [a_run(connection) for _ in range(5)]):
        refer(referring, run_id)
    claimed = claim(connection)
    assert [one.id for one in claimed] == waiting
    held = [(one.id, one.lease_epoch) for one in claimed]
    assert renewed(connection, *held).keys() == set(waiting)
    assert succeed(connection, held[0]) == waiting[:1]
    assert fail(connection, held[1]) == {waiting[1]: "failed"}
    assert transitions.cancel(connection, waiting[2], OLIVIA).changed
    assert transitions.retry_now(connection, waiting[1], OLIVIA).changed
    connection.execute("UPDATE wakeboard.job_runs SET locked_until = now() WHERE status = 'running'")
    ended = send(connection, reaping.ENDED_LEASES, 10, [])
    assert {one[0] for one in ended} == set(waiting[2:])
    assert transitions.release_lease(connection, waiting[3], OLIVIA).changed


def test_runs_that_another_table_refers_to_stay_and_all_others_go(
    connection: Connection, referring: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    referred, *others = [a_run(connection, "succeeded", finished_at="-20 days") for _ in range(30)]
    refer(referring, referred)
    referring.commit()
    connection.execute(
        """INSERT INTO wakeboard.audit_log (at, actor, source, action)
        VALUES (now() - interval '900 days', 'anna', 'web', 'run.retry')"""
    )
    retention = Retention(RetentionPolicy.from_settings(Settings.load(environ={})), "w1")
    numbers = retention.step(connection)
    while retention.pause_seconds is not None:
        numbers = retention.step(connection)
    assert numbers["removed_runs"] == len(others) and numbers["removed_audit_rows"] == 1
    assert [run["id"] for run in rows(connection, "job_runs")] == [referred]
    assert status(connection, referred) == "succeeded"
    said = capsys.readouterr().err
    assert said.count("Runs that were kept for long enough cannot be removed") == 1
    assert "reports" in said, "the database says which table it is"
