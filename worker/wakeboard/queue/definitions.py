"""The moves of schedules: add (idempotent), pause, resume, run now, remove. Each writes its audit row.

A definition says what should exist; its fires are made by ``wakeboard.schedules.scheduler``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from wakeboard.core import builtin_payloads
from wakeboard.core.answer import Answer
from wakeboard.core.outcome import Permanent
from wakeboard.core.run_spec import EnqueueError, check_type, payload_limit, payload_text
from wakeboard.core.text.json_equality import same_value
from wakeboard.core.time.cron import check_timezone, read_existing, read_schedule
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import WAKE_CHANNEL, Connection, Row, _row, act
from wakeboard.reporting.diagnosis.standstill import WORDS, standstill, standstill_clause

COLUMNS = (
    "job_type, payload, schedule, timezone, misfire, grace_seconds, overlap, max_attempts, timeout_seconds, "
    "priority, enabled, next_fire_at"
)
BY_NAME = f"SELECT id, {COLUMNS} FROM wakeboard.job_definitions WHERE name = %(name)s FOR UPDATE"
NOW = "SELECT clock_timestamp()"

INSERT = """
INSERT INTO wakeboard.job_definitions (name, job_type, payload, schedule, timezone, misfire, grace_seconds,
    overlap, max_attempts, timeout_seconds, priority, next_fire_at)
VALUES (%(name)s, %(job_type)s, %(payload)s::jsonb, %(schedule)s, %(timezone)s, %(misfire)s,
    %(grace_seconds)s, %(overlap)s, %(max_attempts)s, %(timeout_seconds)s, %(priority)s, %(next_fire_at)s)
"""
CREATE = f"{INSERT} ON CONFLICT (name) DO NOTHING RETURNING id"
SAVE = """
UPDATE wakeboard.job_definitions SET job_type = %(job_type)s, payload = %(payload)s::jsonb,
    schedule = %(schedule)s, timezone = %(timezone)s, misfire = %(misfire)s, overlap = %(overlap)s,
    grace_seconds = %(grace_seconds)s, max_attempts = %(max_attempts)s, priority = %(priority)s,
    timeout_seconds = %(timeout_seconds)s, error = NULL, updated_at = now(),
    next_fire_at = CASE
        WHEN schedule IS NOT DISTINCT FROM %(schedule)s AND timezone = %(timezone)s
            AND next_fire_at IS NOT NULL
        THEN next_fire_at ELSE %(next_fire_at)s END
WHERE name = %(name)s
"""
PAUSE = """
UPDATE wakeboard.job_definitions SET enabled = false, updated_at = now()
WHERE name = %(name)s AND enabled RETURNING enabled
"""
RESUME = """
UPDATE wakeboard.job_definitions SET enabled = true, next_fire_at = %(next_fire_at)s, updated_at = now()
WHERE name = %(name)s AND NOT enabled RETURNING enabled
"""
RUN_NOW = f"""
INSERT INTO wakeboard.job_runs
    (definition_id, job_type, payload, priority, max_attempts, timeout_seconds, enqueued_by)
