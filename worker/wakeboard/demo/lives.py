"""What the example shop is said to have done in the past days: the habits of each type, and every run that
follows from them with its attempts. The same chance and moment give the same lives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from wakeboard.core.errors.error_groups import ErrorGroup, group_of
from wakeboard.core.time.cron import Cron
from wakeboard.demo.shop import PRODUCTS

DAYS = 7
# The orders of those days are numbered from 1 on; all were paid, so whatever is tried again gets through.
ORDERS = 900
BY = "demo history"
WORKER = "demo-past-worker"
_DELAYS = (5.0, 15.0, 45.0, 120.0)
_SMTP_BUSY = "The mail server said 451 The mailbox is busy, try again later"
_SMTP_DOWN = "The mail server cannot be reached: [Errno 111] Connection refused"
_TOO_LONG = "ran longer than its timeout of 20 s and was stopped"
DECLINED = "The bank refused to pay order {order} (402 card_declined)."
_STOCK_DOWN = 'The provider answered 503: {"error": "The stock service is down for a while."}'
_MAIL = ("invoices.py", "send_invoice", 'context.once("mail"')
# By code: what is raised, and the file, function and line of each step on the way to it. What fails so today
# belongs to the same group.
RAISED: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "KeyError": (
        "KeyError",
        (("catalogue.py", "render_newsletter", "return"), ("catalogue.py", "_render", "return")),
    ),
    "http_503": (
        "wakeboard.core.outcome.Retryable",
        (("catalogue.py", "sync_stock", "quantity ="), ("neighbours.py", "ask", 'raise Retryable(f"http_{')),
    ),
    "card_declined": (
        "wakeboard.core.outcome.Permanent",
        (("orders.py", "charge_card", "raise Permanent"),),
    ),
    "smtp_451": ("wakeboard.core.outcome.Retryable", (_MAIL, ("neighbours.py", "send", "raise kind"))),
    "smtp_unreachable": (
        "wakeboard.core.outcome.Retryable",
        (_MAIL, ("neighbours.py", "send", "raise Retryable")),
    ),
}


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
        3, 0.02, 3, 20, ((0.06, "timed_out", "timed_out", _TOO_LONG, False),)
    ),
    "charge_card": Habit(
        4, 0.09, 8, 30,
        ((0.04, "failed", "card_declined", DECLINED, True),),
    ),
    "send_invoice": Habit(
        4, 0.2, 10, 60,
        ((0.08, "failed", "smtp_451", _SMTP_BUSY, False),),
    ),
    "tell_team": Habit(4, 0.04, 5, 30),
    "sync_stock": Habit(4, 0.03, 8, 30, ((0.02, "failed", "http_503", _STOCK_DOWN, False),)),
    "resize_photo": Habit(6, 0.01, 5, 20),
    "render_newsletter": Habit(0.4, 0.01, 2, 20, ((0.15, "failed", "KeyError", "'name'", False),)),
}  # fmt: skip
# What schedules made, and for how many hours; before those the shop had a checkout now and then.
CHECKOUT_HOURS = 2
SCHEDULED: dict[str, tuple[int, Habit]] = {
    "checkout": (CHECKOUT_HOURS, HABITS["checkout"]),
    "import_catalogue": (DAYS * 24, Habit(
        0, 62, 3, 300, ((0.004, "lost", "lease_lost", "The worker was gone; its lease ended.", False),)
    )),
    "nightly_cleanup": (DAYS * 24, Habit(0, 0.6, 5, 120)),
    "weekly_reports": (DAYS * 24, Habit(0, 0.03, 5, 120)),
}  # fmt: skip


@cache
def _step(file: str, function: str, begins: str) -> str:
    """Return a step of a trace as Python writes it: the first line of a function that ``begins`` so."""
    path = Path(__file__).with_name(file)
    lines = path.read_text().splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith(f"def {function}("))
    place = next(place for place in range(head, len(lines)) if lines[place].strip().startswith(begins))
    return f'  File "{path}", line {place + 1}, in {function}\n    {lines[place].strip()}'


@dataclass(frozen=True, slots=True)
class Try:
    due_at: datetime
    started_at: datetime
    finished_at: datetime
    outcome: str
    code: str | None = None
    message: str | None = None

    @property
    def traceback(self) -> str | None:
        """What the handler's exception left behind."""
        if self.code not in RAISED:
            return None
        kind, steps = RAISED[self.code]
        return "\n".join(
            [
                "Traceback (most recent call last):",
                *(_step(*each) for each in steps),
                f"{kind}: {self.message}",
            ]
        )

    def group(self, job_type: str) -> ErrorGroup | None:
        """Return the group of the failure, None when it was none."""
        if self.code is None or self.outcome == "cancelled":
            return None
        return group_of(job_type, self.code, self.message, self.traceback)


