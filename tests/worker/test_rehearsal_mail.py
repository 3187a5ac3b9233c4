"""The rehearsal's mail server: what it accepts it has, what it refuses it has not, and it can keep senders
waiting."""

from __future__ import annotations

import smtplib
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from wakeboard.demo.mail_server import LOOPBACK, MailServer
from wakeboard.demo.rehearsal.mailbox import Mailbox


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return Mailbox(tmp_path / "inbox", {"busy@example.com"})


@pytest.fixture
def server(mailbox: Mailbox) -> Iterator[MailServer]:
    """A listening server, which is gone afterwards."""
    started = MailServer(mailbox.store)
    started.start()
    yield started
    started.stop()
    assert not started.is_listening()


def send(server: MailServer, to: str, message_id: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Message-ID"] = "shop@example.com", to, message_id
    mail.set_content("Hello.")
    with smtplib.SMTP(LOOPBACK, server.port, timeout=10) as connection:
        connection.send_message(mail)


def test_an_accepted_mail_is_in_the_mailbox_as_often_as_it_was_sent(
    mailbox: Mailbox, server: MailServer
) -> None:
    for message_id in ("<1@x>", "<2@x>", "<1@x>"):
        send(server, "ada@example.com", message_id)
    assert mailbox.message_ids() == ["<1@x>", "<2@x>", "<1@x>"]


def test_a_chosen_recipient_is_refused_once_and_then_accepted(mailbox: Mailbox, server: MailServer) -> None:
    with pytest.raises(smtplib.SMTPDataError) as refused:
        send(server, "busy@example.com", "<1@x>")
    assert refused.value.smtp_code == 451
    assert mailbox.message_ids() == []
    send(server, "busy@example.com", "<1@x>")
    assert mailbox.message_ids() == ["<1@x>"]


def test_a_held_mail_is_accepted_while_its_sender_waits(mailbox: Mailbox, server: MailServer) -> None:
    send(server, "ada@example.com", "<1@x>")
    mailbox.hold_after(1)
    sender = threading.Thread(target=send, args=(server, "ada@example.com", "<2@x>"))
    sender.start()
    wait_until(lambda: mailbox.held == 1, 10, "the mail is accepted")
    assert mailbox.message_ids() == ["<1@x>", "<2@x>"]
    assert sender.is_alive()
    mailbox.answer()
    sender.join(10)
    assert not sender.is_alive()


def test_the_server_stops_while_a_sender_says_nothing(mailbox: Mailbox) -> None:
    server = MailServer(mailbox.store)
    server.start()
    with smtplib.SMTP(LOOPBACK, server.port, timeout=10):
        assert server.is_listening()
        server.stop()
        assert not server.is_listening()
