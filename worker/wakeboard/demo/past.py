"""The shop's invented past: a week of runs with retries, failures and two outages, and one run that is stuck.

``past.sql`` generates the rows. Everything written here says so: ``enqueued_by = 'demo history'``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from psycopg import Connection

from wakeboard.core.errors.error_groups import LOST, LOST_TEMPLATE, group_of
from wakeboard.database.audit import ENGINE
from wakeboard.demo import catalogue, clients, orders
from wakeboard.demo.shop import PRODUCTS
from wakeboard.handlers.registry import type_of
from wakeboard.queue.definitions import Definition, add

SCHEDULED = ("checkout", "import_catalogue", "nightly_cleanup", "weekly_reports")


class FailurePattern(NamedTuple):
    """How runs of a type fail: a share of its tries, or, in an outage of a service, each of them.

    ``{order}`` in the message is the run's order. What really fails so belongs to the same error group.
    """

    job_type: str
    share: float
    code: str
    message: str
    outcome: str = "failed"
    is_permanent: bool = False
    exception: str = "wakeboard.core.outcome.Retryable"
    raised_in: Callable[..., Any] | None = None
    outage: str = ""

    @property
    def traceback(self) -> str | None:
        """What the exception left behind, as Python writes it."""
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
        raised_in=clients.send,
    ),
    FailurePattern(
        "send_invoice", 1, "smtp_unreachable",
        "The mail server cannot be reached: [Errno 111] Connection refused",
        raised_in=clients.send, outage="mail",
    ),
    FailurePattern("sync_stock", 0.02, "http_503", _STOCK_DOWN, raised_in=clients.ask),
    FailurePattern("sync_stock", 1, "http_503", _STOCK_DOWN, raised_in=clients.ask, outage="stock"),
    FailurePattern(
        "render_newsletter", 0.15, "KeyError", "'name'", exception="KeyError", raised_in=catalogue.fill
    ),
    FailurePattern("import_catalogue", 0.004, LOST, LOST_TEMPLATE, outcome="lost"),
)  # fmt: skip

_IS_NEW = """
SELECT now(), NOT EXISTS (SELECT 1 FROM wakeboard.job_runs)
    AND NOT EXISTS (SELECT 1 FROM wakeboard.job_attempts)
"""
# What past.sql reads.
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


def write(connection: Connection[Any]) -> int:
    """Write the past, on an autocommit connection, into a shop whose tables are there; return how many runs.

    A database with any run of its own is left as it is: the demo never mixes into somebody's real history.
    """
    with connection.transaction():
        connection.execute("LOCK TABLE wakeboard.job_runs IN SHARE ROW EXCLUSIVE MODE")
        now, is_new = connection.execute(_IS_NEW).fetchone() or (None, False)
        if now is None or not is_new:
            return 0
        _define(connection)
        connection.execute(_SOURCES)
        prices = [{"sku": sku, "cents": cents} for sku, (_, cents) in PRODUCTS.items()]
        connection.execute(_PRICES, (_json(prices),))
        connection.execute(_FAILURES, (_json([_row(failure, now) for failure in FAILURES]),))
        connection.execute(Path(__file__).with_suffix(".sql").read_bytes())
        (count,) = connection.execute(_COUNT).fetchone() or (0,)
    return int(count)


def leave_stuck(connection: Connection[Any]) -> None:
    """Leave a run to a worker that is silent: its lease ends in three minutes, unless somebody acts first."""
    with connection.transaction():
        connection.execute(_GONE_WORKER)
        connection.execute(_STUCK_RUN)


def _define(connection: Connection[Any]) -> None:
    """Make the schedules as a worker would that registers the types; one that is there stays as it is."""
    known = {name for (name,) in connection.execute("SELECT name FROM wakeboard.job_definitions")}
    for name in SCHEDULED:
        if name not in known:
            add(connection, Definition(name, name, type_of(name).schedule), ENGINE, "registered in code")


def _row(failure: FailurePattern, now: datetime) -> dict[str, Any]:
    group = group_of(
        failure.job_type, failure.code, failure.message.replace("{order}", "1"), failure.traceback
    )
    begin, end = _outage(failure.outage, now) if failure.outage else (None, None)
    return {
        "job_type": failure.job_type,
        "share": failure.share,
        "code": failure.code,
        "message": failure.message,
        "outcome": failure.outcome,
        "is_permanent": failure.is_permanent,
        "traceback": failure.traceback,
        "error_group": group.id,
        "fingerprint": group.fingerprint,
        "template": group.template,
        "frame": group.frame,
        "outage_from": begin,
        "outage_until": end,
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
