"""A believable past for the first start: seven days of runs with their attempts and statistics, and one run
whose worker has gone. Everything written here says so: ``enqueued_by = 'demo history'``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from worker.fingerprint import ErrorGroup, group_of

DAYS = 7
BY = "demo history"
WORKER = "demo-past-worker"
GONE = "demo-gone-worker"
_DELAYS = (5.0, 15.0, 45.0, 120.0)
_SMTP_BUSY = "The mail server said 451 The mailbox is busy, try again later"
_SMTP_DOWN = "The mail server cannot be reached: [Errno 111] Connection refused"
_STOCK_DOWN = 'The provider answered 503: {"error": "The stock service is down for a while."}'
_TRACEBACK = """Traceback (most recent call last):
  File "worker/jobs/demo/catalogue.py", line 83, in render_newsletter
    return {"characters": len(_render("Hello {name}, new boards are in.", context.payload["customer"]))}
  File "worker/jobs/demo/catalogue.py", line 87, in _render
    return template.format_map(fields)
KeyError: 'name'"""

_IS_NEW = """
SELECT NOT EXISTS (SELECT 1 FROM wakeboard.job_runs) AND NOT EXISTS (SELECT 1 FROM wakeboard.job_attempts)
"""
_WORKER = """
INSERT INTO wakeboard.workers (id, name, hostname, pid, concurrency, started_at, seen_at, stopped_at, version)
VALUES (%s, 'shop-1', 'shop-1', 4242, 4, %s, %s, %s, '0.1.0') ON CONFLICT DO NOTHING
"""
_IDS = """
SELECT nextval(pg_get_serial_sequence('wakeboard.job_runs', 'id')) FROM generate_series(1, %s) ORDER BY 1
"""
_RUNS = """
COPY wakeboard.job_runs (id, job_type, payload, status, run_at, attempts, failures, lease_epoch, started_at,
    finished_at, failed_at, error_code, last_error, error_group, enqueued_by, created_at, updated_at)
FROM STDIN
"""
_ATTEMPTS = """
COPY wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome, error_code, error, error_group, traceback, max_attempts, timeout_seconds,
    next_run_at) FROM STDIN
"""
_GROUPS = """
INSERT INTO wakeboard.error_groups (id, fingerprint, error_code, job_type, template, frame, first_run_id,
    first_seen_at, last_seen_at)
SELECT %(id)s, %(fingerprint)s, max(error_code), max(job_type), %(template)s, %(frame)s, min(run_id),
    min(finished_at), max(finished_at)
FROM wakeboard.job_attempts WHERE error_group = %(id)s
"""
# The buckets of worker.statistics: half powers of two of milliseconds.
_ROLL_UPS = """
INSERT INTO wakeboard.statistics_rollups (minute, job_type, outcome, duration_bucket, wait_bucket, runs,
    duration_ms, duration_max_ms, wait_ms, wait_max_ms)
SELECT minute, job_type, outcome, least(63, greatest(0, ceil(2 * ln(greatest(0.001, took)) / ln(2.0) + 20))),
    least(63, greatest(0, ceil(2 * ln(greatest(0.001, wait)) / ln(2.0) + 20))),
    count(*), sum(took), max(took), sum(wait), max(wait)
FROM (
    SELECT date_trunc('minute', finished_at) AS minute, job_type, outcome,
        extract(epoch FROM finished_at - started_at)::float8 * 1000 AS took,
        greatest(0, extract(epoch FROM started_at - due_at)::float8 * 1000) AS wait
    FROM wakeboard.job_attempts WHERE worker_id = %s
) AS timed
GROUP BY 1, 2, 3, 4, 5
"""
_GONE_WORKER = """
INSERT INTO wakeboard.workers (id, name, hostname, pid, job_types, concurrency, started_at, seen_at, version)
VALUES (%s, 'shop-2', 'shop-2', 4243, '{export_report}', 2, now() - interval '1 day',
    now() - interval '4 minutes', '0.1.0')
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, started_at = excluded.started_at
"""
_STUCK = """
INSERT INTO wakeboard.job_runs (job_type, payload, status, run_at, attempts, lease_epoch, locked_by,
    locked_until, started_at, enqueued_by, created_at)
SELECT 'export_report', jsonb_build_object('customer', 1, 'since', current_date - 7, 'until', current_date),
    'running', now() - interval '5 minutes', 1, 1, %(gone)s, now() + interval '3 minutes',
    now() - interval '5 minutes', %(by)s, now() - interval '5 minutes'
