"""The shop's invented history: a week of runs with retries, failures and two outages, and one stuck run.

``history.sql`` generates the rows. Its runs have ``enqueued_by = 'demo history'``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.errors.error_groups import LOST, LOST_TEMPLATE, group_of
from wakeboard.database.audit import ENGINE
from wakeboard.demo import catalogue, clients, orders
from wakeboard.demo.shop import PRODUCTS
from wakeboard.handlers.registry import type_of
from wakeboard.queue.definitions import Definition, add

SCHEDULED = ("checkout", "import_catalogue", "nightly_cleanup", "weekly_reports")


class FailurePattern(NamedTuple):
    """How runs of a type fail: a ``share`` of its attempts; or each of them in the ``outage`` of a service.

    ``{order}`` in the message stands for the order of the run. Real failures of the same kind belong to the
    same error group.
    """

    job_type: str
    share: float
    code: str
    message: str
    outcome: str = "failed"
    is_permanent: bool = False
    exception: str = "wakeboard.core.outcome.Retryable"
    raised_in: Callable[..., object] | None = None
    outage: str = ""

    @property
    def traceback(self) -> str | None:
        """The traceback as Python writes it, None without an exception."""
        if self.raised_in is None:
            return None
        code = self.raised_in.__code__
        frame = f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}'
        return f"Traceback (most recent call last):\n{frame}\n{self.exception}: {self.message}"


_STOCK_DOWN = 'The provider answered 503: {"error": "The stock service is down for a while."}'
FAILURES = (
    FailurePattern(
        "check_address", 0.06, "timed_out", "ran longer than its timeout of 20 s and was stopped",
        outcome="timed_out",
    ),
    FailurePattern(
        "charge_card", 0.04, "card_declined", "The bank refused to pay order {order} (402 card_declined).",
        is_permanent=True, exception="wakeboard.core.outcome.Permanent", raised_in=orders.charge_card,
    ),
    FailurePattern(
        "send_invoice", 0.08, "smtp_451", "The mail server said 451 The mailbox is busy, try again later",
        raised_in=clients.deliver,
    ),
    FailurePattern(
        "send_invoice", 1, "smtp_unreachable",
        "The mail server cannot be reached: [Errno 111] Connection refused",
        raised_in=clients.deliver, outage="mail",
    ),
    FailurePattern("sync_stock", 0.02, "http_503", _STOCK_DOWN, raised_in=clients.call_provider),
    FailurePattern("sync_stock", 1, "http_503", _STOCK_DOWN, raised_in=clients.call_provider, outage="stock"),
    FailurePattern(
        "render_newsletter", 0.15, "KeyError", "'name'", exception="KeyError", raised_in=catalogue.fill
    ),
    FailurePattern("import_catalogue", 0.004, LOST, LOST_TEMPLATE, outcome="lost"),
)  # fmt: skip

_IS_NEW = """
SELECT now(), NOT EXISTS (SELECT 1 FROM wakeboard.job_runs)
    AND NOT EXISTS (SELECT 1 FROM wakeboard.job_attempts)
"""
# The tables that history.sql reads.
_SOURCES = """
CREATE TEMP TABLE prices (sku text, cents int) ON COMMIT DROP;
CREATE TEMP TABLE failures (job_type text, share float8, code text, message text, outcome text,
    is_permanent boolean, traceback text, error_group bigint, fingerprint text, template text, frame text,
    outage_from timestamptz, outage_until timestamptz) ON COMMIT DROP;
"""
_PRICES = "INSERT INTO prices SELECT * FROM jsonb_populate_recordset(NULL::prices, %s)"
_FAILURES = "INSERT INTO failures SELECT * FROM jsonb_populate_recordset(NULL::failures, %s)"
_COUNT = "SELECT count(*) FROM planned_runs"
_GONE_WORKER = """
INSERT INTO wakeboard.workers (id, name, hostname, pid, job_types, concurrency, running, lease_seconds,
    started_at, seen_at, version)
VALUES ('demo-gone-worker', 'shop-2', 'shop-2', 4243, '{export_report}', 2, 1, 420,
    now() - interval '1 day', now() - interval '4 minutes', '0.1.0')
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, started_at = excluded.started_at,
    running = excluded.running, lease_seconds = excluded.lease_seconds
"""
_STUCK_RUN = """
INSERT INTO wakeboard.job_runs (job_type, payload, status, run_at, attempts, lease_epoch, locked_by,
    locked_until, started_at, enqueued_by, created_at)
SELECT 'export_report', jsonb_build_object('customer', 1, 'since', current_date - 7, 'until', current_date),
    'running', now() - interval '5 minutes', 1, 1, 'demo-gone-worker', now() + interval '3 minutes',
    now() - interval '5 minutes', 'demo history', now() - interval '5 minutes'
WHERE NOT EXISTS (
    SELECT 1 FROM wakeboard.job_runs WHERE status = 'running' AND locked_by = 'demo-gone-worker'
)
"""


def write_history(connection: Connection) -> int:
    """Write the history, on an autocommit connection, into a shop with its tables; return how many runs.

    A database with any run is left as it is: the demo never mixes with the history of others.
    """
    with connection.transaction():
        connection.execute("LOCK TABLE wakeboard.job_runs IN SHARE ROW EXCLUSIVE MODE")
        now, is_new = connection.execute(_IS_NEW).fetchone() or (None, False)
        if now is None or not is_new:
            return 0
        _define_schedules(connection)
        connection.execute(_SOURCES)
        prices = [{"sku": sku, "cents": cents} for sku, (_, cents) in PRODUCTS.items()]
        connection.execute(_PRICES, (_json(prices),))
        connection.execute(_FAILURES, (_json([_failure_row(failure, now) for failure in FAILURES]),))
        connection.execute(Path(__file__).with_suffix(".sql").read_bytes())
        (count,) = connection.execute(_COUNT).fetchone() or (0,)
    return int(count)


def write_stuck_run(connection: Connection) -> None:
    """Write a run of a silent worker: its lease ends in three minutes, unless an operator acts first."""
    with connection.transaction():
        connection.execute(_GONE_WORKER)
        connection.execute(_STUCK_RUN)


def _define_schedules(connection: Connection) -> None:
    """Make the missing schedules, as a worker that registers the types would."""
    existing = {name for (name,) in connection.execute("SELECT name FROM wakeboard.job_definitions")}
    for name in SCHEDULED:
        if name not in existing:
            add(connection, Definition(name, name, type_of(name).schedule), ENGINE, "registered in code")


def _failure_row(failure: FailurePattern, now: datetime) -> dict[str, object]:
    """Return the row of the table ``failures``; fields that are no columns are ignored."""
    message = failure.message.replace("{order}", "1")
    group = group_of(failure.job_type, failure.code, message, failure.traceback)
    since, until = _outage(failure.outage, now) if failure.outage else (None, None)
    return failure._asdict() | {
        "traceback": failure.traceback,
        "error_group": group.id,
        "fingerprint": group.fingerprint,
        "template": group.template,
        "frame": group.frame,
        "outage_from": since,
        "outage_until": until,
    }


def _outage(service: str, now: datetime) -> tuple[datetime, datetime]:
    """Return when a service was down: the stock two days ago at noon, the mail last night."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if service == "stock":
        noon = midnight - timedelta(hours=36)
        return noon, noon + timedelta(minutes=100)
    night = midnight + timedelta(hours=2, minutes=10)
    if night > now - timedelta(hours=1):
        night -= timedelta(days=1)
    return night, night + timedelta(minutes=35)


def _json(rows: Sequence[Mapping[str, object]]) -> str:
    return json.dumps(rows, default=str)
