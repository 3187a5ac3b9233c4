"""Indexes that a long transaction left bloated are built anew beside the work, and nothing else is."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.conftest import Connection
from tests.support.factories import a_run, a_type, claim, rows
from tests.support.postgres.wire_proxy import between
from tests.support.processes import ROOT, run_wakeboard, surroundings, wait_until
from wakeboard.cli.commands.doctor.indexes import bloated_ones
from wakeboard.database import db
from wakeboard.maintenance.indexes import rebuild, state
from wakeboard.maintenance.indexes.bloat import HOT, find_bloated, find_half_built
from wakeboard.maintenance.indexes.state import POSTPONED_SECONDS, REST_SECONDS, RebuildPass
from wakeboard.runtime.duties.indexes import Indexes

FLOOR = 256 * 1024
CLAIMABLE = "job_runs_claimable"
# What waits is in both.
BOTH = ["job_runs_by_status", CLAIMABLE]
# A pass in a process of its own, which can be killed.
ALONE = f"""
import sys, threading
from wakeboard.maintenance.indexes import rebuild, state
with rebuild.open_connection(sys.argv[1]) as own:
    current = state.begin(own)
    rebuild.make_pass(own, current, pause=threading.Event().wait, floor_bytes={FLOOR})
"""


def size(connection: Connection, index: str = CLAIMABLE) -> int:
    found = connection.execute("SELECT pg_relation_size(to_regclass(%s))", (f"wakeboard.{index}",)).fetchone()
    return int(found[0]) if found else 0


def sessions(connection: Connection) -> int:
    """Return how many sessions rebuild indexes of this database."""
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
        (rebuild.NAME,),
    ).fetchone()
    return int(found[0]) if found else 0


def churn(connection: Connection, rounds: int = 4, runs: int = 10_000) -> None:
    """Let ``runs`` come and go ``rounds`` times."""
    for _ in range(rounds):
        connection.execute(
            "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, %s)", (runs,)
        )
        connection.execute(
            """UPDATE wakeboard.job_runs SET status = 'succeeded', attempts = 1, lease_epoch = 1,
                started_at = now(), finished_at = now() WHERE status = 'queued'"""
        )


@contextmanager
def a_snapshot(connection: Connection) -> Iterator[None]:
    """Hold a snapshot open meanwhile."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT FROM wakeboard.job_runs LIMIT 1")
        yield


def analyze(connection: Connection) -> None:
    """Let the statistics be those of this moment."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("VACUUM (ANALYZE) wakeboard.job_runs")


def bloat(connection: Connection, other: Connection) -> int:
    """Churn under a snapshot that is then let go; return the index's size, with a few runs in it."""
    a_type(connection)
    with a_snapshot(other):
        churn(connection)
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, 1000)"
    )
    analyze(connection)
    grown = size(connection)
    assert grown > 4 * FLOOR
    return grown


def make_pass(
    url: str, current: RebuildPass | None = None, *, patience_seconds: float = 0.0, floor_bytes: int = FLOOR
) -> RebuildPass:
    """Make a pass as a worker does that came first; return what came of it."""
    with rebuild.open_connection(url) as own:
        current = current or state.begin(own) or RebuildPass()
        rebuild.make_pass(
            own,
            current,
            pause=threading.Event().wait,
            floor_bytes=floor_bytes,
            patience_seconds=patience_seconds,
        )
    return current


def cut_short(connection: Connection, other: Connection) -> str:
    """Leave an index half built, as a rebuild does that had to wait for too long; return its name."""
    other.execute("SET lock_timeout = '50ms'")
    with a_snapshot(connection), pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute(f"REINDEX INDEX CONCURRENTLY wakeboard.{CLAIMABLE}".encode())
    (left,) = find_half_built(connection)
    return left.name


# ---- which are bloated ------------------------------------------------------------------------------


def found_bloated(connection: Connection, **entry_bytes: float) -> list[str]:
    return sorted(index.name for index in find_bloated(connection, entry_bytes, floor_bytes=FLOOR))


def test_the_hot_indexes_exist(connection: Connection) -> None:
    known = connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'wakeboard'").fetchall()
    assert set(HOT) <= {name for (name,) in known}


