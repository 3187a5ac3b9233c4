"""``runs``, ``run``, ``enqueue``, ``retry``, ``cancel``, ``again``: runs, and what operators do with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

import click

from wakeboard.cli import printing, reach
from wakeboard.cli.commands.types import require_type
from wakeboard.cli.flags import LeafCommand, is_json, reason_option, settings
from wakeboard.cli.parameters import read_duration, read_json_object, read_moment, read_run_id
from wakeboard.cli.printing import answer, cell, listing, verdicts
from wakeboard.cli.refusals import WrongUse
from wakeboard.cli.terminal import say, tell
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import acting, record, terminal_actor
from wakeboard.queue import operator, selection
from wakeboard.queue.enqueue import enqueue as enqueue_run
from wakeboard.reporting.diagnosis.wait_reasons import explain_wait
from wakeboard.reporting.filters.line import read_line
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard.reporting.filters.values import FilterValues, in_zone, read_pairs

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
ATTEMPT_COLUMNS = (
    "attempt",
    "outcome",
    "started_at",
    "took_seconds",
    "worker_id",
    "error_code",
    "error",
    "next_run_at",
)
AUDIT_COLUMNS = ("at", "actor", "action", "result", "reason")
LONG = 2000

RUN_COLUMNS = """
    r.id, r.definition_id, r.scheduled_for, r.job_type, r.payload, r.priority, r.run_at, r.status, r.attempts,
    r.failures, r.max_attempts, r.timeout_seconds, r.lease_epoch, r.locked_by, r.locked_until,
    r.started_at, r.finished_at, r.failed_at, r.error_code, r.last_error, r.error_group,
    r.cancel_requested_at, r.idempotency_key, r.enqueued_by, r.origin_run_id, r.traceparent, r.progress_done,
    r.progress_total, r.created_at, r.updated_at"""
RUNS = f"""
SELECT {RUN_COLUMNS} FROM wakeboard.job_runs AS r WHERE r.id = ANY(%(ids)s::bigint[]) ORDER BY r.id DESC
"""
RUN = f"""
SELECT {RUN_COLUMNS}, d.name AS schedule, now() AS as_of
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_definitions AS d ON d.id = r.definition_id
WHERE r.id = %(id)s
"""
ATTEMPTS = """
SELECT attempt, lease_epoch, worker_id, due_at, started_at, finished_at, outcome, error_code, error,
    traceback, output_tail, result, note, max_attempts, timeout_seconds, next_run_at, refused_at,
    refused_outcome, extract(epoch FROM finished_at - started_at)::float8 AS took_seconds
FROM wakeboard.job_attempts WHERE run_id = %(id)s ORDER BY attempt, lease_epoch
"""
AUDIT = """
SELECT at, actor, role, source, action, result, reason, before, after FROM wakeboard.audit_log
WHERE target_type = 'run' AND target_id = %(id)s::text ORDER BY id
"""
VIEWS = "SELECT name, query FROM wakeboard.saved_views WHERE page = 'runs' ORDER BY name LIMIT 100"


@click.command(cls=LeafCommand)
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
@click.option("--cursor", type=read_run_id, metavar="ID", help="Go on below this id.")
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
    # They bring SQLAlchemy along, which no other command of this file needs.
    from wakeboard.reporting.filters.pages import read_ids, read_page
    from wakeboard.reporting.filters.search import Start, search

    pairs = _pairs(payload, options)
    wanted = read_filters(lines, pairs)
    with reach.connection() as connection:
        if view is not None:
            wanted = read_filters(lines, pairs, _saved_view(connection, view))
        now, start = reach.database_now(connection), None if cursor is None else Start(cursor)
        matching = search(wanted, now, partial(read_ids, connection), start=start)
        page = read_page(connection, matching, limit, cursor)
        found = reach.rows(connection, RUNS, {"ids": page.ids})
    none = "No run matches so far." if page.below else "No run matches."
    if "," in wanted.texts.get("type", ""):
        none += f" “{wanted.texts['type']}” is taken for the name of one type; ask for one at a time."
    listing(found, COLUMNS, none, as_of=now, next=page.below)
    if page.below and not is_json():
        searched = "Only some of the runs were searched" if page.is_cut else "There are more"
        tell(f"{searched}: --cursor {page.below}")


def _pairs(payload: tuple[str, ...], options: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return the options as (name, text) of filters, as often as they were given. Raises WrongUse."""
    parts = [each.partition("=") for each in payload]
    for path, sign, _ in parts:
        if not (path and sign):
            raise WrongUse(f"--payload “{path[:100]}”: write PATH=VALUE, such as --payload customer.id=7.")
    pairs = [(f"payload.{path}", text) for path, _, text in parts]
    return pairs + [
        (name.rstrip("_").replace("_", "-"), text) for name, given in options.items() for text in given
    ]


