"""The example shop: a past to look at, servers of its own, and effects that happen once."""

from __future__ import annotations

import os
import smtplib
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import wait_until
from wakeboard import demo
from wakeboard.core.errors.error_groups import group_of, own_frame
from wakeboard.core.outcome import Cancelled, Permanent, Retryable
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.demo import clients, history, orders, page, reports, shop
from wakeboard.demo.mail_server import LARGEST_BYTES, parse_mail
from wakeboard.demo.servers import is_outage
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import JOB_TYPES
from wakeboard.queue import handler_connection as own

OPERATOR = Actor("olga", Role.OPERATOR, "web")
VIEWER = Actor("victor", Role.VIEWER, "web")


@pytest.fixture(autouse=True)
def handler_process(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    monkeypatch.setenv("WAKEBOARD_DATA_DIR", str(tmp_path))
    own.close_thread_connection()
    yield
    own.close_thread_connection()


@pytest.fixture
def opened(database: str, connection: Connection) -> Iterator[Connection]:
    """The open shop with its mailbox and providers running; a connection to its database."""
    (command,) = demo.prepare(database)
    with subprocess.Popen(command, env=os.environ.copy()) as process:
        wait_until(lambda: all(answers(connection, place) for place in ("smtp", "http")))
        yield connection
        process.terminate()
        assert process.wait(10) == 0


def answers(connection: Connection, place: str) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", shop.port_of(connection, place) or 0)) == 0


def count(connection: Connection, table: str, where: str = "true") -> int:
    (number,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}".encode()).fetchone() or (0,)
    return int(number)


def running(
    connection: Connection, job_type: str, payload: dict[str, Any], key: str | None = None
) -> Context:
    """The context of a running run of the shop."""
    run_id = factories.a_run(connection, "running", job_type=job_type, payload=payload, idempotency_key=key)
    return Context(
        run_id=run_id,
        lease_epoch=1,
        worker_id="w1",
        job_type=job_type,
        payload=payload,
        key=key,
        timeout_seconds=30,
    )


def an_order(connection: Connection, *, remainder: int, paid: bool = False) -> int:
    """An order whose number leaves ``remainder`` by twelve: that decides what its bank and address say."""
    order = 12_000 + remainder
    connection.execute(
        "INSERT INTO shop.orders (id, customer_id, sku, cents, status, paid_at)"
        " VALUES (%s, 1, 'wax', 1290, %s, CASE WHEN %s THEN now() END)",
        (order, "PAID" if paid else "NEW", paid),
    )
    return order


def insistent(work: Any) -> Any:
    """Do ``work`` as its retries would, while the mailbox says that it is busy."""
    for _ in range(3):
        try:
            return work()
        except Retryable as busy:
            assert busy.error_code == "smtp_451"
    raise AssertionError("The mailbox was busy three times.")


def test_the_first_start_finds_a_week_of_history_and_the_second_start_the_same(
    database: str, connection: Connection
) -> None:
    demo.prepare(database)
    runs = count(connection, "wakeboard.job_runs")
    assert runs > 3000
    ended = count(connection, "wakeboard.job_runs", "status IN ('succeeded', 'dead', 'cancelled')")
    assert runs - ended == 2
    assert count(connection, "wakeboard.job_attempts", "outcome IN ('failed', 'timed_out', 'lost')") > 100
    assert count(connection, "wakeboard.job_runs", "created_at < now() - interval '6 days'") > 100
    demo.prepare(database)
    assert count(connection, "wakeboard.job_runs") == runs


def test_the_past_agrees_with_itself(database: str, connection: Connection) -> None:
    shop.create_tables(connection)
    history.write_history(connection)
    wrong = connection.execute("""
        SELECT r.id FROM wakeboard.job_runs AS r
        JOIN (SELECT run_id, count(*) AS tries, max(lease_epoch) AS epoch, max(finished_at) AS finished,
                count(*) FILTER (WHERE outcome IN ('failed', 'timed_out', 'lost')) AS failures
            FROM wakeboard.job_attempts GROUP BY run_id) AS a ON a.run_id = r.id
        WHERE a.tries <> r.attempts OR a.failures <> r.failures OR a.finished <> r.finished_at
            OR a.epoch > r.lease_epoch OR r.finished_at > now()
        """).fetchall()
    assert wrong == []
    runs = connection.execute("SELECT sum(runs)::int FROM wakeboard.statistics_rollups").fetchone()
    assert runs == (count(connection, "wakeboard.job_attempts"),)
    in_order = connection.execute(
        "SELECT bool_and(ordered) FROM (SELECT created_at >= lag(created_at) OVER (ORDER BY id) AS ordered"
        " FROM wakeboard.job_runs) AS pairs"
    ).fetchone()
    assert in_order == (True,)


def test_what_schedules_made_in_the_past_stands_on_their_pages(connection: Connection) -> None:
    shop.create_tables(connection)
    history.write_history(connection)
    fired = connection.execute(
        """SELECT d.name, count(*)::int, bool_and(r.scheduled_for = r.created_at),
            d.last_fire_at = max(r.scheduled_for), d.next_fire_at > now()
        FROM wakeboard.job_definitions AS d JOIN wakeboard.job_runs AS r ON r.definition_id = d.id
        GROUP BY d.id ORDER BY d.name"""
    ).fetchall()
    well = (True, True, True)
    assert [(name, *rest) for name, _, *rest in fired] == [
        (name, *well) for name in ("checkout", "import_catalogue", "nightly_cleanup", "weekly_reports")
    ]
    counts = {name: number for name, number, *_ in fired}
    assert counts["import_catalogue"] in range(665, 673) and counts["nightly_cleanup"] in (6, 7)
    assert counts["checkout"] in range(110, 121) and counts["weekly_reports"] == 1
    by_hand = (
        "definition_id IS NULL AND job_type IN ('import_catalogue', 'nightly_cleanup', 'weekly_reports')"
    )
    assert count(connection, "wakeboard.job_runs", by_hand) == 0


def test_a_schedule_that_somebody_made_before_stays_as_it_is(connection: Connection) -> None:
    own = factories.a_definition(connection, "nightly_cleanup", job_type="mail", schedule="0 4 * * *")
    shop.create_tables(connection)
    history.write_history(connection)
    assert count(connection, "wakeboard.job_runs", f"definition_id = {own}") == 0
    assert count(connection, "wakeboard.job_definitions", f"id = {own} AND schedule = '0 4 * * *'") == 1


def test_what_failed_in_the_past_gets_through_when_it_is_tried_again(opened: Connection) -> None:
    for job_type in ("charge_card", "send_invoice", "check_address", "tell_team"):
        payload, key = opened.execute(
            """SELECT payload, idempotency_key FROM wakeboard.job_runs
            WHERE job_type = %s AND (payload->>'order')::int %% 12 IN (2, 3, 6) ORDER BY id LIMIT 1""",
            (job_type,),
        ).fetchone() or ({}, None)
        again = factories.a_run(opened, "running", job_type=job_type, payload=payload)
        asked = Context(
            run_id=again, lease_epoch=1, worker_id="w1", job_type=job_type, payload=payload, key=key,
            timeout_seconds=30,
        )  # fmt: skip
        insistent(lambda asked=asked: JOB_TYPES[asked.job_type].function(asked))
    named = "job_type = 'render_newsletter' AND payload->'customer'->>'name' IS"
    assert count(opened, "wakeboard.job_runs", f"{named} NOT NULL AND status <> 'succeeded'") == 0
    assert count(opened, "wakeboard.job_runs", f"{named} NULL AND status = 'succeeded'") == 0


def test_a_database_with_runs_of_its_own_gets_no_invented_past(database: str, connection: Connection) -> None:
    factories.a_run(connection, "succeeded")
    demo.prepare(database)
    assert (
        count(connection, "wakeboard.job_runs", "enqueued_by = 'demo history' AND status <> 'running'") == 0
    )


def test_one_run_is_stuck_with_a_worker_that_is_gone_until_it_is_released(
    database: str, connection: Connection
) -> None:
    from wakeboard.queue import release_lease

    demo.prepare(database)
    (run_id,) = connection.execute(
        "SELECT id FROM wakeboard.job_runs WHERE status = 'running'"
    ).fetchone() or (0,)
    assert release_lease(connection, run_id, OPERATOR).result == "done"
    assert factories.status(connection, run_id) == "failed"


def test_an_order_is_charged_invoiced_and_mailed_once(opened: Connection, tmp_path: Path) -> None:
    order = an_order(opened, remainder=0)
    charge = running(opened, "charge_card", {"order": order, "cents": 1290}, f"charge:{order}")
    orders.charge_card(charge)
    assert factories.status(opened, charge.run_id) == "succeeded"
    assert (
        count(opened, "wakeboard.job_runs", f"idempotency_key = 'invoice:{order}' AND status = 'queued'") == 1
    )
    invoice = running(opened, "send_invoice", {"order": order})
    insistent(lambda: orders.send_invoice(invoice))
    insistent(lambda: orders.send_invoice(invoice))
    assert count(opened, "shop.charges") == 1
    (mail,) = page.mails(opened)
    assert (mail.subject, mail.attachments) == (f"Your invoice {order}", [f"invoice-{order}.txt"])
    invoice = (tmp_path / "demo/invoices" / f"invoice-{order}.txt").read_text()
    assert f"INVOICE {order}\n" in invoice and "1 x Board wax" in invoice and "12.90 EUR" in invoice
    assert list((tmp_path / "demo/invoices").glob("*.part")) == []
    (shown,) = [one for one in page.orders(opened) if one.id == order]
    assert (shown.status, shown.product) == ("INVOICED", "Board wax")
    assert count(opened, "wakeboard.job_runs", f"idempotency_key = 'team:{order}'") == 1


def test_a_mail_that_arrived_before_its_sender_died_is_found_and_not_sent_again(opened: Connection) -> None:
    order = an_order(opened, remainder=0, paid=True)
    first = running(opened, "send_invoice", {"order": order})

    def died_after_sending() -> None:
        insistent(lambda: clients.send(mail))
        raise Cancelled("killed")

    mail = clients.new_mail("alice@example.com", "Your invoice", "…", f"invoice-{order}")
    with pytest.raises(Cancelled):
        first.once("mail", died_after_sending)
    opened.execute(
        "UPDATE wakeboard.job_runs SET lease_epoch = 3, attempts = 2 WHERE id = %s", (first.run_id,)
    )
    second = Context(
        run_id=first.run_id, attempt=2, lease_epoch=3, worker_id="w1", job_type="send_invoice",
        payload={"order": order}, timeout_seconds=30,
    )  # fmt: skip
    insistent(lambda: orders.send_invoice(second))
    assert len(page.mails(opened)) == 1


def test_a_declined_card_is_dead_at_once_and_its_order_says_so(opened: Connection) -> None:
    order = an_order(opened, remainder=5)
    context = running(opened, "charge_card", {"order": order, "cents": 1290}, f"charge:{order}")
    with pytest.raises(Permanent, match="refused to pay") as declined:
        orders.charge_card(context)
    assert declined.value.error_code == "card_declined"
    told = "".join(traceback.format_exception(declined.value))
    (before,) = [failure for failure in history.FAILURES if failure.code == "card_declined"]
    made = group_of("charge_card", "card_declined", before.message.format(order=7), before.traceback)
    assert made == group_of("charge_card", "card_declined", str(declined.value), told)
    assert page.orders(opened)[0].status == "DECLINED"
    assert count(opened, "wakeboard.effects") == 0


@pytest.mark.parametrize(
    ("code", "frame"),
    [
        ("KeyError", "catalogue.py in fill"), ("http_503", "clients.py in call_provider"),
        ("card_declined", "orders.py in charge_card"), ("smtp_451", "clients.py in deliver"),
        ("smtp_unreachable", "clients.py in deliver"), ("timed_out", None), ("lease_lost", None),
    ],
)  # fmt: skip
def test_what_failed_in_the_past_tells_where_it_was_raised(code: str, frame: str | None) -> None:
    for failure in history.FAILURES:
        if failure.code == code:
            assert own_frame(failure.traceback or "") == frame


def test_checkout_commits_orders_and_what_follows_together(opened: Connection) -> None:
    context = running(opened, "checkout", {})
    before = count(opened, "shop.orders")
    orders.checkout(context)
    assert context.committed
    assert count(opened, "shop.orders") == before + 2
    for job_type, number in (("charge_card", 2), ("check_address", 2), ("resize_photo", 12)):
        assert count(opened, "wakeboard.job_runs", f"job_type = '{job_type}' AND status = 'queued'") == number


def test_an_outage_of_the_stock_service_comes_soon_and_ends(opened: Connection) -> None:
    assert [is_outage(seconds) for seconds in (0, 59, 60, 149, 150, 359, 420)] == [
        False, False, True, True, False, False, True,
    ]  # fmt: skip
    assert clients.call_provider("/stock/wax")["sku"] == "wax"


def test_a_report_has_one_key_whether_signing_up_the_schedule_or_a_click_asks_for_it(
    database: str, connection: Connection
) -> None:
    demo.prepare(database)
    monday = date(2026, 1, 5)
    first = reports.first_report(1, date(2026, 1, 7))
    assert (first.key, first.run_at) == ("report:1:2026-01-05", datetime(2026, 1, 12, 6, tzinfo=UTC))
    assert reports.report(1, monday).key == first.key
    fire = Context(job_type="weekly_reports", scheduled_for="2026-01-12T06:00:00+00:00")
    customers = reports.weekly_reports(fire)["customers"]
    assert reports.weekly_reports(fire)["customers"] == customers == len(shop.CUSTOMERS)
    assert count(connection, "wakeboard.job_runs", "idempotency_key = 'report:1:2026-01-05'") == 1
    assert (
        count(connection, "wakeboard.job_runs", "job_type = 'weekly_report' AND status = 'queued'")
        == customers
    )


def test_the_nightly_clean_up_removes_what_is_old_and_nothing_else(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    demo.prepare(database)
    connection.execute(
        "INSERT INTO shop.sessions (customer_id, expires_at)"
        " VALUES (1, now() - interval '1 s'), (1, now() + interval '1 h')"
    )
    old, fresh, kept = (shop.folder("photos") / name for name in ("a.part", "b.part", "c.pgm"))
    for file in (old, fresh, kept):
        file.write_bytes(b"x")
    for file in (old, kept):
        os.utime(file, (0, 0))
    assert reports.nightly_cleanup(Context()) == {"sessions": 1, "files": 1}
    assert (old.exists(), fresh.exists(), kept.exists()) == (False, True, True)


def test_the_buttons_of_the_demo_page_enqueue_and_are_audited(database: str, connection: Connection) -> None:
    demo.prepare(database)
    assert page.is_open(connection)
    placed = page.press(connection, "order", OPERATOR, "try it")
    assert (placed.result, factories.row(connection, int(placed.id))["job_type"]) == ("done", "check_address")
    signed = page.press(connection, "signup", OPERATOR)
    assert factories.row(connection, int(signed.id))["run_at"] > datetime.now(UTC)
    exported = page.press(connection, "export", OPERATOR)
    assert page.press(connection, "export", OPERATOR).id == exported.id
    assert page.press(connection, "report", OPERATOR).ok
    assert count(connection, "wakeboard.audit_log", "actor = 'olga' AND action = 'run.enqueue'") == 5
    assert count(connection, "wakeboard.audit_log", "reason = 'try it'") == 1


def test_who_may_only_look_cannot_press_the_demos_buttons(database: str, connection: Connection) -> None:
    demo.prepare(database)
    before = count(connection, "wakeboard.job_runs"), count(connection, "shop.orders")
    for button in page.BUTTONS:
        assert page.press(connection, button, VIEWER).result == "denied"
    assert (count(connection, "wakeboard.job_runs"), count(connection, "shop.orders")) == before


def test_a_database_without_the_shop_says_so(connection: Connection) -> None:
    assert not page.is_open(connection)


def test_the_mailbox_keeps_what_it_is_sent_and_refuses_what_it_cannot_keep(opened: Connection) -> None:
    with smtplib.SMTP("127.0.0.1", shop.port_of(opened, "smtp") or 0, timeout=10) as client:
        text = "Subject: dots\r\nMessage-ID: <1@example.com>\r\n\r\n.\r\n..two\r\nend \u00fc\x00"
        insistent_mail(client, text.encode())
        with pytest.raises(smtplib.SMTPSenderRefused) as refused:
            client.sendmail(
                "a@example.com",
                ["b@example.com"],
                b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * (LARGEST_BYTES // 70),
            )
        assert refused.value.smtp_code == 552
    (mail,) = page.mails(opened)
    assert (mail.subject, mail.recipients) == ("dots", ["b@example.com"])
    assert mail.body.startswith(".\n..two\nend")


def insistent_mail(client: smtplib.SMTP, content: bytes) -> None:
    for _ in range(2):
        try:
            client.sendmail("a@example.com", ["b@example.com"], content)
            return
        except smtplib.SMTPDataError as busy:
            assert busy.smtp_code == 451


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"Content-Type: multipart/mixed\r\n\r\n--x",
        b"Content-Type: text/plain; charset=nonsense\r\n\r\nx",
        b"Subject: =?utf-8?b?////?=\r\n\r\nx",
        b"Message-ID: <\r\n\r\n",
        b"Content-Transfer-Encoding: base64\r\n\r\n!!!",
    ],
)
def test_whatever_is_wrong_with_a_message_it_is_a_mail(content: bytes) -> None:
    mail = parse_mail(content, "a@example.com", ["b@example.com"])
    assert "\x00" not in mail.subject + mail.body


@pytest.mark.parametrize("verb", [("up", "--demo"), ("rehearse",)])
def test_without_its_mail_server_a_command_says_what_to_install(
    verb: tuple[str, ...], tmp_path: Path
) -> None:
    without = "import sys; sys.modules['aiosmtpd'] = None; from wakeboard.__main__ import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", without, *verb],
        env=os.environ | {"WAKEBOARD_DATA_DIR": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 1
    assert "pip install 'wakeboard[demo]'" in told.stderr
    assert not (tmp_path / "empty").exists()


def test_the_shop_mails_to_its_own_loopback_mailbox_only(connection: Connection) -> None:
    assert clients.LOOPBACK == "127.0.0.1"
    shop.create_tables(connection)
    with pytest.raises(Permanent, match="wakeboard up --demo"):
        clients.send(clients.new_mail("alice@example.com", "s", "t", "m"))


def test_the_shop_costs_no_import_of_sqlalchemy_until_a_handler_needs_it() -> None:
    look = "import sys, wakeboard.demo; print('sqlalchemy' in sys.modules, 'flask' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert answer.stdout == "False False\n"
