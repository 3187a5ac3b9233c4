"""The database: its clock, schema and privileges, what holds dead rows back, tokens without an end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from wakeboard.cli.commands.doctor.finding import CheckResult, some_of
from wakeboard.cli.reach import Connection, one, rows
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
# Who may make the schema, while there is none.
MAKES = """
SELECT to_regnamespace('wakeboard') IS NULL AS absent, current_user AS role, current_database() AS base,
    has_database_privilege(current_database(), 'CREATE') AS may,
    'GRANT CREATE ON DATABASE ' || quote_ident(current_database())
        || ' TO ' || quote_ident(current_user) AS mend
"""


def clock(connection: Connection) -> Iterator[CheckResult]:
    """Compare this machine's clock with the database's."""
    before = time.time()
    row = one(connection, "SELECT clock_timestamp() AS now")
    assert row is not None
    here = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    apart = abs((row["now"] - here).total_seconds())
    mend = None if apart < 2 else "Synchronise this machine's clock (NTP); leases go by the database's clock."
    yield CheckResult(
        "clock", "ok" if apart < 2 else "warning", f"{apart:.2f} s from the database's clock.", mend
    )


def schema(connection: Connection) -> Iterator[CheckResult]:
    """Compare the schema with the one that this version needs."""
    found, wanted = migrations.current_revision(connection), migrations.head_revision()
    if found == wanted:
        yield CheckResult("schema", "ok", f"It is at {found}, as this version needs.")
    elif migrations.is_newer(found):
        says = f"It is at {found}, which this version ({wanted}) does not know: {migrations.MIGRATED_BY_NEWER}"
        yield CheckResult("schema", "fail", says, migrations.upgrade_advice(found))
    else:
        has = f"It is at {found}" if found else "There are no tables yet"
        yield CheckResult("schema", "fail", f"{has}; this version needs {wanted}.", migrations.upgrade_advice(found))


def privileges(connection: Connection) -> Iterator[CheckResult]:
    """Name the tables that this role may not use; while there are none, say whether it may make them."""
    made = one(connection, MAKES)
    assert made is not None
    if made["absent"]:
        yield _of_making(made)
        return
    lacking = [row["name"] for row in rows(connection, PRIVILEGES)]
    if lacking:
        yield CheckResult(
            "privileges",
            "fail",
            f"This role may not use: {', '.join(lacking)}.",
            "Use the role that owns the schema.",
        )
    else:
        yield CheckResult("privileges", "ok", "This role may read and write the tables.")


def _of_making(made: dict[str, Any]) -> CheckResult:
    if made["may"]:
        return CheckResult("privileges", "ok", f"The role {made['role']} may make the schema and its tables.")
    says = f"The role {made['role']} may not make a schema in the database {made['base']}."
    return CheckResult("privileges", "fail", says, f"As the database's owner: {made['mend']}")


def transactions(connection: Connection) -> Iterator[CheckResult]:
    """Name what has been open for long and holds dead rows back, and what cannot be seen of it."""
    long = [holder for holder in vacuum_blockers.find_blockers(connection) if holder.is_long]
    yield from (CheckResult("transactions", "warning", holder.says, holder.mend) for holder in long)
    sight = vacuum_blockers.read_visibility(connection)
    if sight.hidden and not sight.sees_all:
        says = f"Of {sight.hidden} sessions of other roles this role cannot see how old they are."
        yield CheckResult(
            "transactions", "warning", says, f"As a superuser: GRANT pg_monitor TO {sight.role}"
        )
    elif not long:
        yield CheckResult(
            "transactions", "ok", "None is open for long, and nothing else holds dead rows back."
        )


def tokens(connection: Connection) -> Iterator[CheckResult]:
    """Name the tokens that never expire: whoever finds such a one in a file keeps the key."""
    names = [row["name"] for row in rows(connection, ENDLESS)]
    if not names:
        yield CheckResult("tokens", "ok", "None is valid for ever.")
        return
    yield CheckResult(
        "tokens",
        "warning",
        f"Valid until somebody revokes them: {some_of(names)}.",
        "Replace them (wakeboard token create NAME --role R --days N), then: wakeboard token revoke NAME",
    )
