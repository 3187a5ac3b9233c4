"""The moves of job types: pause and resume one or all, limit one, keep its runs. Each writes its audit row.

A pause holds for all workers. The database's clock ends it: a duty of every worker looks for ends that have
come, so what asks whether a type is paused need not know of ends.

Types that were paused together (``pause_all``) have the moment of their pause in common: what somebody had
paused before, and why, is touched neither by that move nor by ``resume_all``. The last one left of them has
it in common with the audit log, as long as that remembers; after that it is like any that was paused by
itself. Mails and calls of alerts go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from psycopg import Connection

from wakeboard.config import log
from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import JOB_TYPE as ALERTS
from wakeboard.database.audit import ENGINE, Actor, audited_transaction, record
from wakeboard.database.read import read_all, read_one
from wakeboard.queue.operator import Transition, act, permit, wake_workers

PAUSE_STATE = """
SELECT paused_at, paused_until,
    paused_at IS NOT NULL AND coalesce(paused_until > now(), true) AS is_paused,
    %(until)s::timestamptz <= now() AS is_over,
    %(until)s::timestamptz > now() + interval '1 year' AS is_far
FROM wakeboard.job_types WHERE name = %(name)s FOR NO KEY UPDATE
"""
PAUSE = """
UPDATE wakeboard.job_types SET paused_at = now(), paused_by = %(actor)s, paused_reason = %(reason)s,
    paused_until = %(until)s
WHERE name = %(name)s
"""
MOVE_END = """
UPDATE wakeboard.job_types SET paused_until = %(until)s, paused_by = %(actor)s,
    paused_reason = coalesce(%(reason)s, paused_reason)
