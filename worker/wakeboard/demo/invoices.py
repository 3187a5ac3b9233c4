"""Invoices: a text file in the data folder, one mail to the customer, one note to the team."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from wakeboard.core.outcome import Permanent
from wakeboard.demo.neighbours import letter, send, was_received
from wakeboard.demo.shop import PRODUCTS, folder, write_aside
from wakeboard.handlers.context import Context
from wakeboard.handlers.handler_connection import own_connection
from wakeboard.handlers.registry import job
from wakeboard.queue.enqueue import enqueue

_ORDER = """
SELECT o.id, o.sku, o.cents, o.paid_at, c.name, c.email
FROM shop.orders AS o JOIN shop.customers AS c ON c.id = o.customer_id
WHERE o.id = %s AND o.paid_at IS NOT NULL
"""
_INVOICED = "UPDATE shop.orders SET status = 'INVOICED', invoice_file = %s WHERE id = %s AND status = 'PAID'"
TEAM = "team@example.com"


@dataclass(frozen=True, slots=True)
class PaidOrder:
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
    """Write the invoice, mail it once, tell the team. Every step may be repeated; none happens twice."""
    order = _order(int(context.payload["order"]))
    file = folder("invoices") / f"invoice-{order.id}.txt"
    invoice = _text(order)
    write_aside(file, invoice.encode())
    mail = letter(
        order.email,
        f"Your invoice {order.id}",
        f"Dear {order.name},\n\nattached is the invoice for your {PRODUCTS[order.sku][0]}, {order.amount}.\n",
        f"invoice-{order.id}",
    )
    mail.add_attachment(invoice, filename=file.name)
    context.once("mail", lambda: send(mail), if_unconfirmed=lambda _found: was_received(mail))
    with own_connection() as connection:
        connection.execute(_INVOICED, (str(file), order.id))
    enqueue(None, "tell_team", {"order": order.id}, key=f"team:{order.id}", priority=3)
    return {"file": file.name, "mail": str(mail["Message-ID"])}


@job("tell_team", max_attempts=5, timeout=30, backoff="5s,15s,45s,2m")
def tell_team(context: Context) -> None:
    """Send the team a line about an invoiced order, once."""
    order = int(context.payload["order"])
    mail = letter(TEAM, f"Order {order} is paid", f"Order {order} is paid and invoiced.\n", f"team-{order}")
    context.once("mail", lambda: send(mail), if_unconfirmed=lambda _found: was_received(mail))


def _order(order: int) -> PaidOrder:
    with own_connection() as connection:
        row = connection.execute(_ORDER, (order,)).fetchone()
    if row is None:
        raise Permanent(
            "order_not_paid", f"Order {order} does not exist or is not paid, so it gets no invoice."
        )
    return PaidOrder(*row)


def _text(order: PaidOrder) -> str:
    return f"""\
INVOICE {order.id}

For     {order.name} <{order.email}>
Paid    {order.paid_at:%Y-%m-%d %H:%M} UTC

1 x {PRODUCTS[order.sku][0]:<40} {order.amount:>14}

Thank you for riding with us.
"""