def read_filters(lines: Iterable[str], pairs: Iterable[tuple[str, str]], view: str = "") -> FilterValues:
    """Return what typed lines and (name, text) pairs together ask for. Raises FilterError.

    ``view`` is the query string of a saved view: it says what the others leave open. Times without an offset
    are in the zone of the settings.
    """
    typed = [pair for line in lines for pair in read_line(line, FIELDS)]
    words = " ".join(text for name, text in typed if name == "q")
    given = [pair for pair in typed if pair[0] != "q"] + ([("q", words)] if words else [])
    given += pairs
    said = {name for name, _ in given}
    given += [pair for pair in parse_qsl(view, keep_blank_values=True) if pair[0] not in said]
    return read_pairs(given, in_zone(FIELDS, ZoneInfo(settings().timezone)))


def _saved_view(connection: reach.Connection, name: str) -> str:
    """Return the query string of the saved view ``name`` of runs. Raises WrongUse."""
    found = reach.rows(connection, VIEWS)
    for view in found:
        if view["name"] == name:
            return str(view["query"])
    names = ", ".join(f"“{view['name']}”" for view in found) or "none yet"
    raise WrongUse(f"There is no saved view {name[:60]!r}; there are: {names}.")


@click.command(cls=LeafCommand)
@click.argument("run_id", metavar="ID", type=read_run_id)
def run(run_id: int) -> None:
    """Show a run: its state, why it waits, its attempts and who did what to it."""
    with reach.connection() as connection:
        found = reach.one(connection, RUN, {"id": run_id})
        if found is None:
            raise WrongUse(f"There is no run {run_id}; it may have been removed by retention.")
        why = explain_wait(connection, run_id)[1]
        found["history"] = reach.rows(connection, ATTEMPTS, {"id": run_id})
        found["audit"] = reach.rows(connection, AUDIT, {"id": run_id})
    zone = ZoneInfo(settings().timezone)
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
    for title, columns, rows in (
        ("Attempts", ATTEMPT_COLUMNS, found["history"]),
        ("Audit", AUDIT_COLUMNS, found["audit"]),
    ):
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


@click.command(cls=LeafCommand)
@click.argument("job_type", metavar="TYPE")
@click.option("--payload", metavar="JSON", help="A JSON object, @FILE, or - for standard input.")
@click.option(
    "--in", "delay", type=read_duration, metavar="DURATION", help="Not before this long from now, such as 5m."
)
@click.option(
    "--at",
    "run_at",
    type=read_moment,
    metavar="TIME",
    help="Not before this time, such as 2026-11-21T09:00+01:00.",
)
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key gives the same run.")
@click.option("--priority", type=click.IntRange(0, 4), default=2, help="0 (first) to 4 (last) [2].")
@click.option("--max-attempts", type=click.IntRange(1, 2**31 - 1), help="Give up after so many failures.")
@click.option("--new-type", is_flag=True, help="Allow a type that no worker has registered yet.")
def enqueue(
    job_type: str,
    payload: str | None,
    delay: float | None,
    run_at: datetime | None,
    key: str | None,
    priority: int,
    max_attempts: int | None,
    new_type: bool,
) -> None:
    """Enqueue a run of TYPE and print its id."""
    if delay is not None and run_at is not None:
        raise WrongUse("Give --in or --at, not both.")
    value, actor = read_json_object(payload), terminal_actor()
    with reach.connection() as connection, acting(connection):
        if not new_type:
            require_type(connection, job_type)
        run_id = enqueue_run(
            connection, job_type, value, run_at=run_at, delay=delay, key=key, priority=priority,
            max_attempts=max_attempts, enqueued_by=actor.name,
        )  # fmt: skip
        record(connection, actor, "run.enqueue", "run", run_id, after={"job_type": job_type, "key": key})
    answer({"id": run_id}, str(run_id))


@click.command(cls=LeafCommand)
@click.argument("ids", type=read_run_id, nargs=-1, required=True)
@reason_option
def retry(ids: tuple[int, ...], reason: str | None) -> int:
    """Make runs due now: out of a backoff, or back from dead and cancelled."""
    with reach.connection() as connection:
        return verdicts(selection.each(connection, "run.retry", ids, terminal_actor(), reason))


@click.command(cls=LeafCommand)
@click.argument("ids", type=read_run_id, nargs=-1, required=True)
@reason_option
def cancel(ids: tuple[int, ...], reason: str | None) -> int:
    """Cancel runs: waiting and dead ones at once, running ones are asked to stop."""
    with reach.connection() as connection:
        return verdicts(selection.each(connection, "run.cancel", ids, terminal_actor(), reason))


@click.command(cls=LeafCommand)
@click.argument("run_id", metavar="ID", type=read_run_id)
@click.option(
    "--payload", metavar="JSON", help="Another payload: a JSON object, @FILE, or - for standard input."
)
@reason_option
def again(run_id: int, payload: str | None, reason: str | None) -> int:
    """Enqueue a new run like an ended one."""
    value = None if payload is None else read_json_object(payload)
    with reach.connection() as connection:
        return verdicts([operator.run_again(connection, run_id, terminal_actor(), reason, value)])
