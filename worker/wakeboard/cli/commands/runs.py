"""``runs``, ``run``, ``enqueue``, ``retry``, ``cancel``, ``again``: runs and their verbs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

import click

from wakeboard.cli.commands.types import require_type
from wakeboard.cli.connection import Connection, Row, connect, database_now, read_row, read_rows
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import LeafCommand, is_json, read_settings, reason_option
from wakeboard.cli.parameters import read_duration, read_json_object, read_moment, read_run_id
from wakeboard.cli.printing import cell, format_moment, print_answers, print_fields, print_result, print_table
from wakeboard.cli.terminal import print_notice, print_text
from wakeboard.cli.verbs import make_run_verb
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import audited_transaction, record, terminal_actor
from wakeboard.queue import operator
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
MAX_FIELD_WIDTH = 2000

RUNS = "SELECT r.* FROM wakeboard.job_runs AS r WHERE r.id = ANY(%(ids)s::bigint[]) ORDER BY r.id DESC"
RUN = """
SELECT r.*, d.name AS schedule, now() AS as_of
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
    # Imported here, because they load SQLAlchemy, which no other command of this module needs.
    from wakeboard.reporting.filters.paging import read_ids, read_page
    from wakeboard.reporting.filters.search import Start, search

    pairs = _filter_pairs(payload, options)
    filters = read_filters(lines, pairs)
    with connect() as connection:
        if view is not None:
            filters = read_filters(lines, pairs, _saved_view(connection, view))
        now, start = database_now(connection), None if cursor is None else Start(cursor)
        matches = search(filters, now, partial(read_ids, connection), start=start)
        page = read_page(connection, matches, limit, cursor)
        rows = read_rows(connection, RUNS, {"ids": page.ids})
    none = "No run matches so far." if page.below else "No run matches."
    if "," in filters.texts.get("type", ""):
        none += f" “{filters.texts['type']}” is taken for the name of one type; ask for one at a time."
    print_table(rows, COLUMNS, none, as_of=now, next=page.below)
    if page.below and not is_json():
        searched = "Only some of the runs were searched" if page.is_cut else "There are more"
        print_notice(f"{searched}: --cursor {page.below}")


def _filter_pairs(payload: tuple[str, ...], options: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return a (name, text) of a filter for each value of the options. Raises WrongUse."""
    parts = [each.partition("=") for each in payload]
    for path, sign, _ in parts:
        if not (path and sign):
            raise WrongUse(f"--payload “{path[:100]}”: write PATH=VALUE, such as --payload customer.id=7.")
    pairs = [(f"payload.{path}", text) for path, _, text in parts]
    return pairs + [
        (name.rstrip("_").replace("_", "-"), text) for name, texts in options.items() for text in texts
    ]


def read_filters(lines: Iterable[str], pairs: Iterable[tuple[str, str]], view: str = "") -> FilterValues:
    """Return the filters of typed lines and (name, text) pairs together. Raises FilterError.

    ``view`` is the query string of a saved view, for the filters that the others do not name. Times without
    an offset are in the zone of the settings.
    """
    typed = [pair for line in lines for pair in read_line(line, FIELDS)]
    words = " ".join(text for name, text in typed if name == "q")
    filters = [pair for pair in typed if pair[0] != "q"] + ([("q", words)] if words else [])
    filters += pairs
    names = {name for name, _ in filters}
    filters += [pair for pair in parse_qsl(view, keep_blank_values=True) if pair[0] not in names]
    return read_pairs(filters, in_zone(FIELDS, ZoneInfo(read_settings().timezone)))


def _saved_view(connection: Connection, name: str) -> str:
    """Return the query string of the saved view ``name`` of runs. Raises WrongUse."""
    views = {row["name"]: row["query"] for row in read_rows(connection, VIEWS)}
    if name in views:
        return str(views[name])
    names = ", ".join(f"“{each}”" for each in views) or "none yet"
    raise WrongUse(f"There is no saved view {name[:60]!r}; there are: {names}.")


@click.command(cls=LeafCommand)
@click.argument("run_id", metavar="ID", type=read_run_id)
def run(run_id: int) -> None:
    """Show a run: its state, why it waits, its attempts and who did what to it."""
    with connect() as connection:
        row = read_row(connection, RUN, {"id": run_id})
        if row is None:
            raise WrongUse(f"There is no run {run_id}; it may have been removed by retention.")
        reasons = explain_wait(connection, run_id)[1]
        history = read_rows(connection, ATTEMPTS, {"id": run_id})
        audit = read_rows(connection, AUDIT, {"id": run_id})
    if is_json():
        waits = " ".join(reason.say() for reason in reasons) or None
        print_result({**row, "history": history, "audit": audit, "waits": waits}, "")
        return
    zone = ZoneInfo(read_settings().timezone)
    print_text(f"Run {run_id}")
    for reason in reasons:
        sentence = reason.say(lambda moment: _moment_with_distance(moment, row["as_of"], zone))
        print_text(f"  {cell(sentence, zone, MAX_FIELD_WIDTH)}")
    print_fields({name: row[name] for name in SHOWN}, MAX_FIELD_WIDTH)
    for title, columns, rows in (("Attempts", ATTEMPT_COLUMNS, history), ("Audit", AUDIT_COLUMNS, audit)):
        if rows:
            print_text(f"\n{title}")
            print_table(rows, columns, "")
    if history:
        _print_attempt_texts(history[-1])


def _moment_with_distance(moment: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-21 02:14:00Z (in 3 m)``."""
    seconds = (moment - now).total_seconds()
    distance = format_duration(abs(seconds))
    return f"{format_moment(moment, zone)} ({f'in {distance}' if seconds > 0 else f'{distance} ago'})"


def _print_attempt_texts(attempt: Row) -> None:
    """Print result, note, output and traceback of an attempt in full."""
    for title, name in (
        ("Result", "result"),
        ("Note", "note"),
        ("Output", "output_tail"),
        ("Traceback", "traceback"),
    ):
        value = attempt[name]
        if value is not None:
            print_text(f"\n{title} of attempt {attempt['attempt']}")
            print_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


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
    with connect() as connection, audited_transaction(connection):
        if not new_type:
            require_type(connection, job_type)
        run_id = enqueue_run(
            connection, job_type, value, run_at=run_at, delay=delay, key=key, priority=priority,
            max_attempts=max_attempts, enqueued_by=actor.name,
        )  # fmt: skip
        record(connection, actor, "run.enqueue", "run", run_id, after={"job_type": job_type, "key": key})
    print_result({"id": run_id}, str(run_id))


retry = make_run_verb(
    "retry", "run.retry", "Make runs due now: out of a backoff, or back from dead and cancelled."
)
cancel = make_run_verb(
    "cancel", "run.cancel", "Cancel runs: waiting and dead ones at once, running ones are asked to stop."
)


@click.command(cls=LeafCommand)
@click.argument("run_id", metavar="ID", type=read_run_id)
@click.option(
    "--payload", metavar="JSON", help="Another payload: a JSON object, @FILE, or - for standard input."
)
@reason_option
def again(run_id: int, payload: str | None, reason: str | None) -> int:
    """Enqueue a new run like an ended one."""
    value = None if payload is None else read_json_object(payload)
    with connect() as connection:
        return print_answers([operator.run_again(connection, run_id, terminal_actor(), reason, value)])
