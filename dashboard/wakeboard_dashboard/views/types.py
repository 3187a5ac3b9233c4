"""Views of job types: what each may do, what operators decided, how it goes; pause, resume, limit, keep.

All types together are paused and resumed here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from urllib.parse import quote

import psycopg
from flask import Blueprint, abort, g
from sqlalchemy import RowMapping

from wakeboard.core.builtin_payloads import command_user, no_worker_for
from wakeboard.core.text.redaction import redact
from wakeboard.database.audit import Actor
from wakeboard.database.tables import job_types
from wakeboard.queue import Answer
from wakeboard.queue import types as moves
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import types as query
from wakeboard_dashboard.text import ends
from wakeboard_dashboard.text.formats import number, plural
from wakeboard_dashboard.text.policy import retries
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("types", __name__)

PATH = "/types"
ONE = f"{PATH}/<path:name>"
DAYS = ("succeeded_days", "dead_days")
FIELDS = {"state": params.one_of(query.STATES, many=True), "q": params.TEXT}
COLUMNS = [
    "name", "state", "queued", "oldest_due_at", "running", "failed", "dead", "max_running",
    "max_running_operator", "workers", "claiming_workers", "draining_workers",
    "max_attempts", "timeout_seconds", "lease_seconds", "backoff", "median_seconds", "p95_seconds",
    "succeeded_24h", "last_failure_run_id", "last_failure_code", "last_failure_at", "paused_at", "paused_by",
    "paused_reason", "paused_until", "schedule", "keep_succeeded_days", "keep_dead_days", "seen_at",
]  # fmt: skip
# Of these, what stands in the row itself.
_OWN = [column for column in COLUMNS if column in job_types.c]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type of the list: its row, what is counted about it, and where its page is."""

    row: RowMapping
    load: query.TypeLoad
    pace: query.TypePace
    oldest: datetime | None
    failure: query.LastFailure | None
    workers: query.TypeWorkers

    @property
    def type(self) -> SimpleNamespace:
        """The row as attributes: a template looks for these first, and may ask fifty times."""
        return SimpleNamespace(**self.row)

    @property
    def workers_text(self) -> str:
        """Its workers in words, ``1 live worker, 2 draining``; empty without any."""
        workers = self.workers
        counts = (("live", workers.claiming), ("draining", workers.draining), ("stopping", workers.stopping))
        words = [(word, count) for word, count in counts if count]
        first = [plural(count, f"{word} worker") for word, count in words[:1]]
        return ", ".join(first + [f"{number(count)} {word}" for word, count in words[1:]])

    @property
    def path(self) -> str:
        """The path of the type's page."""
        return path_of(self.row["name"])


def find_types() -> Context:
    """Return the types of the page and what is counted about them."""
    filters = params.from_request(FIELDS)
    rows = query.list_types(reading(), filters)
    paces = query.read_paces(reading(), as_of(), [row["name"] for row in rows.items])
    numbers = query.read_numbers(reading(), paces)
    return {
        "filters": filters,
        "rows": rows,
        "lines": [_line(row, numbers) for row in rows.items],
        "unregistered": query.list_unregistered(reading()),
        "why_unregistered": why_unregistered,
        "states": query.STATES,
        "capped": capped,
        "retries": retries,
        # Asked by the page alone, not by its fragments.
        "is_any_held": lambda: query.has_paused_together(reading()),
    }


def why_unregistered(name: str) -> str:
    """Return why runs of type ``name`` wait, which no worker ever registered, to follow "wait"."""
    if (user := command_user(name)) is not None:
        return f". {no_worker_for(user)}"
    return (
        ", and no worker has ever registered that type. Start a worker whose app defines it, or cancel them."
    )


def _line(row: RowMapping, numbers: query.TypeNumbers) -> TypeRow:
    name = row["name"]
    return TypeRow(
        row,
        numbers.loads[name],
        numbers.paces[name],
        numbers.oldest.get(name),
        numbers.failures.get(name),
        numbers.workers.get(name, query.TypeWorkers()),
    )


def capped(count: int, *, is_cut: bool = False) -> str:
    """Return a count as text; one that stopped before the end says so: ``1 000+``."""
    return number(min(count, query.CAP)) + "+" if is_cut or count > query.CAP else number(count)


def path_of(name: str) -> str:
    """Return the path of type ``name``, whatever characters are in it."""
    return f"{PATH}/{quote(name, safe='')}"


def types_twin(context: Context) -> Json:
    """Return the list's JSON body; ``next`` and ``unregistered`` beside the items."""
    items = [_item(line) for line in context["lines"]]
    return {"items": items, "next": context["rows"].older, "unregistered": context["unregistered"]}


def _item(line: TypeRow) -> Json:
    row, load, pace, failure = line.row, line.load, line.pace, line.failure
    return {
        **{column: row[column] for column in _OWN},
        "paused_reason": redact(row["paused_reason"]),
        "state": "active" if row["paused_at"] is None else "paused",
        "queued": load.queued,
        "oldest_due_at": line.oldest,
        "running": load.running,
        "failed": load.failed,
        "dead": load.dead,
        "workers": line.workers.alive,
        "claiming_workers": line.workers.claiming,
        "draining_workers": line.workers.draining,
        "median_seconds": pace.median,
        "p95_seconds": pace.p95,
        "succeeded_24h": pace.runs,
        "last_failure_run_id": failure.run_id if failure else None,
        "last_failure_code": failure.error_code if failure else None,
        "last_failure_at": failure.finished_at if failure else None,
    }


