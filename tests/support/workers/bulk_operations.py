"""What the tests of operations ask for: operations as people confirm them, steps as a worker makes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.support.factories import Connection, Row, rows
from tests.support.processes import wait_until
from wakeboard.bulk import advance, matching
from wakeboard.bulk.matching import Preview
from wakeboard.bulk.start import ConfirmedOperation, start
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard.reporting.filters.values import FilterValues, read_pairs

ANNA = Actor("anna", Role.OPERATOR, "web")


def asked(**filters: str) -> FilterValues:
    """Return the filters as a page reads them; ``payload__id`` stands for ``payload.id``."""
    return read_pairs([(name.replace("__", "."), text) for name, text in filters.items()], FIELDS)


def database_now(connection: Connection) -> datetime:
    (now,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert isinstance(now, datetime)
    return now


def look_at(connection: Connection, verb: str, also: Sequence[str] = (), **filters: str) -> Preview:
    """Return what ``verb`` would do now to all that match."""
    return matching.preview(connection, verb, asked(**filters), database_now(connection), also)


def begin(
    connection: Connection,
    verb: str,
    *,
    query: Row | None = None,
    as_of: datetime | None = None,
    **options: Any,
) -> int:
    """Start an operation on all that match ``query`` and return its id."""
    moment = as_of or database_now(connection)
    filters = asked(**(query or {"status": "dead"}))
    found = matching.preview(connection, verb, filters, moment, options.get("also", ()))
    text = "&".join(f"{name}={value}" for name, value in filters.texts.items())
    wanted = ConfirmedOperation(verb, text, moment, max(found.moves, 1), **options)
    answer = start(connection, wanted, found.matched.ids, ANNA, "CRM is back")
    assert answer.changed, answer.message
    return int(answer.id)


def operation(connection: Connection, operation_id: int) -> Row:
    """Return an operation's row."""
    (found,) = rows(connection, "operations", "id = %s", operation_id)
    return found


def make_due(connection: Connection, operation_id: int) -> None:
    """Let a worker look at it at once."""
    connection.execute("UPDATE wakeboard.operations SET look_at = now() WHERE id = %s", (operation_id,))


def step(connection: Connection, operation_id: int) -> Row:
    """Make one step, due or not; return the operation's row afterwards."""
    make_due(connection, operation_id)
    advance.advance(connection, operation_id)
    return operation(connection, operation_id)


def finish(connection: Connection, operation_id: int) -> Row:
    """Make steps until the operation has ended; return its row."""

    def has_ended() -> bool:
        return step(connection, operation_id)["status"] not in ("running", "paused")

    wait_until(has_ended, sentence=f"operation {operation_id} ends")
    return operation(connection, operation_id)
