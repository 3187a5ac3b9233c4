"""Schedules declared in code: the definition of a job type follows its ``@job(schedule=…)``.

A declaration is applied once, when its type has never had it before. One that the type has had before (an old
worker beside new ones, or a release that was rolled back) is applied again only when no live worker declares
the latest one any more, and only where no person has changed or removed the schedule since. A definition that
a person made is never changed. One that the code no longer declares goes on firing, with a warning.

``job_types.said_in_code`` has the declarations of a type so far, ``workers.code_schedules`` those of a
worker. One process at a time decides, so that a change is made and logged once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection

from wakeboard.config import log
from wakeboard.core.answer import Answer
from wakeboard.core.job_options import schedule_names
from wakeboard.core.text.sanitize import first_line
from wakeboard.core.time.clock_skew import is_since
from wakeboard.database.audit import ENGINE
from wakeboard.database.db import LOCKED
from wakeboard.database.poison_rows import is_refusal, refusal_reason
from wakeboard.database.read import read_all
from wakeboard.queue.definitions import Definition, DefinitionError, create, edit
from wakeboard.reporting.worker_states import runs_type

# The rules of each job type of the code, as ``handlers.registry`` has them.
Policies = Sequence[Mapping[str, Any]]
LogLine = Callable[[], None]
# So many of the newest declarations of a type are stored.
MOST_STORED = 50
# The declarations of a worker without a heartbeat count for so long; a tick runs as often as its crontab
# says.
WORKER_SECONDS, TICK_SECONDS = 180, 900

DECIDE_ALONE = "SELECT pg_advisory_xact_lock(7229190504)"
HISTORY = (
    "SELECT name, said_in_code FROM wakeboard.job_types WHERE name = ANY(%s) AND said_in_code IS NOT NULL"
)
STORE = """
INSERT INTO wakeboard.job_types AS t (name, said_in_code) VALUES (%(name)s, %(history)s::jsonb)
ON CONFLICT (name) DO UPDATE SET said_in_code = excluded.said_in_code
"""
# A worker that has the type and publishes no schedule for it declares that it has none.
IS_DECLARED = f"""
SELECT EXISTS (
    SELECT FROM wakeboard.workers AS w
    WHERE {runs_type("w", "%(name)s")} AND w.code_schedules IS NOT NULL
        AND w.code_schedules -> %(name)s IS NOT DISTINCT FROM %(declared)s::jsonb
        AND CASE WHEN w.is_tick THEN {is_since("w.seen_at", TICK_SECONDS)}
            ELSE w.stopped_at IS NULL AND {is_since("w.seen_at", WORKER_SECONDS)} END
)
"""
# The code made a definition when the engine wrote the latest audit row that created it.
EXISTING = """
SELECT d.name, d.job_type, d.schedule, d.timezone, (
    SELECT a.source = 'engine' FROM wakeboard.audit_log AS a
    WHERE a.target_type = 'schedule' AND a.target_id = d.name AND a.action = 'schedule.edit'
        AND a.before IS NULL AND a.result = 'done'
    ORDER BY a.id DESC LIMIT 1
) AS is_of_code
FROM wakeboard.job_definitions AS d WHERE d.name = ANY(%(names)s)
ORDER BY array_position(%(names)s, d.name)
"""


class DefinitionLocked(DefinitionError):
    """Another transaction has locked the definition: the declaration may be written later."""


class Declaration(NamedTuple):
    """The schedule that code declares for a type: cron text or None, and the zone if the code names one."""

    schedule: str | None
    timezone: str | None = None


class ExistingDefinition(NamedTuple):
    """A definition under a name that the type's own may have; ``is_of_code`` is None without an audit row."""

    name: str
    job_type: str
    schedule: str | None
    timezone: str
    is_of_code: bool | None

    def after(self, declared: Declaration, before: Declaration) -> ExistingDefinition:
        """Return this definition with the schedule that is ``declared``.

        The code changes the time zone only where it names one, or named one ``before``.
        """
        zone = declared.timezone or ("UTC" if before.timezone else self.timezone)
        return self._replace(schedule=declared.schedule, timezone=zone)


NO_SCHEDULE = Declaration(None)


