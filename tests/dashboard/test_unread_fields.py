"""What a program's JSON names and nobody reads is refused: an act without it would be another act."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.support.factories import a_definition, a_group, a_run, rows
from wakeboard.core.errors.error_groups import format_fingerprint

JSON = {"Accept": "application/json"}


@pytest.mark.parametrize(
    ("path", "sent", "sentence"),
    [
        ("/runs/{run}/retry", {"resaon": "x"}, "There is no field “resaon”; allowed: reason."),
        ("/runs/{run}/again", {"paylod": {}}, "There is no field “paylod”; allowed: payload, reason."),
        ("/types/mail/pause", {"untill": "2h"}, "“untill”; allowed: until, until_at, reason."),
        ("/types/mail/limit", {"most": 1}, "“most”; allowed: limit, reason."),
        ("/types/+pause-all", {"end": None}, "“end”; allowed: until, until_at, reason."),
        ("/errors/{group}/mute", {"for": "8h", "why": "x"}, "“why”; allowed: for, until, reason."),
        ("/errors/{group}/retry", {"confrim": 1}, "“confrim”; allowed: also, confirm, per_minute,"),
        ("/errors/{group}/retry", {"run": [1]}, "“run”; allowed: also, confirm, per_minute,"),
        ("/schedules/nightly/edit", {"cron": "0 4 * * *"}, "“cron”; allowed: schedule, timezone, payload,"),
        (
            "/runs/bulk/retry",
            {"filter": "status=dead", "confirm": 1, "per_minut": 60},
            "“per_minut”; allowed: run, filter, also, confirm, per_minute, stop_above_percent, canary,",
        ),
        ("/runs/bulk/cancel", {"run": [1], "canari": True}, "“canari”; allowed: run, filter,"),
    ],
)
def test_a_field_that_nobody_reads_is_named_and_nothing_is_done(
    client: FlaskClient, connection: Connection, path: str, sent: dict[str, object], sentence: str
) -> None:
    a_definition(connection, "nightly")
    run, group = a_run(connection, "dead"), a_group(connection)
    answer = client.post(path.format(run=run, group=format_fingerprint(group)), json=sent, headers=JSON)
    assert answer.status_code == 400
    assert sentence in answer.get_json()["message"] and answer.get_json()["message"].endswith(
        "Nothing was done."
    )
    assert rows(connection, "audit_log") == rows(connection, "operations") == []
    assert [each["status"] for each in rows(connection, "job_runs")] == ["dead"]


def test_a_preview_may_be_sent_back_as_it_came(client: FlaskClient, connection: Connection) -> None:
    a_run(connection, "dead")
    preview = client.get("/runs/bulk/retry.json?status=dead").get_json()
    answer = client.post("/runs/bulk/retry", json=preview, headers=JSON)
    assert answer.status_code == 200, answer.get_json()
    assert rows(connection, "operations")[0]["total"] == 1
