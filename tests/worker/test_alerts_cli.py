"""Alert rules in a terminal: how they stand, a test that is sent from here, silence."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, rows
from tests.support.receivers import Mailbox, Receiver, mailbox, receiver
from wakeboard import cli
from wakeboard.alerts.evaluation import RuleEvaluator
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import KINDS

__all__ = ["mailbox", "receiver"]
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


def test_rules_are_listed_those_that_fire_first(wakeboard: Command, connection: Connection) -> None:
    a_run(connection, "dead")
    RuleEvaluator("worker", Settings.load({}, environ={})).step(connection)
    code, out, _ = wakeboard("alerts", "list", "--json")
    items = json.loads(out)["items"]
    assert code == 0 and len(items) == len(KINDS)
    assert (items[0]["name"], items[0]["state"]) == ("dead_runs", "firing")
    assert "1 run died in the last 1 h" in items[0]["found"]


def test_a_rule_is_silenced_for_a_while_and_it_is_audited(wakeboard: Command, connection: Connection) -> None:
    code, out, _ = wakeboard("alerts", "silence", "dead_runs", "--for", "2h", "--reason", "moving")
    assert code == 0 and "is silenced until" in out
    (audited,) = rows(connection, "audit_log", "action = 'alert.silence'")
    assert (audited["reason"], audited["source"]) == ("moving", "cli")
    assert "may send messages again" in wakeboard("alerts", "silence", "dead_runs", "--for", "0")[1]
    assert "is not silenced" in wakeboard("alerts", "silence", "dead_runs", "--for", "0")[1]


def test_the_report_of_the_night_is_switched_on_set_and_off(
    wakeboard: Command, connection: Connection
) -> None:
    assert wakeboard("alerts", "on", "morning_report", "--reason", "we want it")[0] == 0
    assert wakeboard("alerts", "edit", "morning_report", "at=07:30", "since=17:00")[0] == 0
    (rule,) = rows(connection, "alert_rules", "name = 'morning_report'")
    assert (rule["enabled"], rule["settings"]) == (True, {"at": 450, "since": 1020})
    audited = rows(connection, "audit_log", "action = 'alert.edit'", order="id")
    assert [(row["source"], row["reason"]) for row in audited] == [("cli", "we want it"), ("cli", None)]
    code, _, err = wakeboard("alerts", "edit", "morning_report", "at=noon")
    assert code != 0 and "allowed: 00:00 to 23:59" in err
    assert wakeboard("alerts", "edit", "morning_report", "at")[0] == 2
    assert wakeboard("alerts", "off", "morning_report")[0] == 0
    assert rows(connection, "alert_rules", "name = 'morning_report'")[0]["enabled"] is False


def test_a_rule_that_does_not_exist_is_wrong_use(wakeboard: Command) -> None:
    for verb in ("silence", "test", "on", "off", "edit"):
        code, _, err = wakeboard("alerts", verb, "moon_phase")
        assert code == 2 and "wakeboard alerts list" in err


def test_a_test_is_sent_from_here_and_says_what_was_answered(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox, receiver: Receiver
) -> None:
    for name, value in {**mailbox.environment, **receiver.environment}.items():
        monkeypatch.setenv(name, value)
    code, out, _ = wakeboard("alerts", "test")
    assert code == 0 and "accepted the mail" in out and "answered 204" in out
    receiver.status = 500
    code, _, err = wakeboard("alerts", "test", "dead_runs", "--channel", "webhook")
    assert code == 1 and "answered 500" in err
    assert len(mailbox.letters) == 1


def test_without_a_channel_a_test_says_what_to_set(wakeboard: Command) -> None:
    code, _, err = wakeboard("alerts", "test")
    assert code == 1 and "WAKEBOARD_ALERT_MAIL" in err