add_page(
    blueprint,
    PATH,
    "types/page.html",
    find_types,
    twin=types_twin,
    columns=COLUMNS,
    fragments={"list": "types/_list.html"},
    fields=FIELDS,
)


def _end_of_pause() -> datetime | None:
    """Return the end that the request brings, None for none. Answers 400 when it cannot be read."""
    fields = read_body()
    try:
        return ends.parse_end(fields.get("until_at", "") or fields.get("until", ""), as_of(), g.zone)
    except ValueError as error:
        abort(400, str(error))


def _pause(connection: psycopg.Connection, actor: Actor, reason: str | None, name: str) -> Answer:
    """Pause a type until the end that the request brings, if it brings one."""
    if not set(ends.FIELDS) & set(read_body()):
        return moves.pause(connection, name, actor, reason)
    return moves.pause(connection, name, actor, reason, until=_end_of_pause())


def _limit(connection: psycopg.Connection, actor: Actor, reason: str | None, name: str) -> Answer:
    """Set the limit that the request brings: a whole number, or none for the code's own."""
    text = read_body().get("limit", "").strip()
    if text in ("", "none"):
        return moves.limit(connection, name, None, actor, reason)
    try:
        most = int(params.whole(0, moves.LARGEST_LIMIT).read(text))
    except ValueError:
        abort(400, f"The limit is “{text[:60]}”; allowed: 0 to {moves.LARGEST_LIMIT}, or none.")
    return moves.limit(connection, name, most, actor, reason)


def _keep(connection: psycopg.Connection, actor: Actor, reason: str | None, name: str) -> Answer:
    """Set the days that the request brings; what it does not name stays, empty is the settings' own."""
    days = {key: _days(read_body()[key]) for key in DAYS if key in read_body()}
    return moves.keep(connection, name, actor, reason, **days)


def _days(text: str) -> int | None:
    """Return a number of days, None for the settings' own. Answers 400 when it is neither."""
    if text.strip() in ("", "none"):
        return None
    try:
        return int(params.whole(1, moves.MOST_DAYS).read(text.strip()))
    except ValueError:
        abort(400, f"The days are “{text[:60]}”; allowed: 1 to {moves.MOST_DAYS}, or none.")


def _ask_keep(name: str) -> Context:
    return {"type": query.find_type(reading(), name), "largest": moves.MOST_DAYS}


def _ask_limit(name: str) -> Context:
    return {"type": query.find_type(reading(), name), "largest": moves.LARGEST_LIMIT}


add_verb(
    blueprint,
    f"{ONE}/pause",
    "type.pause",
    _pause,
    question=lambda name: format_question("type.pause", name),
    back=lambda name: PATH,
    template="types/_pause.html",
    context=lambda name: {"type": query.find_type(reading(), name), "ends": ends.ENDS},
    keeps_form=True,
    fields=ends.FIELDS,
    scope=Scope.TYPE,
)
add_verb(
    blueprint,
    f"{ONE}/resume",
    "type.resume",
    lambda connection, actor, reason, name: moves.resume(connection, name, actor, reason),
    question=lambda name: f"Let workers start runs of type {name} again?",
    back=lambda name: PATH,
    scope=Scope.TYPE,
)
add_verb(
    blueprint,
    f"{ONE}/limit",
    "type.limit",
    _limit,
    question=lambda name: f"How many runs of type {name} may run at once, over all workers?",
    back=lambda name: PATH,
    template="types/_limit.html",
    context=_ask_limit,
    keeps_form=True,
    fields=("limit",),
)
add_verb(
    blueprint,
    f"{ONE}/keep",
    "type.keep",
    _keep,
    question=lambda name: f"For how many days are ended runs of type {name} kept?",
    back=lambda name: PATH,
    template="types/_keep.html",
    context=_ask_keep,
    keeps_form=True,
    fields=DAYS,
)
add_verb(
    blueprint,
    # No handler's type is called so.
    f"{PATH}/+pause-all",
    "type.hold",
    lambda connection, actor, reason: moves.pause_all(connection, actor, reason, until=_end_of_pause()),
    question=lambda: "Pause all types? No worker starts a run until they are resumed; what runs goes on.",
    back=lambda: PATH,
    template="types/_pause_all.html",
    context=lambda: {"standing": query.read_pauses(reading()), "ends": ends.ENDS, "is_pause": True},
    keeps_form=True,
    fields=ends.FIELDS,
    former_path="/everything/hold",
)
add_verb(
    blueprint,
    f"{PATH}/+resume-all",
    "type.let_go",
    lambda connection, actor, reason: moves.resume_all(connection, actor, reason),
    question=lambda: "Resume all types that were paused together? Workers start their runs again.",
    back=lambda: PATH,
    template="types/_pause_all.html",
    context=lambda: {"standing": query.read_pauses(reading()), "is_pause": False},
    former_path="/everything/let-go",
)
