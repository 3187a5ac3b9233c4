"""Schedules that code registers with ``@job(schedule=…)``: written when a worker starts, or while it goes on.

What is written, and what of an operator's stays, is decided by ``wakeboard.schedules.registered``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from wakeboard.config import log
from wakeboard.core.text.sanitize import first_line
from wakeboard.database.db import LOCKED
from wakeboard.database.poison_rows import is_refusal, reason
from wakeboard.schedules import registered, sayings
from wakeboard.schedules.sayings import NOTHING_SAID, Said


def sync(connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Write the definition of each type registered with ``@job(schedule=…)`` when its code says another.

    Another than was applied last, that is: what an operator has edited or removed stays so, and whether it is
    enabled is never touched (the whole rule: ``wakeboard.schedules.registered``). One that the code has no
    longer stays too, with a warning: nobody knows here whether a person relies on it. For a worker that
    starts. Returns the types whose definition another transaction holds: they are for ``resync``.
    """
    said, known = _said_and_known(connection, policies)
    names = [name for name, one in said.items() if one != _last(known.get(name))]
    return _write_said(connection, said, names)


def resync(
    connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]], locked: Sequence[str] = ()
) -> Sequence[str]:
    """Write what the code says once more, where nobody says the newer any more. For a worker that goes on.

    So a release that is taken back is applied when the last worker of the newer one has gone. Code without
    any schedule has nothing to write, and asks nothing. Types that were ``locked`` are tried again; returns
    those that still are.
    """
    if not locked and not any(policy.get("schedule") for policy in policies):
        return ()
    said, known = _said_and_known(connection, policies)
    again = [
        name
        for name, one in said.items()
        if one != _last(known.get(name)) and (name in locked or one in known.get(name, ()))
    ]
    return _write_said(connection, said, again)


def _said_and_known(
    connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Said], dict[str, list[Said]]]:
    said = sayings.of_policies(policies)
    return said, sayings.remembered(connection, list(said))


def _last(known: Sequence[Said] | None) -> Said:
    return known[-1] if known else NOTHING_SAID


def _write_said(
    connection: psycopg.Connection[Any], said: Mapping[str, Said], names: Sequence[str]
) -> list[str]:
    """Write what the code says of ``names``; one that is refused hurts no other.

    Returns those that are left for later: after one that another transaction holds no other is waited for.
    """
    locked: list[str] = []
    for name in registered.in_order(names):
        if locked:
            locked.append(name)
            continue
        try:
            registered.write(connection, name, said[name])
        except (registered.DefinitionLocked, *LOCKED) as held:
            locked.append(name)
            log.warn("A registered schedule is written later.", job_type=name, error=first_line(held))
        except ValueError as wrong:
            log.warn("A registered schedule was refused.", job_type=name, error=str(wrong))
        except psycopg.Error as refused:
            if not is_refusal(refused):
                raise
            log.warn("A registered schedule was refused.", job_type=name, error=reason(refused))
    return locked
