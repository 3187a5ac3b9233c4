"""The moves of schedules: add, create, edit, pause, resume, run now, remove. Each writes its audit row.

A definition says what should exist; its fires are made by ``wakeboard.schedules.scheduler``. ``add`` and
``create`` take a definition as a whole, ``edit`` what a person changed of the version that they saw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import Connection

from wakeboard.core import builtin_payloads
from wakeboard.core.answer import Answer
from wakeboard.core.outcome import Permanent
from wakeboard.core.run_spec import EnqueueError, check_type, payload_limit, payload_text
from wakeboard.core.text.json_equality import is_same_value
from wakeboard.core.time.cron import read_existing, read_schedule
from wakeboard.core.time.zones import check_timezone
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act, wake_workers
from wakeboard.reporting.diagnosis.standstill import WORDS, standstill, standstill_clause

# What an edit may change.
FIELDS = (
    "schedule", "timezone", "payload", "misfire", "grace_seconds", "overlap", "max_attempts",
    "timeout_seconds", "priority", "enabled",
)  # fmt: skip
# What moves the next fire, when it changes.
TIMING_FIELDS = ("schedule", "timezone", "enabled")
# Names what a definition says, whoever wrote it: plain SQL does not move updated_at.
VERSION = f"md5(ROW(job_type, {', '.join(FIELDS)})::text)"
BY_NAME = f"""
SELECT id, job_type, {", ".join(FIELDS)}, next_fire_at, {VERSION} AS version
FROM wakeboard.job_definitions WHERE name = %(name)s FOR UPDATE
"""
CREATE = """
INSERT INTO wakeboard.job_definitions (name, job_type, payload, schedule, timezone, misfire, grace_seconds,
    overlap, max_attempts, timeout_seconds, priority, next_fire_at)
VALUES (%(name)s, %(job_type)s, %(payload)s::jsonb, %(schedule)s, %(timezone)s, %(misfire)s,
    %(grace_seconds)s, %(overlap)s, %(max_attempts)s, %(timeout_seconds)s, %(priority)s, %(next_fire_at)s)
ON CONFLICT (name) DO NOTHING
"""
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
EDIT = """
UPDATE wakeboard.job_definitions SET schedule = %(schedule)s, timezone = %(timezone)s,
    payload = coalesce(%(payload)s::jsonb, payload), misfire = %(misfire)s, grace_seconds = %(grace_seconds)s,
    overlap = %(overlap)s, max_attempts = %(max_attempts)s, timeout_seconds = %(timeout_seconds)s,
    priority = %(priority)s, enabled = %(enabled)s, error = NULL, updated_at = now(),
    next_fire_at = %(next_fire_at)s