def test_a_bloated_index_is_found_and_a_small_one_left(connection: Connection, other: Connection) -> None:
    grown = bloat(connection, other)
    bloated = {index.name: index for index in find_bloated(connection, {}, floor_bytes=FLOOR)}
    assert sorted(bloated) == BOTH
    found = bloated[CLAIMABLE]
    assert (found.name, found.bytes, found.may_rebuild) == (CLAIMABLE, grown, True)
    assert found.entries == pytest.approx(1000, rel=0.1)
    assert re.fullmatch(r"job_runs_claimable takes \d+\.\d MB where 0\.1 MB would do\.", found.sentence)
    largest = max(index.bytes for index in bloated.values())
    assert find_bloated(connection, {}, floor_bytes=largest + 1) == []


def test_an_index_full_of_what_waits_is_not_bloated(connection: Connection) -> None:
    a_type(connection)
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, 20000)"
    )
    analyze(connection)
    assert size(connection) > 2 * FLOOR
    assert found_bloated(connection) == []


def test_statistics_of_before_a_rush_make_no_index_look_bloated(connection: Connection) -> None:
    a_type(connection)
    connection.execute("ALTER TABLE wakeboard.job_runs SET (autovacuum_enabled = off)")
    a_run(connection, "queued")
    analyze(connection)
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'mail' FROM generate_series(1, 20000)"
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    assert size(connection) > 2 * FLOOR
    assert found_bloated(connection) == []


def test_an_index_of_long_names_is_measured_by_its_last_rebuild(
    database: str, connection: Connection
) -> None:
    name = "n" * 200
    a_type(connection, name)
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at)"
        " SELECT %s, now() + n * interval '1 s' FROM generate_series(1, 5000) AS n",
        (name,),
    )
    analyze(connection)
    assert found_bloated(connection) == BOTH
    current = make_pass(database)
    assert current.rebuilt and 200 < current.entry_bytes[CLAIMABLE] < 400
    analyze(connection)
    assert found_bloated(connection, **current.entry_bytes) == []
    assert list(bloated_ones(connection, FLOOR)) == [], "doctor knows what the last rebuild told"


# ---- the pass ---------------------------------------------------------------------------------------


