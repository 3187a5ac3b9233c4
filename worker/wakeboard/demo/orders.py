"""Orders: placed each minute, their address checked, their card charged, paid together with the next step."""

from __future__ import annotations

import json
import random
import urllib.error
from typing import TYPE_CHECKING, Any

from wakeboard.core.outcome import Permanent
from wakeboard.core.run_spec import NewRun
from wakeboard.demo.neighbours import ask
from wakeboard.demo.shop import PRODUCTS
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue.enqueue import enqueue
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.handler_connection import own_connection

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PLACE = """
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


@job("checkout", max_attempts=3, timeout=30, backoff="fixed 10s", schedule="* * * * *")
def checkout(context: Context) -> dict[str, list[int]]:
    """Customers shop: two orders, and what follows from them, in one commit with the end of this run."""
    with context.transaction() as connection:
        orders = [place(connection, sku) for sku in random.sample(sorted(PRODUCTS), 2)]
        connection.exec_driver_sql(_SESSIONS)
        photos = [NewRun("resize_photo", {"photo": random.randrange(200)}) for _ in range(12)]
        newsletter = NewRun("render_newsletter", {"customer": {"name": "Alice"} if orders[0] % 3 else {}})
        enqueue_many(connection, [*photos, newsletter])
    context.log.info("Orders %s were placed.", orders)
    return {"orders": orders}


def place(connection: Connection, sku: str) -> int:
    """Write an order and enqueue what it needs, in the caller's transaction; return its id."""
    order = int(connection.exec_driver_sql(_PLACE, {"sku": sku, "cents": PRODUCTS[sku][1]}).scalar_one())
    for new in first_steps(order, sku):
        enqueue(connection, new.job_type, new.payload, key=new.key, priority=new.priority)
    return order


def first_steps(order: int, sku: str) -> list[NewRun]:
    """Return the runs that a new order starts with."""
    return [
        NewRun("check_address", {"order": order}, key=f"address:{order}", priority=3),
        NewRun("charge_card", {"order": order, "cents": PRODUCTS[sku][1]}, key=f"charge:{order}", priority=1),
        NewRun("sync_stock", {"sku": sku}),
    ]


@job("check_address", max_attempts=3, timeout=20, backoff="10s,30s")
def check_address(context: Context) -> Any:
    """Ask a service that now and then never answers: the timeout ends the wait, the retry gets through."""
    return ask(f"/address/{int(context.payload['order'])}", timeout=3600)


@job("charge_card", max_attempts=8, timeout=30, backoff="5s,15s,45s,2m")
def charge_card(context: Context) -> None:
    """Charge once, then mark the order PAID and enqueue its invoice in one commit with the end of this run.

    The provider knows the key, so asking again after an unknown outcome is safe.
    """
    order = int(context.payload["order"])
    try:
        charge = context.once("charge", lambda: _charge(context), if_unconfirmed="redo")
    except urllib.error.HTTPError as refused:
        _decline(order)
        reason = json.load(refused).get("error", "refused")
        raise Permanent(reason, f"The bank refused to pay order {order} ({refused.code} {reason}).") from None
    with context.transaction() as connection:
        connection.exec_driver_sql(_PAY, {"id": order, "charge": charge["id"]})
        enqueue(connection, "send_invoice", {"order": order}, key=f"invoice:{order}", priority=1)


def _charge(context: Context) -> Any:
    return ask(
        "/charges", {"order": context.payload["order"], "cents": context.payload["cents"]}, context.key
    )


def _decline(order: int) -> None:
    # Not the run's transaction(): that one would finish the run as succeeded.
    with own_connection() as connection:
        connection.execute("UPDATE shop.orders SET status = 'DECLINED' WHERE id = %s", (order,))
