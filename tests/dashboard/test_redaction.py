"""What looks like a secret is shown to nobody, and found by no viewer."""

from __future__ import annotations

import json
import re
from time import perf_counter

import pytest

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.dashboard.test_hardening import add_run, pages_of
from wakeboard.core.text.redaction import HIDDEN, redact
from wakeboard_dashboard.charts.tree import tree
from wakeboard_dashboard.text.schedule_form import restored


def test_secrets_are_hidden_at_any_depth() -> None:
    planted = {
        "user": "anna",
        "Password": "p1",
        "nested": [
            {"api_key": "p2", "DB_DSN": "p3"},
            "postgres://u:p4@db/x",
            "Authorization: Bearer p5p5p5p5p5",
        ],
    }
    shown = json.dumps(redact(planted))
    assert not re.search(r"p[1-5]", shown) and "anna" in shown


def test_a_key_that_only_sounds_like_a_dsn_is_told() -> None:
    told = {"fieldsname": "total", "recordsNeeded": 5}
    hidden = dict.fromkeys(("dsn", "SENTRY_DSN", "sentrydsn", "sentryDsn", "dsnUrl", "dsn_url"), "hunter2")
    assert redact(told | hidden) == told | dict.fromkeys(hidden, "•••")


@pytest.mark.parametrize(
    "part",
    [
        "a.", "a-", "token", 'token="', "-token ", "a://b:", "cookie:", "bearer ", "- ", 'token="\\',
        'token: ["\\"', "token={", "a://b:c@", "--token\\\"", "token: [(\n", "token =",
        "cookie=", "cookie=a;a=", "authorization=basic ", "dsn=", "dsn-", "-pass", "_pass ", "'pass' ",
        "-pass:",
    ],
)  # fmt: skip
def test_hiding_secrets_takes_no_longer_for_text_made_to_be_slow(part: str) -> None:
    began = perf_counter()
    redact(part * (300_000 // len(part)))
    assert perf_counter() - began < 10, "quadratic: this took minutes"


@pytest.mark.parametrize(
    "said",
    [
        "redis://:hunter2@cache/0",
        "postgres://u:hun@hunter2@db/x",
        "https://hunter2@github.com/x",
        "PGPASSWORD=hunter2 pg_dump",
        "mysqldump --password hunter2 shop",
        'tried {"api_key": "hunter2"}',
        "tried {'x_token': 'hunter2'}",
        "Authorization: Basic hunter2",
        "Cookie: a=b; sid=hunter2",
        "GET /x?token=hunter2&y=1",
        '{"sent": "{\\"password\\": \\"hunter2\\"}"}',
        json.dumps({"sent": json.dumps({"got": json.dumps({"api_key": "hunter2"})})}),
        '{"tokens": ["a", "hunter2"], "n": 1}',
        "{'credentials': {'a': {'b': 'x'}, 'c': 'hunter2'}}",
        "{'password': b'hunter2'}",
        '{"password": "ab\\"cd-hunter2"}',
        '{"refresh_token": "hunter2',
        "cannot reach postgres://app:hunter2",
        "cannot reach postgres://app:123456hunter2",
        'password = "hunter2"',
        "db:\n  password: hunter2",
        "assert token == 'hunter2'",
        "['backup', '--password', 'hunter2']",
        "dsn=hunter2",
        "SENTRY_DSN=hunter2 python worker.py",
        "sentryDsn = 'hunter2'",
        "sentrydsn=hunter2",
        "dsn: hunter2",
        "{'dsn': 'hunter2'}",
        "--dsn hunter2",
        "authorization=Basic hunter2",
        "get(authorization='Basic hunter2')",
        "HTTP_AUTHORIZATION: Basic hunter2",
        "cookie=hunter2",
        "HTTP_COOKIE=a=b; sid=hunter2",
        "get(cookies={'sid': 'hunter2'})",
        "AWS_ACCESS_KEY_ID=hunter2",
        "SMTP_PASS=hunter2",
        "{'smtp_pass': 'hunter2'}",
        "{'pass': 'hunter2'}",
        "db-pass: hunter2",
        "mysql --pass hunter2",
        "['mysql', '--pass', 'hunter2']",
        "Authorization: Bearer hunter2",
        "{'access_key': 'hunter2'}",
    ],
)
def test_secrets_in_text_are_shown_to_nobody_and_found_by_no_viewer(
    as_role: AsRole, connection: Connection, said: str
) -> None:
    run_id = add_run(connection, json.dumps({"command": said}), said)
    viewer = as_role("viewer")
    for address in pages_of(run_id):
        assert "hunter2" not in viewer.get(address).text, address
    assert items_of(viewer, "/runs.json?q=hunter2") == []
    assert len(as_role("operator").get("/runs.json?q=hunter2").get_json()["items"]) == 1


@pytest.mark.parametrize(
    "said",
    [
        "cannot reach http://api:8080",
        "Unexpected token < in JSON",
        "invalid_token: it has expired",
        "KeyError: 'token'",
        '{"token_count": ',
        "https://example.org/a:b",
        "dsname=sales",
        "recordsNeeded=5",
        "dsn: it cannot be parsed",
        "access=denied",
        "cookies: they are off",
        "authorization failed",
        "pass=3 fail=1",
        "first_pass_rows=100",
        "bypass: 12345678",
        "it passed",
        "second pass: 300 rows",
    ],
)
def test_what_only_sounds_like_a_secret_is_told(said: str) -> None:
    assert redact(said) == said


def test_a_word_behind_a_secret_flag_is_hidden_in_a_list_and_comes_back_when_the_list_is_edited() -> None:
    stored = {"argv": ["backup", "--password", "hunter2", "shop"]}
    shown = redact(stored)
    assert shown == {"argv": ["backup", "--password", HIDDEN, "shop"]}
    assert "hunter2" not in repr(tree(stored))
    edited = {"argv": ["backup", "--password", HIDDEN, "shop-2"]}
    assert restored(edited, stored) == {"argv": ["backup", "--password", "hunter2", "shop-2"]}


@pytest.mark.parametrize("name", ["password", "passwords", "password_hash", "smtp_pass", "PGPASSWORD", "Dsn"])
def test_a_secret_is_known_by_its_name(as_role: AsRole, connection: Connection, name: str) -> None:
    run_id = add_run(connection, json.dumps({name: {"value": "hunter2"}}))
    viewer = as_role("viewer")
    for address in pages_of(run_id):
        assert "hunter2" not in viewer.get(address).text, address
    assert items_of(viewer, "/runs.json?q=hunter2") == []


@pytest.mark.parametrize(
    "asked",
    [
        "payload.password=hunter2",
        "payload.password.0=hunter2",
        "payload.smtp_pass.value=hunter2",
        "payload.db=%7B%22password%22%3A+%22hunter2%22%7D",
        "payload.url=redis%3A%2F%2F%3Ahunter2%40cache",
        "payload.url=postgres%3A%2F%2Fbob%3Ahunter2",
    ],
)
def test_a_viewer_cannot_guess_what_is_hidden(as_role: AsRole, asked: str) -> None:
    answer = as_role("viewer").get(f"/runs.json?{asked}")
    assert answer.status_code == 400 and "hidden from viewers" in answer.get_json()["message"]
    assert as_role("operator").get(f"/runs.json?{asked}").status_code == 200


@pytest.mark.parametrize("path", ["argv.2", "argv.-1", "argv.02"])
def test_a_viewer_cannot_guess_a_hidden_item_of_a_list(
    as_role: AsRole, connection: Connection, path: str
) -> None:
    add_run(connection, '{"argv": ["backup", "--password", "hunter2"]}')
    found = as_role("viewer").get(f"/runs.json?payload.{path}=hunter2").get_json()
    assert found["items"] == []
    assert len(as_role("operator").get(f"/runs.json?payload.{path}=hunter2").get_json()["items"]) == 1
    assert len(as_role("viewer").get("/runs.json?payload.argv.0=backup").get_json()["items"]) == 1


@pytest.mark.parametrize("word", ["--db-pw", "--print"])
def test_a_hidden_item_goes_with_the_word_that_hides_it(word: str) -> None:
    stored = {"argv": ["backup", "--password", "hunter2"]}
    with pytest.raises(ValueError, match="which"):
        restored({"argv": ["backup", word, HIDDEN]}, stored)
    assert restored({"argv": ["backup", "--db-token", HIDDEN]}, stored)["argv"][2] == "hunter2"


def test_a_viewer_cannot_spell_a_hidden_name_in_another_way(as_role: AsRole, connection: Connection) -> None:
    add_run(connection, '{"password": "hunter2"}')
    for name in ("pass%5Cword", "%22pass%22word", "pa%22ssword%22"):
        found = as_role("viewer").get(f"/runs.json?payload.{name}=hunter2")
        assert found.status_code == 400 or found.get_json()["items"] == [], name
