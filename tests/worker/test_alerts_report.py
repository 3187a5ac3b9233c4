"""The report of each morning on its way: written once whoever looks, sent by the channels of alerts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, age, rows
from tests.support.receivers import Mailbox, Receiver, mailbox, receiver
from wakeboard.alerts import report, test_message
from wakeboard.alerts.channels import Channels
from wakeboard.alerts.delivery import deliver, find_waiting
from wakeboard.alerts.evaluation import RuleEvaluator
from wakeboard.config.settings import Settings
from wakeboard.database import db
from wakeboard.database.audit import ENGINE

__all__ = ["mailbox", "receiver"]
NAME = "morning_report"


def settings(*sides: Mailbox | Receiver, **more: str) -> Settings:
    environ = {f"WAKEBOARD_{name.upper()}": value for name, value in more.items()}
    for side in sides:
        environ |= side.environment
    return Settings.load({}, environ=environ)


def rule(connection: Connection) -> dict[str, Any]:
    return rows(connection, "alert_rules", "name = %s", NAME)[0]


def messages(connection: Connection) -> list[dict[str, Any]]:
    return rows(connection, "alert_messages", order="id")


def look_again(connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = NULL")


@pytest.fixture
def due(connection: Connection) -> Connection:
    """A house whose report was due two minutes ago, by UTC, and that has been on for days."""
    was_due(connection, timedelta(minutes=2))
    return connection


def was_due(connection: Connection, ago: timedelta) -> None:
    """Let the report have been due ``ago``, and nobody have neglected the rule, however old the schema is."""
    connection.execute(
        """UPDATE wakeboard.alert_rules SET enabled = true, created_at = now(),
            recovered_at = now() - interval '3 days',
            settings = jsonb_build_object(
                'at', extract(hour FROM t.due) * 60 + extract(minute FROM t.due),
                'since', extract(hour FROM t.due - interval '14 h') * 60 + extract(minute FROM t.due))
        FROM (SELECT (now() - %s) AT TIME ZONE 'UTC' AS due) AS t WHERE name = %s""",
        (ago, NAME),
    )
    connection.execute("UPDATE wakeboard.alert_rules SET enabled = false WHERE name <> %s", (NAME,))


def test_nothing_is_sent_until_somebody_switches_it_on(connection: Connection, mailbox: Mailbox) -> None:
    was_due(connection, timedelta(minutes=2))
    connection.execute("UPDATE wakeboard.alert_rules SET enabled = false WHERE name = %s", (NAME,))
    assert RuleEvaluator("worker", settings(mailbox)).step(connection)["messages"] == 0


def test_it_is_written_once_and_arrives_by_mail_and_webhook(
    due: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    age(due, a_run(due, "dead", error_code="smtp_down"), "10 minutes")
    chosen = settings(mailbox, receiver, environment="production red", public_url="https://jobs.example.org/")
    assert RuleEvaluator("worker", chosen).step(due)["messages"] == 2
    look_again(due)
    assert RuleEvaluator("worker", chosen).step(due)["messages"] == 0, "it was told"
    written = messages(due)
    assert [(row["kind"], row["channel"]) for row in written] == [("report", "mail"), ("report", "webhook")]
    runs = rows(due, "job_runs", "job_type = 'alert'", order="id")
    assert [each["payload"]["message_id"] for each in runs] == [row["id"] for row in written]
    for row in written:
        assert deliver(due, Channels(chosen), row["id"]).result == "sent"
    (letter,) = mailbox.letters
    (body,) = receiver.bodies()
    assert str(letter["Subject"]).strip().startswith("[production] Report of ")
    text = letter.get_content().replace("\r\n", "\n")
    assert body["sentence"] in text and body["link"] in text
    assert body["link"].startswith("https://jobs.example.org/night?since=")
    assert "smtp_down of mail" in text
    assert (body["cause"], body["is_late"], body["numbers"]["dead"]) == ("report", False, 1)
    assert rule(due)["found"]["sentence"].startswith("The next one: ")
    assert rule(due)["state"] == "quiet", "a report is no alarm"


def test_several_workers_write_it_once(due: Connection, database: str, mailbox: Mailbox) -> None:
    watches = [RuleEvaluator("worker", settings(mailbox)) for _ in range(4)]

    def look(watch: RuleEvaluator) -> int:
        with db.connect(database, name="wakeboard test") as own:
            return sum(watch.step(own)["messages"] for _ in range(3))

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(look, watches))
    assert sum(told) == len(messages(due)) == 1


def test_who_knows_no_channel_leaves_it_to_others(due: Connection, mailbox: Mailbox) -> None:
    poor, web = RuleEvaluator("worker", settings()), RuleEvaluator("web", settings(mailbox))
    poor.step(due)
    assert web.step(due)["messages"] == 0, "a worker may still come"
    due.execute(
        "UPDATE wakeboard.alert_rules SET checked_at = now() - interval '4 minutes' WHERE name = %s", (NAME,)
    )
    poor.step(due)
    assert web.step(due)["messages"] == 1, "the rule counts as neglected"
    (message,) = messages(due)
    assert message["run_id"] is None and find_waiting(due, Channels(settings(mailbox))) == [
        (message["id"], None)
    ]


def test_one_that_comes_late_says_so(connection: Connection, mailbox: Mailbox) -> None:
    was_due(connection, timedelta(hours=5))
    RuleEvaluator("worker", settings(mailbox)).step(connection)
    (message,) = messages(connection)
    assert message["subject"].startswith("Late: Report of ")
    assert message["body"]["is_late"] and message["body"]["text"].startswith("Late: this report was due at ")


def test_one_that_is_long_past_is_left_out_and_the_rule_says_so(
    connection: Connection, mailbox: Mailbox
) -> None:
    was_due(connection, timedelta(hours=13))
    assert RuleEvaluator("worker", settings(mailbox)).step(connection)["messages"] == 0
    assert "was left out: nobody could send it within 12 h." in rule(connection)["found"]["sentence"]


def test_a_silenced_report_waits(due: Connection, mailbox: Mailbox) -> None:
    due.execute(
        "UPDATE wakeboard.alert_rules SET silenced_until = now() + interval '1 h' WHERE name = %s", (NAME,)
    )
    watch = RuleEvaluator("worker", settings(mailbox))
    assert watch.step(due)["messages"] == 0
    due.execute("UPDATE wakeboard.alert_rules SET silenced_until = now() WHERE name = %s", (NAME,))
    look_again(due)
    assert watch.step(due)["messages"] == 1


def test_a_report_whose_questions_take_too_long_is_tried_again(
    due: Connection, database: str, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "STATEMENT_TIMEOUT", "200ms")
    watch = RuleEvaluator("worker", settings(mailbox))
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE wakeboard.missed_fires IN ACCESS EXCLUSIVE MODE")
        assert watch.step(due)["messages"] == 0
        other.rollback()
    assert "statement timeout" in rule(due)["found"]["error"]
    look_again(due)
    assert watch.step(due)["messages"] == 1
    assert "error" not in rule(due)["found"]


def test_a_test_sends_a_real_one_and_takes_the_place_of_none(due: Connection, mailbox: Mailbox) -> None:
    age(due, a_run(due, "dead", error_code="smtp_down"), "10 minutes")
    chosen = settings(mailbox)
    assert test_message.send_test(due, chosen, rule(due)["id"], ENGINE).result == "done"
    (letter,) = mailbox.letters
    assert str(letter["Subject"]).startswith("Test: Report of ")
    assert "smtp_down of mail" in letter.get_content()
    assert RuleEvaluator("worker", chosen).step(due)["messages"] == 1