SELECT id, job_type, payload, priority, max_attempts, timeout_seconds, %(actor)s
FROM wakeboard.job_definitions WHERE name = %(name)s
RETURNING id, job_type, {standstill("job_type")} AS standstill
"""
# The range of one value and the order leave the planner one way: the index of what is under way.
MOST_WAITING = 1000
WAITING = f"""
SELECT count(*) AS runs FROM (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.definition_id BETWEEN %(id)s AND %(id)s AND r.status IN ('queued', 'failed')
    ORDER BY r.definition_id LIMIT {MOST_WAITING} + 1
) AS waiting
"""
MET = (
    "There is a schedule {} already: somebody else made it at the same moment. It was left as it is; look at "
    "it, then add yours once more to change it."
)
REMOVE = "DELETE FROM wakeboard.job_definitions WHERE name = %(name)s RETURNING id"


class DefinitionError(ValueError):
    """A definition is wrong; ``str()`` is a sentence that says what is allowed."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What should exist: a type, its payload and when it is due. Durations are in seconds."""

    name: str
    job_type: str
    schedule: str | None
    payload: dict[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    misfire: str = "one"
    grace_seconds: int = 60
    overlap: str = "skip"
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    priority: int = 2

    def checked(self) -> Definition:
        """Return itself when every field is allowed. Raises DefinitionError with the reason."""
        check_name(self.name)
        try:
            check_type(self.job_type)
            if self.schedule is not None:
                read_schedule(self.schedule)
            check_timezone(self.timezone)
            payload_text(self.payload, payload_limit())
            builtin_payloads.check(self.job_type, self.payload)
        except (ValueError, EnqueueError, Permanent) as wrong:
            raise DefinitionError(str(wrong)) from wrong
        for value, words, what in (
            (self.misfire, ("one", "all", "none"), "misfire"),
            (self.overlap, ("skip", "allow", "wait"), "overlap"),
        ):
            if value not in words:
                raise DefinitionError(f"{what} is '{value}'; allowed: {', '.join(words)}.")
        for number, what, low, high, unit, allowed in (
            (self.grace_seconds, "grace", 0, 31_536_000, " s", "0s to 365d"),
            (self.max_attempts, "max_attempts", 1, 2**31 - 1, "", f"1 to {2**31 - 1}"),
            (self.timeout_seconds, "timeout", 0.001, 315_360_000, " s", "0.001s to 3650d"),
            (self.priority, "priority", 0, 4, "", "0 to 4"),
        ):
            if number is not None and not low <= number <= high:
                raise DefinitionError(f"{what} is {number:.12g}{unit}; allowed: {allowed}.")
        return self


def check_name(name: str) -> None:
    """Raise DefinitionError unless ``name`` may be that of a definition."""
    import re

    if not re.fullmatch(r"[a-z0-9_-]{1,100}", name):
        raise DefinitionError(
            f"The name {name[:100]!r} is not allowed: use 1 to 100 of a-z, 0-9, '_' and '-'."
        )


def next_fire(connection: Connection, schedule: str | None, timezone: str) -> Any:
    """Return the first fire after the database's now (aware datetime), None for one without a schedule.

    Raises ValueError with a sentence for a schedule that can never fire.
    """
    if schedule is None:
        return None
    row = connection.execute(NOW).fetchone()
    assert row is not None
    return read_existing(schedule).next_fire(timezone, row[0])


def add(connection: Connection, definition: Definition, actor: Actor, reason: str | None = None) -> Answer:
    """Create or change a definition; ``Answer.status`` is 'created', 'changed' or 'unchanged'.

    A paused definition stays paused. Where somebody else creates another of its name at the same moment, that
    one stays, and the answer is 'forbidden': this change was not made on what is there. Raises
    DefinitionError for a wrong field.
    """
    definition.checked()
    name, wanted = definition.name, _wanted(definition)

    def move() -> tuple[Answer, Row | None, Row | None]:
        before = _row(connection, BY_NAME, {"name": name})
        if before is None:
            if _row(connection, CREATE, _saved(connection, definition)) is not None:
                return _created(definition)
            met = _row(connection, BY_NAME, {"name": name})
            if met is None or not _says(met, wanted):
                return Answer(name, None, "forbidden", MET.format(name)), None, None
            before = met
        known = {key: before[key] for key in wanted}
        if _says(before, wanted):
            return Answer(name, "unchanged", "already", f"Schedule {name} is unchanged."), known, None
        connection.execute(SAVE.encode(), _saved(connection, definition))
        return Answer(name, "changed", "done", f"Schedule {name} was changed."), known, wanted

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def create(connection: Connection, definition: Definition, actor: Actor, reason: str | None = None) -> Answer:
    """Create a definition where none has its name; 'forbidden' where one has, which stays as it is.

    Raises DefinitionError for a wrong field.
    """
    definition.checked()
    name = definition.name

    def move() -> tuple[Answer, Row | None, Row | None]:
        if _row(connection, CREATE, _saved(connection, definition)) is None:
            return Answer(name, None, "forbidden", f"There is a schedule {name} already."), None, None
        return _created(definition)

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def _wanted(definition: Definition) -> Row:
    """Return what a definition says, by column."""
    return {key: value for key, value in asdict(definition).items() if key != "name"}


def _says(row: Row, wanted: Row) -> bool:
    return all(same_value(row[key], value) for key, value in wanted.items())


def _created(definition: Definition) -> tuple[Answer, None, Row]:
    name = definition.name
    return Answer(name, "created", "done", f"Schedule {name} was created."), None, _wanted(definition)


def _saved(connection: Connection, definition: Definition) -> Row:
    """Return the values of a definition's row."""
    fire = next_fire(connection, definition.schedule, definition.timezone)
    return asdict(definition) | {"payload": json.dumps(definition.payload), "next_fire_at": fire}


def _missing(name: str) -> tuple[Answer, None, None]:
    return Answer(name, None, "missing", f"There is no schedule '{name}'."), None, None


def pause(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Stop a definition's fires; runs that exist stay as they are."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        if _row(connection, BY_NAME, {"name": name}) is None:
            return _missing(name)
        if _row(connection, PAUSE, {"name": name}) is None:
            return Answer(name, "paused", "already", f"Schedule {name} is already paused."), None, None
        return (
            Answer(name, "paused", "done", f"Schedule {name} is paused."),
            {"enabled": True},
            {"enabled": False},
        )

    return act(connection, actor, "schedule.pause", ("schedule", name), reason, move)


def resume(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Let a definition fire again, from now on: what it would have fired meanwhile is not made up for.

    One that could never fire, as plain SQL may write it, is 'forbidden', with the reason.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_NAME, {"name": name})
        if row is None:
            return _missing(name)
        try:
            fire = next_fire(connection, row["schedule"], row["timezone"])
        except ValueError as wrong:
            said = f"Schedule {name} cannot fire: {wrong} Edit it first."
            return Answer(name, None, "forbidden", said), None, None
        if _row(connection, RESUME, {"name": name, "next_fire_at": fire}) is None:
            return Answer(name, "enabled", "already", f"Schedule {name} is not paused."), None, None
        return (
            Answer(name, "enabled", "done", f"Schedule {name} fires again."),
            {"enabled": False},
            {"enabled": True},
        )

    return act(connection, actor, "schedule.resume", ("schedule", name), reason, move)


def run_now(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Enqueue one run of a definition that is due now, beside its schedule. ``Answer.id`` is the run's id."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, RUN_NOW, {"name": name, "actor": actor.name})
        if row is None:
            return _missing(name)
        connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
        said, why = f"Run {row['id']} of {name} was enqueued", row["standstill"]
        if why:
            said += f", but {standstill_clause(why, row['job_type'])}: it waits {WORDS[why].until}"
        answer = Answer(row["id"], "queued", "done", f"{said}.", is_held=why == "paused")
        return answer, None, {"run": row["id"]}

    return act(connection, actor, "schedule.run", ("schedule", name), reason, move)


def left_behind(job_type: str, waiting: int) -> str:
    """Return the sentence on what becomes of ``waiting`` runs, as WAITING counts them, without a schedule.

    Empty where all goes on as before.
    """
    stands_there = builtin_payloads.is_builtin(job_type)
    if not waiting:
        said = "A run of it that is tried again dies" if stands_there else ""
    elif waiting == 1:
        said = f"1 run of it waits and {'dies at its next try' if stands_there else 'goes on'}"
    else:
        many = "More than 1,000" if waiting > MOST_WAITING else str(waiting)
        said = f"{many} runs of it wait and {'die at their next try' if stands_there else 'go on'}"
    gone = " (definition_gone): what to do stands in the schedule alone" if stands_there else ""
    return f"{said}{gone}." if said else ""


def remove(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Remove a definition; its runs and their history stay."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        before = _row(connection, BY_NAME, {"name": name})
        if before is None or _row(connection, REMOVE, {"name": name}) is None:
            return _missing(name)
        waiting = _row(connection, WAITING, before)
        behind = left_behind(before["job_type"], waiting["runs"] if waiting else 0)
        said = f"Schedule {name} was removed; its history stays. {behind}"
        return Answer(name, "removed", "done", said.rstrip()), before, None

    return act(connection, actor, "schedule.remove", ("schedule", name), reason, move)


__all__ = [
    "Definition",
    "DefinitionError",
    "add",
    "create",
    "left_behind",
    "next_fire",
    "pause",
    "remove",
    "resume",
    "run_now",
]
