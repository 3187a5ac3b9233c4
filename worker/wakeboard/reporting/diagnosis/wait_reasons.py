"""Why a run waits: what stands between it and a worker, as sentences for the page and the terminal.

    for reason in explain_wait(connection, run_id)[1]:
        print(reason.say())

One statement reads everything. It is cheap beside ten million runs: each count goes along an index that was
made for it, and stops at COUNT_CAP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.builtin_payloads import command_user, no_worker_for
from wakeboard.core.leases import IS_ALIVE
from wakeboard.core.states import CLAIM_REFUSED
from wakeboard.core.text.redaction import redact_text
from wakeboard.database.index_predicates import IS_CLAIMABLE
from wakeboard.database.read import read_one
from wakeboard.reporting import worker_states

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# Counting stops here; people read "10 000+".
COUNT_CAP = 10_000
# The present rate is that of so many whole minutes and of the current one.
RATE_MINUTES = 5
DEFAULT_ATTEMPTS = 10
COUNTS = ("running", "ahead", "workers", "slots", "busy", "draining", "others")
# The first words of the reason that decides.
LEADS = {
    "paused": "Paused:",
    "worker": "Nobody to run it:",
    "limit": "May not run:",
    "slots": "Waits for a slot:",
    "ahead": "Waits in line:",
}

_RUNS_TYPE = worker_states.runs_type("w", "r.job_type")
_TAKES = f"{worker_states.is_claiming('w')} AND {_RUNS_TYPE}"
_DRAINS = f"{worker_states.is_draining('w')} AND {_RUNS_TYPE}"
_SINCE = f"date_trunc('minute', now()) - interval '{RATE_MINUTES} minutes'"

# The run %(id)s; no row when it does not wait. Claimed before it is what has a better priority, then what was
# due earlier. Each priority is counted by itself, so that runs of a better one that are not due cost nothing.
WAITING_RUN = f"""
SELECT r.job_type, r.status, r.run_at, r.attempts, r.failures, r.error_code, r.run_at <= now() AS is_due,
    coalesce(r.max_attempts, t.max_attempts, {DEFAULT_ATTEMPTS}) AS most_attempts,
    t.name IS NOT NULL AS is_known, t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    coalesce(t.max_running_operator, t.max_running) AS most_running,
    running.runs AS running, ahead.runs AS ahead, ended.runs AS ended,
    extract(epoch FROM now() - ({_SINCE}))::float8 AS ended_seconds,
    living.able AS workers, living.slots, living.busy, living.draining, living.alive AS others
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS b WHERE b.status = 'running' AND b.job_type = r.job_type
        ORDER BY b.locked_until LIMIT {COUNT_CAP + 1}
    ) AS one
) AS running
CROSS JOIN LATERAL (
    SELECT least(sum(part.runs), {COUNT_CAP + 1})::bigint AS runs
    FROM generate_series(0, r.priority) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT count(*) AS runs FROM (
            SELECT FROM wakeboard.job_runs AS b
            WHERE b.{IS_CLAIMABLE} AND b.job_type = r.job_type AND b.priority = p.priority
                AND b.run_at <= CASE WHEN p.priority = r.priority THEN least(r.run_at, now()) ELSE now() END
                AND (p.priority < r.priority OR (b.run_at, b.id) < (r.run_at, r.id))
            ORDER BY b.run_at, b.id LIMIT {COUNT_CAP + 1}
        ) AS one
    ) AS part
) AS ahead
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.runs), 0)::bigint AS runs FROM (
        SELECT runs FROM wakeboard.statistics_deltas WHERE minute >= {_SINCE} AND job_type = r.job_type
        UNION ALL
        SELECT runs FROM wakeboard.statistics_rollups WHERE minute >= {_SINCE} AND job_type = r.job_type
    ) AS s
) AS ended
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE {_TAKES}) AS able, count(*) AS alive,
        count(*) FILTER (WHERE {_DRAINS}) AS draining,
        coalesce(sum(w.concurrency) FILTER (WHERE {_TAKES}), 0)::bigint AS slots,
        coalesce(sum(w.running) FILTER (WHERE {_TAKES}), 0)::bigint AS busy
    FROM wakeboard.workers AS w WHERE {IS_ALIVE}
) AS living
WHERE r.id = %(id)s AND r.{IS_CLAIMABLE}
"""


def utc(moment: datetime) -> str:
    """Return ``moment`` as ``2026-11-21T02:14:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a sentence: ``text``, or a ``moment``.

    ``to`` names the page that it links to: 'types', 'workers', 'running' and 'waiting' (runs of this type),
    'busy' (runs of all types). ``is_code``: a name from a program, such as the code of an error.
    """

    text: str = ""
    moment: datetime | None = None
    to: str | None = None
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """One sentence, named 'time', 'backoff', 'refused', 'due', 'paused', 'worker', 'limit', 'slots', 'ahead'
    or 'free'.

    ``lead`` has its first words, to be set in bold. The first reason always has some.
    """

    name: str
    pieces: tuple[Piece, ...]
    lead: str = ""

    def say(self, moment: Callable[[datetime], str] = utc) -> str:
        """Return the sentence as text; ``moment`` writes a time."""
        parts = [moment(piece.moment) if piece.moment else piece.text for piece in self.pieces]
        return f"{self.lead} {''.join(parts)}" if self.lead else "".join(parts)


class WaitingRun(NamedTuple):
    """A waiting run and what is counted before it: the row of WAITING_RUN.

    ``running`` runs of its type run now; ``ahead`` due runs of its type are claimed first; both are at most
    COUNT_CAP + 1. ``ended`` runs of its type ended in the last ``ended_seconds``. Of the workers alive,
    ``workers`` run its type and take work, with so many ``slots``, of which ``busy`` are in use; ``draining``
    ones run it and would take it if undrained; ``others`` is all workers, of any type.
    """

    job_type: str
    status: str
    run_at: datetime
    attempts: int
    failures: int
    error_code: str | None
    is_due: bool
    most_attempts: int
    is_known: bool
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: datetime | None
    most_running: int | None
    running: int
    ahead: int
    ended: int
    ended_seconds: float
    workers: int
    slots: int
    busy: int
    draining: int
    others: int


def explain_wait(connection: Connection, run_id: int) -> tuple[dict[str, int], list[Reason]]:
    """Return the COUNTS of what is before run ``run_id``, and why it waits; both empty when it does not wait.

    WaitingRun says what the counts mean.
    """
    run = read_one(connection, WAITING_RUN, WaitingRun, {"id": run_id})
    return ({}, []) if run is None else ({name: getattr(run, name) for name in COUNTS}, wait_reasons(run))


def wait_reasons(run: WaitingRun) -> list[Reason]:
    """Return why ``run`` waits: first what decides, then everything else in its way.

    Before its time nothing can start it. Once it is due, what keeps its whole type from starting comes before
    what only comes before it, and the time at which it was due comes last.
    """
    if not run.is_due:
        return [_time_reason(run), *_type_obstacles(run)]
    obstacles = [*_type_obstacles(run), *_queue_obstacles(run)]
    if not obstacles:
        return [_time_reason(run), _reason("free", "Nothing is in its way: the next free worker takes it.")]
    first, *others = obstacles
    return [replace(first, lead=first.lead or LEADS[first.name]), *others, _due_reason(run)]


def _time_reason(run: WaitingRun) -> Reason:
    """Return what the run itself waits for: when it is due, and after which failure."""
    if run.is_due:
        return replace(_due_reason(run, "due"), lead="Waits for a worker:")
    if run.error_code == CLAIM_REFUSED:
        sentence = "a rule of its tables forbids that this run starts. It is tried again at {at}."
        return _reason("refused", sentence, "Refused by the database:", at=run.run_at)
    if run.status == "failed":
        sentence = f"{_attempts_text(run)}, next at {{at}}."
        return _reason("backoff", sentence, "Backing off", code=_code_piece(run), at=run.run_at)
    return _reason("time", f"due {{at}}.{_failures_text(run)}", "Waits for its time:", at=run.run_at)


def _due_reason(run: WaitingRun, word: str = "Due") -> Reason:
    """Return since when a run is due, as a sentence or, with ``word`` in lower case, to follow a lead."""
    if run.status == "failed":
        return _reason("due", f"{word} {{at}}, {_attempts_text(run)}.", code=_code_piece(run), at=run.run_at)
    return _reason("due", f"{word} {{at}}.{_failures_text(run)}", at=run.run_at)


def _attempts_text(run: WaitingRun) -> str:
    count = "" if run.attempts == run.failures else f"{run.attempts}, failure "
    return f"after attempt {count}{run.failures} of {run.most_attempts} ({{code}})"


def _failures_text(run: WaitingRun) -> str:
    return f" {_count_text(run.failures, 'failure')} so far." if run.failures else ""


def _code_piece(run: WaitingRun) -> Piece:
    return Piece(run.error_code or "", is_code=True)


def _type_obstacles(run: WaitingRun) -> Iterator[Reason]:
    """Yield what keeps the whole type from starting: a pause, no worker, a limit that is reached."""
    if run.paused_at is not None:
        end = ", at the latest at {end}" if run.paused_until else ""
        yield _reason(
            "paused",
            "Type {type} was paused by {who} at {at}{why}: "
            f"nothing of it starts until it is resumed{end}.",
            end=run.paused_until or "",
            type=Piece(run.job_type, to="types"),
            who=run.paused_by or "somebody",
            at=run.paused_at,
            why=f" (“{redact_text(run.paused_reason)}”)" if run.paused_reason else "",
        )
    if not run.workers:
        yield _no_worker_reason(run)
    if run.most_running == 0:
        yield _reason("limit", "The limit of its {type} is 0: none may run.", type=Piece("type", to="types"))
    elif run.most_running is not None and run.running >= run.most_running:
        yield _reason(
            "limit",
            "{full} allowed runs of this type are running. Change it on {types}.",
            "The limit is reached:",
            full=Piece(f"{run.running} of {run.most_running}", to="running"),
            types=Piece("Types", to="types"),
        )


def _no_worker_reason(run: WaitingRun) -> Reason:
    user = command_user(run.job_type)
    sentence = "No live worker runs this type. "
    if run.draining:
        one = run.draining == 1
        sentence = f"No worker takes runs of this type. {_number_text(run.draining)} that could "
        sentence += "is draining: undrain it" if one else "are draining: undrain one"
        sentence += " on {workers}, or start another: {command}."
    elif user is not None:
        sentence = f"{no_worker_for(user)} See {{workers}}."
    elif run.others:
        alive = f"{_count_text(run.others, 'worker')} {'is' if run.others == 1 else 'are'} alive"
        sentence += f"{alive}, for other types or on the way out: see {{workers}}."
    else:
        sentence += "No worker is alive at all; start one: {command}."
    if not run.is_known and user is None:
        sentence += " None has ever registered this type: is its name right?"
    command, workers = Piece("wakeboard worker", is_code=True), Piece("Workers", to="workers")
    return _reason("worker", sentence, command=command, workers=workers)


def _queue_obstacles(run: WaitingRun) -> Iterator[Reason]:
    """Yield what a due run waits for: busy slots, runs that are claimed before it."""
    if run.workers and run.busy >= run.slots:
        whose = f"{_count_text(run.slots, 'slot')} of {_count_text(run.workers, 'worker')}"
        yield _reason(
            "slots",
            "All {whose} for this type are busy: see what {now}.",
            whose=whose,
            now=Piece("runs now", to="busy"),
        )
    if run.ahead:
        is_more = run.ahead > COUNT_CAP
        count = f"{_number_text(COUNT_CAP)}+ due runs" if is_more else _count_text(run.ahead, "due run")
        comes = "comes" if run.ahead == 1 else "come"
        sentence = f"{count} of {{type}} {comes} before it{_queue_time_text(run)}."
        yield _reason("ahead", sentence, type=Piece("this type", to="waiting"))


def _queue_time_text(run: WaitingRun) -> str:
    """Return how long the runs ahead will take; empty while no run of the type starts."""
    if not run.workers or run.paused_at is not None or run.most_running == 0:
        return ""
    if not run.ended:
        return f"; none of this type has ended in the last {RATE_MINUTES} minutes"
    seconds = run.ahead * run.ended_seconds / run.ended
    about = "more than" if run.ahead > COUNT_CAP else "about"
    return f", {about} {_rough_duration(seconds)} at the present rate"


def _rough_duration(seconds: float) -> str:
    """Return a duration in one rounded unit: 40 s, 6 min, 5 h, 3 d."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{round(seconds / 86_400)} d"


def _count_text(count: int, word: str) -> str:
    return f"{_number_text(count)} {word}{'' if count == 1 else 's'}"


def _number_text(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _reason(name: str, sentence: str, lead: str = "", **values: str | datetime | Piece) -> Reason:
    """Return a reason; each ``{name}`` in ``sentence`` becomes a piece of its own, that of ``values``."""
    pieces = []
    for text, key, _, _ in Formatter().parse(sentence):
        if text:
            pieces.append(Piece(text))
        if key is not None:
            pieces.append(_piece(values[key]))
    return Reason(name, tuple(pieces), lead)


def _piece(value: str | datetime | Piece) -> Piece:
    if isinstance(value, Piece):
        return value
    return Piece(moment=value) if isinstance(value, datetime) else Piece(value)
