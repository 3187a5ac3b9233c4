"""Checks of the database: clock, schema, privileges, open transactions, tokens without an end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from wakeboard.cli.commands.doctor.result import CheckResult, some_of
from wakeboard.cli.connection import Connection, Row, read_row, read_rows
from wakeboard.database import migrations, vacuum_blockers

PRIVILEGES = """
SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'wakeboard' AND c.relkind = 'r'
    AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND (c.relname IN ('audit_log', 'alembic_version') OR has_table_privilege(c.oid, 'UPDATE')))
ORDER BY 1
"""
# Tokens that let somebody in for ever.
ENDLESS = """
SELECT name FROM wakeboard.tokens WHERE revoked_at IS NULL AND expires_at IS NULL ORDER BY name
"""
# Whether this role may create the schema, while there is none.
CREATE_PRIVILEGE = """
SELECT to_regnamespace('wakeboard') IS NULL AS is_missing, current_user AS role, current_database() AS base,
    has_database_privilege(current_database(), 'CREATE') AS may,
    'GRANT CREATE ON DATABASE ' || quote_ident(current_database())
        || ' TO ' || quote_ident(current_user) AS mend
"""


def clock(connection: Connection) -> Iterator[CheckResult]:
    """Compare this machine's clock with the database's."""
    before = time.time()
    row = read_row(connection, "SELECT clock_timestamp() AS now")
    assert row is not None
    here = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    apart = abs((row["now"] - here).total_seconds())
    mend = None if apart < 2 else "Synchronise this machine's clock (NTP); leases go by the database's clock."
    yield CheckResult(
        "clock", "ok" if apart < 2 else "warning", f"{apart:.2f} s from the database's clock.", mend
    )


def schema(connection: Connection) -> Iterator[CheckResult]:
    """Compare the schema with the one that this version needs."""
    revision, head = migrations.current_revision(connection), migrations.head_revision()
    advice = migrations.upgrade_advice(revision)
    if revision == head:
        yield CheckResult("schema", "ok", f"It is at {revision}, as this version needs.")
    elif migrations.is_newer(revision):
        newer = migrations.MIGRATED_BY_NEWER
        says = f"It is at {revision}, which this version ({head}) does not know: {newer}"
        yield CheckResult("schema", "fail", says, advice)
    else:
        state = f"It is at {revision}" if revision else "There are no tables yet"
        yield CheckResult("schema", "fail", f"{state}; this version needs {head}.", advice)


def privileges(connection: Connection) -> Iterator[CheckResult]:
    """Name the tables that this role may not use; while there are none, say whether it may make them."""
    row = read_row(connection, CREATE_PRIVILEGE)
    assert row is not None
    if row["is_missing"]:
        yield _create_privilege(row)
        return
    denied = [row["name"] for row in read_rows(connection, PRIVILEGES)]
    if denied:
        yield CheckResult(
            "privileges",
            "fail",
            f"This role may not use: {', '.join(denied)}.",
            "Use the role that owns the schema.",
        )
    else:
        yield CheckResult("privileges", "ok", "This role may read and write the tables.")


def _create_privilege(row: Row) -> CheckResult:
    if row["may"]:
        return CheckResult("privileges", "ok", f"The role {row['role']} may make the schema and its tables.")
    says = f"The role {row['role']} may not make a schema in the database {row['base']}."
    return CheckResult("privileges", "fail", says, f"As the database's owner: {row['mend']}")


def transactions(connection: Connection) -> Iterator[CheckResult]:
    """Name what has been open for long and holds dead rows back, and how much this role cannot see."""
    long = [blocker for blocker in vacuum_blockers.find_blockers(connection) if blocker.is_long]
    yield from (CheckResult("transactions", "warning", blocker.says, blocker.mend) for blocker in long)
    visibility = vacuum_blockers.read_visibility(connection)
    if visibility.hidden and not visibility.sees_all:
        says = f"Of {visibility.hidden} sessions of other roles this role cannot see how old they are."
        yield CheckResult(
            "transactions", "warning", says, f"As a superuser: GRANT pg_monitor TO {visibility.role}"
        )
    elif not long:
        yield CheckResult(
            "transactions", "ok", "None is open for long, and nothing else holds dead rows back."
        )


def tokens(connection: Connection) -> Iterator[CheckResult]:
    """Name the tokens that never expire: one that is found in a file is valid for ever."""
    names = [row["name"] for row in read_rows(connection, ENDLESS)]
    if not names:
        yield CheckResult("tokens", "ok", "None is valid for ever.")
        return
    yield CheckResult(
        "tokens",
        "warning",
        f"Valid until somebody revokes them: {some_of(names)}.",
        "Replace them (wakeboard token create NAME --role R --days N), then: wakeboard token revoke NAME",
    )
