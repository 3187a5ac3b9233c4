"""Reports and the nightly clean-up. The key of a weekly report is (customer, week), whatever enqueues it."""

from __future__ import annotations

import csv
import io
import time
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from wakeboard.core.run_spec import NewRun
from wakeboard.database.read import read_all, read_one
from wakeboard.demo.clients import find_received, new_mail, send
from wakeboard.demo.shop import folder, write_atomically
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.handler_connection import own_connection

_DAY_SECONDS = 86_400
_WEEK = timedelta(days=7)
_MONDAY_HOUR = 6
_CUSTOMER = "SELECT name, email FROM shop.customers WHERE id = %(id)s"
_ORDERS = """
SELECT id, sku, cents, status, placed_at FROM shop.orders
WHERE customer_id = %(id)s AND placed_at >= %(since)s AND placed_at < %(until)s ORDER BY id
"""


class _Customer(NamedTuple):
    name: str
    email: str


class _Order(NamedTuple):
    id: int
    sku: str
    cents: int
    status: str
    placed_at: datetime


@job("nightly_cleanup", max_attempts=5, timeout="2m", schedule="0 3 * * *")
def nightly_cleanup(context: Context) -> dict[str, int]:
    """Remove expired sessions, and files that a killed run left half-written more than a day ago."""
    with own_connection() as connection:
        sessions = connection.execute("DELETE FROM shop.sessions WHERE expires_at < now()").rowcount
    files = 0
    for name in ("invoices", "photos", "exports"):
        for part in folder(name).glob("*.part"):
            if time.time() - part.stat().st_mtime > _DAY_SECONDS:
                part.unlink(missing_ok=True)
                files += 1
    return {"sessions": sessions, "files": files}


@job("weekly_reports", max_attempts=5, timeout="2m", schedule=f"0 {_MONDAY_HOUR} * * 1")
def weekly_reports(context: Context) -> dict[str, int]:
    """Enqueue last week's report for each customer; the time of the fire says which week."""
    day = (context.scheduled_for or datetime.now(UTC)).date()
    with own_connection() as connection:
        customers = connection.execute("SELECT id FROM shop.customers ORDER BY id").fetchall()
        enqueue_many(connection, [report(customer, monday_of(day) - _WEEK) for (customer,) in customers])
    return {"customers": len(customers)}


def monday_of(day: date) -> date:
    """Return the Monday of the week that ``day`` is in."""
    return day - timedelta(days=day.weekday())


def report(customer: int, monday: date, run_at: datetime | None = None) -> NewRun:
    """Return the run of a customer's report on the week from ``monday``, with the key of that report."""
    payload = {"customer": customer, "week": monday.isoformat()}
    return NewRun("weekly_report", payload, run_at=run_at, key=f"report:{customer}:{monday.isoformat()}")


def export_key(customer: int, since: date, until: date) -> str:
    """Return the key of an export: one of a customer and a range of days."""
    return f"export:{customer}:{since.isoformat()}:{until.isoformat()}"


def first_report(customer: int, today: date) -> NewRun:
    """Return the run of a new customer's first report, due next Monday morning (UTC)."""
    monday = monday_of(today)
    due = datetime.combine(monday + _WEEK, datetime.min.time(), UTC) + timedelta(hours=_MONDAY_HOUR)
    return report(customer, monday, due)


@job("weekly_report", max_attempts=8, timeout=60, backoff="5s,15s,45s,2m")
def weekly_report(context: Context) -> dict[str, int]:
    """Mail a customer the week's activity, once, whatever enqueued it."""
    customer, monday = int(context.payload["customer"]), date.fromisoformat(context.payload["week"])
    person, orders = _activity(customer, monday, monday + _WEEK)
    text = f"Dear {person.name},\n\nin the week of {monday} you placed {len(orders)} orders.\n"
    mail = new_mail(person.email, f"Your week of {monday}", text, f"report-{customer}-{monday}")
    key = f"report-mail:{customer}:{monday}"
    context.once(key, lambda: send(mail), scope="global", if_unconfirmed=lambda _found: find_received(mail))
    return {"orders": len(orders)}


@job("export_report", max_attempts=5, timeout=60)
def export_report(context: Context) -> dict[str, str | int]:
    """Write a customer's orders of a range of days as a CSV file, atomically."""
    customer = int(context.payload["customer"])
    since, until = context.payload["since"], context.payload["until"]
    _, orders = _activity(customer, date.fromisoformat(since), date.fromisoformat(until))
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["order", *_Order._fields[1:]])
    writer.writerows(orders)
    file = folder("exports") / f"orders-{customer}-{since}-{until}.csv"
    write_atomically(file, table.getvalue().encode())
    return {"file": file.name, "orders": len(orders)}


def _activity(customer: int, since: date, until: date) -> tuple[_Customer, list[_Order]]:
    """Return a customer and the orders from ``since`` to before ``until``. Raises LookupError."""
    values = {"id": customer, "since": since, "until": until}
    with own_connection() as connection:
        row = read_one(connection, _CUSTOMER, _Customer, values)
        if row is None:
            raise LookupError(f"There is no customer {customer}.")
        return row, read_all(connection, _ORDERS, _Order, values)
