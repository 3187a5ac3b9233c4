"""A secret that somebody typed or a handler said, wherever it is kept, shows on no page, twin or CSV."""

from __future__ import annotations

import pytest
from flask import Flask

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.support.every_page import LONGEST, addresses, furnish, plain_text
from tests.support.factories import insert

SAID = "they said postgres://app:hunter2@db/x, password=hunter2"
# Names that stand in the same columns as long texts: what tells one type, person or code from another.
NAMES = (
    "UPDATE wakeboard.job_types SET paused_by = 'anna'",
    "UPDATE wakeboard.job_runs SET error_code = 'boom' WHERE error_code = %s",
    "UPDATE wakeboard.job_attempts SET error_code = 'boom' WHERE error_code = %s",
)


@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_no_answer_tells_a_secret_that_is_kept(
    app: Flask, as_role: AsRole, connection: Connection, role: str
) -> None:
    named = plain_text()
    filling = furnish(
        connection, lambda length: SAID if length == LONGEST else named(length), plain_text("k")
    )
    for names in NAMES:
        connection.execute(names.encode(), (SAID,) if "%s" in names else None)
    person = as_role(role)
    told, seen = [], 0
    for found in addresses(app, filling).values():
        for address in found:
            text = person.get(address).text
            seen += "they said" in text
            if "hunter2" in text:
                told.append(f"{address}: {text[max(0, text.index('hunter2') - 150) :][:200]}")
    assert seen > 30
    assert not told, "\n".join(told)


@pytest.mark.parametrize(("role", "finds"), [("viewer", False), ("operator", True)])
def test_a_viewer_finds_no_reason_by_the_secret_in_it(
    as_role: AsRole, connection: Connection, role: str, finds: bool
) -> None:
    for reason in (SAID, "they said it is back"):
        insert(
            connection,
            "audit_log",
            {"actor": "anna", "source": "web", "action": "run.retry", "reason": reason, "result": "done"},
        )
    asker = as_role(role)
    found = items_of(asker, "/audit.json?q=hunter2")
    assert bool(found) is finds and "hunter2" not in str(found)
    kept = items_of(asker, "/audit.json?q=they+said&what=run.retry")
    assert len(kept) == (2 if finds else 1)
