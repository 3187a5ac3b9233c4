"""The schedules of the code: ``@job(schedule=…)`` has one definition a type, and touches nobody else's.

Which definition is a type's is told by its name, its type and who made it. One process at a time decides, so
that a change is made and told once, however many workers start with it.

What the code says is applied once, when it says something new: something that it has not said before. What it
has said before (an old worker beside new ones, or a release that was taken back) is applied again only when
no worker says the newer any more, and only where no person has changed or removed the schedule since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from wakeboard.config import log
from wakeboard.core.answer import Answer
from wakeboard.database.audit import ENGINE
from wakeboard.queue.definitions import Definition, DefinitionError, create
from wakeboard.queue.editing import edit
from wakeboard.queue.operator import Connection
from wakeboard.schedules import sayings
from wakeboard.schedules.sayings import NOTHING_SAID, Said

# What is said once the change stands.
Telling = Callable[[], None]
LONGEST_NAME = 100
IN_TURN = "SELECT pg_advisory_xact_lock(7229190504)"
# Who made it is what the audit log says of the latest row without anything before.
KNOWN = """
SELECT d.name, d.job_type, d.schedule, d.timezone, (
    SELECT a.source = 'engine' FROM wakeboard.audit_log AS a
    WHERE a.target_type = 'schedule' AND a.target_id = d.name AND a.action = 'schedule.edit'
        AND a.before IS NULL AND a.result = 'done'
    ORDER BY a.id DESC LIMIT 1
) AS is_of_code
FROM wakeboard.job_definitions AS d WHERE d.name = ANY(%s)
"""


class DefinitionLocked(DefinitionError):
    """Another transaction holds the definition: what the code says may be written later."""


class Known(NamedTuple):
    """A definition under a name that a type may have; ``is_of_code`` is None where no audit row tells."""

    name: str
    job_type: str
    schedule: str | None
    timezone: str
    is_of_code: bool | None


def names_of(job_type: str) -> tuple[str, str]:
    """Return the name that the schedule of a type's code gets, and the one it gets where that is taken.

    Of the type ``send.report``: ``send-report``, ``send-report-`` and six digits that its own name gives.
    """
    plain = re.sub(r"[^a-z0-9_-]+", "-", job_type.lower()).strip("-")[:LONGEST_NAME] or "schedule"
    digits = blake2b(job_type.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return plain, f"{plain[: LONGEST_NAME - len(digits) - 1]}-{digits}"


def in_order(job_types: Sequence[str]) -> list[str]:
    """Return ``job_types`` as they choose names: who is called so first, whatever order the code has."""
    return sorted(job_types, key=lambda name: (names_of(name)[0] != name, name))


def write(connection: Connection, job_type: str, said: Said) -> None:
    """Apply what the code of ``job_type`` says, if that is to be applied, and remember that it was said.

    It makes the definition, or changes its text and zone. The zone is the code's to change where the code
    names one, or did until now. A person's definition of the type under its name stays as it is, with a
    warning. Raises DefinitionError for a text that cannot be, or where both names are taken, and
    DefinitionLocked, which is one, where it may be tried again; it counts as never said then.
    """
    with connection.transaction():
        connection.execute(IN_TURN)
        before = sayings.remembered(connection, [job_type]).get(job_type, [])
        last = before[-1] if before else NOTHING_SAID
        if said == last or (said in before and sayings.is_said(connection, job_type, last)):
            return
        tell = _apply(connection, job_type, said, before)
        sayings.remember(connection, job_type, said, before)
    tell()


def _apply(connection: Connection, job_type: str, said: Said, before: Sequence[Said]) -> Telling:
    """Write what the code says after it has said ``before``; return what tells of it."""
    known = _known(connection, job_type)
    of_type = [each for each in known.values() if each.job_type == job_type]
    last = next((one for one in reversed(before) if one.schedule is not None), NOTHING_SAID)
    if said.schedule is None:
        return partial(_warn_of_left, of_type, last)
    own = next((each for each in of_type if _is_of_code(each, last.schedule)), None)
    wanted, is_new = _wanted(said, last), said not in before
    if own is not None:
        is_a_persons = not is_new and not _says(own, _wanted(last, NOTHING_SAID))
        return _leave(own, wanted) if is_a_persons else _change(connection, own, wanted)
    if of_type:
        return _leave(of_type[0], wanted)
    # What was removed while the code had none was nothing of the code's.
    if not is_new and before[-1].schedule is not None:
        return partial(_tell_of_removed, job_type, said)
    return _make(connection, Definition(names_of(job_type)[0], job_type, **wanted), known)


def _known(connection: Connection, job_type: str) -> dict[str, Known]:
    names = list(names_of(job_type))
    found = {row[0]: Known(*row) for row in connection.execute(KNOWN, (names,)).fetchall()}
    return {name: found[name] for name in names if name in found}


def _is_of_code(known: Known, before: str | None) -> bool:
    """Whether the code made it. Once the audit log has forgotten, it is whatever says what the code said."""
    if known.is_of_code is None:
        return before is not None and known.schedule == before
    return known.is_of_code


def _wanted(said: Said, before: Said) -> dict[str, Any]:
    """Return the columns that the code decides, with what it wants there."""
    wanted: dict[str, Any] = {"schedule": said.schedule}
    if said.timezone or before.timezone:
        wanted["timezone"] = said.timezone or "UTC"
    return wanted


def _says(known: Known, wanted: dict[str, Any]) -> bool:
    return all(getattr(known, column) == value for column, value in wanted.items())


def _change(connection: Connection, own: Known, wanted: dict[str, Any]) -> Telling:
    if _says(own, wanted):
        return _nothing
    _must_be_done(edit(connection, own.name, wanted, ENGINE, "changed in code"))
    return partial(
        log.note, "A schedule was changed in code.", schedule=own.name, before=_told(own),
        after=_told(own._replace(**wanted)),
    )  # fmt: skip


def _leave(known: Known, wanted: dict[str, Any]) -> Telling:
    if _says(known, wanted):
        return _nothing
    return partial(
        log.warn, "A schedule of the code is not written: somebody made or changed the one under its name.",
        schedule=known.name, job_type=known.job_type, says=_told(known),
        code_says=_told(known._replace(**wanted)),
        mend=f"edit it on /schedules/{known.name}, or take the schedule out of the code",
    )  # fmt: skip


def _make(connection: Connection, wanted: Definition, known: dict[str, Known]) -> Telling:
    plain, other = names_of(wanted.job_type)
    name = next((each for each in (plain, other) if each not in known), None)
    if name is None:
        raise DefinitionError(f"Both {plain} and {other} are schedules of other types: rename one of them.")
    why = "registered in code"
    if name == other:
        why += f"; {plain} is a schedule of the type {known[plain].job_type}"
    _must_be_done(create(connection, replace(wanted, name=name), ENGINE, why))
    return partial(
        log.note, "A schedule was made.", schedule=name, job_type=wanted.job_type, says=_told(wanted), why=why
    )


def _must_be_done(answer: Answer) -> None:
    if answer.result == "locked":
        raise DefinitionLocked(answer.message)
    if answer.result != "done":
        raise DefinitionError(answer.message)


def _told(definition: Known | Definition) -> str:
    """Return when a definition fires, for the log: its text, and its zone where that is not UTC."""
    if definition.timezone == "UTC":
        return str(definition.schedule)
    return f"{definition.schedule} in {definition.timezone}"


def _warn_of_left(of_type: Sequence[Known], last: Said) -> None:
    """Tell of the definitions that say what the code said ``last``, now that it says nothing."""
    for known in of_type:
        if known.schedule == last.schedule:
            log.warn(
                "A schedule is not in the code any more, and goes on firing.", schedule=known.name,
                job_type=known.job_type, mend=f"wakeboard schedule remove {known.name}, or pause",
            )  # fmt: skip


def _tell_of_removed(job_type: str, said: Said) -> None:
    log.warn(
        "A schedule of the code is not written: somebody removed it, and the code has said the same before.",
        job_type=job_type, code_says=said.schedule,
        mend=f"wakeboard schedule add {names_of(job_type)[0]} --type … --cron …",
    )  # fmt: skip


def _nothing() -> None:
    """Tell nothing."""


__all__ = ["DefinitionLocked", "in_order", "names_of", "write"]
