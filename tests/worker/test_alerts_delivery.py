"""Messages on their way: looked at by one, sent by one, tried again, and honest when nobody can know."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.factories import a_definition, a_run, a_worker, age, from_now, insert, rows
from tests.support.processes import free_port, wait_until
from tests.support.receivers import SECRET, Mailbox, Receiver, mailbox, receiver
from wakeboard.alerts import channels as channels_module
from wakeboard.alerts import delivery, evaluation
from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage, signature
from wakeboard.alerts.evaluation import RuleEvaluator, post
from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.alerts.messages import MessageText
from wakeboard.config.settings import Settings, SettingsError
from wakeboard.core.outcome import Permanent, Retryable
from wakeboard.core.rule_types import KINDS
from wakeboard.database import db
from wakeboard.handlers.builtin.alert import alert
from wakeboard.handlers.context import Context
from wakeboard.queue import handler_connection as own

__all__ = ["mailbox", "receiver"]
HOSTILE = "<img src=x onerror=alert(1)>\u202e\r\nBcc: all@example.org"


def settings(*sides: Mailbox | Receiver, **more: str) -> Settings:
    environ = {f"WAKEBOARD_{name.upper()}": value for name, value in more.items()}
    for side in sides:
        environ |= side.environment
    return Settings.load({}, environ=environ)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of these tests are young: let that be no reason to wait."""
    monkeypatch.setattr(evaluation, "SETTLE_SECONDS", 0)


def rule(connection: Connection, name: str = "dead_runs") -> dict[str, Any]:
    return rows(connection, "alert_rules", "name = %s", name)[0]


def messages(connection: Connection) -> list[dict[str, Any]]:
    return rows(connection, "alert_messages", order="id")


def look_again(connection: Connection) -> None:
    """Make every rule due for a look."""
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = NULL")


def a_message(connection: Connection, channel: str = "mail", **columns: Any) -> int:
    body = {"text": "Look at it.", "installation": "house"}
    message_id = post(
        connection, rule(connection)["id"], "firing", channel, MessageText("Dead runs: fires", body)
    )
    for name, value in columns.items():
        connection.execute(
            psycopg.sql.SQL("UPDATE wakeboard.alert_messages SET {} = {} WHERE id = {}").format(
                psycopg.sql.Identifier(name),
                value if isinstance(value, psycopg.sql.Composable) else psycopg.sql.Literal(value),
                psycopg.sql.Literal(message_id),
            )
        )
    return message_id


# Looking


def test_a_fresh_database_has_one_rule_of_each_kind(connection: Connection) -> None:
    assert {row["kind"] for row in rows(connection, "alert_rules")} == set(KINDS)


def test_a_rule_that_fires_writes_a_message_and_its_run_for_each_channel(
    connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    a_run(connection, "dead")
    chosen = settings(mailbox, receiver, environment="production red", public_url="https://jobs.example.org/")
    numbers = RuleEvaluator("worker", chosen).step(connection)
    assert (numbers["firing"], numbers["messages"]) == (1, 2)
    written = messages(connection)
    assert [row["channel"] for row in written] == ["mail", "webhook"]
    assert written[0]["subject"] == "[production] Dead runs: fires"
    link = written[0]["body"]["link"]
    assert link.startswith("https://jobs.example.org/runs?status=dead&failed-since=20"), link
    runs = rows(connection, "job_runs", "job_type = 'alert'", order="id")
    assert [(run["id"], run["payload"], run["priority"]) for run in runs] == [
        (row["run_id"], {"message_id": row["id"]}, 0) for row in written
    ]
    look_again(connection)
    assert RuleEvaluator("worker", chosen).step(connection)["messages"] == 0, "it was told"


def test_every_process_says_how_many_rules_fire_whoever_looked_at_them(
    connection: Connection, other: Connection
) -> None:
    a_run(connection, "dead")
    a_worker(connection, "silent", seen="-1 hour")
    first = RuleEvaluator("worker", settings()).step(connection)
    assert first["looked"] > 0 and first["firing"] == len(rows(connection, "alert_rules", "state = 'firing'"))
    assert first["firing"] > 0
    for watcher in (RuleEvaluator("worker", settings()), RuleEvaluator("web", settings())):
        assert watcher.step(other)["firing"] == first["firing"], "nothing was due for a look"
    connection.execute("UPDATE wakeboard.alert_rules SET enabled = false")
    assert RuleEvaluator("worker", settings()).step(other)["firing"] == 0


def test_without_a_channel_rules_fire_and_are_told_once_there_is_one(
    connection: Connection, mailbox: Mailbox
) -> None:
    a_run(connection, "dead")
    assert RuleEvaluator("worker", settings()).step(connection)["messages"] == 0
    assert (rule(connection)["state"], rule(connection)["told"]) == ("firing", "quiet")
    look_again(connection)
    assert RuleEvaluator("worker", settings(mailbox)).step(connection)["messages"] == 1


def test_a_recovery_is_told_when_the_window_is_over(connection: Connection, mailbox: Mailbox) -> None:
    watch, run_id = RuleEvaluator("worker", settings(mailbox)), a_run(connection, "dead")
    watch.step(connection)
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (run_id,))
    look_again(connection)
    assert watch.step(connection)["messages"] == 0, "still within the window"
    connection.execute("UPDATE wakeboard.alert_rules SET sent_at = sent_at - interval '16 minutes'")
    look_again(connection)
    assert watch.step(connection)["messages"] == 1
    last = messages(connection)[-1]
    assert (last["kind"], last["subject"]) == ("recovered", "Dead runs: has recovered")
    assert "It fired at" in last["body"]["text"]


