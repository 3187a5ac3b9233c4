"""The audit log in a terminal: the filters of the page, one line a row, JSON with what changed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run
from wakeboard import cli

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def wakeboard(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line on ``database`` in this process: code, standard output, standard error."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(words)
        return code, *capsys.readouterr()

    return run


def test_what_was_done_here_is_listed_by_every_filter(wakeboard: Command, connection: Connection) -> None:
    run = a_run(connection, "dead")
    wakeboard("retry", str(run), "--reason", "CRM is back")
    wakeboard("cancel", str(a_run(connection, "succeeded")))
    code, out, _ = wakeboard("audit", "--json")
    newest, oldest = json.loads(out)["items"]
    assert code == 0 and (newest["action"], newest["result"]) == ("run.cancel", "forbidden")
    assert oldest["before"]["status"] == "dead" and oldest["after"]["status"] == "queued"
    for words in (
        ("--what", "run.retry"), ("--target", f"run:{run}"), ("--kind", "run", "--target", str(run)),
        ("--result", "done"), ("--q", "crm"), ("--source", "cli", "--since", "1h", "--what", "run.retry"),
        ("--who", oldest["actor"], "--result", "done,asked"),
    ):  # fmt: skip
        found = json.loads(wakeboard("audit", "--json", *words)[1])
        assert [row["id"] for row in found["items"]] == [oldest["id"]], words
    shown = wakeboard("audit", "--result", "done")[1]
    assert "CRM is back" in shown and "run.retry" in shown
    assert wakeboard("audit", "--until", "1h")[2].strip() == "Nothing matches."


def test_pages_follow_by_the_cursor(wakeboard: Command, connection: Connection) -> None:
    for _ in range(3):
        wakeboard("retry", str(a_run(connection, "dead")))
    code, out, err = wakeboard("audit", "--limit", "2")
    assert code == 0 and len(out.splitlines()) == 3 and "There are more: --cursor" in err
    rest = wakeboard("audit", "--limit", "2", "--cursor", err.split()[-1], "--json")[1]
    assert len(json.loads(rest)["items"]) == 1 and json.loads(rest)["next"] is None


def test_a_wrong_filter_is_refused_in_a_sentence(wakeboard: Command) -> None:
    for words, says in (
        (("--result", "maybe"), "some of done, asked"),
        (("--since", "yesterday"), "an age such as"),
        (("--target", "RUN 7"), "one thing such as run:48210"),
    ):
        code, _, err = wakeboard("audit", *words)
        assert code == 2 and says in err
