"""The audit log: who did what, why and what came of it; found by every filter, never changed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import (
    AsRole,
    assert_fragments_match,
    assert_shown_as_text,
    fragments_of,
    items_of,
)
from tests.support.factories import a_definition, a_run, from_now, insert, row
from wakeboard_dashboard.text.changes import describe_changes

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def an_entry(connection: Connection, **columns: Any) -> int:
    values = {"actor": "anna", "role": "operator", "source": "web", "action": "run.retry", "result": "done"}
    return int(insert(connection, "audit_log", values | columns))


def listed(client: FlaskClient, query: str = "") -> list[int]:
    return [each["id"] for each in items_of(client, f"/audit.json{query}")]


def test_an_empty_log_says_what_it_keeps(client: FlaskClient) -> None:
    assert "No actions yet" in client.get("/audit").text


def test_what_an_operator_does_is_told_in_words(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "dead")
    a_definition(connection, "nightly")
    client.post(f"/runs/{run}/retry", data={"reason": "CRM is back"}, headers=JSON)
    client.post("/schedules/nightly/pause", headers=JSON)
    client.post(f"/runs/{a_run(connection, 'succeeded')}/cancel", headers=JSON)
    page = client.get("/audit").text
    assert "status dead → queued" in page and "CRM is back" in page and f'href="/runs/{run}"' in page
    assert "enabled yes → no" in page and 'href="/schedules/nightly"' in page
    assert "stays: status succeeded" in page and "forbidden" in page


def test_who_did_it_leads_to_what_else_they_did_of_the_same_kind(
    client: FlaskClient, connection: Connection
) -> None:
    for actor in ("anna & co", "bert"):
        for _ in range(2):
            insert(connection, "audit_log", {"actor": actor, "source": "web", "action": "run.retry"})
    page = client.get("/audit?what=run.retry").text
    for spelled, shown in (("anna%20%26%20co", "anna &amp; co"), ("bert", "bert")):
        assert page.count(f'<a href="/audit?what=run.retry&amp;who={spelled}">{shown}</a>') == 2, page
    assert '<a href="/audit?who=bert">' in client.get("/audit").text


def test_an_account_is_offered_though_the_log_says_nothing_of_it(
    client: FlaskClient, connection: Connection
) -> None:
    assert ">carl</option>" not in client.get("/audit").text
    insert(connection, "users", {"name": "carl", "role": "viewer", "password_hash": "x"})
    assert ">carl</option>" in client.get("/audit").text


def test_what_is_no_verb_of_a_page_has_a_word_too(client: FlaskClient, connection: Connection) -> None:
    an_entry(connection, action="login.link", target_type="session", target_id="link:anna")
    an_entry(
        connection, action="schedule.edit", after={"priority": 2}, target_type="schedule", target_id="new"
    )
    an_entry(connection, action="alert.silence", target_type="alert", target_id="3")
    page = client.get("/audit").text
    assert ">Login link</td>" in page and ">Add</td>" in page and 'href="/alerts#rule-3"' in page


def test_every_filter_finds_its_rows(client: FlaskClient, connection: Connection) -> None:
    old = an_entry(connection, at=from_now("-2 days"))
    ben = an_entry(connection, actor="ben")
    drain = an_entry(connection, action="worker.drain", target_type="worker", target_id="w-7", result="asked")
    run = an_entry(connection, target_type="run", target_id="48210")
    assert listed(client) == [run, drain, ben, old]
    assert listed(client, "?who=ben") == [ben]
    assert listed(client, "?what=worker.drain") == listed(client, "?result=asked") == [drain]
    assert listed(client, "?target=run:48210") == listed(client, "?target=run 48210") == [run]
    assert listed(client, "?target=worker") == [drain]
    assert listed(client, "?since=24h") == [run, drain, ben]
    assert listed(client, "?until=24h") == [old]
    assert listed(client, "?since=24h&who=nobody") == []


def test_a_time_is_found_among_many_rows(client: FlaskClient, connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.audit_log (at, actor, source, action)
        SELECT now() - (3000 - i) * interval '1 minute', 'anna', 'web', 'login'
        FROM generate_series(1, 3000) AS i"""
    )
    assert len(listed(client, "?since=90m&limit=200")) in (90, 91)
    assert len(listed(client, "?until=2930m&limit=200")) in (69, 70)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("result=maybe", "some of done, asked"),
        ("target=RUN-7", "one thing such as run:48210"),
        ("since=yesterday", "an age such as"),
        ("actor=anna", "who, what, kind, target, result, source, since, until, q"),
        ("cursor=x", "cursor"),
    ],
)
def test_a_wrong_filter_is_refused_in_a_sentence(client: FlaskClient, query: str, says: str) -> None:
    answer = client.get(f"/audit.json?{query}")
    assert answer.status_code == 400 and says in answer.text


