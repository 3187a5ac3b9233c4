"""What failed since, or until, a moment: by when it last failed, however long ago it was made."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.support.factories import a_definition, a_run, from_now
from wakeboard.accounts import tokens
from wakeboard.core.states import Role
from wakeboard.database.audit import terminal_actor

ASKED = {
    "failed-since=24h": ["failed today", "dead today"],
    "failed-until=24h": ["dead of old"],
    "failed-since=7d&failed-until=24h": ["dead of old"],
    "failed-since=24h&status=dead": ["dead today"],
    "failed-since=24h&status=succeeded": ["well again"],
    "failed-since=24h&status=dead,succeeded": ["dead today", "well again"],
    "failed-since=24h&since=24h": ["failed today"],
    "failed-since=24h&type=mail": ["failed today"],
    "failed-since=24h&error=boom": ["dead today"],
    "failed-since=24h&schedule=nightly": ["dead today"],
    "failed-since=24h&schedule=nightly&status=succeeded": ["well again"],
    "failed-since=24h&group=00000000000a1": ["dead today", "well again"],
    "failed-since=24h&q=old": ["dead today"],
}


@pytest.fixture
def named(connection: Connection) -> dict[int, str]:
    """Runs by id, each with a name for how it stands."""
    nightly = a_definition(connection, "nightly")

    def one(status: str, failed: str, job_type: str = "report", **columns: Any) -> int:
        return a_run(connection, status, job_type=job_type, failed_at=from_now(failed), **columns)

    of_old = {"created_at": from_now("-9 days"), "definition_id": nightly, "error_group": 0xA1}
    made = {
        "failed today": one("failed", "-1 hour", "mail"),
        "dead today": one("dead", "-2 hours", error_code="boom", payload={"from": "old"}, **of_old),
        "dead of old": one("dead", "-5 days", created_at=from_now("-9 days")),
        "well again": one("succeeded", "-3 hours", **of_old),
        "never failed": a_run(connection, "succeeded"),
        "waits": a_run(connection),
    }
    return {run: name for name, run in made.items()}


@pytest.mark.parametrize("query", ASKED)
def test_runs_are_found_by_when_they_last_failed(
    client: FlaskClient, named: dict[int, str], query: str
) -> None:
    items = items_of(client, f"/runs.json?{query}")
    assert sorted(named[item["id"]] for item in items) == sorted(ASKED[query])


def test_a_token_for_one_type_finds_only_those_of_its_type(
    client: FlaskClient, connection: Connection, named: dict[int, str]
) -> None:
    token = tokens.create_token(connection, terminal_actor(), "mails", Role.VIEWER, job_types=["mail"])
    headers = {"Authorization": f"Bearer {token}"}
    items = client.application.test_client().get("/runs.json?failed-since=24h", headers=headers).get_json()
    assert [named[item["id"]] for item in items["items"]] == ["failed today"]


def test_a_retry_of_what_failed_since_then_moves_those_and_no_others(
    as_role: AsRole, named: dict[int, str]
) -> None:
    page = as_role("operator").get("/runs/bulk/retry.json?failed-since=24h").get_json()
    assert page["counted"] == 2 and page["states"] == {"failed": 1, "dead": 1}
    assert named[page["highest"]] in ("dead today", "failed today")


def test_the_box_and_its_controls_say_when_it_failed(client: FlaskClient, named: dict[int, str]) -> None:
    answer = client.get("/runs/find", query_string={"text": "status:dead", "failed-since": "24h"})
    assert answer.headers["Location"].endswith("/runs?status=dead&failed-since=1d")
    page = client.get("/runs?failed-since=24h").text
    assert "failed-since:1d" in page and 'name="failed-since" value="1d"' in page
    assert "searched" not in page, "an index has all of them"