WHERE NOT EXISTS (SELECT 1 FROM wakeboard.job_runs WHERE status = 'running' AND locked_by = %(gone)s)
"""


@dataclass(frozen=True, slots=True)
class Habit:
    """How a type used to behave: runs per hour, seconds a run takes, its policy, and what goes wrong.

    ``wrong`` is (share of runs, outcome, error code, message, permanent).
    """

    per_hour: float
    seconds: float
    max_attempts: int
    timeout_seconds: float
    wrong: tuple[tuple[float, str, str, str, bool], ...] = ()


HABITS: dict[str, Habit] = {
    "checkout": Habit(4, 0.05, 3, 30),
    "check_address": Habit(
        3, 0.02, 3, 20, ((0.06, "timed_out", "timed_out", "The run passed its deadline.", False),)
    ),
    "charge_card": Habit(
        4, 0.09, 8, 30,
        ((0.04, "failed", "card_declined", "The bank refused to pay (402 card_declined).", True),),
    ),
    "send_invoice": Habit(
        4, 0.2, 10, 60,
        ((0.08, "failed", "smtp_451", _SMTP_BUSY, False),),
    ),
    "tell_team": Habit(4, 0.04, 5, 30),
    "sync_stock": Habit(4, 0.03, 8, 30, ((0.02, "failed", "http_503", _STOCK_DOWN, False),)),
    "resize_photo": Habit(6, 0.01, 5, 20),
    "render_newsletter": Habit(0.4, 0.01, 2, 20, ((0.15, "failed", "KeyError", "'name'", False),)),
    "import_catalogue": Habit(
        0.3, 62, 3, 300, ((0.03, "lost", "lease_lost", "The worker was gone; its lease ended.", False),)
    ),
}  # fmt: skip
NIGHTLY = ("nightly_cleanup", Habit(0, 0.6, 5, 120))


def write(connection: Connection[Any]) -> int:
    """Write the past, on an autocommit connection, unless this database has one; return how many runs.

    A database with any run of its own is left as it is: the demo never mixes into somebody's real history.
    """
    with connection.transaction():
        connection.execute("LOCK TABLE wakeboard.job_runs IN SHARE ROW EXCLUSIVE MODE")
        is_new, now = connection.execute(f"SELECT ({_IS_NEW}), now()".encode()).fetchone() or (False, None)
        if not is_new or now is None:
            return 0
        lives = sorted(_lives(random.Random(7), now), key=lambda life: life.created_at)
        connection.execute(_WORKER, (WORKER, now - timedelta(days=DAYS), now, now))
        ids = [id_ for (id_,) in connection.execute(_IDS, (len(lives),))]
        with connection.cursor() as cursor:
            with cursor.copy(_RUNS) as copy:
                for id_, life in zip(ids, lives, strict=True):
                    copy.write_row(life.run(id_))
            with cursor.copy(_ATTEMPTS) as copy:
                for id_, life in zip(ids, lives, strict=True):
                    for attempt in life.attempts(id_):
                        copy.write_row(attempt)
        for group in {one.group(life.job_type) for life in lives for one in life.tries} - {None}:
            values = {name: getattr(group, name) for name in ("id", "fingerprint", "template", "frame")}
            connection.execute(_GROUPS, values)
        connection.execute(_ROLL_UPS, (WORKER,))
    return len(lives)


def leave_stuck(connection: Connection[Any]) -> None:
    """Leave a run to a worker that is silent: its lease ends in three minutes, unless somebody acts first."""
    with connection.transaction():
        connection.execute(_GONE_WORKER, (GONE,))
        connection.execute(_STUCK, {"gone": GONE, "by": BY})


@dataclass(frozen=True, slots=True)
class _Try:
    due_at: datetime
    started_at: datetime
    finished_at: datetime
    outcome: str
    code: str | None = None
    message: str | None = None

    @property
    def traceback(self) -> str | None:
        """What the handler's exception left behind."""
        return _TRACEBACK if self.code == "KeyError" else None

    def group(self, job_type: str) -> ErrorGroup | None:
        """Return the group of the failure, None when it was none."""
        if self.code is None or self.outcome == "cancelled":
            return None
        return group_of(job_type, self.code, self.message, self.traceback)


@dataclass(frozen=True, slots=True)
class _Life:
    """One run from its creation to its end, as its attempts tell it."""

    job_type: str
    habit: Habit
    payload: dict[str, Any]
    status: str
    tries: tuple[_Try, ...]

    @property
    def created_at(self) -> datetime:
        return self.tries[0].due_at

    def run(self, id_: int) -> tuple[Any, ...]:
        """Return the row of ``job_runs``."""
        last, failed = (
            self.tries[-1],
            [one for one in self.tries if one.outcome in ("failed", "timed_out", "lost")],
        )
        error = failed[-1] if failed else None
        group = error and error.group(self.job_type)
        epoch = len(self.tries) + sum(one.outcome == "lost" for one in self.tries)
        return (
            id_, self.job_type, json.dumps(self.payload), self.status, last.due_at, len(self.tries),
            len(failed), epoch, last.started_at, last.finished_at, error and error.finished_at,
            error and error.code, error and error.message, group and group.id, BY, self.created_at,
            last.finished_at,
        )  # fmt: skip

    def attempts(self, id_: int) -> Iterator[tuple[Any, ...]]:
        """Give the rows of ``job_attempts``; a lost attempt's reaping took an epoch of its own."""
        epoch = 0
        for number, one in enumerate(self.tries, 1):
            epoch += 1
            group = one.group(self.job_type)
            following = self.tries[number].due_at if number < len(self.tries) else None
            yield (
                id_, number, epoch, self.job_type, WORKER, one.due_at, one.started_at, one.finished_at,
                one.outcome, one.code, one.message, group and group.id, one.traceback,
                self.habit.max_attempts, self.habit.timeout_seconds, following,
            )  # fmt: skip
            epoch += one.outcome == "lost"