def declarations(policies: Policies) -> dict[str, Declaration]:
    """Return what the code declares for each type that it registers."""
    return {each["name"]: Declaration(each.get("schedule"), each.get("timezone")) for each in policies}


def as_published(policies: Policies) -> str:
    """Return what a worker publishes, as JSON: the declaration of each type that has a schedule."""
    declared = declarations(policies)
    return json.dumps({name: each for name, each in declared.items() if each.schedule is not None})


def sync(connection: Connection, policies: Policies) -> Sequence[str]:
    """Write the declarations that are not the latest of their type. For a worker that starts.

    Returns the types whose definition another transaction has locked: ``resync`` tries them again.
    """
    declared = declarations(policies)
    history = _history(connection, declared)
    changed = [name for name, each in declared.items() if each != _latest(history[name])]
    return _write_each(connection, declared, changed)


def resync(connection: Connection, policies: Policies, locked: Sequence[str] = ()) -> Sequence[str]:
    """Write older declarations again where no worker declares the latest any more. For a running worker.

    So a rollback is applied when the last worker of the newer release is gone. Code without any schedule
    queries nothing. Types that were ``locked`` are tried again; returns those that still are.
    """
    if not locked and not any(policy.get("schedule") for policy in policies):
        return ()
    declared = declarations(policies)
    history = _history(connection, declared)
    changed = [
        name
        for name, each in declared.items()
        if each != _latest(history[name]) and (name in locked or each in history[name])
    ]
    return _write_each(connection, declared, changed)


def is_declared(connection: Connection, job_type: str, declared: Declaration) -> bool:
    """Return whether a live worker, or a tick of the last quarter of an hour, declares this for the type."""
    published = None if declared.schedule is None else json.dumps(declared)
    row = connection.execute(IS_DECLARED, {"name": job_type, "declared": published}).fetchone()
    return bool(row and row[0])


def _history(connection: Connection, job_types: Iterable[str]) -> dict[str, list[Declaration]]:
    """Return the declarations of each type so far, the latest last."""
    names = list(job_types)
    stored: dict[str, list[Any]] = dict(connection.execute(HISTORY, (names,)).fetchall())
    return {name: [Declaration(*each) for each in stored.get(name, ())] for name in names}


def _latest(history: Sequence[Declaration]) -> Declaration:
    return history[-1] if history else NO_SCHEDULE


def _write_each(
    connection: Connection, declared: Mapping[str, Declaration], job_types: Iterable[str]
) -> list[str]:
    """Write the declarations of ``job_types``; one that is refused stops no other.

    Returns those that are left for later: after one that is locked no other is tried. Types whose name is
    that of their schedule come first, so that they get it whatever the order of the code.
    """
    locked: list[str] = []
    for name in sorted(job_types, key=lambda name: (schedule_names(name)[0] != name, name)):
        if locked:
            locked.append(name)
            continue
        try:
            _write(connection, name, declared[name])
        except (DefinitionLocked, *LOCKED) as failure:
            locked.append(name)
            log.warn("A registered schedule is written later.", job_type=name, error=first_line(failure))
        except ValueError as wrong:
            log.warn("A registered schedule was refused.", job_type=name, error=str(wrong))
        except psycopg.Error as refused:
            if not is_refusal(refused):
                raise
            log.warn("A registered schedule was refused.", job_type=name, error=refusal_reason(refused))
    return locked


def _write(connection: Connection, job_type: str, declared: Declaration) -> None:
    """Apply a declaration if it is to be applied, and store it.

    Raises DefinitionError for a schedule that is not allowed, or where both names are taken, and its subclass
    DefinitionLocked where it may be tried again; then it is not stored.
    """
    with connection.transaction():
        connection.execute(DECIDE_ALONE)
        history = _history(connection, [job_type])[job_type]
        latest = _latest(history)
        if declared == latest or (declared in history and is_declared(connection, job_type, latest)):
            return
        log_result = _apply(connection, job_type, declared, history)
        stored = [*(each for each in history if each != declared), declared][-MOST_STORED:]
        connection.execute(STORE, {"name": job_type, "history": json.dumps(stored)})
    if log_result is not None:
        log_result()