WHERE name = %(name)s
"""
PAUSE = """
UPDATE wakeboard.job_definitions SET enabled = false, updated_at = now()
WHERE name = %(name)s AND enabled
"""
RESUME = """
UPDATE wakeboard.job_definitions SET enabled = true, next_fire_at = %(next_fire_at)s, updated_at = now()
WHERE name = %(name)s AND NOT enabled
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
SELECT count(*) FROM (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.definition_id BETWEEN %(id)s AND %(id)s AND r.status IN ('queued', 'failed')
    ORDER BY r.definition_id LIMIT {MOST_WAITING} + 1
) AS waiting
"""
REMOVE = "DELETE FROM wakeboard.job_definitions WHERE name = %(name)s"

CREATED_BY_ANOTHER = (
    "There is a schedule {} already: somebody else made it at the same moment. It was left as it is; look at "
    "it, then add yours once more to change it."
)
CHANGED = "Schedule {} was changed since you opened it; nothing was saved."


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

    def check(self) -> None:
        """Raise DefinitionError, with the reason, unless every field is allowed."""
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


class DefinitionRow(NamedTuple):
    """A definition as its row says it."""

    id: int
    job_type: str
    schedule: str | None
    timezone: str
    payload: Any
    misfire: str
    grace_seconds: int
    overlap: str
    max_attempts: int | None
    timeout_seconds: float | None
    priority: int
    enabled: bool
    next_fire_at: datetime | None
    version: str

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the columns ``names``."""
        return {name: getattr(self, name) for name in names}

    def differences(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of ``values``, by column, that the row does not have."""
        return {
            name: value for name, value in values.items() if not is_same_value(getattr(self, name), value)
        }


def check_name(name: str) -> None:
    """Raise DefinitionError unless ``name`` may be that of a definition."""
    if not re.fullmatch(r"[a-z0-9_-]{1,100}", name):
        raise DefinitionError(
            f"The name {name[:100]!r} is not allowed: use 1 to 100 of a-z, 0-9, '_' and '-'."
        )


def find_next_fire(connection: Connection, schedule: str | None, timezone: str) -> datetime | None:
    """Return the first fire after the database's now (aware), None for one without a schedule.

    Raises ValueError with a sentence for a schedule that can never fire.
    """
    if schedule is None:
        return None
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return read_existing(schedule).next_fire(timezone, row[0])


def add(connection: Connection, definition: Definition, actor: Actor, reason: str | None = None) -> Answer:
    """Create or change a definition; ``Answer.status`` is 'created', 'changed' or 'unchanged'.

    A paused definition stays paused. Where somebody else creates another of its name at the same moment, that
    one stays, and the answer is 'forbidden': this change was not made on what is there. Raises
    DefinitionError for a wrong field.
    """
    definition.check()
    name, wanted = definition.name, _columns(definition)

    def move() -> Transition:
        row = _find(connection, name)
        if row is None:
            if _insert(connection, definition):
                return _created(definition)
            row = _find(connection, name)
            if row is None or row.differences(wanted):
                return Transition(Answer(name, None, "forbidden", CREATED_BY_ANOTHER.format(name)))
        before = row.values(wanted)
        if not row.differences(wanted):
            answer = Answer(name, "unchanged", "already", f"Schedule {name} is unchanged.")
            return Transition(answer, before)
        connection.execute(SAVE, _saved_values(connection, definition))
        answer = Answer(name, "changed", "done", f"Schedule {name} was changed.")
        return Transition(answer, before, wanted)

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def create(connection: Connection, definition: Definition, actor: Actor, reason: str | None = None) -> Answer:
    """Create a definition where none has its name; 'forbidden' where one has, which stays as it is.

    Raises DefinitionError for a wrong field.
    """
    definition.check()
    name = definition.name

    def move() -> Transition:
        if not _insert(connection, definition):
            return Transition(Answer(name, None, "forbidden", f"There is a schedule {name} already."))
        return _created(definition)

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def edit(
    connection: Connection,
    name: str,
    changes: Mapping[str, Any],
    actor: Actor,
    reason: str | None = None,
    *,
    version: str | None = None,
) -> Answer:
    """Change columns (FIELDS) of a definition; the audit log keeps what was different before.

    version: ``VERSION`` of the row that the person saw; None: whatever it says now. Enabling starts from
    now, as ``resume`` does. Returns 'done', 'already', 'forbidden' (another version), 'invalid', 'denied' or
    'missing'.
    """

    def move() -> Transition:
        row = _find(connection, name)
        if row is None:
            return Transition(missing(name))
        if version is not None and version != row.version:
            return Transition(Answer(name, "changed", "forbidden", CHANGED.format(name)))
        after = row.differences({key: value for key, value in changes.items() if key in FIELDS})
        if not after:
            return Transition(Answer(name, "unchanged", "already", f"Schedule {name} says that already."))
        values = row._asdict() | after
        try:
            Definition(
                name, **{key: values[key] for key in ("job_type", *FIELDS) if key != "enabled"}
            ).check()
        except DefinitionError as wrong:
            return Transition(Answer(name, None, "invalid", str(wrong)))
        if row.next_fire_at is None or not after.keys().isdisjoint(TIMING_FIELDS):
            values["next_fire_at"] = find_next_fire(connection, values["schedule"], values["timezone"])
        # Read and written back, a number would lose the digits that Python's floats cannot hold.
        values["payload"] = json.dumps(values["payload"]) if "payload" in after else None
        connection.execute(EDIT, values | {"name": name})
        answer = Answer(name, "changed", "done", f"Schedule {name} was changed.")
        return Transition(answer, row.values(after), after)

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def pause(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Stop a definition's fires; runs that exist stay as they are."""

    def move() -> Transition:
        if _find(connection, name) is None:
            return Transition(missing(name))
        if not connection.execute(PAUSE, {"name": name}).rowcount:
            return Transition(Answer(name, "paused", "already", f"Schedule {name} is already paused."))
        answer = Answer(name, "paused", "done", f"Schedule {name} is paused.")
        return Transition(answer, {"enabled": True}, {"enabled": False})

    return act(connection, actor, "schedule.pause", ("schedule", name), reason, move)


def resume(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Let a definition fire again, from now on: what it would have fired meanwhile is not made up for.

    One that could never fire, as plain SQL may write it, is 'forbidden', with the reason.
    """

    def move() -> Transition:
        row = _find(connection, name)
        if row is None:
            return Transition(missing(name))
        try:
            fire = find_next_fire(connection, row.schedule, row.timezone)
        except ValueError as wrong:
            message = f"Schedule {name} cannot fire: {wrong} Edit it first."
            return Transition(Answer(name, None, "forbidden", message))
        if not connection.execute(RESUME, {"name": name, "next_fire_at": fire}).rowcount:
            return Transition(Answer(name, "enabled", "already", f"Schedule {name} is not paused."))
        answer = Answer(name, "enabled", "done", f"Schedule {name} fires again.")
        return Transition(answer, {"enabled": False}, {"enabled": True})

    return act(connection, actor, "schedule.resume", ("schedule", name), reason, move)


def run_now(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Enqueue one run of a definition that is due now, beside its schedule. ``Answer.id`` is the run's id."""

    def move() -> Transition:
        row = connection.execute(RUN_NOW.encode(), {"name": name, "actor": actor.name}).fetchone()
        if row is None:
            return Transition(missing(name))
        run_id, job_type, obstacle = row
        wake_workers(connection)
        message = f"Run {run_id} of {name} was enqueued"
        if obstacle:
            message += f", but {standstill_clause(obstacle, job_type)}: it waits {WORDS[obstacle].until}"
        answer = Answer(run_id, "queued", "done", f"{message}.", is_held=obstacle == "paused")
        return Transition(answer, after={"run": run_id})

    return act(connection, actor, "schedule.run", ("schedule", name), reason, move)


def remove(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Remove a definition; its runs and their history stay."""

    def move() -> Transition:
        row = _find(connection, name)
        if row is None:
            return Transition(missing(name))
        connection.execute(REMOVE, {"name": name})
        waiting = connection.execute(WAITING.encode(), {"id": row.id}).fetchone()
        note = describe_removal(row.job_type, waiting[0] if waiting else 0)
        message = f"Schedule {name} was removed; its history stays. {note}".rstrip()
        before = row.values(("id", "job_type", *FIELDS, "next_fire_at"))
        return Transition(Answer(name, "removed", "done", message), before)

    return act(connection, actor, "schedule.remove", ("schedule", name), reason, move)


def describe_removal(job_type: str, waiting: int) -> str:
    """Return the sentence on what becomes of ``waiting`` runs, as WAITING counts them, without a schedule.

    Empty where all goes on as before.
    """
    # The runs of a built-in type read at each start what to do, in their definition.
    is_builtin = builtin_payloads.is_builtin(job_type)
    if not waiting:
        words = "A run of it that is tried again dies" if is_builtin else ""
    elif waiting == 1:
        words = f"1 run of it waits and {'dies at its next try' if is_builtin else 'goes on'}"
    else:
        count = "More than 1,000" if waiting > MOST_WAITING else str(waiting)
        words = f"{count} runs of it wait and {'die at their next try' if is_builtin else 'go on'}"
    why = " (definition_gone): what to do stands in the schedule alone" if is_builtin else ""
    return f"{words}{why}." if words else ""


def missing(name: str) -> Answer:
    """Return the answer about a schedule that does not exist."""
    return Answer(name, None, "missing", f"There is no schedule '{name}'.")


def _find(connection: Connection, name: str) -> DefinitionRow | None:
    """Lock and return the definition ``name``, None when there is none."""
    return read_one(connection, BY_NAME, DefinitionRow, {"name": name})


def _insert(connection: Connection, definition: Definition) -> bool:
    """Insert ``definition``; False where another has its name."""
    return connection.execute(CREATE, _saved_values(connection, definition)).rowcount > 0


def _columns(definition: Definition) -> dict[str, Any]:
    """Return what a definition says, by column."""
    return {key: value for key, value in asdict(definition).items() if key != "name"}


def _saved_values(connection: Connection, definition: Definition) -> dict[str, Any]:
    """Return the values of a definition's row."""
    fire = find_next_fire(connection, definition.schedule, definition.timezone)
    return asdict(definition) | {"payload": json.dumps(definition.payload), "next_fire_at": fire}


def _created(definition: Definition) -> Transition:
    name = definition.name
    answer = Answer(name, "created", "done", f"Schedule {name} was created.")
    return Transition(answer, after=_columns(definition))
