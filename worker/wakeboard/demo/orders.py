"""Orders: placed each minute, their address checked, their card charged, their invoice mailed.

Each step enqueues the next one in the transaction that records its own end.
"""

from __future__ import annotations

import json
import random
import urllib.error
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.outcome import Permanent
from wakeboard.core.run_spec import NewRun
from wakeboard.database.read import read_all, read_one
from wakeboard.demo.clients import call_provider, find_received, new_mail, send
from wakeboard.demo.shop import PRODUCTS, folder, write_atomically
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue.enqueue import enqueue
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.handler_connection import own_connection

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

_INSERT_ORDER = """
INSERT INTO shop.orders (customer_id, sku, cents)
SELECT id, %(sku)s, %(cents)s FROM shop.customers ORDER BY random() LIMIT 1
RETURNING id
"""
_SESSIONS = """
INSERT INTO shop.sessions (customer_id, expires_at)
SELECT id, now() + (random() * 24 - 6) * interval '1 hour' FROM shop.customers
"""
_PAY = """
UPDATE shop.orders SET status = 'PAID', charge = %(charge)s, paid_at = now()
WHERE id = %(id)s AND status = 'NEW'
"""

_PAID_ORDER = """
SELECT o.id, o.sku, o.cents, o.paid_at, c.name, c.email
FROM shop.orders AS o JOIN shop.customers AS c ON c.id = o.customer_id
WHERE o.id = %(id)s AND o.paid_at IS NOT NULL
"""
_INVOICED = "UPDATE shop.orders SET status = 'INVOICED', invoice_file = %s WHERE id = %s AND status = 'PAID'"
TEAM = "team@example.com"


@job("checkout", max_attempts=3, timeout=30, backoff="fixed 10s", schedule="* * * * *")
def checkout(context: Context) -> dict[str, list[int]]:
    """Place two orders and enqueue their runs, in one commit with the end of this run."""
    with context.transaction() as connection:
        orders = {insert_order(connection, sku): sku for sku in random.sample(sorted(PRODUCTS), 2)}
        connection.exec_driver_sql(_SESSIONS)
        first = [run for order, sku in orders.items() for run in first_runs(order, sku)]
        photos = [NewRun("resize_photo", {"photo": random.randrange(200)}) for _ in range(12)]
        # Some customers have no name.
        customer = {"name": "Alice"} if min(orders) % 3 else {}
        enqueue_many(connection, [*first, *photos, NewRun("render_newsletter", {"customer": customer})])
    context.log.info("Orders %s were placed.", list(orders))
    return {"orders": list(orders)}


class _OrderId(NamedTuple):
    id: int


def insert_order(connection: Connection, sku: str) -> int:
    """Write an order of a random customer, in the caller's transaction; return its id."""
    values = {"sku": sku, "cents": PRODUCTS[sku][1]}
    return read_all(connection, _INSERT_ORDER, _OrderId, values)[0].id


def first_runs(order: int, sku: str) -> list[NewRun]:
    """Return the runs that a new order starts with."""
    return [
        NewRun("check_address", {"order": order}, key=f"address:{order}", priority=3),
        NewRun("charge_card", {"order": order, "cents": PRODUCTS[sku][1]}, key=f"charge:{order}", priority=1),
        NewRun("sync_stock", {"sku": sku}),
    ]


@job("check_address", max_attempts=3, timeout=20, backoff="10s,30s")
def check_address(context: Context) -> object:
    """Ask a service that sometimes does not answer: the timeout ends the wait, the retry succeeds."""
    return call_provider(f"/address/{int(context.payload['order'])}", timeout=3600)


@job("charge_card", max_attempts=8, timeout=30, backoff="5s,15s,45s,2m")
def charge_card(context: Context) -> None:
    """Charge once, then mark the order PAID and enqueue its invoice in one commit with the end of this run.

    The provider knows the key, so a second request after an unknown outcome is safe.
    """
    order = int(context.payload["order"])
    request = {"order": order, "cents": context.payload["cents"]}
    try:
        charge = context.once(
            "charge", lambda: call_provider("/charges", request, context.key), if_unconfirmed="redo"
        )
    except urllib.error.HTTPError as refused:
        _decline(order)
        reason = json.load(refused).get("error", "refused")
        raise Permanent(reason, f"The bank refused to pay order {order} ({refused.code} {reason}).") from None
    with context.transaction() as connection:
        connection.exec_driver_sql(_PAY, {"id": order, "charge": charge["id"]})
        enqueue(connection, "send_invoice", {"order": order}, key=f"invoice:{order}", priority=1)


def _decline(order: int) -> None:
    # The run's transaction() would finish the run as succeeded.
    with own_connection() as connection:
        connection.execute("UPDATE shop.orders SET status = 'DECLINED' WHERE id = %s", (order,))


class PaidOrder(NamedTuple):
    """What an invoice says."""

    id: int
    sku: str
    cents: int
    paid_at: datetime
    name: str
    email: str

    @property
    def amount(self) -> str:
        """The price as people write it."""
        return f"{self.cents / 100:.2f} EUR"


@job("send_invoice", max_attempts=10, timeout=60, backoff="5s,15s,45s,2m", permanent=(LookupError,))
def send_invoice(context: Context) -> dict[str, str]:
    """Write the invoice, mail it once, tell the team. Each step may be repeated; none happens twice."""
    order = _paid_order(int(context.payload["order"]))
    file = folder("invoices") / f"invoice-{order.id}.txt"
    invoice = _invoice(order)
    write_atomically(file, invoice.encode())
    mail = new_mail(
        order.email,
        f"Your invoice {order.id}",
        f"Dear {order.name},\n\nattached is the invoice for your {PRODUCTS[order.sku][0]}, {order.amount}.\n",
        f"invoice-{order.id}",
    )
    mail.add_attachment(invoice, filename=file.name)
    context.once("mail", lambda: send(mail), if_unconfirmed=lambda _found: find_received(mail))
    with own_connection() as connection:
        connection.execute(_INVOICED, (str(file), order.id))
    enqueue(None, "tell_team", {"order": order.id}, key=f"team:{order.id}", priority=3)
    return {"file": file.name, "mail": str(mail["Message-ID"])}


@job("tell_team", max_attempts=5, timeout=30, backoff="5s,15s,45s,2m")
def tell_team(context: Context) -> None:
    """Send the team a line about an invoiced order, once."""
    order = int(context.payload["order"])
    mail = new_mail(TEAM, f"Order {order} is paid", f"Order {order} is paid and invoiced.\n", f"team-{order}")
    context.once("mail", lambda: send(mail), if_unconfirmed=lambda _found: find_received(mail))


def _paid_order(order: int) -> PaidOrder:
    with own_connection() as connection:
        paid = read_one(connection, _PAID_ORDER, PaidOrder, {"id": order})
    if paid is None:
        raise Permanent(
            "order_not_paid", f"Order {order} does not exist or is not paid, so it gets no invoice."
        )
    return paid


def _invoice(order: PaidOrder) -> str:
    return f"""\
INVOICE {order.id}

For     {order.name} <{order.email}>
Paid    {order.paid_at:%Y-%m-%d %H:%M} UTC

1 x {PRODUCTS[order.sku][0]:<40} {order.amount:>14}

Thank you for riding with us.
"""
