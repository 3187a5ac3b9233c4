"""``wakeboard token create --type``: what is kept, said and refused, on a real database."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.support.factories import a_type, rows
from wakeboard.accounts import tokens
from wakeboard.cli import run
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor, terminal_actor
from wakeboard.queue.permission import AccountError

HOSTILE = ("a'b\"c", "{x,NULL}", "null", "back\\slash", "mail,report", "a/b", "größe/🛹", " spaces ", "-x")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _on_the_database(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)


def test_a_token_for_some_types_is_made_and_listed_in_a_terminal(
    connection: Connection, capsys: Capture
) -> None:
    a_type(connection, "mail")
    words = ["token", "create", "mailer", "--role", "operator", "--type", "mail", "--type", "later", "--type"]
    assert run([*words, "mail"]) == 0
    said = capsys.readouterr()
    assert "No worker has registered a job type 'later' yet" in said.err and "'mail'" not in said.err
    found = tokens.authenticate_token(connection, said.out.strip())
    assert found == Actor("token:mailer", Role.OPERATOR, "api", job_types=("mail", "later"))
    (made,) = rows(connection, "audit_log", "action = 'token.change'")
    assert made["after"]["job_types"] == ["mail", "later"]
    assert run(["token", "create", "all", "--role", "viewer"]) == 0
    assert tokens.authenticate_token(connection, capsys.readouterr().out.strip()) == Actor(
        "token:all", Role.VIEWER, "api"
    )
    assert run(["token", "list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "JOB_TYPES" in head and "mail, later" in lines[1] and "–" in lines[0]
    assert [each["job_types"] for each in tokens.list_tokens(connection)] == [None, ["mail", "later"]]


def test_any_name_that_a_type_can_have_is_kept_as_it_is(connection: Connection, capsys: Capture) -> None:
    options = [word for name in HOSTILE for word in ("--type", name)]
    assert run(["token", "create", "odd", "--role", "admin", "--json", *options]) == 0
    token = tokens.authenticate_token(connection, json.loads(capsys.readouterr().out)["token"])
    assert token is not None and token.job_types == HOSTILE


@pytest.mark.parametrize("name", ["", "two\nlines", "nul\0", "half \ud800", "n" * 201])
def test_what_cannot_name_a_type_is_refused(connection: Connection, name: str) -> None:
    assert run(["token", "create", "odd", "--role", "admin", "--type", name]) == 2
    with pytest.raises(AccountError, match="1 to 200 characters"):
        tokens.create_token(connection, terminal_actor(), "odd", Role.ADMIN, job_types=[name])
    assert rows(connection, "tokens") == []


def test_no_type_at_all_is_not_every_type(connection: Connection) -> None:
    for types in ([], [f"type {number}" for number in range(21)]):
        with pytest.raises(AccountError, match="1 to 20 job types"):
            tokens.create_token(connection, terminal_actor(), "odd", Role.ADMIN, job_types=types)
    assert rows(connection, "tokens") == []
