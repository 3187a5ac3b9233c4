"""Whoever may not act is told so first, whatever the form says, and each try is in the audit log."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, page_of
from tests.support.every_page import acts, addresses, furnish, plain_text
from tests.support.factories import rows
from wakeboard.core.states import VERBS, Role
from wakeboard_dashboard.text import targets

JSON = {"Accept": "application/json"}
WITH_VERBS = (
    "/runs", "/runs/<id:run_id>", "/effects", "/leases", "/types", "/types/<path:name>",
    "/workers/<path:name>", "/schedules", "/schedules/<name>", "/errors/<group:fingerprint>",
)  # fmt: skip
UNREADABLE = {"data": "[", "content_type": "application/json"}


@pytest.mark.parametrize("posted", [{}, {"data": {"reason": "why not"}}, UNREADABLE], ids=str)
@pytest.mark.parametrize("headers", [JSON, {"HX-Request": "true"}, {}], ids=str)
def test_a_viewer_is_refused_every_verb_before_the_form_is_read_and_each_try_is_kept(
    app: Flask,
    as_role: AsRole,
    connection: Connection,
    posted: dict[str, Any],
    headers: dict[str, str],
) -> None:
    verbs = acts(app, furnish(connection, plain_text(), plain_text("k")))
    viewer = as_role("viewer")
    assert len(verbs) > 30
    for address in verbs.values():
        newest = connection.execute("SELECT max(id) FROM wakeboard.audit_log").fetchone()
        answer = viewer.post(address, headers=headers, **posted)
        assert answer.status_code == 403, (address, answer.text)
        kept = rows(connection, "audit_log", f"id > {newest[0] if newest else 0}")
        assert [(row["actor"], row["result"]) for row in kept] == [("viewer", "denied")], address
        assert kept[0]["action"] in VERBS, address


def test_a_viewer_is_refused_the_form_of_every_verb(
    app: Flask, as_role: AsRole, connection: Connection
) -> None:
    viewer = as_role("viewer")
    for rule, address in acts(app, furnish(connection, plain_text(), plain_text("k"))).items():
        assert viewer.get(address).status_code in (403, 405), (rule, address)


def test_a_viewer_finds_the_verbs_of_every_page_switched_off(
    app: Flask, as_role: AsRole, connection: Connection
) -> None:
    pages, viewer = addresses(app, furnish(connection, plain_text(), plain_text("k"))), as_role("viewer")
    for rule in WITH_VERBS:
        page = page_of(viewer, pages[rule][0])
        assert 'disabled title="Needs the role operator"' in page, rule
        assert "hx-post" not in page, rule


def test_an_operator_is_refused_what_admins_do_and_nothing_else(
    app: Flask, as_role: AsRole, connection: Connection
) -> None:
    verbs = acts(app, furnish(connection, plain_text(), plain_text("k")))
    operator = as_role("operator")
    refused = {
        rule for rule, address in verbs.items() if operator.post(address, **UNREADABLE).status_code == 403
    }
    denied = {row["action"] for row in rows(connection, "audit_log", "result = 'denied'")}
    assert {VERBS[action].role for action in denied} == {Role.ADMIN}
    assert refused == {
        "/schedules/+new", "/schedules/<name>/edit", "/schedules/<name>/remove", "/types/<path:name>/keep",
        "/workers/<path:name>/stop", "/alerts/<id:rule_id>/edit",
    }  # fmt: skip


def test_the_row_of_a_refusal_names_what_it_was_about(as_role: AsRole, connection: Connection) -> None:
    viewer = as_role("viewer")
    for path in ("/runs/7/retry", "/leases/7/release", "/effects/3/settle", "/types/mail/pause"):
        viewer.post(path, headers=JSON)
    kept = rows(connection, "audit_log", "result = 'denied'")
    assert [(row["action"], row["target_type"], row["target_id"]) for row in kept] == [
        ("run.retry", "run", "7"),
        ("lease.release", "run", "7"),
        ("effect.settle", "effect", "3"),
        ("type.pause", "type", "mail"),
    ]


# By the converter of a path's argument: a thing that is not there.
NOTHING = {"id": "999", "group": "0000000000001"}
# Their thing is a run (lease), a filter that the row itself has (view), or has no page.
WITHOUT_A_PAGE = {"lease", "view", "user", "token"}


def test_no_verb_asks_about_a_thing_that_is_not_there(app: Flask, as_role: AsRole) -> None:
    admin = as_role("admin")
    rules = [rule for rule in app.url_map.iter_rules() if {"GET", "POST"} <= (rule.methods or set())]
    asked = [rule.rule for rule in rules if rule.arguments and not rule.rule.startswith("/demo")]
    assert len(asked) > 25
    for rule in asked:
        address = re.sub(r"<(?:(\w+):)?\w+>", lambda found: NOTHING.get(found[1], "nothing"), rule)
        assert admin.get(address).status_code == 404, f"{rule}: web.not_found.KINDS does not know its noun"


def test_the_audit_log_leads_to_what_a_verb_was_about() -> None:
    nouns = {verb.noun for verb in VERBS.values()} - WITHOUT_A_PAGE
    assert nouns <= {*targets.PATHS, *targets.ROWS}
