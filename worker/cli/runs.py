"""``runs`` and ``run``: the list with its filters, and one run with everything known of it."""

from __future__ import annotations

import json
from typing import Any
from zoneinfo import ZoneInfo

import click

from worker.cli import filters, reach, reading
from worker.cli.errors import Wrong
from worker.cli.flags import Verb, is_json, settings
from worker.cli.kinds import RUN_ID
from worker.cli.printing import answer, cell, listing, say, tell

COLUMNS = (
    "id",
    "job_type",
    "status",
    "attempts",
    "run_at",
    "started_at",
    "finished_at",
    "error_code",
    "last_error",
)
SHOWN = (
    "job_type", "status", "waits", "schedule", "scheduled_for", "payload", "priority", "run_at", "attempts",
    "failures", "max_attempts", "timeout_seconds", "locked_by", "locked_until", "started_at", "finished_at",
    "failed_at", "error_code", "last_error", "cancel_requested_at", "idempotency_key", "enqueued_by",
    "origin_run_id", "progress_done", "progress_total", "created_at",
)  # fmt: skip
ATTEMPTS = (
    "attempt",
    "outcome",
    "started_at",
    "took_seconds",
    "worker_id",
    "error_code",
    "error",
    "next_run_at",
)
AUDIT = ("at", "actor", "action", "result", "reason")
LONG = 2000


@click.command(cls=Verb)
@click.argument("words", metavar="[FILTER=VALUE]…", nargs=-1)
@click.option("--status", multiple=True, help="queued, running, succeeded, failed, dead, cancelled (a,b).")
@click.option("--type", "type_", multiple=True, help="Job type (a,b).")
@click.option("--error", multiple=True, help="Error code (a,b).")
@click.option("--worker", help="Id of a worker that holds or held it.")
@click.option("--key", help="Idempotency key.")
@click.option("--attempts", help="At least so many attempts.")
@click.option("--since", help="Created since: 24h, 7d or 2026-11-21T08:30Z.")
@click.option("--until", help="Created before.")
@click.option("--payload", multiple=True, metavar="PATH=VALUE", help="Payload has VALUE at PATH (a.b).")
@click.option("--q", help="Text in payload or error.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="How many, newest first [50].")
@click.option("--cursor", type=RUN_ID, help="Go on below this id.")
def runs(
    words: tuple[str, ...], payload: tuple[str, ...], limit: int, cursor: int | None, **options: Any
) -> None:
    """List runs, newest first. Filters are options or words: `runs status=failed payload.customer.id=7`."""
    pairs = [filters.pair(word) for word in words]
    pairs += [
        (name, text)
        for name, text in ((f"payload.{p.partition('=')[0]}", p.partition("=")[2]) for p in payload)
    ]
    for name, given in options.items():
        text = ",".join(given) if isinstance(given, tuple) else given
        if text:
            pairs.append((name.rstrip("_"), text))
    with reach.connection() as connection:
        now = reading.database_now(connection)
        found = reading.runs(connection, filters.read(pairs, now), limit + 1, cursor)
    more = found[limit - 1]["id"] if len(found) > limit else None
    listing(found[:limit], COLUMNS, "No run matches.", as_of=now, next=more)
    if more and not is_json():
        tell(f"There are more: --cursor {more}")


@click.command(cls=Verb)
@click.argument("run_id", metavar="ID", type=RUN_ID)
def run(run_id: int) -> None:
    """Show a run: its state, why it waits, its attempts and who did what to it."""
    with reach.connection() as connection:
        found = reading.run(connection, run_id)
    if found is None:
        raise Wrong(f"There is no run {run_id}; it may have been removed by retention.")
    if is_json():
        answer(found, "")
        return
    zone = ZoneInfo(settings().timezone)
    say(f"Run {run_id}")
    for name in SHOWN:
        if found[name] is not None:
            say(f"  {name + ':':<21}{cell(found[name], zone, LONG)}")
    for title, columns, rows in (("Attempts", ATTEMPTS, found["history"]), ("Audit", AUDIT, found["audit"])):
        if rows:
            say(f"\n{title}")
            listing(rows, columns, "")
    _last_words(found["history"])


def _last_words(history: list[dict[str, Any]]) -> None:
    """Print the latest attempt's result, note, output and traceback, their lines kept."""
    last = history[-1] if history else {}
    for title, name in (
        ("Result", "result"),
        ("Note", "note"),
        ("Output", "output_tail"),
        ("Traceback", "traceback"),
    ):
        value = last.get(name)
        if value is not None:
            say(f"\n{title} of attempt {last['attempt']}")
            say(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
