"""The steps of the rehearsal, in their order. Each moment is chosen by a condition, never by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from wakeboard.core.states import ENDED, sql_list
from wakeboard.database import db, migrations
from wakeboard.database.audit import terminal_actor
from wakeboard.database.embedded import EmbeddedError
from wakeboard.demo.mail_server import LOOPBACK, MailServer, MailServerMissing
from wakeboard.demo.rehearsal import receipts
from wakeboard.demo.rehearsal.findings import (
    CancelledRun,
    Evidence,
    ReceiptAttempt,
    RehearsalReport,
    findings,
)
from wakeboard.demo.rehearsal.mailbox import Mailbox
from wakeboard.demo.rehearsal.sandbox import Sandbox, clear_abandoned, new_sandbox
from wakeboard.demo.rehearsal.waiting import RehearsalError, Waiter
from wakeboard.demo.rehearsal.workers import KILL_SECONDS, SLOTS, Worker, Workers
from wakeboard.queue import NewRun, cancel, enqueue_many

RECEIPTS = 100
REFUSED_EVERY = 5
# How many mails have been accepted when the worker is stopped, and when the next one is killed.
STOP_AFTER, KILL_AFTER = 30, 60
LONG_RUNS = {"patient": "count_patiently", "deaf": "count_deafly"}
STEP_SECONDS, END_SECONDS, LINGER_SECONDS = 30.0, 60.0, 5.0
# Two waits of a cancel, TERM and KILL, and what a busy machine may add.
CANCEL_SECONDS = 2 * KILL_SECONDS + 3

US = "rehearsal"
_WORKER = "SELECT id FROM wakeboard.workers WHERE pid = %s"
_IS_STOPPING = "SELECT 1 FROM wakeboard.workers WHERE id = %s AND stopping_at IS NOT NULL"
_CLAIMS = "SELECT count(*) FROM wakeboard.job_runs WHERE locked_by = %s AND status = 'running'"
_OPEN = f"""
SELECT count(*) FROM wakeboard.job_runs
WHERE enqueued_by = '{US}' AND status NOT IN ({sql_list(ENDED)})
"""
_STATES = "SELECT status, count(*) FROM wakeboard.job_runs WHERE job_type = 'send_receipt' GROUP BY status"
_STATUS = "SELECT status FROM wakeboard.job_runs WHERE id = %s"
_ATTEMPTS = """
SELECT run_id, outcome, error_code, worker_id, coalesce((result ->> 'found')::boolean, false)
FROM wakeboard.job_attempts WHERE job_type = 'send_receipt'
"""


def rehearse(tell: Callable[[str], None], *, with_effects: bool = True) -> RehearsalReport:
    """Carry the rehearsal out and return its table; ``tell`` gets a sentence per step.

    Without effects the ledger is not used, so that the table must have a line that is not so. Raises
    RehearsalError, EmbeddedError or KeyboardInterrupt; whatever happens, nothing is left.
    """
    began = time.monotonic()

    def say(sentence: str) -> None:
        tell(f"{time.monotonic() - began:5.1f} s  {sentence}")

    waiting = Waiter()
    with waiting.interruptible():
        taken, left = _carry_out(say, with_effects, waiting)
    evidence = Evidence(**taken, left=left)
    return RehearsalReport(
        findings(evidence, with_effects=with_effects), time.monotonic() - began, with_effects
    )


def _carry_out(
    say: Callable[[str], None], with_effects: bool, waiting: Waiter
) -> tuple[dict[str, Any], list[str]]:
    """Return what was measured, and what was left after everything had been put away."""
    with ExitStack() as stack:
        clear_abandoned(say)
        sandbox = stack.enter_context(new_sandbox())
        mailbox = Mailbox(sandbox.inbox, {_address(number) for number in _refused()})
        server = _mail_server(mailbox)
        stack.callback(server.stop)
        # Held answers are given first: a thread that waits outlives the server.
        stack.callback(mailbox.answer)
        say(f"A mail server of its own listens on port {server.port}.")
        url = _database(sandbox, waiting)
        say("A database of its own is ready, on an embedded server in a temporary folder.")
        surroundings = _surroundings(sandbox, server, with_effects)
        connection = stack.enter_context(db.connect(url, name="wakeboard rehearsal"))
        scenario = Scenario(Workers.of(sandbox.folder, url, surroundings), mailbox, connection, waiting, say)
        try:
            taken, left = scenario.measured()
        except RehearsalError as stuck:
            raise RehearsalError(f"{stuck} What it printed last:\n{scenario.workers.last_words()}") from None
    return taken, left + (["the mail server"] if server.is_listening() else []) + sandbox.left()


def _mail_server(mailbox: Mailbox) -> MailServer:
    """Return a listening server. Raises RehearsalError."""
    try:
        server = MailServer(mailbox.keep)
        server.start()
    except MailServerMissing as missing:
        raise RehearsalError(str(missing)) from None
    except OSError as failed:
        raise RehearsalError(f"The mail server could not listen on {LOOPBACK}: {failed}") from failed
    return server


def _database(sandbox: Sandbox, waiting: Waiter) -> str:
    """Return the URL of a migrated database. Raises EmbeddedError, or KeyboardInterrupt."""
    try:
        url = sandbox.start_database()
    except EmbeddedError as failed:
        # In a terminal Ctrl-C ends initdb too, which looks like a failure.
        waiting.check()
        own = f"(A rehearsal makes its folder in {sandbox.folder.parent}, whatever WAKEBOARD_DATA_DIR says.)"
        raise EmbeddedError(f"{failed} {own}") from failed
    waiting.check()
    migrations.migrate(url)
    return url


def _surroundings(sandbox: Sandbox, server: MailServer, with_effects: bool) -> dict[str, str]:
    return {
        receipts.PORT: str(server.port),
        receipts.INBOX: str(sandbox.inbox),
        receipts.EFFECTS: "on" if with_effects else "off",
    }


@dataclass
class Scenario:
    """One rehearsal under way."""

    workers: Workers
    mailbox: Mailbox
    connection: psycopg.Connection[Any]
    waiting: Waiter
    say: Callable[[str], None]

    def measured(self) -> tuple[dict[str, Any], list[str]]:
        """Go through all steps; return the fields of Evidence, and what was left running after them."""
        taken: dict[str, Any] = {"refused_runs": self.enqueue()}
        taken |= self.stop_midway()
        taken |= self.kill_midway()
        last = self.workers.start()
        asked_at, ids = self.cancel_work()
        self.say("Waiting for the lost runs: they are taken over once their leases have ended.")
        self.waiting.sees(lambda: not self._number(_OPEN), END_SECONDS)
        self.say("Every run has ended." if not self._number(_OPEN) else "Some runs do not end.")
        last.terminate()
        last.exit_code(self.waiting)
        taken |= {"cancelled": self.stopped(asked_at, ids), "cancel_seconds": CANCEL_SECONDS}
        return taken | self.records(), self.left()

    def enqueue(self) -> frozenset[int]:
        """Enqueue the receipts in one transaction; return the ids of those that are refused at first."""
        runs = [
            NewRun(
                "send_receipt",
                {"receipt": number, "to": _address(number)},
                key=f"receipt:{number}",
                enqueued_by=US,
            )
            for number in range(1, RECEIPTS + 1)
        ]
        with self.connection.transaction():
            ids = enqueue_many(self.connection, runs)
        refused = frozenset(ids[number - 1] for number in _refused())
        self.say(f"{len(ids)} receipts are enqueued; {len(refused)} of them will be refused at first.")
        return refused

    def stop_midway(self) -> dict[str, Any]:
        """Stop a worker with SIGTERM while its mails are on the wire; they may end."""
        worker, name = self._work_until(STOP_AFTER)
        worker.terminate()
        self.waiting.until(
            "the worker says it is stopping", lambda: self._row(_IS_STOPPING, name), STEP_SECONDS
        )
        self.mailbox.answer()
        code = worker.exit_code(self.waiting)
        self.say(f"SIGTERM after {STOP_AFTER} mails, {SLOTS} more under way: the worker ended with {code}.")
        return {"stopped_worker": name, "stopped_code": code}

    def kill_midway(self) -> dict[str, Any]:
        """Kill a worker with SIGKILL when its mails have been accepted and it does not know it."""
        worker, name = self._work_until(KILL_AFTER)
        unanswered = self.mailbox.held
        worker.kill()
        # Its children must not live to hear that their mails were accepted.
        self.waiting.until(
            "a killed worker's children end", lambda: not self.workers.processes(), STEP_SECONDS
        )
        claims = self._number(_CLAIMS, name)
        self.mailbox.answer()
        self.say(f"SIGKILL after {KILL_AFTER} mails, {unanswered} more accepted but not recorded.")
        return {"killed_worker": name, "lost_claims": claims, "unanswered": unanswered}

    def _work_until(self, accepted: int) -> tuple[Worker, str]:
        """Start a worker and return it, with its id, when each slot's mail is accepted and unanswered."""
        self.mailbox.hold_after(accepted)
        worker = self.workers.start()

        def is_under_way() -> str:
            worker.require_alive()
            row = self._row(_WORKER, worker.process.pid)
            is_so = row and self.mailbox.held == SLOTS == self._number(_CLAIMS, row[0])
            return str(row[0]) if row and is_so else ""

        name = self.waiting.until(
            f"{accepted} mails are accepted and {SLOTS} wait", is_under_way, STEP_SECONDS
        )
        return worker, name

    def cancel_work(self) -> tuple[float, dict[str, int]]:
        """Cancel a run that looks whether it should stop, and one that hears nothing.

        Return when that was (seconds since 1970, as files have it) and the ids of the runs by kind.
        """
        runs = [
            NewRun(job_type, {"file": str(self._sign(how))}, priority=0, enqueued_by=US)
            for how, job_type in LONG_RUNS.items()
        ]
        ids = dict(zip(LONG_RUNS, enqueue_many(self.connection, runs), strict=True))
        self.waiting.until(
            "the long runs are at work", lambda: all(self._sign(how).exists() for how in ids), STEP_SECONDS
        )
        asked_at = time.time()
        for run_id in ids.values():
            cancel(self.connection, run_id, terminal_actor(), "the rehearsal")
        self.waiting.sees(
            lambda: all(self._status(run_id) == "cancelled" for run_id in ids.values()), STEP_SECONDS
        )
        self.say("Two long runs were cancelled, one of which hears nothing.")
        return asked_at, ids

    def stopped(self, asked_at: float, ids: dict[str, int]) -> list[CancelledRun]:
        """Return how the cancelled runs ended: asked last, so that whatever went on working is seen."""
        return [
            CancelledRun(how, self._status(run_id), max(0.0, self._sign(how).stat().st_mtime - asked_at))
            for how, run_id in ids.items()
        ]

    def _sign(self, how: str) -> Path:
        """Return the file that the long run touches while it works."""
        return self.workers.folder / how

    def records(self) -> dict[str, Any]:
        """Return what the tables and the mailbox say of the receipts."""
        return {
            "states": dict(self.connection.execute(_STATES).fetchall()),
            "attempts": [ReceiptAttempt(*row) for row in self.connection.execute(_ATTEMPTS)],
            "message_ids": self.mailbox.message_ids(),
        }

    def left(self) -> list[str]:
        """Return what still runs when every worker has been told to end, in words."""
        runs = self._number(_OPEN)
        self.waiting.sees(lambda: not self.workers.processes(), LINGER_SECONDS)
        processes = len(self.workers.processes())
        return [f"{count} {what}" for count, what in ((runs, "runs"), (processes, "processes")) if count]

    def _status(self, run_id: int) -> str:
        row = self._row(_STATUS, run_id)
        return str(row[0]) if row else "missing"

    def _number(self, statement: str, *values: object) -> int:
        row = self._row(statement, *values)
        assert row is not None
        return int(row[0])

    def _row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        return self.connection.execute(statement.encode(), values).fetchone()


def _refused() -> range:
    return range(REFUSED_EVERY, RECEIPTS + 1, REFUSED_EVERY)


def _address(number: int) -> str:
    return f"customer{number}@example.com"