def _apply(
    connection: Connection, job_type: str, declared: Declaration, history: Sequence[Declaration]
) -> LogLine | None:
    """Create, change or leave the type's definition; return what logs that once it is committed."""
    names = list(schedule_names(job_type))
    existing = read_all(connection, EXISTING, ExistingDefinition, {"names": names})
    of_type = [each for each in existing if each.job_type == job_type]
    last = next((each for each in reversed(history) if each.schedule is not None), NO_SCHEDULE)
    if declared.schedule is None:
        return partial(_warn_of_undeclared, [each for each in of_type if each.schedule == last.schedule])
    is_new = declared not in history
    own = next((each for each in of_type if _is_of_code(each, last)), None)
    if own is not None and (is_new or own == own.after(last, NO_SCHEDULE)):
        return _change(connection, own, own.after(declared, last))
    if of_type:
        edited = own or of_type[0]
        return _warning_of_edited(edited, edited.after(declared, last))
    # Where the latest declaration is none, a schedule that was removed meanwhile was not the code's.
    if not is_new and history[-1].schedule is not None:
        return partial(
            log.warn,
            "A schedule of the code is not written: somebody removed it, and the code has said the same "
            "before.",
            job_type=job_type, code_says=declared.schedule,
            mend=f"wakeboard schedule add {names[0]} --type … --cron …",
        )  # fmt: skip
    return _create(connection, job_type, declared, existing)


def _is_of_code(existing: ExistingDefinition, last: Declaration) -> bool:
    """Return whether the code made it. Without an audit row: whether it has the code's last schedule."""
    if existing.is_of_code is None:
        return last.schedule is not None and existing.schedule == last.schedule
    return existing.is_of_code


def _change(connection: Connection, own: ExistingDefinition, wanted: ExistingDefinition) -> LogLine | None:
    if own == wanted:
        return None
    changes = {"schedule": wanted.schedule, "timezone": wanted.timezone}
    _require_done(edit(connection, own.name, changes, ENGINE, "changed in code"))
    return partial(
        log.note, "A schedule was changed in code.", schedule=own.name,
        before=_timing(own.schedule, own.timezone), after=_timing(wanted.schedule, wanted.timezone),
    )  # fmt: skip


def _warning_of_edited(edited: ExistingDefinition, wanted: ExistingDefinition) -> LogLine | None:
    if edited == wanted:
        return None
    return partial(
        log.warn, "A schedule of the code is not written: somebody made or changed the one under its name.",
        schedule=edited.name, job_type=edited.job_type, says=_timing(edited.schedule, edited.timezone),
        code_says=_timing(wanted.schedule, wanted.timezone),
        mend=f"edit it on /schedules/{edited.name}, or take the schedule out of the code",
    )  # fmt: skip


def _create(
    connection: Connection, job_type: str, declared: Declaration, existing: Sequence[ExistingDefinition]
) -> LogLine:
    plain, other = schedule_names(job_type)
    types_by_name = {each.name: each.job_type for each in existing}
    name, why = plain, "registered in code"
    if plain in types_by_name:
        name, why = other, f"{why}; {plain} is a schedule of the type {types_by_name[plain]}"
    if name in types_by_name:
        raise DefinitionError(f"Both {plain} and {other} are schedules of other types: rename one of them.")
    zone = declared.timezone or "UTC"
    definition = Definition(name, job_type, declared.schedule, timezone=zone)
    _require_done(create(connection, definition, ENGINE, why))
    return partial(
        log.note, "A schedule was made.", schedule=name, job_type=job_type,
        says=_timing(declared.schedule, zone), why=why,
    )  # fmt: skip


def _require_done(answer: Answer) -> None:
    if answer.result == "locked":
        raise DefinitionLocked(answer.message)
    if answer.result != "done":
        raise DefinitionError(answer.message)


def _warn_of_undeclared(definitions: Iterable[ExistingDefinition]) -> None:
    for definition in definitions:
        log.warn(
            "A schedule is not in the code any more, and goes on firing.", schedule=definition.name,
            job_type=definition.job_type, mend=f"wakeboard schedule remove {definition.name}, or pause",
        )  # fmt: skip


def _timing(schedule: str | None, timezone: str) -> str:
    """Return when a definition fires, for the log: its text, and its zone where that is not UTC."""
    return str(schedule) if timezone == "UTC" else f"{schedule} in {timezone}"