def _lives(chance: random.Random, now: datetime) -> Iterator[_Life]:
    """Give the runs of the past days: the usual ones, two outages, the nightly clean-ups."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    # The stock service was down two days ago at noon; last night the mail server was.
    outages = {
        "sync_stock": (midnight - timedelta(hours=36), timedelta(minutes=100), "http_503", _STOCK_DOWN),
        "send_invoice": (_last_night(now), timedelta(minutes=35), "smtp_unreachable", _SMTP_DOWN),
    }
    for hour in range(DAYS * 24, 0, -1):
        start = now - timedelta(hours=hour)
        busy = 1.6 if 8 <= start.hour < 20 else 0.5
        for job_type, habit in HABITS.items():
            for _ in range(int(habit.per_hour * busy + chance.random())):
                due = start + timedelta(seconds=chance.uniform(0, 3_500))
                yield _life(chance, job_type, habit, due, now, outages.get(job_type))
    for day in range(DAYS):
        due = midnight - timedelta(days=day) + timedelta(hours=3)
        if due < now - timedelta(minutes=5):
            yield _life(chance, *NIGHTLY, due, now, None)


def _last_night(now: datetime) -> datetime:
    """Return the last 02:10 that is at least an hour past."""
    night = now.replace(hour=2, minute=10, second=0, microsecond=0)
    return night if night < now - timedelta(hours=1) else night - timedelta(days=1)


def _life(
    chance: random.Random,
    job_type: str,
    habit: Habit,
    due: datetime,
    now: datetime,
    outage: tuple[datetime, timedelta, str, str] | None,
) -> _Life:
    tries: list[_Try] = []
    status = "cancelled" if chance.random() < 0.002 else ""
    while not status:
        failure = _failure(chance, habit, due, outage)
        tries.append(_attempt(chance, habit, due, failure))
        failures = sum(one.outcome != "succeeded" for one in tries)
        if failure is None:
            status = "succeeded"
        elif failure[3] or failures >= habit.max_attempts:
            status = "dead"
        due = tries[-1].finished_at + timedelta(
            seconds=_DELAYS[min(failures, 4) - 1] * chance.uniform(0.8, 1.2)
        )
        if due > now - timedelta(minutes=2) and not status:
            status = "cancelled"
    if not tries:
        tries.append(
            _attempt(chance, habit, due, ("cancelled", "cancelled", "The run was asked to stop.", True))
        )
    return _Life(job_type, habit, _payload(chance, job_type), status, tuple(tries))


def _failure(
    chance: random.Random, habit: Habit, due: datetime, outage: tuple[datetime, timedelta, str, str] | None
) -> tuple[str, str, str, bool] | None:
    """Return (outcome, code, message, permanent) of what went wrong at ``due``, None when nothing did."""
    if outage is not None and outage[0] <= due < outage[0] + outage[1]:
        return "failed", outage[2], outage[3], False
    for share, outcome, code, message, is_permanent in habit.wrong:
        if chance.random() < share:
            return outcome, code, message, is_permanent
    return None


def _attempt(
    chance: random.Random, habit: Habit, due: datetime, failure: tuple[str, str, str, bool] | None
) -> _Try:
    started = due + timedelta(seconds=chance.expovariate(1 / 0.08) + 0.002)
    took = habit.seconds * chance.lognormvariate(0, 0.4)
    outcome, code, message, _ = failure or ("succeeded", None, None, False)
    if outcome == "timed_out":
        took = habit.timeout_seconds
    return _Try(due, started, started + timedelta(seconds=took), outcome, code, message)


def _payload(chance: random.Random, job_type: str) -> dict[str, Any]:
    if job_type in ("charge_card", "send_invoice", "tell_team", "check_address"):
        return {"order": -chance.randrange(1, 900)}
    if job_type == "sync_stock":
        return {"sku": chance.choice(("board-42", "rope-18", "vest-m"))}
    return {"photo": chance.randrange(200)} if job_type == "resize_photo" else {}
