"""The filters of ``runs``: named as in the pages' query string → conditions with bound values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from worker.cli.errors import Wrong
from worker.cli.kinds import past
from worker.states import Status

NAMES = ("status", "type", "error", "worker", "key", "attempts", "since", "until", "q", "payload.<path>")
STATUSES = [status.value for status in Status]


@dataclass
class Where:
    """Conditions on ``job_runs AS r``, all of which must hold, and their values."""

    now: datetime
    conditions: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, condition: str, value: Any) -> None:
        """Add ``condition``, in which ``{value}`` stands for the bound ``value``."""
        name = f"value_{len(self.values)}"
        self.values[name] = value
        self.conditions.append(condition.format(value=f"%({name})s"))

    @property
    def sql(self) -> str:
        """The conditions as the text after WHERE."""
        return " AND ".join(self.conditions) or "true"


def _status(where: Where, text: str) -> None:
    wanted = [word for word in text.split(",") if word]
    for word in wanted:
        if word not in STATUSES:
            near = get_close_matches(word, STATUSES, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise Wrong(f"There is no status {word[:60]!r}; allowed: {', '.join(STATUSES)}.{hint}")
    where.add("r.status = ANY({value})", wanted)


def _words(column: str) -> Callable[[Where, str], None]:
    return lambda where, text: where.add(column + " = ANY({value})", [w for w in text.split(",") if w])


def _worker(where: Where, text: str) -> None:
    where.add(
        "(SELECT true FROM (SELECT {value}::text AS id) AS w WHERE r.locked_by = w.id OR EXISTS (SELECT 1"
        " FROM wakeboard.job_attempts AS a WHERE a.run_id = r.id AND a.worker_id = w.id))",
        text,
    )


def _attempts(where: Where, text: str) -> None:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Wrong(f"attempts is {text[:60]!r}; allowed: a whole number, the least number of attempts.")
    where.add("r.attempts >= {value}", int(text))


def _text(where: Where, text: str) -> None:
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
    where.add(
        "(SELECT r.payload::text ILIKE q.text OR r.last_error ILIKE q.text"
        " FROM (SELECT {value}::text) AS q (text))",
        pattern,
    )


READERS: dict[str, Callable[[Where, str], None]] = {
    "status": _status,
    "type": _words("r.job_type"),
    "error": _words("r.error_code"),
    "worker": _worker,
    "key": lambda where, text: where.add("r.idempotency_key = {value}", text),
    "attempts": _attempts,
    "since": lambda where, text: where.add("r.created_at >= {value}", past(text, where.now, "since")),
    "until": lambda where, text: where.add("r.created_at < {value}", past(text, where.now, "until")),
    "q": _text,
}


def read(pairs: Iterable[tuple[str, str]], now: datetime) -> Where:
    """Return the conditions of (name, text) pairs; ``now`` is the database's clock. Raises Wrong."""
    where = Where(now)
    for name, text in pairs:
        if "\0" in text or len(text) > 500:
            raise Wrong(f"The filter {name[:60]!r} has more than 500 characters or a NUL among them.")
        if name.startswith("payload.") and len(name) > len("payload."):
            path = name.removeprefix("payload.").split(".")
            where.values[f"path_{len(where.values)}"] = path
            where.add(f"r.payload #>> %(path_{len(where.values) - 1})s::text[] = {{value}}", text)
        elif name in READERS:
            READERS[name](where, text)
        else:
            raise Wrong(f"There is no filter {name[:60]!r}; filters: {', '.join(NAMES)}.")
    return where


def pair(word: str) -> tuple[str, str]:
    """Return the name and text of ``name=text``. Raises Wrong."""
    name, equals, text = word.partition("=")
    if not equals:
        raise Wrong(
            f"{word[:60]!r} is not a filter: write NAME=VALUE, with one of {', '.join(NAMES)}. "
            "One run alone: wakeboard run ID"
        )
    return name, text
