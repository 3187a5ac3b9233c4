"""The example shop: what its jobs did in the world, and buttons that make work. Only where there is a shop.

The shop is imported when its page is asked for, so that a dashboard without it never loads it.
"""

from __future__ import annotations

from time import monotonic
from types import ModuleType

import psycopg
from flask import Blueprint, abort, current_app

from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.pages.navigation import PAGES
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.web.connection import may_query_for_frame, reading

blueprint = Blueprint("demo", __name__)

PATH = "/demo"
MOST = 30
# A shop opens seldom: for this long a dashboard believes that there is none.
LOOK_SECONDS = 60.0
# By the last part of the address: the label of the button, and the question of its confirm page.
BUTTONS = {
    "order": ("Place an order", "Place an order of something? A run charges the card."),
    "signup": ("Sign up", "Sign a customer up? The first report comes on Monday."),
    "export": ("Export report", "Export the newest customer's last seven days?"),
    "report": ("Mail a report", "Mail the newest customer last week's report now?"),
}


def shop() -> ModuleType:
    """Return the shop's own questions and buttons."""
    from wakeboard.demo import page

    return page


def _must_be_open() -> None:
    if not shop().is_open(reading()):
        abort(404, "This database has no example shop. Start one: wakeboard up --demo.")


def find_orders() -> Context:
    """Return the newest orders, each with the run that is at work on it."""
    _must_be_open()
    return {"orders": shop().orders(reading(), MOST)}


def find_mails() -> Context:
    """Return the newest mails, and how many of them the shop's customers have got twice."""
    _must_be_open()
    mails = shop().mails(reading(), MOST)
    names = [mail.message_id for mail in mails if mail.message_id]
    return {"mails": mails, "twice": len(names) - len(set(names))}


def find_buttons() -> Context:
    """Return the buttons; the fragments bring what they show."""
    _must_be_open()
    return {"buttons": {name: label for name, (label, _) in BUTTONS.items()}}


def shop_twin(context: Context) -> Json:
    """Return ``/demo.json``."""
    return {
        "orders": [order._asdict() for order in find_orders()["orders"]],
        "mails": [mail._asdict() for mail in find_mails()["mails"]],
    }


add_page(
    blueprint,
    PATH,
    "demo/page.html",
    find_buttons,
    twin=shop_twin,
    fragments={"orders": ("demo/_orders.html", find_orders), "mails": ("demo/_mails.html", find_mails)},
)


def _press(connection: psycopg.Connection, actor: Actor, reason: str | None, button: str) -> Answer:
    page = shop()
    if not page.is_open(connection):
        abort(404, "This database has no example shop. Start one: wakeboard up --demo.")
    answer: Answer = page.press(connection, button, actor, reason)
    return answer


add_verb(
    blueprint,
    f"{PATH}/<any({', '.join(BUTTONS)}):button>",
    "run.enqueue",
    _press,
    question=lambda button: BUTTONS[button][1],
    back=lambda button: PATH,
)


@blueprint.app_context_processor
def navigation() -> Json:
    """Leave this page out of the navigation where there is no shop."""
    return {} if _has_shop() else {"navigation": [entry for entry in PAGES if entry.path != PATH]}


def _has_shop() -> bool:
    """Return whether there is a shop; asks the database only on pages that have read it, and seldom."""
    last_look: tuple[bool, float] | None = current_app.extensions.get("wakeboard_has_shop")
    if last_look and (last_look[0] or monotonic() - last_look[1] < LOOK_SECONDS):
        return last_look[0]
    if not may_query_for_frame():
        return False
    has_shop = reading().exec_driver_sql("SELECT to_regclass('shop.mails') IS NOT NULL").scalar_one()
    current_app.extensions["wakeboard_has_shop"] = (bool(has_shop), monotonic())
    return bool(has_shop)
