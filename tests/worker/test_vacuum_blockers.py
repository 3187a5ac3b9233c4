"""What holds dead rows back is named: sessions, prepared transactions, slots; and what a role cannot see."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from tests.conftest import Connection
from wakeboard import cli
from wakeboard.database import vacuum_blockers
from wakeboard.database.vacuum_blockers import (
    LARGE_LOG_BYTES,
    LONG_TRANSACTION_SECONDS,
    MANY_TRANSACTIONS,
    VacuumBlocker,
)

PLAIN: dict[str, Any] = {
    "kind": "session", "id": "77", "name": "psql", "owner": "anna", "state": "idle in transaction",
    "began_at": None, "seconds": 1.0, "transactions": 1, "statement": None, "is_hidden": False,
    "log_bytes": None,
}  # fmt: skip


def holders(connection: psycopg.Connection[Any]) -> list[VacuumBlocker]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return [VacuumBlocker(**row) for row in cursor.execute(vacuum_blockers.BLOCKERS.encode()).fetchall()]


@pytest.mark.parametrize(
    ("change", "long", "says", "mend"),
    [
        ({"seconds": LONG_TRANSACTION_SECONDS - 1.0}, False, "dead rows pile up", "pg_terminate_backend(77)"),
        ({"seconds": LONG_TRANSACTION_SECONDS + 1.0}, True, "open for 1 m 1 s", "pg_terminate_backend(77)"),
        ({"seconds": 61.0, "transactions": None}, True, "what it has locked stays locked", "If nobody"),
        ({"seconds": 99.0, "name": "pg_dump"}, True, "pg_dump", "A dump ends by itself"),
        ({"seconds": None, "is_hidden": True}, False, "1 transactions left behind", "pg_terminate"),
        ({"seconds": None, "transactions": MANY_TRANSACTIONS + 1}, True, "100001 transactions", "pg_term"),
        ({"kind": "prepared", "id": "it's", "seconds": 61.0}, True, "prepared", "PREPARED 'it''s'"),
        ({"kind": "slot", "id": "s1", "seconds": None, "log_bytes": LARGE_LOG_BYTES + 1.0}, True,
         "keeps 1.0 GB of the write-ahead log", "pg_drop_replication_slot('s1')"),
        ({"kind": "slot", "id": "s1", "seconds": None, "log_bytes": 5.0}, False, "slot", "no standby will"),
        ({"kind": "standby", "seconds": None, "transactions": MANY_TRANSACTIONS + 1}, True, "standby",
         "hot_standby_feedback"),
    ],
)  # fmt: skip
def test_each_kind_has_its_bound_its_sentence_and_its_mend(
    change: dict[str, Any], long: bool, says: str, mend: str
) -> None:
    holder = VacuumBlocker(**(PLAIN | change))
    assert holder.is_long is long and says in holder.says and mend in holder.mend


def test_a_session_tells_whether_it_holds_rows_back(connection: Connection, other: Connection) -> None:
    with other.transaction():
        other.execute("SELECT 1")
        (idle,) = holders(connection)
        assert (idle.id, idle.transactions) == (str(other.info.backend_pid), None)
        other.execute("CREATE TEMPORARY TABLE held (id int)")
        (writing,) = holders(connection)
        assert writing.transactions is not None and writing.seconds is not None
        assert writing.statement == "CREATE TEMPORARY TABLE held (id int)"
    assert holders(connection) == []


def test_a_slot_that_nobody_reads_is_named(superuser: Connection) -> None:
    superuser.execute("SELECT pg_create_physical_replication_slot('wb_forgotten', true)")
    try:
        (slot,) = [each for each in holders(superuser) if each.kind == "slot"]
        assert (slot.id, slot.state) == ("wb_forgotten", "nobody reads it") and slot.log_bytes is not None
    finally:
        superuser.execute("SELECT pg_drop_replication_slot('wb_forgotten')")


@pytest.fixture
def stranger(database: str, superuser: Connection) -> Iterator[Connection]:
    """A session of a role that may connect and nothing more; the role is dropped afterwards."""
    name = f"wbtest_{secrets.token_hex(4)}"
    superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    try:
        with psycopg.connect(make_conninfo(database, user=name), autocommit=True) as opened:
            yield opened
    finally:
        superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_role_without_pg_monitor_sees_what_it_may_and_how_much_is_hidden(
    superuser: Connection, stranger: Connection
) -> None:
    with superuser.transaction():
        superuser.execute("CREATE TEMPORARY TABLE secret_of_somebody (id int)")
        pid = str(superuser.info.backend_pid)
        hidden = next(each for each in holders(stranger) if each.id == pid)
        assert hidden.is_hidden and hidden.statement is None and hidden.seconds is None
        assert hidden.transactions is not None and hidden.name == "wakeboard superuser"
        row = stranger.execute(vacuum_blockers.VISIBILITY.encode()).fetchone()
        assert row is not None and (row[0], row[2] >= 1) == (False, True)
    superuser.execute(sql.SQL("GRANT pg_monitor TO {}").format(sql.Identifier(row[1])))
    with superuser.transaction():
        superuser.execute("CREATE TEMPORARY TABLE told_now (id int)")
        seen = next(each for each in holders(stranger) if each.id == pid)
        assert not seen.is_hidden and seen.statement == "CREATE TEMPORARY TABLE told_now (id int)"
    row = stranger.execute(vacuum_blockers.VISIBILITY.encode()).fetchone()
    assert row is not None and (row[0], row[2]) == (True, 0)


def test_doctor_and_the_page_go_by_the_same_bound(
    database: str, other: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    with other.transaction():
        other.execute("SELECT 1")
        for bound, level in ((60, "ok"), (-1, "warning")):
            monkeypatch.setattr(vacuum_blockers, "LONG_TRANSACTION_SECONDS", bound)
            cli.run(["doctor", "--json"])
            found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            lines = found if len(found) > 1 else found[0].get("items", found)
            levels = {line["level"] for line in lines if line["check"] == "transactions"}
            assert level in levels, lines
