"""The rows that the page of the example shop shows, and what its buttons do.

Reads the schema ``shop``; a button writes its rows, its runs and an audit row in one transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from wakeboard.core.answer import Answer
from wakeboard.core.run_spec import NewRun
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_all, read_flag
from wakeboard.demo.orders import first_runs, insert_order
from wakeboard.demo.reports import export_key, first_report, monday_of, report
from wakeboard.demo.shop import PRODUCTS
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.operator import Transition, act

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

_IS_OPEN = """
SELECT to_regclass('shop.mails') IS NOT NULL AND to_regclass('shop.orders') IS NOT NULL AS is_open
"""
_MAILS = """
SELECT id, received_at, sender, recipients, subject, body, attachments, message_id
FROM shop.mails ORDER BY id DESC LIMIT %(limit)s
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
ORDER BY o.id DESC LIMIT %(limit)s
"""
_SIGN_UP = """
INSERT INTO shop.customers (id, name, email)
SELECT n, 'Customer ' || n, 'customer' || n || '@example.com'
FROM (SELECT nextval(pg_get_serial_sequence('shop.customers', 'id')) AS n) AS next
RETURNING id, (signed_up_at AT TIME ZONE 'UTC')::date AS today
"""
_NEWEST_CUSTOMER = """
SELECT id, (now() AT TIME ZONE 'UTC')::date AS today FROM shop.customers ORDER BY id DESC LIMIT 1
"""


class ReceivedMail(NamedTuple):
    """A mail in the mailbox of the shop; ``attachments`` are names."""

    id: int
    received_at: datetime
    sender: str
    recipients: list[str]
    subject: str
    body: str
    attachments: list[str]
    message_id: str | None


class Order(NamedTuple):
    """An order, and the latest run that charges it or sends its invoice, None before there is one."""

    id: int
    placed_at: datetime
    customer: str
    product: str
    cents: int
    status: str
    paid_at: datetime | None
    charge: str | None
    invoice_file: str | None
    run_id: int | None
    run_type: str | None
    run_status: str | None


class _Customer(NamedTuple):
    """A customer, and the date of today in UTC."""

    id: int
    today: date


# What a button answers, and the runs that it enqueues.
Action = tuple[str, list[NewRun]]


def is_open(connection: Connection) -> bool:
    """Return whether this database has the shop."""
    return read_flag(connection, _IS_OPEN)


def mails(connection: Connection, limit: int = 50) -> list[ReceivedMail]:
    """Return the newest mails in the mailbox of the shop, at most ``limit``."""
    return read_all(connection, _MAILS, ReceivedMail, {"limit": limit})


def orders(connection: Connection, limit: int = 50) -> list[Order]:
    """Return the newest orders, at most ``limit``."""
    return read_all(connection, _ORDERS, Order, {"limit": limit})


def press(connection: psycopg.Connection, button: str, actor: Actor, reason: str | None = None) -> Answer:
    """Do what a button of BUTTONS does: its rows, its runs and the audit row in one transaction."""

    def move() -> Transition:
        sentence, runs = BUTTONS[button](connection)
        ids = enqueue_many(connection, runs)
        return Transition(Answer(ids[0], "queued", "done", sentence), after={"runs": ids})

    return act(connection, actor, "run.enqueue", ("demo", "shop"), reason, move)


def _place_order(connection: psycopg.Connection) -> Action:
    """Place an order; runs charge its card, make its invoice and mail it."""
    sku = random.choice(sorted(PRODUCTS))
    order = insert_order(connection, sku)
    return f"Order {order} was placed; its card is being charged.", first_runs(order, sku)


def _sign_up(connection: psycopg.Connection) -> Action:
    """Sign a customer up; the first weekly report is due next Monday."""
    (customer,) = read_all(connection, _SIGN_UP, _Customer)
    sentence = f"Customer {customer.id} signed up; the first report comes on Monday."
    return sentence, [first_report(customer.id, customer.today)]


def _export_report(connection: psycopg.Connection) -> Action:
    """Export the newest customer's last seven days; on the same day a second click finds the first run."""
    (customer,) = read_all(connection, _NEWEST_CUSTOMER, _Customer)
    since, until = customer.today - timedelta(days=6), customer.today + timedelta(days=1)
    payload = {"customer": customer.id, "since": since.isoformat(), "until": until.isoformat()}
    run = NewRun("export_report", payload, key=export_key(customer.id, since, until))
    return f"Customer {customer.id}'s orders from {since} are being exported.", [run]


def _mail_report(connection: psycopg.Connection) -> Action:
    """Mail the newest customer last week's report now; Monday's schedule will not send it again."""
    (customer,) = read_all(connection, _NEWEST_CUSTOMER, _Customer)
    monday = monday_of(customer.today) - timedelta(days=7)
    sentence = f"Customer {customer.id}'s report on the week of {monday} is being mailed."
    return sentence, [report(customer.id, monday)]


BUTTONS: Mapping[str, Callable[[psycopg.Connection], Action]] = {
    "order": _place_order,
    "signup": _sign_up,
    "export": _export_report,
    "report": _mail_report,
}
