"""What the demo's page shows and its buttons do. Reads ``shop``; writes orders and runs, audited."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.run_spec import NewRun
from wakeboard.database.audit import Actor
from wakeboard.demo.orders import first_steps
from wakeboard.demo.reports import export_key, first_report, monday_of, report
from wakeboard.demo.shop import PRODUCTS
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.operator import Transition, act

Row = dict[str, Any]

_IS_OPEN = "SELECT to_regclass('shop.mails') IS NOT NULL AND to_regclass('shop.orders') IS NOT NULL"
_MAILS = """
SELECT id, received_at, sender, recipients, subject, body, attachments, message_id
FROM shop.mails ORDER BY id DESC LIMIT %s
"""
_ORDERS = """
SELECT o.id, o.placed_at, c.name AS customer, p.title AS product, o.cents, o.status, o.paid_at, o.charge,
    o.invoice_file, r.id AS run_id, r.job_type AS run_type, r.status AS run_status
FROM shop.orders AS o
JOIN shop.customers AS c ON c.id = o.customer_id
JOIN shop.products AS p ON p.sku = o.sku
LEFT JOIN LATERAL (
    SELECT id, job_type, status FROM wakeboard.job_runs
    WHERE idempotency_key IN ('charge:' || o.id, 'invoice:' || o.id)
    ORDER BY id DESC LIMIT 1
) AS r ON true
ORDER BY o.id DESC LIMIT %s
"""
_PLACE = """
INSERT INTO shop.orders (customer_id, sku, cents)
SELECT id, %s, %s FROM shop.customers ORDER BY random() LIMIT 1 RETURNING id
"""
_SIGN_UP = """
INSERT INTO shop.customers (id, name, email)
SELECT n, 'Customer ' || n, 'customer' || n || '@example.com'
FROM (SELECT nextval(pg_get_serial_sequence('shop.customers', 'id')) AS n) AS next
RETURNING id, signed_up_at
"""
_LAST_CUSTOMER = "SELECT id, (now() AT TIME ZONE 'UTC')::date FROM shop.customers ORDER BY id DESC LIMIT 1"


def is_open(connection: Any) -> bool:
    """Return whether this database has the shop (SQLAlchemy or psycopg connection)."""
    return bool(_rows(connection, _IS_OPEN, ())[0].popitem()[1])


def mails(connection: Any, limit: int = 50) -> list[Row]:
    """Return the newest mails in the shop's mailbox: id, received_at, sender, recipients, subject, body,
    attachments (names), message_id."""
    return _rows(connection, _MAILS, (limit,))


def orders(connection: Any, limit: int = 50) -> list[Row]:
    """Return the newest orders with customer, product, cents, status, times, and the run that is at work on
    each (run_id, run_type, run_status; None before there is one)."""
    return _rows(connection, _ORDERS, (limit,))


def place_order(connection: Connection[Any], actor: Actor, reason: str | None = None) -> Answer:
    """Place an order of something; its card is charged, its invoice made and mailed by runs."""
    sku = random.choice(sorted(PRODUCTS))

    def place() -> tuple[str, list[NewRun]]:
        (order,) = _one(connection, _PLACE, (sku, PRODUCTS[sku][1]))
        return f"Order {order} was placed; its card is being charged.", first_steps(order, sku)

    return _enqueue(connection, actor, reason, place)


def sign_up(connection: Connection[Any], actor: Actor, reason: str | None = None) -> Answer:
    """Sign a customer up: a first weekly report is enqueued for next Monday."""

    def join() -> tuple[str, list[NewRun]]:
        customer, now = _one(connection, _SIGN_UP, ())
        return f"Customer {customer} signed up; the first report comes on Monday.", [
            first_report(customer, now)
        ]

    return _enqueue(connection, actor, reason, join)


def export_report(connection: Connection[Any], actor: Actor, reason: str | None = None) -> Answer:
    """Export the newest customer's last seven days: today a second click finds the first one's run."""

    def export() -> tuple[str, list[NewRun]]:
        customer, today = _one(connection, _LAST_CUSTOMER, ())
        since, until = today - timedelta(days=6), today + timedelta(days=1)
        payload = {"customer": customer, "since": since.isoformat(), "until": until.isoformat()}
        run = NewRun("export_report", payload, key=export_key(customer, since, until))
        return f"Customer {customer}'s orders from {since} are being exported.", [run]

    return _enqueue(connection, actor, reason, export)


def mail_report(connection: Connection[Any], actor: Actor, reason: str | None = None) -> Answer:
    """Mail the newest customer last week's report at once; Monday's schedule will not send it again."""

    def ask() -> tuple[str, list[NewRun]]:
        customer, today = _one(connection, _LAST_CUSTOMER, ())
        monday = monday_of(today) - timedelta(days=7)
        return f"Customer {customer}'s report on the week of {monday} is being mailed.", [
            report(customer, monday)
        ]

    return _enqueue(connection, actor, reason, ask)


def _enqueue(
    connection: Connection[Any],
    actor: Actor,
    reason: str | None,
    wanted: Callable[[], tuple[str, list[NewRun]]],
) -> Answer:
    """Do what a button asks: its rows, its runs and the audit row in one transaction."""

    def move() -> Transition:
        sentence, runs = wanted()
        ids = enqueue_many(connection, runs)
        return Transition(Answer(ids[0], "queued", "done", sentence), after={"runs": ids})

    return act(connection, actor, "run.enqueue", ("demo", "shop"), reason, move)


def _one(connection: Connection[Any], statement: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return tuple(row)


def _rows(connection: Any, statement: str, values: tuple[Any, ...]) -> list[Row]:
    if hasattr(connection, "exec_driver_sql"):
        return [dict(row) for row in connection.exec_driver_sql(statement, values).mappings()]
    cursor = connection.cursor().execute(statement, values)
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