def test_pages_follow_each_other(client: FlaskClient, connection: Connection) -> None:
    made = [an_entry(connection) for _ in range(5)]
    first = client.get("/audit.json?limit=2&who=anna").get_json()
    second = client.get(f"/audit.json?limit=2&who=anna&cursor={first['next']}").get_json()
    assert [each["id"] for each in first["items"] + second["items"]] == made[:0:-1]


def test_news_are_counted_and_move_nothing(client: FlaskClient, connection: Connection) -> None:
    an_entry(connection)
    an_entry(connection, actor="ben")
    assert_fragments_match(client, "/audit?who=ben")
    (address,) = fragments_of(client.get("/audit?who=ben").text)
    an_entry(connection)
    assert client.get(address).text.strip() == ""
    an_entry(connection, actor="ben")
    news = client.get(address).text
    assert "1 new – show" in news and 'href="/audit?who=ben"' in news
    assert client.get("/_fragments/audit/news?after=x").status_code == 400


def test_foreign_text_is_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    for kind in ("run", "schedule", "type", "worker", "page"):
        an_entry(
            connection, actor=HOSTILE, action=HOSTILE, target_type=kind, target_id=HOSTILE, reason=HOSTILE,
            before={"name": "x"}, after={"name": HOSTILE, HOSTILE: HOSTILE}, ip=HOSTILE,
        )  # fmt: skip
    an_entry(connection, after={"run": HOSTILE})
    assert_shown_as_text(client, "/audit")
    assert len(listed(client, f"?target=schedule:{quote(HOSTILE)}")) == 1


def test_secrets_of_a_changed_payload_are_hidden(client: FlaskClient, connection: Connection) -> None:
    an_entry(
        connection, before={"payload": {"password": "old-one"}}, after={"payload": {"password": "new-one"}}
    )
    for path in ("/audit", "/audit.json", "/audit.csv"):
        body = client.get(path).text
        assert "old-one" not in body and "new-one" not in body, path


def test_the_csv_has_a_line_per_row(client: FlaskClient, connection: Connection) -> None:
    entry = an_entry(connection, reason="=1+1")
    head, line = client.get("/audit.csv").text.splitlines()
    assert head.startswith("id,at,actor,") and line.startswith(f"{entry},") and "'=1+1" in line


def test_viewers_read_the_log(as_role: AsRole, connection: Connection) -> None:
    an_entry(connection)
    assert as_role("viewer").get("/audit").status_code == 200


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, None, []),
        (
            {"status": "failed", "run_at": "x"},
            {"status": "queued", "run_at": "y"},
            ["status failed → queued"],
        ),
        ({"max_running": None}, {"max_running": 4}, ["limit none → 4"]),
        ({"enabled": True}, {"enabled": False}, ["enabled yes → no"]),
        ({"status": "dead"}, {"run": 7}, ["run 7"]),
        (None, {"asked": True}, ["asked"]),
        ({"status": "succeeded"}, None, ["status succeeded"]),
        (
            {"run_at": "2026-11-20 21:44:10.123+00:00"},
            {"run_at": "2026-11-20T21:50:10Z"},
            ["due 2026-11-20 21:44:10 UTC → 2026-11-20 21:50:10 UTC"],
        ),
        ({"a": 1}, {"a": 1, "b": "x" * 200}, ["b " + "x" * 79 + "…"]),
    ],
)
def test_a_change_in_words(before: Any, after: Any, words: list[str]) -> None:
    assert list(describe_changes(before, after)) == words
    assert list(describe_changes(before, after)) == words, "what was put into words before says the same"


def test_what_is_equal_to_python_alone_is_told_apart() -> None:
    assert describe_changes({"a": True}, {"a": False}) == ("a yes → no",)
    assert describe_changes({"a": 1}, {"a": 0}) == ("a 1 → 0",)


def test_many_changes_are_cut_short() -> None:
    assert describe_changes({}, {str(n): n for n in range(9)})[-1] == "and 3 more"


def test_a_verb_whose_audit_row_cannot_be_written_changes_nothing(
    client: FlaskClient, connection: Connection, superuser: Connection
) -> None:
    run = a_run(connection, "dead")
    superuser.execute("REVOKE INSERT ON wakeboard.audit_log FROM wakeboard")
    answer = client.post(f"/runs/{run}/retry", headers=JSON)
    assert answer.status_code == 503, answer.get_json()
    assert row(connection, run)["status"] == "dead"
