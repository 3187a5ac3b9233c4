"""The example shop: ``wakeboard up --demo`` or ``--app wakeboard.demo``; importing registers its types.

Everything it does is real, on one machine: rows in the schema ``shop``, files in the data folder, mail to a
mailbox of its own on loopback. It reaches no other host.
"""

from __future__ import annotations

from wakeboard.demo import catalogue, invoices, orders, reports


def prepare(url: str) -> list[list[str]]:
    """Make the shop's tables, and at the first start its past, in the migrated database at ``url``.

    Returns the commands to keep running beside the workers (the street with mailbox and providers), which
    need WAKEBOARD_DATABASE_URL. Safe to repeat. Raises DatabaseError when the database does not answer.
    """
    from wakeboard.demo.opening import prepare as open_shop

    return open_shop(url)


__all__ = ["catalogue", "invoices", "orders", "prepare", "reports"]
