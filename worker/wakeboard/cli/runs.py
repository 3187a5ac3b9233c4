"""``runs`` and ``run``: the list with its filters, and one run with everything known of it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from wakeboard.cli import printing, reach, reading
from wakeboard.cli.flags import Verb, is_json, settings
from wakeboard.cli.kinds import RUN_ID
from wakeboard.cli.printing import answer, cell, listing, say, tell
from wakeboard.cli.refusals import Wrong
from wakeboard.core.time.durations import format_duration

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
    "job_type", "status", "schedule", "scheduled_for", "payload", "priority", "run_at", "attempts",
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
@click.argument("lines", metavar="[FILTER]…", nargs=-1)
@click.option("--status", multiple=True, help="queued, running, succeeded, failed, dead, cancelled (a,b).")
@click.option("--type", "type_", multiple=True, help="Job type, one.")
@click.option(
    "--schedule", multiple=True, help="Name of a schedule, or #17 by its number; also of a removed one."
)
@click.option("--error", multiple=True, help="Error code; without a status, of runs that are failed or dead.")
@click.option(
    "--group", multiple=True, help="Error group: runs whose last failure was of it, however they stand now."
)
@click.option("--worker", multiple=True, help="Id, name or host of a worker that holds or held it.")
@click.option("--key", multiple=True, help="Idempotency key.")
@click.option("--attempts", multiple=True, help="3, 3+ for at least, or 2-5.")
@click.option("--since", multiple=True, help="Created since: 24h, 7d or 2026-11-21T08:30Z.")
@click.option("--until", multiple=True, help="Created before.")
@click.option(
    "--failed-since", multiple=True, help="Last failed since; without a status, of runs that fail now."
)
@click.option("--failed-until", multiple=True, help="Last failed before.")
@click.option("--payload", multiple=True, metavar="PATH=VALUE", help="Payload has VALUE at PATH (a.b).")
@click.option("--q", multiple=True, help="Text in payload, error or type.")
@click.option("--view", metavar="NAME", help="A view saved on the page; filters beside it win over its own.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="How many, newest first [50].")
@click.option("--cursor", type=RUN_ID, help="Go on below this id.")
def runs(
    lines: tuple[str, ...],
    payload: tuple[str, ...],
    view: str | None,
    limit: int,
    cursor: int | None,
    **options: tuple[str, ...],
) -> None:
    """List runs, newest first.

    FILTER is what the box on the page of runs takes: 'status:failed type:mail since:24h', attempts:3+,
    payload.customer.id:7, and words to search for. The options say the same.
    """
    # It brings SQLAlchemy along, which no other command of this file needs.
    from wakeboard.cli import finding

    pairs = _pairs(payload, options)
    wanted = finding.asked(lines, pairs)
    with reach.connection() as connection:
        if view is not None:
            wanted = finding.asked(lines, pairs, finding.saved(connection, view))
        now = reading.database_now(connection)
        found, more, is_cut = finding.find(connection, wanted, now, limit, cursor)
    none = "No run matches so far." if more else "No run matches."
    if "," in wanted.texts.get("type", ""):
        none += f" “{wanted.texts['type']}” is taken for the name of one type; ask for one at a time."
    listing(found, COLUMNS, none, as_of=now, next=more)
    if more and not is_json():
        searched = "Only some of the runs were searched" if is_cut else "There are more"
        tell(f"{searched}: --cursor {more}")


def _pairs(payload: tuple[str, ...], options: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return the options as (name, text) of filters, as often as they were given. Raises Wrong."""
    parts = [each.partition("=") for each in payload]
    for path, sign, _ in parts:
        if not (path and sign):
            raise Wrong(f"--payload “{path[:100]}”: write PATH=VALUE, such as --payload customer.id=7.")
    pairs = [(f"payload.{path}", text) for path, _, text in parts]
    return pairs + [
        (name.rstrip("_").replace("_", "-"), text) for name, given in options.items() for text in given
    ]


@click.command(cls=Verb)
@click.argument("run_id", metavar="ID", type=RUN_ID)
def run(run_id: int) -> None:
    """Show a run: its state, why it waits, its attempts and who did what to it."""
    with reach.connection() as connection:
        found = reading.run(connection, run_id)
    if found is None:
        raise Wrong(f"There is no run {run_id}; it may have been removed by retention.")
    zone, why = ZoneInfo(settings().timezone), found.pop("reasons")
    if is_json():
        found["waits"] = " ".join(reason.say() for reason in why) or None
        answer(found, "")
        return
    say(f"Run {run_id}")
    for reason in why:
        say(f"  {cell(reason.say(lambda moment: _spoken(moment, found['as_of'], zone)), zone, LONG)}")
    for name in SHOWN:
        if found[name] is not None:
            say(f"  {name + ':':<21}{cell(found[name], zone, LONG)}")
    for title, columns, rows in (("Attempts", ATTEMPTS, found["history"]), ("Audit", AUDIT, found["audit"])):
        if rows:
            say(f"\n{title}")
            listing(rows, columns, "")
    _last_words(found["history"])


def _spoken(moment: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-21 02:14:00Z (in 3 m)``."""
    seconds = (moment - now).total_seconds()
    far = format_duration(abs(seconds))
    return f"{printing.moment(moment, zone)} ({f'in {far}' if seconds > 0 else f'{far} ago'})"


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
