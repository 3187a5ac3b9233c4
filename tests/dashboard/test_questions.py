"""The addresses of docs/questions.md are alive: each opens on a dashboard with rows of every kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.browser.test_every_page import furnish
from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN
from tests.support.dashboard_apps import an_app
from tests.support.processes import ROOT
from wakeboard.accounts import sessions, users
from wakeboard.cli import cli
from wakeboard.core.states import Role
from wakeboard_dashboard.web.connection import Database

TEXT = (ROOT / "docs" / "questions.md").read_text()
ROWS = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.+)\|$", TEXT, re.MULTILINE)]
ANSWERS = [row for row in ROWS if row[0] != "question" and set(row[0]) != {"-"}]
ADDRESSES = sorted(set(re.findall(r"`(/[^`]*)`", TEXT)))
COMMANDS = sorted(set(re.findall(r"`wakeboard ([^`]*)`", TEXT)))
STANDS_FOR = re.compile(r"\b(ID|NAME|TYPE|CODE|WORKER)\b")


@pytest.fixture(scope="module")
def visited(
    shared_database: str, shared: Connection
) -> Iterator[tuple[Flask, FlaskClient, dict[str, list[str]]]]:
    """The dashboard over rows of every kind, an admin's browser on it, and what stands for ID and such."""
    filling = furnish(shared)
    app = an_app(database_url=shared_database)
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    name = f"wakeboard_{users.install_id(shared)}"
    client.set_cookie(name, sessions.open_session(shared, "anna", Role.ADMIN))
    yield app, client, filling
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


def test_each_question_has_a_page_or_says_not_yet() -> None:
    assert len(ANSWERS) >= 50
    for row in ANSWERS:
        assert len(row) == 4, row
        assert row[0].endswith("?"), row[0]
        assert "`/" in row[1] or row[1] == "*not yet*", row
        assert row[3].strip(), row


@pytest.mark.parametrize("address", ADDRESSES)
def test_each_address_opens(visited: tuple[Flask, FlaskClient, dict[str, list[str]]], address: str) -> None:
    _, client, filling = visited
    start = next((path for path in filling if address.startswith(f"{path}/")), "")
    here = STANDS_FOR.sub(lambda _: filling[start][0], address)
    answer = client.get(here, follow_redirects=True)
    assert answer.status_code == 200, f"{here}: {answer.text[:300]}"
    assert answer.mimetype == "text/html"


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_is_one(line: str) -> None:
    command: click.Command = cli
    context = click.Context(cli)
    for word in line.split():
        if not isinstance(command, click.Group):
            break
        found = command.get_command(context, word)
        assert found is not None, f"there is no wakeboard {line}"
        command = found
    options = {name for option in command.params for name in option.opts}
    assert {word for word in line.split() if word.startswith("--")} <= options | {"--json"}
