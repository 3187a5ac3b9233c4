"""The steps of the rehearsal, in their order. Each moment is chosen by a condition, never by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg.rows import class_row, scalar_row

from wakeboard.core.states import ENDED, sql_list
from wakeboard.database import db, migrations
from wakeboard.database.audit import terminal_actor
from wakeboard.database.embedded import EmbeddedError
from wakeboard.demo.mail_server import LOOPBACK, MailServer, MailServerMissing
from wakeboard.demo.rehearsal import receipts
from wakeboard.demo.rehearsal.findings import (
    CancelledRun,
    Measurements,
    ReceiptAttempt,
    RehearsalReport,
    findings,
)
from wakeboard.demo.rehearsal.mailbox import Mailbox
from wakeboard.demo.rehearsal.sandbox import Sandbox, clear_abandoned, new_sandbox
from wakeboard.demo.rehearsal.waiter import RehearsalError, Waiter
from wakeboard.demo.rehearsal.workers import KILL_SECONDS, SLOTS, Worker, Workers
from wakeboard.queue import NewRun, cancel, enqueue_many

RECEIPTS = 100
# The numbers of the receipts whose mail is refused once.
REFUSED = range(5, RECEIPTS + 1, 5)
# How many mails have been accepted when a worker is stopped, and when the next one is killed.
STOP_AFTER, KILL_AFTER = 30, 60
LONG_RUNS = {"patient": "count_patiently", "deaf": "count_deafly"}
STEP_SECONDS, END_SECONDS, LINGER_SECONDS = 30.0, 60.0, 5.0
# Two waits of a cancel, TERM and KILL, and what a busy machine may add.
CANCEL_SECONDS = 2 * KILL_SECONDS + 3

ENQUEUED_BY = "rehearsal"
_WORKER_ID = "SELECT id FROM wakeboard.workers WHERE pid = %s"
_IS_STOPPING = "SELECT count(*) FROM wakeboard.workers WHERE id = %s AND stopping_at IS NOT NULL"
_CLAIMS = "SELECT count(*) FROM wakeboard.job_runs WHERE locked_by = %s AND status = 'running'"
_OPEN = f"""
SELECT count(*) FROM wakeboard.job_runs
WHERE enqueued_by = '{ENQUEUED_BY}' AND status NOT IN ({sql_list(ENDED)})
"""
_STATES = "SELECT status, count(*) FROM wakeboard.job_runs WHERE job_type = 'send_receipt' GROUP BY status"
_STATUS = "SELECT status FROM wakeboard.job_runs WHERE id = %s"
_ATTEMPTS = """
SELECT run_id, outcome, error_code, worker_id, coalesce((result ->> 'found')::boolean, false) AS is_found
FROM wakeboard.job_attempts WHERE job_type = 'send_receipt'
"""


def rehearse(print_step: Callable[[str], None], *, with_effects: bool = True) -> RehearsalReport:
    """Carry the rehearsal out and return its table; ``print_step`` gets a sentence per step.

    Without effects the ledger is not used, and the table must have a line that is not as expected. Raises
    RehearsalError, EmbeddedError or KeyboardInterrupt; in every case nothing is left running or written.
    """
    began = time.monotonic()

    def say(sentence: str) -> None:
        print_step(f"{time.monotonic() - began:5.1f} s  {sentence}")

    waiter = Waiter()
    with waiter.interruptible():
        measured = _measure(say, with_effects, waiter)
    return RehearsalReport(
        findings(measured, with_effects=with_effects), time.monotonic() - began, with_effects
    )


def _measure(say: Callable[[str], None], with_effects: bool, waiter: Waiter) -> Measurements:
    """Return what was measured; ``left`` has what remained after everything was cleared."""
    with ExitStack() as stack:
        clear_abandoned(say)
        sandbox = stack.enter_context(new_sandbox())
        mailbox = Mailbox(sandbox.inbox, {_address(number) for number in REFUSED})
        server = _start_mail_server(mailbox)
        stack.callback(server.stop)
        # Held answers are sent first: a thread that waits would outlive the server.
        stack.callback(mailbox.answer)
        say(f"A mail server of its own listens on port {server.port}.")
        url = _start_database(sandbox, waiter)
        say("A database of its own is ready, on an embedded server in a temporary folder.")
        environment = {
            receipts.PORT: str(server.port),
            receipts.INBOX: str(sandbox.inbox),
            receipts.EFFECTS: "on" if with_effects else "off",
        }
        connection = stack.enter_context(db.connect(url, name="wakeboard rehearsal"))
        scenario = Scenario(Workers.of(sandbox.folder, url, environment), mailbox, connection, waiter, say)
        try:
            measured = scenario.measure()
        except RehearsalError as stuck:
            output = scenario.workers.last_output()
            raise RehearsalError(f"{stuck} What it printed last:\n{output}") from None
    servers = ["the mail server"] if server.is_listening() else []
    return replace(measured, left=[*measured.left, *servers, *sandbox.left()])


def _start_mail_server(mailbox: Mailbox) -> MailServer:
    """Return a listening server. Raises RehearsalError."""
    try:
        server = MailServer(mailbox.store)
        server.start()
    except MailServerMissing as missing:
        raise RehearsalError(str(missing)) from None
    except OSError as failure:
        raise RehearsalError(f"The mail server could not listen on {LOOPBACK}: {failure}") from failure
    return server


def _start_database(sandbox: Sandbox, waiter: Waiter) -> str:
    """Return the URL of a migrated database. Raises EmbeddedError, or KeyboardInterrupt."""
    try:
        url = sandbox.start_database()
    except EmbeddedError as failure:
        # In a terminal Ctrl-C ends initdb too, which looks like a failure.
        waiter.check()
        own = f"(A rehearsal makes its folder in {sandbox.folder.parent}, whatever WAKEBOARD_DATA_DIR says.)"
        raise EmbeddedError(f"{failure} {own}") from failure
    waiter.check()
    migrations.migrate(url)
    return url


class StoppedWorker(NamedTuple):
    """A worker that was stopped with SIGTERM, and its exit code."""

    id: str
    exit_code: int | None


class KilledWorker(NamedTuple):
    """A worker that was killed: how many runs it had, and how many accepted mails without an answer."""

    id: str
    claims: int
    unanswered: int


@dataclass
class Scenario:
    """One rehearsal under way."""

    workers: Workers
    mailbox: Mailbox
    connection: psycopg.Connection
    waiter: Waiter
    say: Callable[[str], None]

    def measure(self) -> Measurements:
        """Carry out all steps; ``left`` has what still runs after them."""
        refused_runs = self.enqueue()
        stopped = self.stop_midway()
        killed = self.kill_midway()
        last = self.workers.start()
        cancelled_at, ids = self.cancel_long_runs()
        self.say("Waiting for the lost runs: they are taken over once their leases have ended.")
        is_over = self.waiter.wait(lambda: not self._count(_OPEN), END_SECONDS)
        self.say("Every run has ended." if is_over else "Some runs do not end.")
        last.terminate()
        last.exit_code(self.waiter)
        # Now, so that work after the cancel is noticed.
        cancelled = [
            CancelledRun(
                how, self._status(run_id), max(0.0, self._beat_file(how).stat().st_mtime - cancelled_at)
            )
            for how, run_id in ids.items()
        ]
        with self.connection.cursor(row_factory=class_row(ReceiptAttempt)) as cursor:
            attempts = cursor.execute(_ATTEMPTS).fetchall()
        return Measurements(
            states=dict(self.connection.execute(_STATES).fetchall()),
            attempts=attempts,
            refused_runs=refused_runs,
            stopped_worker=stopped.id,
            stopped_code=stopped.exit_code,
            killed_worker=killed.id,
            lost_claims=killed.claims,
            unanswered=killed.unanswered,
            message_ids=self.mailbox.message_ids(),
            cancelled=cancelled,
            cancel_seconds=CANCEL_SECONDS,
            left=self.left(),
        )

    def enqueue(self) -> frozenset[int]:
        """Enqueue the receipts in one transaction; return the ids of those whose mail is refused once."""
        runs = [
            NewRun(
                "send_receipt",
                {"receipt": number, "to": _address(number)},
                key=f"receipt:{number}",
                enqueued_by=ENQUEUED_BY,
            )
            for number in range(1, RECEIPTS + 1)
        ]
        with self.connection.transaction():
            ids = enqueue_many(self.connection, runs)
        refused = frozenset(ids[number - 1] for number in REFUSED)
        self.say(f"{len(ids)} receipts are enqueued; {len(refused)} of them will be refused at first.")
        return refused

    def stop_midway(self) -> StoppedWorker:
        """Stop a worker with SIGTERM while it sends mails, which it may finish."""
        worker, worker_id = self._work_until(STOP_AFTER)
        worker.terminate()
        self.waiter.require(
            "the worker says it is stopping", lambda: self._count(_IS_STOPPING, worker_id), STEP_SECONDS
        )
        self.mailbox.answer()
        code = worker.exit_code(self.waiter)
        self.say(f"SIGTERM after {STOP_AFTER} mails, {SLOTS} more under way: the worker ended with {code}.")
        return StoppedWorker(worker_id, code)

    def kill_midway(self) -> KilledWorker:
        """Kill a worker with SIGKILL when its mails are accepted and it does not know yet."""
        worker, worker_id = self._work_until(KILL_AFTER)
        unanswered = self.mailbox.held
        worker.kill()
        # Its children must end before the answers are sent.
        self.waiter.require(
            "a killed worker's children end", lambda: not self.workers.processes(), STEP_SECONDS
        )
        claims = self._count(_CLAIMS, worker_id)
        self.mailbox.answer()
        self.say(f"SIGKILL after {KILL_AFTER} mails, {unanswered} more accepted but not recorded.")
        return KilledWorker(worker_id, claims, unanswered)

    def _work_until(self, accepted: int) -> tuple[Worker, str]:
        """Start a worker; return it and its id when the mail of each slot is accepted and unanswered."""
        self.mailbox.hold_after(accepted)
        worker = self.workers.start()

        def waiting_worker() -> str | None:
            worker.require_alive()
            worker_id = self._text(_WORKER_ID, worker.process.pid)
            is_waiting = worker_id and self.mailbox.held == SLOTS == self._count(_CLAIMS, worker_id)
            return worker_id if is_waiting else None

        worker_id = self.waiter.require(
            f"{accepted} mails are accepted and {SLOTS} wait", waiting_worker, STEP_SECONDS
        )
        assert worker_id is not None
        return worker, worker_id

    def cancel_long_runs(self) -> tuple[float, dict[str, int]]:
        """Cancel a run that checks whether it should stop, and one that ignores it.

        Returns when that was (seconds since 1970, as files have it) and the ids of the runs by kind.
        """
        runs = [
            NewRun(job_type, {"file": str(self._beat_file(how))}, priority=0, enqueued_by=ENQUEUED_BY)
            for how, job_type in LONG_RUNS.items()
        ]
        ids = dict(zip(LONG_RUNS, enqueue_many(self.connection, runs), strict=True))
        self.waiter.require(
            "the long runs are at work",
            lambda: all(self._beat_file(how).exists() for how in ids),
            STEP_SECONDS,
        )
        cancelled_at = time.time()
        for run_id in ids.values():
            cancel(self.connection, run_id, terminal_actor(), "the rehearsal")
        self.waiter.wait(
            lambda: all(self._status(run_id) == "cancelled" for run_id in ids.values()), STEP_SECONDS
        )
        self.say("Two long runs were cancelled, one of which hears nothing.")
        return cancelled_at, ids

    def left(self) -> list[str]:
        """Return in words what still runs after every worker got SIGTERM."""
        runs = self._count(_OPEN)
        self.waiter.wait(lambda: not self.workers.processes(), LINGER_SECONDS)
        processes = len(self.workers.processes())
        return [f"{count} {what}" for count, what in ((runs, "runs"), (processes, "processes")) if count]

    def _beat_file(self, how: str) -> Path:
        """Return the file that a long run touches while it works."""
        return self.workers.folder / how

    def _status(self, run_id: int) -> str:
        return self._text(_STATUS, run_id) or "missing"

    def _count(self, statement: str, *values: object) -> int:
        with self.connection.cursor(row_factory=scalar_row) as cursor:
            return int(cursor.execute(statement.encode(), values).fetchone() or 0)

    def _text(self, statement: str, *values: object) -> str | None:
        with self.connection.cursor(row_factory=scalar_row) as cursor:
            value: str | None = cursor.execute(statement.encode(), values).fetchone()
        return value


def _address(number: int) -> str:
    return f"customer{number}@example.com"
