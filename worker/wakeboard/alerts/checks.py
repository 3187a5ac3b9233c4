"""One question for each kind of rule: is it so, with numbers and a sentence. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from wakeboard.alerts import statements
from wakeboard.alerts.finding import NAMED, Finding, name_of
from wakeboard.alerts.statements import CAP
from wakeboard.core.builtin_payloads import command_user, workers_for
from wakeboard.core.time.durations import format_duration
from wakeboard.reporting.broken_schedules import broken_schedules
from wakeboard.reporting.heartbeats import SILENCE_SECONDS, is_abandoned, late_loops

Connection = psycopg.Connection[Any]
HOUR = 3600.0

Settings = Mapping[str, float]


def ask(connection: Connection, kind: str, settings: Settings) -> Finding:
    """Return what is found now for a rule of ``kind`` with the values of ``Kind.values``."""
    return QUESTIONS[kind](connection, settings)


def _rows(connection: Connection, statement: str, settings: Settings) -> Sequence[tuple[Any, ...]]:
    return connection.execute(statement.encode(), dict(settings)).fetchall()


def _listed(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return ``mail 12, report 3`` of rows of (name, count, …)."""
    return ", ".join(f"{name_of(row[0])} {row[1]}" for row in rows)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 run``, ``2 runs``, and ``10000+ runs`` where counting stopped."""
    return f"{count}{'+' if count >= CAP else ''} {one if count == 1 else many or one + 's'}"


def _no_worker(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.UNMANNED, settings)
    limit, names = settings["waited_seconds"], tuple(row[0] for row in rows)
    if rows:
        what = ", ".join(name_of(name) for name in names)
        sentence = (
            f"No live worker takes {plural(rows[0][2], 'type')} with due work: {what}. "
            f"The oldest waits {format_duration(rows[0][1])}. {_manned_by(names, *rows[0][2:5])}"
        )
        return Finding(True, sentence, rows[0][1], limit, "seconds", names)
    if is_abandoned(connection):
        sentence = "Schedules are enabled and no worker or tick came for 3 minutes: nothing fires. Start one."
        return Finding(True, sentence, SILENCE_SECONDS, SILENCE_SECONDS, "seconds", ("schedules",))
    sentence = f"No work has been due for {format_duration(limit)} without a live worker that takes it."
    return Finding(False, sentence, 0, limit, "seconds")


def _manned_by(names: Sequence[str], types: int, draining: int, unknown: int) -> str:
    """Return what gives so many types a worker: a worker drains of ``draining`` of them, and of ``unknown``
    there never was one, so they cannot be paused. ``names`` are the first of them.
    """
    users = [user for name in names if (user := command_user(name)) is not None]
    if users and len(users) == types and not draining:
        return f"Start {workers_for(users)}."
    them = "it" if types == 1 else "them"
    if unknown == types:
        names = "its name" if types == 1 else "each name"
        return f"None has ever registered {them}: is {names} right? Start a worker whose app defines {them}."
    if not draining:
        return f"Start a worker whose app defines {them}, or pause the type."
    if types == 1:
        return "A draining worker defines it: undrain it, start another, or pause the type."
    if draining == types:
        return "Draining workers define them: undrain those, start others, or pause the types."
    return (
        f"Draining workers define {draining} of them: undrain those, start others for the rest, or pause "
        "the types."
    )


def _late_loop(connection: Connection, _settings: Settings) -> Finding:
    late = sorted(late_loops(connection), key=lambda loop: -loop.ago_seconds)
    names = tuple(f"{loop.name} of {loop.process_id}" for loop in late[:NAMED])
    if not late:
        return Finding(False, "Every loop of every live process is on time.", 0, 1, "loops")
    listed = ", ".join(
        f"{name_of(loop.name)} of {name_of(loop.process_id)} ({format_duration(loop.ago_seconds)} ago)"
        for loop in late[:NAMED]
    )
    sentence = (
        f"{plural(len(late), 'loop is', 'loops are')} late; last success: {listed}. Look at that process, "
        "and restart it if it hangs."
    )
    return Finding(True, sentence, len(late), 1, "loops", names)


def _queue_age(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.OLDEST, settings)
    refused = _rows(connection, statements.SET_ASIDE, settings)
    limit, waited = settings["waited_seconds"], rows[0][1] if rows else 0.0
    late = [row for row in rows if row[1] > limit]
    sentences = []
    if late:
        listed = ", ".join(f"{name_of(name)} {format_duration(seconds)}" for name, seconds in late)
        wait = format_duration(limit)
        sentences.append(f"Due runs wait longer than {wait}: {listed}. Add workers or slots, or look why.")
    if refused:
        waited = max(waited, refused[0][3])
        sentences.append(
            f"The database refuses to let {plural(refused[0][2], 'run')} start: {_listed(refused)}. "
            "The page of each says which rule it is."
        )
    if sentences:
        names = dict.fromkeys(row[0] for row in (*late, *refused))
        return Finding(True, " ".join(sentences), waited, limit, "seconds", tuple(names)[:NAMED])
    words = f"The oldest due run waits {format_duration(waited)}." if rows else "No due run waits."
    return Finding(False, words, waited, limit, "seconds")


def _dead_runs(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.DEAD, settings)
    within = format_duration(settings["within_seconds"])
    found = _counted(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'run')} died in the last {within}: {_listed(rows)}. "
            "Look at them, and retry what can be fixed."
        ),
        f"No run died in the last {within}{_unless_muted(settings)}.",
    )
    return replace(found, within_seconds=settings["within_seconds"])


def _unless_muted(settings: Settings) -> str:
    return ", muted errors left out" if settings["muted"] else ""


def _failures_rise(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.FAILED, settings)
    usual, days = connection.execute(statements.USUAL.encode()).fetchone() or (0.0, 0)
    total = int(rows[0][2]) if rows else 0
    limit = max(settings["count"], settings["factor"] * usual)
    against = f"usual at this time: {usual:g}" if days else "no day before to compare with"
    counted = f"{plural(total, 'attempt')} failed in the last hour ({against})"
    if total < settings["count"] or total <= settings["factor"] * usual:
        return Finding(False, f"{counted}.", total, limit, "attempts")
    sentence = f"{counted}: {_listed(rows)}. Look at the errors before the runs are dead."
    return Finding(True, sentence, total, limit, "attempts", tuple(row[0] for row in rows), HOUR)


def _missed_runs(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.MISSED, settings)
    within = format_duration(settings["within_seconds"])
    return _counted(
        rows,
        1,
        lambda total: (
            f"{plural(total, 'fire was', 'fires were')} missed in the last {within}: {_listed(rows)}. "
            "Run the schedule now if its work is still wanted."
        ),
        f"No fire was missed in the last {within}.",
    )


def _stuck_leases(connection: Connection, settings: Settings) -> Finding:
    rows = _rows(connection, statements.STUCK, settings)
    ended = format_duration(settings["ended_seconds"])
    return _counted(
        rows,
        settings["count"],
        lambda total: (
            f"{plural(total, 'lease')} ended more than {ended} ago and no worker took the run back: "
            f"{_listed(rows)}. Look at the workers, or release the leases."
        ),
        f"No lease ended more than {ended} ago.",
    )


def _counted(
    rows: Sequence[tuple[Any, ...]], limit: float, says: Callable[[int], str], nothing: str
) -> Finding:
    total = int(rows[0][2]) if rows else 0
    names = tuple(row[0] for row in rows)
    if total >= limit:
        return Finding(True, says(total), total, limit, "count", names)
    return Finding(False, says(total) if total else nothing, total, limit, "count")


def _cannot_fire(connection: Connection, _settings: Settings) -> Finding:
    rows = broken_schedules(connection)
    if not rows:
        return Finding(False, "All enabled schedules can fire.", 0, 1, "count")
    names = tuple(row.name for row in rows[:NAMED])
    listed = ", ".join(name_of(name) for name in names)
    others = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    sentence = (
        f"{plural(len(rows), 'schedule')} cannot fire: {listed}{others}. The page of each says why: correct "
        "its text or zone, or the rule of the database that refuses its run; or pause what need not run."
    )
    return Finding(True, sentence, len(rows), 1, "count", names)


QUESTIONS: dict[str, Callable[[Connection, Settings], Finding]] = {
    "no_worker": _no_worker,
    "late_loop": _late_loop,
    "queue_age": _queue_age,
    "dead_runs": _dead_runs,
    "failures_rise": _failures_rise,
    "missed_runs": _missed_runs,
    "cannot_fire": _cannot_fire,
    "stuck_leases": _stuck_leases,
}