def test_another_type_that_dies_later_is_told_after_the_window(
    connection: Connection, mailbox: Mailbox
) -> None:
    watch = RuleEvaluator("worker", settings(mailbox))
    a_run(connection, "dead", job_type="mail")
    watch.step(connection)
    a_run(connection, "dead", job_type="report")
    for expected in (1, 0):
        connection.execute("UPDATE wakeboard.alert_rules SET sent_at = sent_at - interval '16 minutes'")
        look_again(connection)
        assert watch.step(connection)["messages"] == expected
    assert messages(connection)[-1]["kind"] == "reminder"


def test_a_rule_is_looked_at_no_more_often_than_its_kind_says(connection: Connection) -> None:
    watch = RuleEvaluator("worker", settings())
    assert watch.step(connection)["looked"] == 5
    assert watch.step(connection)["looked"] == 0
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = checked_at - interval '28 seconds'")
    assert watch.step(connection)["looked"] == 3, "failures once a minute, schedules every five"


def test_the_web_process_looks_at_what_workers_neglect(connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.alert_rules SET created_at = now()")
    web = RuleEvaluator("web", settings())
    assert web.step(connection)["looked"] == 3
    RuleEvaluator("worker", settings()).step(connection)
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = checked_at - interval '8 minutes'")
    assert web.step(connection)["looked"] == 8


def test_who_is_silent_is_asked_once_the_session_has_stood_a_while(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_worker(connection, seen_at=from_now("0 seconds"))
    insert(
        connection,
        "loops",
        {
            "process_id": "w1",
            "name": "claim",
            "interval_seconds": 2,
            "last_success_at": from_now("-12 seconds"),
        },
        "name",
    )
    web = RuleEvaluator("web", settings())
    monkeypatch.setattr(evaluation, "SETTLE_SECONDS", 3600)
    web.step(connection)
    asked = {row["name"]: row["checked_at"] is not None for row in rows(connection, "alert_rules")}
    assert not (asked["late_loop"] or asked["no_worker"] or asked["stuck_leases"])
    assert asked["queue_age"] and rule(connection, "late_loop")["state"] == "quiet"
    monkeypatch.setattr(evaluation, "SETTLE_SECONDS", 0)
    web.step(connection)
    assert rule(connection, "late_loop")["state"] == "firing"


def test_two_watchers_at_once_tell_once(
    connection: Connection, other: Connection, database: str, mailbox: Mailbox
) -> None:
    a_run(connection, "dead")
    watch = RuleEvaluator("worker", settings(mailbox))
    with connection.transaction():
        connection.execute("SELECT 1 FROM wakeboard.alert_rules WHERE name = 'dead_runs' FOR UPDATE")
        assert watch.step(other)["looked"] == 4, "a rule in other hands is left alone, without waiting"
    look_again(connection)

    def step(_number: int) -> int:
        with db.connect(database, name="wakeboard test") as own:
            return watch.step(own)["messages"]

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(step, range(8))) == 1


def test_a_question_that_fails_leaves_the_state_and_says_so(
    connection: Connection, superuser: Connection
) -> None:
    a_run(connection, "dead")
    watch = RuleEvaluator("worker", settings())
    watch.step(connection)
    connection.execute("ALTER TABLE wakeboard.missed_fires RENAME TO elsewhere")
    look_again(connection)
    watch.step(connection)
    assert "missed_fires" in rule(connection, "missed_runs")["found"]["error"]
    assert rule(connection)["state"] == "firing"
    connection.execute("ALTER TABLE wakeboard.elsewhere RENAME TO missed_fires")
    look_again(connection)
    watch.step(connection)
    assert "error" not in rule(connection, "missed_runs")["found"]


def test_a_rule_of_an_unknown_kind_is_left_alone(connection: Connection) -> None:
    insert(connection, "alert_rules", {"name": "older", "kind": "moon_phase"})
    RuleEvaluator("web", settings()).step(connection)
    assert rule(connection, "older")["checked_at"] is None


# Sending


def test_a_mail_is_plain_short_and_the_same_for_every_try(mailbox: Mailbox) -> None:
    message = OutgoingMessage("alert.house.7", "Dead runs: fires", {"text": "3 runs died: mail 3."})
    assert "accepted the mail" in Channels(settings(mailbox)).send("mail", message)
    (letter,) = mailbox.letters
    assert letter["To"] == "ops@example.org, night@example.org"
    assert letter["From"] == "Wakeboard <wakeboard@example.org>"
    assert letter["Message-ID"] == "<alert.house.7@example.org>"
    assert letter["Auto-Submitted"] == "auto-generated"
    assert letter.get_content().strip() == "3 runs died: mail 3."


def test_a_webhook_is_signed_over_time_and_body(receiver: Receiver) -> None:
    message = OutgoingMessage("alert.house.7", "Dead runs: fires", {"rule": "dead_runs", "sentence": "Räder"})
    assert Channels(settings(receiver)).send("webhook", message).endswith("answered 204.")
    path, headers, body = receiver.requests[0]
    assert receiver.is_genuine()
    assert (path, headers["x-wakeboard-delivery"]) == ("/hook?token=hidden", "alert.house.7")
    assert abs(int(headers["x-wakeboard-signature"].split(",")[0][2:]) - time.time()) < 60
    assert SECRET.encode() not in body
    assert signature(SECRET, 1, b"a") != signature(SECRET, 1, b"b") != signature(SECRET, 2, b"b")


@pytest.mark.parametrize("status", [301, 302, 404, 500])
def test_what_is_not_a_success_is_no_success_and_no_redirect_is_followed(
    receiver: Receiver, status: int
) -> None:
    receiver.status, receiver.location = status, receiver.url
    with pytest.raises(NotSent, match=str(status)) as refused:
        Channels(settings(receiver)).send("webhook", OutgoingMessage("x", "subject", {}))
    assert len(receiver.requests) == 1
    assert "hidden" not in str(refused.value)


def test_an_answer_that_is_cut_off_is_none(receiver: Receiver, connection: Connection) -> None:
    receiver.status, receiver.announced = 200, 7
    with pytest.raises(NotSent, match="took it, but its answer broke off after 0 of 7 bytes"):
        Channels(settings(receiver)).send("webhook", OutgoingMessage("x", "subject", {}))
    heartbeat = Heartbeat(receiver.url)

    def told() -> Any:
        heartbeat.step(connection)
        return rows(connection, "installation")[0]["ping_error"]

    assert "broke off after 0 of 7 bytes" in wait_until(told)


def test_a_receiver_that_never_answers_holds_nobody(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_module, "WEBHOOK_SECONDS", 0.3)
    receiver.release = threading.Event()
    with pytest.raises(NotSent, match=r"127\.0\.0\.1"):
        Channels(settings(receiver)).send("webhook", OutgoingMessage("x", "subject", {}))


@pytest.mark.parametrize("scheme", ["smtp", "smtp+starttls"])
def test_a_mail_server_that_greets_letter_by_letter_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(channels_module, "MAIL_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            peer, _ = listening.accept()
            with peer, suppress(OSError):
                while True:
                    peer.sendall(b"2")
                    time.sleep(0.1)

        threading.Thread(target=greet, daemon=True).start()
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        mail = settings(smtp_url=url, alert_mail="ops@example.org")
        with pytest.raises(NotSent, match="did not answer within 1 s"):
            Channels(mail).send("mail", OutgoingMessage("x", "subject", {}))


def test_nobody_there_is_a_sentence_without_secrets(receiver: Receiver) -> None:
    mail = settings(smtp_url=f"smtp://anna:hunter22@127.0.0.1:{free_port()}", alert_mail="ops@example.org")
    with pytest.raises(NotSent, match="cannot be reached") as refused:
        Channels(mail).send("mail", OutgoingMessage("x", "subject", {}))
    assert "hunter22" not in str(refused.value)
    assert "hunter22" not in repr(mail) and "hunter22" not in str(mail.rows())


def test_a_password_is_not_sent_in_clear_to_another_machine() -> None:
    mail = settings(smtp_url="smtp://anna:hunter22@mail.example.org", alert_mail="ops@example.org")
    with pytest.raises(NotSent, match="in clear"):
        Channels(mail).send("mail", OutgoingMessage("x", "subject", {}))


@pytest.mark.parametrize(
    "half",
    [
        {"smtp_url": "smtp://127.0.0.1:25"},
        {"alert_webhook_secret": "sixteen-characters-or-more"},
        {"alert_mail": "ops@example.org"},
        {"alert_webhook_url": "https://example.org"},
        {"alert_webhook_url": "https://example.org", "alert_webhook_secret": "short"},
        {"alert_mail": "nobody", "smtp_url": "smtp://localhost"},
        {"alert_mail": "ops@example.org", "smtp_url": "http://localhost"},
    ],
)
def test_half_a_channel_is_refused_at_the_start(half: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="WAKEBOARD_") as refused:
        settings(**half)
    assert "short" not in str(refused.value)


def test_hostile_text_adds_no_header(mailbox: Mailbox, connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.alert_rules SET name = 'dead'  WHERE name = 'dead_runs'")
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('mail')")
    a_run(connection, "dead", job_type="<img src=x onerror=alert(1)>\u202eBcc")
    RuleEvaluator("worker", settings(mailbox, environment=HOSTILE)).step(connection)
    (message,) = messages(connection)
    assert delivery.deliver(connection, Channels(settings(mailbox)), message["id"]).result == "sent"
    (letter,) = mailbox.letters
    assert letter["Bcc"] is None
    assert "\u202e" not in letter.get_content()


def test_a_message_carries_no_payload_and_no_error_text(connection: Connection, mailbox: Mailbox) -> None:
    a_run(connection, "dead", payload={"card": "4111-1111"}, last_error="token=abcdef1234")
    RuleEvaluator("worker", settings(mailbox)).step(connection)
    told = str(messages(connection)[0]["body"])
    assert "4111" not in told and "abcdef" not in told


# Delivering


def test_a_message_is_delivered_once_and_the_answer_kept(connection: Connection, mailbox: Mailbox) -> None:
    message_id, chosen = a_message(connection), Channels(settings(mailbox))
    assert delivery.deliver(connection, chosen, message_id).result == "sent"
    assert delivery.deliver(connection, chosen, message_id).result == "already"
    assert len(mailbox.letters) == 1
    (row,) = messages(connection)
    assert row["sent_at"] is not None and "accepted the mail" in row["answer"]


def test_many_at_once_send_one(connection: Connection, database: str, mailbox: Mailbox) -> None:
    message_id, chosen = a_message(connection), Channels(settings(mailbox))

    def try_it(_number: int) -> str:
        with db.connect(database, name="wakeboard test") as own:
            return delivery.deliver(own, chosen, message_id).result

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(try_it, range(12)))
    assert results.count("sent") == 1
    assert set(results) <= {"sent", "busy", "already"}
    assert len(mailbox.letters) == 1


def test_a_refused_message_waits_longer_each_time_and_is_given_up(
    connection: Connection, mailbox: Mailbox
) -> None:
    mailbox.refuse = "451 later"
    message_id, chosen, waits = a_message(connection), Channels(settings(mailbox)), []
    for _ in range(delivery.MOST_TRIES):
        done = delivery.deliver(connection, chosen, message_id)
        assert "answered 451" in done.sentence
        waits.append(done.wait_seconds)
        assert delivery.deliver(connection, chosen, message_id).result in ("busy", "gave_up")
        connection.execute("UPDATE wakeboard.alert_messages SET claimed_until = now()")
    assert waits[:-1] == list(delivery.WAITS)
    assert done.result == "gave_up"
    mailbox.refuse = None
    assert delivery.deliver(connection, chosen, message_id).result == "gave_up"
    assert mailbox.letters == []


def test_a_try_that_nobody_confirmed_is_repeated_and_says_so(
    connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    chosen = Channels(settings(mailbox, receiver))
    ended = from_now("-1 second")
    for channel in ("mail", "webhook"):
        message_id = a_message(connection, channel, tries=1, claimed_until=ended)
        assert delivery.deliver(connection, chosen, message_id).result == "sent"
    (letter,) = mailbox.letters
    assert letter["Subject"].startswith("(repeat?) ")
    assert "This may be a repeat" in letter.get_content()
    assert receiver.bodies()[0]["is_repeat"] is True


def test_a_try_that_was_refused_is_no_repeat(connection: Connection, mailbox: Mailbox) -> None:
    message_id = a_message(connection, tries=1, error="It answered 451.")
    delivery.deliver(connection, Channels(settings(mailbox)), message_id)
    assert mailbox.letters[0]["Subject"] == "Dead runs: fires"


def test_who_does_not_know_the_channel_spends_none_of_its_tries(
    connection: Connection, mailbox: Mailbox, receiver: Receiver
) -> None:
    message = a_message(connection, "mail", run_id=7)
    done = delivery.deliver(connection, Channels(settings(receiver)), message)
    assert done.result == "busy" and "knows no channel “mail”" in done.sentence and done.wait_seconds > 60
    connection.execute("UPDATE wakeboard.alert_messages SET created_at = now() - interval '3 min'")
    assert delivery.find_waiting(connection, Channels(settings(receiver))) == []
    assert delivery.find_waiting(connection, Channels(settings(mailbox))) == [(message, 7)]
    assert delivery.deliver(connection, Channels(settings(mailbox)), message).result == "sent"
    assert [row["tries"] for row in messages(connection)] == [1] and len(mailbox.letters) == 1


def test_a_message_whose_senders_all_died_is_not_repeated_for_ever(
    connection: Connection, mailbox: Mailbox
) -> None:
    message = a_message(connection, tries=delivery.MOST_TRIES, claimed_until=from_now("-1 second"))
    done = delivery.deliver(connection, Channels(settings(mailbox)), message)
    assert done.result == "gave_up" and mailbox.letters == []
    [row] = messages(connection)
    assert row["gave_up_at"] is not None and "it may have arrived" in row["error"]


def test_the_web_process_tells_what_no_worker_has_a_channel_for(
    connection: Connection, mailbox: Mailbox
) -> None:
    a_run(connection, "dead")
    RuleEvaluator("worker", settings()).step(connection)
    web = RuleEvaluator("web", settings(mailbox))
    assert (web.step(connection)["messages"], rule(connection)["state"]) == (0, "firing")
    connection.execute(
        "UPDATE wakeboard.alert_rules SET fired_at = now() - interval '3 min' WHERE state = 'firing'"
    )
    assert web.step(connection)["messages"] == 1
    assert (messages(connection)[0]["run_id"], rule(connection)["told"]) == (None, "firing")
    assert web.step(connection)["messages"] == 0


def test_the_web_process_takes_what_no_worker_has_touched_for_two_minutes(
    connection: Connection, mailbox: Mailbox
) -> None:
    run_id = a_run(connection, job_type="alert")
    own = a_message(connection)
    fresh = a_message(connection, run_id=run_id)
    old = a_message(connection, run_id=run_id, created_at=from_now("-3 minutes"))
    a_message(connection, run_id=run_id, created_at=from_now("-1 hour"), claimed_until=from_now("-1 minute"))
    a_message(connection, created_at=from_now("-1 hour"), claimed_until=from_now("1 minute"))
    found = [message for message, _ in delivery.find_waiting(connection, Channels(settings(mailbox)))]
    assert found == [old, own] and fresh not in found


# The job


@pytest.fixture
def as_a_handler(database: str, monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox) -> Iterator[Mailbox]:
    """The environment in which handlers run, and their process's connection, closed at the end."""
    for name, value in {**mailbox.environment, "WAKEBOARD_DATABASE_URL": database}.items():
        monkeypatch.setenv(name, value)
    own.close_thread_connection()
    yield mailbox
    own.close_thread_connection()


def test_the_job_sends_its_message_and_tells_the_answer(
    connection: Connection, as_a_handler: Mailbox
) -> None:
    message_id = a_message(connection)
    assert "accepted the mail" in alert(Context(payload={"message_id": message_id}))["answer"]
    assert alert(Context(payload={"message_id": message_id})) == {"answer": "It was sent already."}
    assert len(as_a_handler.letters) == 1


def test_the_job_comes_back_when_the_next_try_makes_sense(
    connection: Connection, as_a_handler: Mailbox
) -> None:
    as_a_handler.refuse = "451 later"
    message_id = a_message(connection)
    with pytest.raises(Retryable) as refused:
        alert(Context(payload={"message_id": message_id}))
    assert (refused.value.error_code, refused.value.after) == ("alert_not_sent", 10)
    with pytest.raises(Retryable) as busy:
        alert(Context(payload={"message_id": message_id}))
    assert busy.value.error_code == "alert_in_progress" and 0 < (busy.value.after or 0) <= 10


@pytest.mark.usefixtures("as_a_handler")
@pytest.mark.parametrize(
    "payload", [{}, {"message_id": "1"}, {"message_id": True}, {"message_id": 987654}, []]
)
def test_the_job_dies_at_once_without_a_message(payload: Any) -> None:
    with pytest.raises(Permanent) as gone:
        alert(Context(payload=payload))
    assert gone.value.error_code == "message_gone"


# The dead man's switch


def test_the_switch_is_called_once_a_minute_over_all_processes(
    connection: Connection, other: Connection, receiver: Receiver
) -> None:
    ours, theirs = Heartbeat(receiver.url), Heartbeat(receiver.url)
    for _ in range(3):
        ours.step(connection)
        theirs.step(other)
    wait_until(lambda: receiver.requests, sentence="the switch is called")
    connection.execute("UPDATE wakeboard.installation SET pinged_at = pinged_at - interval '1 minute'")
    theirs.step(other)
    wait_until(lambda: len(receiver.requests) == 2, sentence="the switch is called again a minute later")
    assert [path for path, _, _ in receiver.requests] == ["/hook?token=hidden"] * 2


def test_the_switch_is_silent_while_a_loop_is_late_or_nobody_keeps_the_schedules(
    connection: Connection, receiver: Receiver
) -> None:
    heartbeat, values = Heartbeat(receiver.url), {"process_id": a_worker(connection), "name": "claim"}
    insert(
        connection,
        "loops",
        {**values, "interval_seconds": 1, "last_success_at": from_now("-1 minute")},
        "name",
    )
    heartbeat.step(connection)
    assert rows(connection, "installation")[0]["pinged_at"] is None
    connection.execute("UPDATE wakeboard.loops SET last_success_at = now()")
    connection.execute("DELETE FROM wakeboard.workers")
    a_definition(connection, updated_at=from_now("-1 hour"))
    heartbeat.step(connection)
    assert rows(connection, "installation")[0]["pinged_at"] is None


def test_a_switch_that_does_not_take_the_call_is_noted_and_cleared(
    connection: Connection, receiver: Receiver
) -> None:
    receiver.status = 500
    heartbeat = Heartbeat(receiver.url)

    def error() -> str | None:
        heartbeat.step(connection)
        found = rows(connection, "installation")[0]["ping_error"]
        return None if found is None else str(found)

    assert "answered 500" in (wait_until(error, sentence="the error is noted") or "")
    receiver.status = 200
    connection.execute("UPDATE wakeboard.installation SET pinged_at = NULL")
    wait_until(lambda: error() is None, sentence="the error is gone")


def test_no_address_no_call(connection: Connection) -> None:
    Heartbeat(None).step(connection)
    assert rows(connection, "installation")[0]["pinged_at"] is None


def test_an_old_backlog_is_told_by_the_web_process_without_a_run(
    connection: Connection, mailbox: Mailbox
) -> None:
    age(connection, a_run(connection, job_type="mail"), "1 hour")
    assert RuleEvaluator("web", settings(mailbox)).step(connection)["messages"] == 2
    assert {row["run_id"] for row in messages(connection)} == {None}
