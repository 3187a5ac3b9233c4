"""The watcher in the web process, and workers beside it: real processes, real mail, a stopped database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg
import pytest

from tests.conftest import Connection
from tests.support.browsers import serving
from tests.support.factories import a_run, age, rows
from tests.support.postgres.servers import SETTINGS, running_server
from tests.support.processes import wait_until, wakeboard
from tests.support.receivers import Mailbox, Receiver, mailbox, receiver
from wakeboard.alerts.outage import Outage
from wakeboard.alerts.web_watcher import WebWatcher
from wakeboard.config import log
from wakeboard.config.settings import Settings
from wakeboard.database import db, embedded, migrations
from wakeboard.database.outage_log import MissingTables

__all__ = ["mailbox", "receiver"]
SLOW = 40
LOST, FOUND = "The database does not answer: fires", "The database does not answer: has recovered"


@pytest.fixture
def stage() -> Iterator[IO[bytes]]:
    """The file that the processes of one dashboard share."""
    with tempfile.TemporaryFile() as file:
        yield file


@pytest.fixture
def in_the_environment(monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox) -> Mailbox:
    for name, value in mailbox.environment.items():
        monkeypatch.setenv(name, value)
    return mailbox


def settings(*sides: Mailbox | Receiver) -> Settings:
    environ: dict[str, str] = {}
    for side in sides:
        environ |= side.environment
    return Settings.load({}, environ=environ)


def subjects(mailbox: Mailbox) -> list[str]:
    return sorted(str(letter["Subject"]) for letter in mailbox.letters)


def loops(connection: Connection) -> list[dict[str, Any]]:
    return rows(connection, "loops", "name = 'alerts'")


def carriers(connection: Connection) -> list[str]:
    """Return the states of the runs that carry messages."""
    return [run["status"] for run in rows(connection, "job_runs", "job_type = 'alert'")]


def test_with_no_worker_alive_the_web_process_tells_once(
    connection: Connection, database: str, in_the_environment: Mailbox
) -> None:
    age(connection, a_run(connection, job_type="mail"), "1 hour")
    with serving(database):
        wait_until(lambda: len(in_the_environment.letters) >= 2, SLOW, "both rules are told by mail")
        wait_until(lambda: len(loops(connection)) == 2, SLOW, "both processes say that they watch")
        assert subjects(in_the_environment) == [
            "No worker for waiting work: fires",
            "The queue grows old: fires",
        ]
    assert loops(connection) == [], "an orderly end leaves no loop behind"
    assert {row["tries"] for row in rows(connection, "alert_messages")} == {1}


def test_the_loop_of_a_killed_web_process_does_not_stay_late(connection: Connection, database: str) -> None:
    with serving(database) as served:
        wait_until(lambda: len(loops(connection)) == 2, SLOW, "both watch")
        victim = psutil.Process(served.process.pid).children()[0]
        victim.send_signal(signal.SIGKILL)
        wait_until(
            lambda: (
                len(loops(connection)) == 2
                and not any(row["process_id"].endswith(f"-{victim.pid}") for row in loops(connection))
            ),
            SLOW,
            "its successor took the row away",
        )


def test_a_host_leaves_the_loops_of_a_host_whose_name_begins_like_its_own(
    connection: Connection, database: str, stage: IO[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakeboard.alerts.web_watcher.socket.gethostname", lambda: "app")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for host in ("app", "app-2", "app-a1b2c3"):
        connection.execute(
            "INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at) "
            "VALUES (%s, 'alerts', 15, now())",
            (f"web-{host}-0a1b2c-{dead.pid}",),
        )
    WebWatcher(database, settings(), stage.fileno())._remove_dead_siblings(connection)
    assert [row["process_id"] for row in loops(connection)] == [
        f"web-app-2-0a1b2c-{dead.pid}",
        f"web-app-a1b2c3-0a1b2c-{dead.pid}",
    ]


def test_a_worker_delivers_what_workers_watch(
    connection: Connection, database: str, mailbox: Mailbox
) -> None:
    a_run(connection, "dead", job_type="report")
    with wakeboard("worker", "--concurrency", "1", database=database, environment=mailbox.environment):
        wait_until(lambda: mailbox.letters, SLOW, "the mail comes")
        wait_until(
            lambda: (
                [run["status"] for run in rows(connection, "job_runs", "job_type = 'alert'")] == ["succeeded"]
            ),
            SLOW,
            "its run succeeded",
        )
    assert subjects(mailbox) == ["Dead runs: fires"]
    (message,) = rows(connection, "alert_messages")
    assert (message["tries"], message["sent_at"] is not None) == (1, True)


def test_a_worker_killed_between_sending_and_recording_leads_to_a_repeat_that_says_so(
    connection: Connection, database: str, mailbox: Mailbox
) -> None:
    a_run(connection, "dead", job_type="report")
    environment = {**mailbox.environment, "WAKEBOARD_LEASE_SECONDS": "2"}
    words = ("worker", "--concurrency", "1")
    mailbox.hold = threading.Event()
    with wakeboard(*words, database=database, environment=environment) as first:
        wait_until(lambda: mailbox.letters, SLOW, "the server has the mail and has not said so")
        first.kill()
    mailbox.hold.set()
    (message,) = rows(connection, "alert_messages")
    assert (message["sent_at"], message["tries"]) == (None, 1)
    # Two minutes later.
    connection.execute("UPDATE wakeboard.alert_messages SET claimed_until = now()")
    with wakeboard(*words, database=database, environment=environment):
        wait_until(lambda: len(mailbox.letters) == 2, SLOW, "the next worker sends it again")
    first_letter, second = mailbox.letters
    assert second["Subject"] == "(repeat?) Dead runs: fires"
    assert second["Message-ID"] == first_letter["Message-ID"]


def test_what_no_worker_may_carry_is_sent_by_the_web_process_and_its_run_called_off(
    connection: Connection, database: str, mailbox: Mailbox, stage: IO[bytes]
) -> None:
    a_run(connection, "dead", job_type="report")
    sentinel = WebWatcher(database, settings(mailbox), stage.fileno())
    with wakeboard(
        "worker", "--types", "mail", "--concurrency", "1", database=database, environment=mailbox.environment
    ):
        wait_until(lambda: rows(connection, "alert_messages"), SLOW, "a worker found it")
    assert mailbox.letters == []
    connection.execute("UPDATE wakeboard.alert_messages SET created_at = created_at - interval '3 minutes'")
    sentinel.start()
    try:
        wait_until(lambda: subjects(mailbox) == ["Dead runs: fires"], SLOW, "the web process sends it")
        wait_until(
            lambda: (
                [run["status"] for run in rows(connection, "job_runs", "job_type = 'alert'")] == ["cancelled"]
            ),
            SLOW,
            "the run is called off",
        )
    finally:
        sentinel.stop()


def test_a_database_that_stops_is_told_without_it_and_so_is_its_return(
    mailbox: Mailbox, receiver: Receiver, stage: IO[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure("text")
    with running_server() as server:
        assert server.data_dir is not None
        url = server.url(server.create())
        sentinel = WebWatcher(
            url, settings(mailbox, receiver), stage.fileno(), check_seconds=0.2, patience_seconds=2
        )
        sentinel.outage.window_seconds = 1
        sentinel.start()
        try:
            wait_until(lambda: sentinel.checks > 2, SLOW, "it watches")
            embedded.stop(Path(server.data_dir), only_if_unused=False)
            wait_until(lambda: mailbox.letters and receiver.requests, SLOW, "both channels hear of it")
            assert receiver.is_genuine()
            assert "does not answer since" in receiver.bodies()[0]["sentence"]
            embedded.start(Path(server.data_dir), settings=SETTINGS)
            wait_until(lambda: len(mailbox.letters) == 2, SLOW, "its return is told")
            assert subjects(mailbox) == [LOST, FOUND]
            with db.connect(url, name="wakeboard test") as connection:
                wait_until(
                    lambda: (
                        [row["kind"] for row in rows(connection, "alert_messages", order="id")]
                        == ["firing", "firing", "recovered", "recovered"]
                    ),
                    SLOW,
                    "what was told meanwhile is in the history",
                )
        finally:
            sentinel.stop()
    log.flush()
    said = capsys.readouterr().err
    for connection_name in ("alerts", "post"):
        assert said.count(f"cannot reach the database. connection={connection_name} ") == 1, said
        assert said.count(f"answers again. connection={connection_name} ") == 1


def test_of_several_web_processes_one_speaks_and_another_goes_on_where_it_stopped(
    mailbox: Mailbox, stage: IO[bytes]
) -> None:
    number = stage.fileno()
    hold = f"import fcntl; fcntl.lockf({number}, fcntl.LOCK_EX); print('held', flush=True); input()"
    outage = Outage(settings(mailbox), number, patience_seconds=0)
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        pass_fds=(number,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as speaker:
        assert speaker.stdout is not None and speaker.stdin is not None
        assert speaker.stdout.readline() == "held\n"
        outage.step()
        assert mailbox.letters == []
        speaker.stdin.close()
        speaker.wait(10)
    outage.step()
    assert subjects(mailbox) == [LOST]
    # Its successor reads what was told.
    assert os.pread(number, 1000, 0)
    Outage(settings(mailbox), number, patience_seconds=0).step()
    assert len(mailbox.letters) == 1


def test_an_outage_that_no_channel_takes_is_tried_again(mailbox: Mailbox, stage: IO[bytes]) -> None:
    outage = Outage(settings(mailbox), stage.fileno(), patience_seconds=0)
    mailbox.refuse = "451 later"
    outage.step()
    mailbox.refuse = None
    outage.step()
    assert subjects(mailbox) == [LOST]


def test_what_was_told_without_the_database_is_written_once_however_often_that_is_tried(
    connection: Connection, database: str, mailbox: Mailbox, stage: IO[bytes], superuser: Connection
) -> None:
    sentinel = WebWatcher(database, settings(mailbox), stage.fileno())
    sentinel.outage = Outage(settings(mailbox), stage.fileno(), patience_seconds=0)
    sentinel.outage.step()
    assert subjects(mailbox) == [LOST]
    superuser.execute("REVOKE UPDATE ON wakeboard.alert_messages FROM wakeboard")
    for _ in range(2):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sentinel._post(connection)
        assert rows(connection, "alert_messages") == [], "nothing stands there that others would send"
    superuser.execute("GRANT UPDATE ON wakeboard.alert_messages TO wakeboard")
    sentinel._post(connection)
    sentinel._post(connection)
    (message,) = rows(connection, "alert_messages")
    assert message["sent_at"] is not None
    assert subjects(mailbox) == [LOST]


def test_without_tables_the_watcher_says_in_a_line_what_to_run_and_looks_after_the_migration(
    empty_database: str,
    stage: IO[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log.configure("text")
    tries: list[str] = []

    class Heard(MissingTables):
        def add(self, name: str, failure: Exception) -> None:
            tries.append(name)
            super().add(name, failure)

    monkeypatch.setattr("wakeboard.alerts.web_watcher.MissingTables", Heard)
    for name in ("POST_SECONDS", "NO_TABLES_SECONDS"):
        monkeypatch.setattr(f"wakeboard.alerts.web_watcher.{name}", 0.05)
    watching = WebWatcher(empty_database, settings(), stage.fileno(), check_seconds=0.05)
    watching.start()
    try:
        wait_until(lambda: min(map(tries.count, ("alerts", "post"))) > 3, SLOW, "both threads try again")
        migrations.migrate(empty_database)
        wait_until(lambda: watching.checks > 1, SLOW, "it looks at the rules")
        wait_until(lambda: not watching._missing_tables.names, SLOW, "both threads are at work")
    finally:
        watching.stop()
    log.flush()
    said = [line for line in capsys.readouterr().err.splitlines() if "tables" in line]
    assert len(said) == 2, said
    assert said[0].endswith("Run: wakeboard db upgrade") and "has the tables now" in said[1]