@dataclass(frozen=True, slots=True)
class Life:
    """One run from its creation to its end, as its attempts tell it."""

    job_type: str
    habit: Habit
    payload: dict[str, Any]
    status: str
    tries: tuple[Try, ...]
    is_fire: bool = False

    @property
    def created_at(self) -> datetime:
        return self.tries[0].due_at

    def key(self, id_: int) -> str | None:
        """Return the idempotency key, without which the bank charges nothing."""
        return f"charge:past:{id_}" if self.job_type == "charge_card" else None

    def run(self, id_: int, definitions: Mapping[str, int]) -> tuple[Any, ...]:
        """Return the row of ``job_runs``; ``definitions``: the ids of the schedules, by type."""
        last, failed = (
            self.tries[-1],
            [one for one in self.tries if one.outcome in ("failed", "timed_out", "lost")],
        )
        error = failed[-1] if failed else None
        group = error and error.group(self.job_type)
        epoch = len(self.tries) + sum(one.outcome == "lost" for one in self.tries)
        definition = definitions.get(self.job_type) if self.is_fire else None
        return (
            id_, definition, definition and self.created_at, self.job_type, json.dumps(self.payload),
            self.key(id_), self.status, last.due_at, len(self.tries), len(failed), epoch, last.started_at,
            last.finished_at, error and error.finished_at, error and error.code, error and error.message,
            group and group.id, BY, self.created_at, last.finished_at,
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


def lives(chance: random.Random, now: datetime, schedules: Mapping[str, str]) -> Iterator[Life]:
    """Give the runs of the past days: the usual ones, two outages, and the fires of ``schedules`` (cron text,
    by type)."""
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
            if job_type in schedules and hour <= CHECKOUT_HOURS:
                continue
            for _ in range(int(habit.per_hour * busy + chance.random())):
                due = start + timedelta(seconds=chance.uniform(0, 3_500))
                yield _life(chance, job_type, habit, due, now, outages.get(job_type))
    for job_type, schedule in schedules.items():
        hours, habit = SCHEDULED[job_type]
        fires = Cron.parse(schedule).fires("UTC", now - timedelta(hours=hours))
        # What began later might not have ended by now.
        latest = now - timedelta(seconds=habit.timeout_seconds, minutes=2)
        for fire in fires:
            if fire.at >= latest:
                break
            yield replace(_life(chance, job_type, habit, fire.at, now, None), is_fire=True)


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
) -> Life:
    tries: list[Try] = []
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
    payload = _payload(chance, job_type, status)
    told = tuple(
        replace(one, message=DECLINED.format_map(payload)) if one.message == DECLINED else one
        for one in tries
    )
    return Life(job_type, habit, payload, status, told)


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
) -> Try:
    started = due + timedelta(seconds=chance.expovariate(1 / 0.08) + 0.002)
    took = habit.seconds * chance.lognormvariate(0, 0.4)
    outcome, code, message, _ = failure or ("succeeded", None, None, False)
    if outcome == "timed_out":
        took = habit.timeout_seconds
    return Try(due, started, started + timedelta(seconds=took), outcome, code, message)


def _payload(chance: random.Random, job_type: str, status: str) -> dict[str, Any]:
    """Return what the handler needs, so that a run of the past can be tried again."""
    if job_type in ("charge_card", "send_invoice", "tell_team", "check_address"):
        order = {"order": chance.randrange(1, ORDERS)}
        return order | {"cents": price_of(order["order"])} if job_type == "charge_card" else order
    if job_type == "sync_stock":
        return {"sku": chance.choice(("board-42", "rope-18", "vest-m"))}
    if job_type == "render_newsletter":
        # A customer without a name is what its failures are about.
        return {"customer": {"name": "Alice"} if status == "succeeded" else {}}
    return {"photo": chance.randrange(200)} if job_type == "resize_photo" else {}


def sku_of(order: int) -> str:
    """Return what was ordered."""
    return sorted(PRODUCTS)[order % len(PRODUCTS)]


def price_of(order: int) -> int:
    """Return what it cost, in cents."""
    return PRODUCTS[sku_of(order)][1]
