"""The database goes away between an effect's *started* and its *done*, and everything else with it.

The rows have a server of this file's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.factories import rows
from tests.support.faults.cut_off_effects import (
    APP,
    DECISIONS,
    Case,
    Measured,
    assert_third_answers,
    cases,
    enqueue,
    settle_what_is_unconfirmed,
    tell_measures,
    wait_until_between,
)  # fmt: skip
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.postgres.cluster import Cluster, cluster, database
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import is_alive

__all__ = ["cluster", "database"]
# Longer than a crashed server needs to come back on a busy machine.
LEASE_SECONDS = 6.0
AT_ONCE = 6
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'wakeboard handler %'"
)


def as_superuser(cluster: Cluster, statement: str | sql.Composed) -> None:
    """Let a superuser say something, from another database of the server."""
    with psycopg.connect(cluster.server.url("postgres", admin=True), autocommit=True) as opened:
        opened.execute(statement.encode() if isinstance(statement, str) else statement)


@contextmanager
def refusing(cluster: Cluster, database: str) -> Iterator[None]:
    """Cut the handlers' sessions and let nobody connect while the block lasts; other sessions stay."""
    limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
    name = sql.Identifier(str(conninfo_to_dict(database)["dbname"]))
    as_superuser(cluster, limit.format(name, sql.Literal(0)))
    as_superuser(cluster, CUT)
    try:
        yield
    finally:
        as_superuser(cluster, limit.format(name, sql.Literal(-1)))


def happened(way: str) -> list[Case]:
    """Return a run for each decision whose effect has happened when the gate is opened."""
    return [Case(way, True, decision) for decision in DECISIONS]


def begin(house: House, chosen: Iterable[Case], gate: Path, **columns: Any) -> dict[int, Case]:
    """Let a run for each case stand before the gate in the midst of its effect."""
    told = {enqueue(house, case, "waits at the gate", gate=str(gate), **columns): case for case in chosen}
    wait_until_between(house, told)
    return told


def assert_confirmed(house: House, ids: Iterable[int]) -> None:
    """The first attempts wrote *done* and ended well: nothing was left to guess."""
    wanted = list(ids)
    house.settle(60)
    assert house.counts(wanted) == {"succeeded": len(wanted)}
    ledger = rows(house.connection, "effects", "run_id = ANY(%s)", wanted)
    assert {(one["status"], one["attempt"]) for one in ledger} == {("done", 1)}
    assert len(ledger) == len(wanted)
    assert sorted(line.run_id for line in house.truth("made") if line.run_id in wanted) == sorted(wanted)


def failures(house: House, ids: Iterable[int]) -> set[int]:
    """Return those of the runs whose first attempt has failed."""
    failed = rows(house.connection, "job_attempts", "outcome = 'failed' AND run_id = ANY(%s)", list(ids))
    return {one["run_id"] for one in failed}


def outlast(house: House, cluster: Cluster, chosen: Iterable[Case]) -> dict[int, Case]:
    """Keep the database away until the worker has stopped what it could not renew; return the runs."""
    gone = begin(house, chosen, house.folder / "never opened")
    pids = [line.pid for line in wait_until_between(house, gone)]
    cluster.crash()
    wait_until(lambda: not any(map(is_alive, pids)), 30, "the worker stops what it cannot renew")
    cluster.start()
    house.reconnect()
    house.settle(60)
    assert_third_answers(house, gone)
    return gone


@fault(
    "E1",
    injected="between started and done: handlers' sessions cut, refused until the deadline, server crashed",
    expected="done where it comes back within the lease, else started and the third answer",
)
def test_an_effect_whose_done_finds_no_database_is_confirmed_later_or_left_open(
    house: House, cluster: Cluster, scale: Scale, chance: Random,
    measured: Measured,
) -> None:  # fmt: skip
    house.worker(APP=APP, CONCURRENCY=AT_ONCE, LEASE_SECONDS=LEASE_SECONDS)
    gates = [house.folder / f"gate{number}" for number in range(3)]

    cut = begin(house, happened("session cut"), gates[0])
    as_superuser(cluster, CUT)
    gates[0].touch()
    assert_confirmed(house, cut)

    away = begin(house, happened("server crashed, back at once"), gates[1])
    cluster.crash()
    gates[1].touch()
    cluster.start()
    house.reconnect()
    assert_confirmed(house, away)

    refused = begin(house, happened("refused until the deadline"), gates[2], timeout_seconds=3)
    with refusing(cluster, house.database):
        gates[2].touch()
        wait_until(lambda: len(failures(house, refused)) == len(refused), 30, "the first attempts fail")
    house.settle(60)
    assert_third_answers(house, refused)

    gone = (
        outlast(house, cluster, cases("away for longer than the lease", chance, scale)) if scale.full else {}
    )
    told = gone | refused
    more = f"; {len(cut) + len(away)} more confirmed by their first attempt, once the database was back"
    tell_measures(measured, house, told, settle_what_is_unconfirmed(house, told), more)
    house.check(but_for=("I2",))


@fault(
    "E1",
    injected="a reboot in the midst of once(): kill -9 of workers, handlers and PostgreSQL at the same time",
    expected="started survives, nothing is guessed: the next worker gets the third answer",
)
def test_an_effect_that_a_reboot_cut_off_is_never_guessed(
    house: House, cluster: Cluster, scale: Scale, chance: Random, measured: Measured
) -> None:
    workers = house.workers(2, APP=APP, CONCURRENCY=AT_ONCE // 2)
    told = begin(house, cases("reboot", chance, scale), house.folder / "never opened")
    doomed = [psutil.Process(each.pid) for each in workers]
    for process in [*doomed, *(member for each in workers for member in each.family())]:
        # A handler's process may have followed its worker by itself.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    cluster.lose_power()
    cluster.start()
    house.reconnect()
    ledger = rows(house.connection, "effects")
    assert {(one["status"], one["attempt"]) for one in ledger} == {("started", 1)}
    assert {one["run_id"] for one in ledger} == told.keys()
    house.worker(APP=APP)
    house.settle(60)
    assert_third_answers(house, told)
    tell_measures(measured, house, told, settle_what_is_unconfirmed(house, told))
    house.check(but_for=("I2",))