WHERE name = %(name)s
"""
RESUME = """
UPDATE wakeboard.job_types
SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
WHERE name = %(name)s
"""
# An older version knows nothing of ends: what it resumed may keep one, which would end the next pause.
ENDED = """
WITH ended AS (
    SELECT name, paused_at, paused_until FROM wakeboard.job_types
    WHERE paused_until IS NOT NULL AND (paused_at IS NULL OR paused_until <= now())
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE wakeboard.job_types AS t
SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
FROM ended WHERE t.name = ended.name
RETURNING ended.name, ended.paused_at, ended.paused_until
"""

PAUSE_ALL, RESUME_ALL = "type.hold", "type.let_go"
ALL_TYPES = ("types", "all")
ACTIVE = """
SELECT name FROM wakeboard.job_types WHERE paused_at IS NULL AND name <> %(alerts)s ORDER BY name
FOR NO KEY UPDATE
"""
# Of rows that one transaction wrote, now() is the same.
TOGETHER = f"""
(t.paused_at IN (
        SELECT o.paused_at FROM wakeboard.job_types AS o WHERE o.paused_at IS NOT NULL
        GROUP BY o.paused_at HAVING count(*) > 1
    ) OR t.paused_at IN (
        SELECT a.at FROM wakeboard.audit_log AS a WHERE a.action = '{PAUSE_ALL}' AND a.result = 'done'
        ORDER BY a.id DESC LIMIT 100
    ))
"""
PAUSED_TOGETHER = f"""
SELECT t.name FROM wakeboard.job_types AS t WHERE {TOGETHER} ORDER BY t.name FOR NO KEY UPDATE
"""

RULES = """
SELECT max_running_operator, keep_succeeded_days, keep_dead_days
FROM wakeboard.job_types WHERE name = %(name)s FOR NO KEY UPDATE
"""
LIMIT = """
UPDATE wakeboard.job_types SET max_running_operator = %(limit)s
WHERE name = %(name)s AND max_running_operator IS DISTINCT FROM %(limit)s
"""
KEEP = """
UPDATE wakeboard.job_types SET keep_succeeded_days = %(succeeded_days)s, keep_dead_days = %(dead_days)s
WHERE name = %(name)s
    AND (keep_succeeded_days, keep_dead_days) IS DISTINCT FROM (%(succeeded_days)s::int, %(dead_days)s::int)
"""

# How long ended runs of a type may be kept, in days.
MOST_DAYS = 36_500
# The most that a type's limit may be.
LARGEST_LIMIT = 1_000_000

# The value of a parameter that leaves a setting as it is.
Same = Literal["same"]


class PauseRow(NamedTuple):
    """The pause of a type. ``is_over`` and ``is_far`` judge the end that is asked for, None without one."""

    paused_at: datetime | None
    paused_until: datetime | None
    is_paused: bool
    is_over: bool | None
    is_far: bool | None


class EndedPause(NamedTuple):
    """A pause whose end has come; ``paused_at`` None: an older version resumed the type."""

    name: str
    paused_at: datetime | None
    paused_until: datetime


class RulesRow(NamedTuple):
    """What operators decided about a type."""

    max_running_operator: int | None
    keep_succeeded_days: int | None
    keep_dead_days: int | None


def missing(name: str) -> Answer:
    """Return the answer about a type that no worker has registered."""
    message = f"There is no job type '{name}': no worker has ever registered it."
    return Answer(name, None, "missing", message)


def pause(
    connection: Connection,
    name: str,
    actor: Actor,
    reason: str | None = None,
    *,
    until: datetime | Same | None = "same",
) -> Answer:
    """Stop claims of a type over all workers; what runs goes on.

    until: when the pause ends by itself (aware, later than the database's now, at most a year away); None:
    when somebody resumes the type. 'same' leaves the end of a pause that goes on as it is. Pausing a paused
    type moves its end.
    """

    def move() -> Transition:
        end = None if until == "same" else until
        row = read_one(connection, PAUSE_STATE, PauseRow, {"name": name, "until": end})
        if row is None:
            return Transition(missing(name))
        if end is not None and (row.is_over or row.is_far):
            message = f"The pause would end {_utc(end)}; allowed: later than now, at most a year away."
            return Transition(Answer(name, None, "invalid", message))
        values = {"name": name, "actor": actor.name, "reason": reason, "until": end}
        # A pause whose end has come is over, though no worker was there to end it.
        if not row.is_paused:
            connection.execute(PAUSE, values)
            answer = Answer(name, "paused", "done", f"Type {name} is paused{_until(end)}.")
            after = {"paused": True} | ({"paused_until": end} if end else {})
            return Transition(answer, {"paused": False}, after)
        if until == "same" or end == row.paused_until:
            message = f"Type {name} is already paused{_until(row.paused_until)}."
            return Transition(Answer(name, "paused", "already", message))
        connection.execute(MOVE_END, values)
        message = f"Type {name} stays paused{_until(end) or ' until somebody resumes it'}."
        answer = Answer(name, "paused", "done", message)
        return Transition(answer, {"paused_until": row.paused_until}, {"paused_until": end})

    return act(connection, actor, "type.pause", ("type", name), reason, move)


def resume(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Allow claims of a type again."""

    def move() -> Transition:
        row = read_one(connection, PAUSE_STATE, PauseRow, {"name": name, "until": None})
        if row is None:
            return Transition(missing(name))
        if row.paused_at is None:
            return Transition(Answer(name, "active", "already", f"Type {name} is not paused."))
        connection.execute(RESUME, {"name": name})
        wake_workers(connection)
        answer = Answer(name, "active", "done", f"Type {name} is claimed again.")
        return Transition(answer, {"paused": True}, {"paused": False})

    return act(connection, actor, "type.resume", ("type", name), reason, move)


def end_due_pauses(connection: Connection) -> dict[str, int]:
    """End the pauses whose end has come; return how many. Any number of processes may do so at once."""
    with connection.transaction():
        ended = [row for row in read_all(connection, ENDED, EndedPause) if row.paused_at is not None]
        for row in ended:
            record(
                connection, ENGINE, "type.resume", "type", row.name, reason="the end of the pause has come",
                before={"paused": True, "paused_until": row.paused_until}, after={"paused": False},
            )  # fmt: skip
            log.note("A type is claimed again: its pause has ended.", job_type=row.name)
        if ended:
            wake_workers(connection)
    return {"ended": len(ended)}


def pause_all(
    connection: Connection, actor: Actor, reason: str | None = None, *, until: datetime | None = None
) -> Answer:
    """Pause every type that is not paused, but for alerts; ``until`` as in ``pause``.

    Returns 'done', 'already' (nothing was left to pause), 'invalid' (an end that cannot be) or 'denied'. Each
    type has a row of its own in the audit log, and the whole has one.
    """
    with audited_transaction(connection):
        if refusal := permit(connection, actor, PAUSE_ALL, *ALL_TYPES):
            return refusal
        names = _names(connection, ACTIVE)
        for name in names:
            answer = pause(connection, name, actor, reason, until=until)
            if answer.result == "invalid":
                return Answer("all", None, "invalid", answer.message)
        answer = Answer("all", None, "already", "Every type is paused already.")
        after: dict[str, object] | None = None
        if names:
            message = f"{_count(names)} paused; what runs goes on."
            answer = Answer("all", "paused", "done", message)
            after = {"paused": True, "types": names} | ({"paused_until": until} if until else {})
        record(connection, actor, PAUSE_ALL, *ALL_TYPES, reason=reason, after=after, result=answer.result)
        return answer


def resume_all(connection: Connection, actor: Actor, reason: str | None = None) -> Answer:
    """Resume the types that were paused together; those that were paused by themselves stay so."""
    with audited_transaction(connection):
        if refusal := permit(connection, actor, RESUME_ALL, *ALL_TYPES):
            return refusal
        names = _names(connection, PAUSED_TOGETHER)
        for name in names:
            resume(connection, name, actor, reason)
        answer = Answer("all", None, "already", "No types are paused together.")
        after: dict[str, object] | None = None
        if names:
            answer = Answer("all", "active", "done", f"{_count(names)} claimed again.")
            after = {"paused": False, "types": names}
        record(connection, actor, RESUME_ALL, *ALL_TYPES, reason=reason, after=after, result=answer.result)
        return answer


def limit(
    connection: Connection, name: str, most: int | None, actor: Actor, reason: str | None = None
) -> Answer:
    """Let at most ``most`` runs of a type run at once over all workers; None: the code's own limit."""

    def move() -> Transition:
        row = read_one(connection, RULES, RulesRow, {"name": name})
        if row is None:
            return Transition(missing(name))
        if most is not None and not 0 <= most <= LARGEST_LIMIT:
            message = f"The limit is {most}; allowed: 0 to {LARGEST_LIMIT:,}, or none."
            return Transition(Answer(name, None, "invalid", message))
        before = {"max_running": row.max_running_operator}
        words = "has no limit of its own" if most is None else f"runs at most {most} at once"
        if not connection.execute(LIMIT, {"name": name, "limit": most}).rowcount:
            return Transition(Answer(name, "active", "already", f"Type {name} {words} already."), before)
        wake_workers(connection)
        answer = Answer(name, "active", "done", f"Type {name} {words} now.")
        return Transition(answer, before, {"max_running": most})

    return act(connection, actor, "type.limit", ("type", name), reason, move)


def keep(
    connection: Connection,
    name: str,
    actor: Actor,
    reason: str | None = None,
    *,
    succeeded_days: int | Same | None = "same",
    dead_days: int | Same | None = "same",
) -> Answer:
    """Keep ended runs of a type for days of its own: succeeded ones, and dead and cancelled ones.

    1 to MOST_DAYS; None: the workers' settings decide; 'same': as it is.
    """

    def move() -> Transition:
        row = read_one(connection, RULES, RulesRow, {"name": name})
        if row is None:
            return Transition(missing(name))
        before = {"succeeded_days": row.keep_succeeded_days, "dead_days": row.keep_dead_days}
        after = before.copy()
        if succeeded_days != "same":
            after["succeeded_days"] = succeeded_days
        if dead_days != "same":
            after["dead_days"] = dead_days
        for days in after.values():
            if days is not None and not 1 <= days <= MOST_DAYS:
                message = f"The days are {days}; allowed: 1 to {MOST_DAYS}, or none for the settings' own."
                return Transition(Answer(name, None, "invalid", message))
        words = f"Type {name} keeps {_retention(after)}"
        if not connection.execute(KEEP, {"name": name, **after}).rowcount:
            return Transition(Answer(name, "active", "already", f"{words} already."), before)
        return Transition(Answer(name, "active", "done", f"{words} now."), before, after)

    return act(connection, actor, "type.keep", ("type", name), reason, move)


def _retention(days: Mapping[str, int | None]) -> str:
    """Return in words for how long, such as ``succeeded runs for 30 days, dead ones as the settings say``."""
    words = {
        key: "as the settings say" if value is None else f"for {value} day{'' if value == 1 else 's'}"
        for key, value in days.items()
    }
    return f"succeeded runs {words['succeeded_days']}, dead and cancelled ones {words['dead_days']}"


def _names(connection: Connection, statement: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(statement.encode(), {"alerts": ALERTS})]


def _count(names: list[str]) -> str:
    return "1 type is" if len(names) == 1 else f"{len(names)} types are"


def _until(moment: datetime | None) -> str:
    return f" until {_utc(moment)}" if moment else ""


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