def test_a_bloated_index_is_built_anew_while_claims_go_on(
    database: str, connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    done, claimed = threading.Event(), 0

    def rebuilding() -> None:
        try:
            make_pass(database)
        finally:
            done.set()

    thread = threading.Thread(target=rebuilding)
    thread.start()
    while not done.is_set():
        claimed += len(claim(other, limit=1))
    thread.join()
    rebuilt = size(connection)
    connection.execute(f"REINDEX INDEX wakeboard.{CLAIMABLE}".encode())
    assert rebuilt <= 3 * size(connection) and rebuilt < grown / 3
    assert claimed > 0 and find_half_built(connection) == []
    ((told,),) = connection.execute(
        "SELECT numbers FROM wakeboard.loops WHERE name = %s", (state.NAME,)
    ).fetchall()
    assert (
        told["rebuilt"]
        and told["rebuilt_at"]
        and not told["missing_privilege"]
        and CLAIMABLE in told["tried"]
    )


def test_what_was_built_anew_a_short_while_ago_rests(
    database: str, connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    now = 1_000_000.0
    make_pass(database, RebuildPass(tried={CLAIMABLE: now - REST_SECONDS + 60}, now=now))
    assert size(connection) == grown
    make_pass(database, RebuildPass(tried={CLAIMABLE: now - REST_SECONDS - 60}, now=now))
    assert size(connection) < grown


def test_an_index_that_is_not_built_in_time_rests_for_a_week(
    database: str, connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, now = bloat(connection, other), 1_000_000.0
    monkeypatch.setattr(rebuild, "REBUILD_SECONDS", 1.0)
    with a_snapshot(other):
        current = make_pass(database, RebuildPass(now=now))
    assert current.tried[CLAIMABLE] > now
    assert "cancelled, or not built within 1.0 s; it is left for 7 days" in str(current.failed)
    monkeypatch.undo()
    current.now = now + POSTPONED_SECONDS - 60
    make_pass(database, current)
    assert size(connection) == grown
    current.now = now + POSTPONED_SECONDS + 60
    make_pass(database, current, patience_seconds=60)
    assert size(connection) < grown


def test_nothing_is_rebuilt_while_a_snapshot_is_held(
    database: str, connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = bloat(connection, other)
    monkeypatch.setattr(rebuild, "OLD_SECONDS", 0.0)
    with a_snapshot(other):
        current = make_pass(database)
        assert current.waits == f"A transaction of “wakeboard other” (pid {other.info.backend_pid}) is open"
        assert (size(connection), current.rebuilt, current.tried) == (grown, None, {})
    assert make_pass(database, current).waits is None and size(connection) < grown


def test_a_snapshot_that_is_let_go_in_time_is_waited_for(
    database: str, connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = bloat(connection, other)
    monkeypatch.setattr(rebuild, "OLD_SECONDS", 0.0)
    monkeypatch.setattr(rebuild, "POLL_SECONDS", 0.05)
    with a_snapshot(other):
        thread = threading.Thread(target=make_pass, args=(database,), kwargs={"patience_seconds": 20.0})
        thread.start()
        wait_until(lambda: sessions(connection) == 1)
        assert size(connection) == grown
    thread.join()
    assert size(connection) < grown


def test_nothing_is_rebuilt_while_the_table_is_vacuumed_or_changed(
    database: str, connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    with other.transaction():
        other.execute("LOCK TABLE wakeboard.job_runs IN SHARE UPDATE EXCLUSIVE MODE")
        assert make_pass(database).waits == "wakeboard other is at job_runs"
        assert size(connection) == grown


def test_what_a_rebuild_left_is_dropped_and_what_others_left_stays(
    database: str, connection: Connection, other: Connection
) -> None:
    a_type(connection)
    left = cut_short(connection, other)
    assert left == f"{CLAIMABLE}_ccnew"
    a_run(connection, "succeeded")
    a_run(connection, "succeeded")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY somebodys ON wakeboard.job_runs (status)")
    make_pass(database)
    invalid = connection.execute(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    ).fetchall()
    assert invalid == [("wakeboard.somebodys",)] and size(connection) > 0


def test_a_rebuild_that_is_in_the_way_is_told_and_tried_again_with_the_next_pass(
    database: str, connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = bloat(connection, other)
    monkeypatch.setattr(rebuild, "LOCK_SECONDS", 0.05)
    with a_snapshot(other):
        current = make_pass(database)
    assert current.failed is not None and "lock timeout" in current.failed
    assert size(connection) == grown and len(claim(connection)) > 0
    assert f"{CLAIMABLE}_ccnew" in {left.name for left in find_half_built(connection)}
    make_pass(database, current)
    assert find_half_built(connection) == [] and size(connection) < grown, "nobody is in its way any more"


# ---- the right to do it -----------------------------------------------------------------------------


@pytest.fixture
def guest(database: str, superuser: Connection) -> Iterator[str]:
    """The URL of a role that may read and write our tables and owns none of them."""
    name = f"wbtest_{secrets.token_hex(4)}"
    superuser.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE pg_read_all_data, pg_write_all_data").format(
        sql.Identifier(name)))  # fmt: skip
    try:
        yield make_conninfo(database, user=name)
    finally:
        superuser.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_role_without_the_right_says_once_what_the_owner_can_run(
    guest: str, connection: Connection, other: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = bloat(connection, other)
    current = make_pass(guest)
    assert size(connection) == grown and current.failed is None
    assert current.missing_privilege is not None
    assert "REINDEX INDEX CONCURRENTLY wakeboard.job_runs_" in current.missing_privilege
    make_pass(guest, current)
    assert capsys.readouterr().err.count("may not rebuild it") == 1


def test_a_role_that_may_maintain_the_table_rebuilds(
    guest: str, connection: Connection, other: Connection, superuser: Connection
) -> None:
    if superuser.info.server_version < 170_000:
        pytest.skip("the right to MAINTAIN is PostgreSQL 17's")
    grown = bloat(connection, other)
    name = str(conninfo_to_dict(guest)["user"])
    superuser.execute(sql.SQL("GRANT MAINTAIN ON wakeboard.job_runs TO {}").format(sql.Identifier(name)))
    assert make_pass(guest).missing_privilege is None and size(connection) < grown


def test_the_role_that_may_not_drop_a_leftover_says_who_can(
    guest: str, connection: Connection, other: Connection
) -> None:
    left = cut_short(connection, other)
    assert f"DROP INDEX CONCURRENTLY wakeboard.{left}" in str(make_pass(guest).missing_privilege)
    assert len(find_half_built(connection)) == 1


def test_doctor_names_what_a_rebuild_left(database: str, connection: Connection, other: Connection) -> None:
    left = cut_short(connection, other)
    said = run_wakeboard("doctor", "--json", database=database)
    (found,) = [each for each in json.loads(said.stdout)["items"] if each["check"] == "indexes"]
    assert (
        found["level"] == "warning"
        and left in found["says"]
        and "of a worker at the indexes drops it" in found["mend"]
    )


def test_doctor_names_a_bloated_index(connection: Connection, other: Connection) -> None:
    bloat(connection, other)
    (found,) = [each for each in bloated_ones(connection, FLOOR) if CLAIMABLE in each.says]
    assert found.level == "warning" and f"wakeboard.{CLAIMABLE}" in str(found.mend)


# ---- the duty ---------------------------------------------------------------------------------------


@pytest.fixture
def duty(database: str) -> Iterator[Callable[[], Indexes]]:
    """Make duties of several workers; each is stopped at the end."""
    made: list[Indexes] = []

    def make() -> Indexes:
        made.append(Indexes(database, floor_bytes=FLOOR))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_one_worker_of_all_makes_the_pass_and_all_tell_of_it(
    duty: Callable[[], Indexes], connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    first, second = duty(), duty()
    first.step(connection)
    second.step(connection)
    assert not second.is_running
    wait_until(lambda: not first.is_running, 30, "the pass is through")
    assert size(connection) < grown
    told = second.step(connection)
    assert "job_runs_" in told["rebuilt"] and told["rebuilt_at"] and "tried" not in told
    assert [found["name"] for found in rows(connection, "loops", order="name")] == [state.NAME]


def test_the_next_pass_is_half_an_hour_later(duty: Callable[[], Indexes], connection: Connection) -> None:
    one = duty()
    one.step(connection)
    wait_until(lambda: not one.is_running)
    shift = "UPDATE wakeboard.loops SET last_success_at = last_success_at - %s::interval"
    connection.execute(shift, ("29 minutes",))
    assert state.begin(connection) is None
    connection.execute(shift, ("2 minutes",))
    assert state.begin(connection) is not None and state.begin(connection) is None


def test_a_worker_that_stops_ends_its_rebuild_and_the_next_pass_tidies_up(
    duty: Callable[[], Indexes], database: str, connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    one = duty()
    with a_snapshot(other):
        one.step(connection)
        wait_until(lambda: find_half_built(connection), 10, "the new index is being built")
        one.stop()
        assert not one.is_running
    wait_until(lambda: sessions(connection) == 0)
    assert size(connection) == grown and len(claim(connection)) > 0
    connection.execute("UPDATE wakeboard.loops SET last_success_at = '2020-01-01'")
    current = state.begin(connection)
    assert current is not None
    make_pass(database, current)
    assert find_half_built(connection) == [] and size(connection) < grown


def test_a_worker_that_is_killed_half_way_harms_nothing(
    database: str, connection: Connection, other: Connection
) -> None:
    grown = bloat(connection, other)
    process = subprocess.Popen([sys.executable, "-c", ALONE, database], cwd=ROOT, env=surroundings(None))
    with a_snapshot(other):
        wait_until(lambda: find_half_built(connection), 20, "the new index is being built")
        process.kill()
        process.wait()
        assert len(claim(connection)) > 0
    wait_until(lambda: sessions(connection) == 0, 20, "the server is through with it")
    make_pass(database)
    assert find_half_built(connection) == [] and size(connection) < grown / 3 and len(claim(connection)) > 0


def test_the_database_that_does_not_answer_is_a_line_in_the_log(
    connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Indexes("postgresql://127.0.0.1:1/x")
    one.step(connection)
    wait_until(lambda: not one.is_running)
    assert "could not be looked at" in capsys.readouterr().err


def test_a_worker_behind_a_pooler_leaves_the_pass_to_others(
    duty: Callable[[], Indexes], database: str, connection: Connection
) -> None:
    with between(database) as middleman:
        middleman.hides_the_server = True
        with db.connect(middleman.url, name="test") as pooled:
            one = duty()
            one.step(pooled)
            assert not one.is_running
    assert state.begin(connection) is not None
