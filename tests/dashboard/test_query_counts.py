"""How often each page asks the database: a number that no row raises, and no change without being seen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app, overhear
from tests.support.every_page import Filling, addresses, furnish, is_page, plain_text
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard_dashboard.pages import attention
from wakeboard_dashboard.web.connection import Database

# The most statements that one GET of a page, its fragments included, may send; its twin in the second place.
# Who makes a page needs fewer: lower it. Who needs more: say why in the commit.
MOST: dict[str, tuple[int, int]] = {
    "/": (10, 9),
    "/alerts": (4, 4),
    "/audit": (11, 7),
    "/audit/find": (0, 0),
    "/effects": (2, 2),
    # Some failures of this house have no group: they are counted once more, by code and type.
    "/errors": (8, 8),
    "/errors/<group:fingerprint>": (12, 12),
    "/errors/<path:code>": (7, 7),
    "/leases": (7, 7),
    "/night": (18, 18),
    "/operations": (2, 2),
    "/operations/<id:operation_id>": (4, 4),
    "/runs": (5, 4),
    "/runs/<id:run_id>": (11, 10),
    "/runs/<id:run_id>/attempts/<id:lease_epoch>": (3, 3),
    "/runs/<id:run_id>/payload": (2, 2),
    "/runs/find": (0, 0),
    "/schedules": (5, 5),
    "/schedules/<name>": (6, 6),
    "/schedules/<name>/missed": (3, 3),
    "/system": (11, 11),
    "/types": (11, 10),
    "/types/<path:name>": (14, 14),
    "/workers": (5, 5),
    "/workers/<path:name>": (10, 10),
}
# What a verb asks before it is done.
MOST_OF_A_QUESTION = 4


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    """A monkeypatch that holds for this module."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture(scope="module")
def house(
    shared_database: str, shared: Connection, monkeypatch_module: pytest.MonkeyPatch
) -> Iterator[tuple[Flask, FlaskClient, Filling]]:
    """A dashboard over several rows of every kind: a page that asks once per row asks too often."""
    filling = furnish(shared, plain_text(), plain_text("kind"))
    # The number in the title is counted now and then, for every page alike.
    monkeypatch_module.setattr(attention, "COUNT_AGE", timedelta(days=1))
    app = an_app(database_url=shared_database)
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(shared, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(shared)}", cookie)
    yield app, client, filling
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


def test_no_page_asks_more_often_than_it_says(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    asked: list[str] = []
    overhear(app, lambda sql, _values: asked.append(sql))

    def count(address: str) -> list[str]:
        client.get(address)  # What is remembered across requests is remembered by now.
        asked.clear()
        answer = client.get(address)
        assert answer.status_code in (200, 303), address
        return list(asked)

    wrong = []
    found = addresses(app, filling)
    questions = {rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ())}
    for rule in filter(is_page, found):
        sent = [max((count(address) for address in found[rule]), key=len)]
        twins = found.get("/overview.json" if rule == "/" else f"{rule}.json", [])
        sent.append(max((count(address) for address in twins), key=len, default=[]))
        most = (MOST_OF_A_QUESTION, MOST_OF_A_QUESTION) if rule in questions else MOST.get(rule)
        if most is None:
            wrong.append(f"{rule} is not in MOST: add {rule!r}: {tuple(map(len, sent))}")
            continue
        for kind, statements, bound in zip(("page", "twin"), sent, most, strict=True):
            if len(statements) > bound:
                listed = "\n".join(f"    {' '.join(each.split())[:200]}" for each in statements)
                wrong.append(f"the {kind} of {rule} asks {len(statements)} times, not {bound}:\n{listed}")
    wrong += [f"{rule} is in MOST and is not there" for rule in MOST if rule not in found]
    assert not wrong, "\n".join(wrong)


def test_a_fragment_asks_no_more_than_its_page(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    asked: list[Any] = []
    overhear(app, lambda sql, _values: asked.append(sql))
    wrong = []
    for rule, (address, *_) in addresses(app, filling).items():
        if rule.startswith("/_fragments"):
            stem = rule.removeprefix("/_fragments").rpartition("/")[0]
            most = MOST["/" if stem in ("/overview", "/shell") else stem][0]
            client.get(address)
            asked.clear()
            client.get(address)
            if len(asked) > most:
                wrong.append(f"{rule} asks {len(asked)} times, its page {most}")
    assert not wrong, "\n".join(wrong)
