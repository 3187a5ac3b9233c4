"""Checks of the work: workers, late loops, schedules that cannot fire, commands that root runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wakeboard.cli.commands.doctor.result import CheckResult, some_of
from wakeboard.cli.commands.import_crontab import IS_OF_UNKNOWN_USER
from wakeboard.cli.connection import Connection, read_row, read_rows
from wakeboard.core import leases
from wakeboard.core.builtin_payloads import COMMAND_TYPE, command_type
from wakeboard.core.leases import IS_ALIVE
from wakeboard.core.time.clock_skew import AHEAD, is_ahead
from wakeboard.reporting import heartbeats, worker_states
from wakeboard.reporting.broken_schedules import MOST, broken_schedules

# From so many late loops on a process gets one result for all of them.
MANY_LOOPS = 4
# How many schedules are named with their reason.
NAMED = 5

WORKERS = f"""
SELECT count(*) FILTER (WHERE {IS_ALIVE}) AS alive, count(*) FILTER (WHERE NOT {IS_ALIVE}) AS silent,
    count(*) FILTER (WHERE {worker_states.is_claiming("w")}) AS claiming,
    count(*) FILTER (WHERE {worker_states.is_draining("w")}) AS draining
FROM wakeboard.workers AS w WHERE w.stopped_at IS NULL AND NOT w.is_tick
"""
TIMES = f"""
SELECT (
        SELECT count(*) FROM wakeboard.workers WHERE stopped_at IS NULL AND {is_ahead("seen_at")}
    ) AS heartbeats,
    (SELECT count(*) FROM wakeboard.job_definitions WHERE {is_ahead("settled_at")}) AS schedules,
    (SELECT count(*) FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
        LEFT JOIN wakeboard.workers AS w ON w.id = r.locked_by
        WHERE r.status = 'running' AND {is_ahead("r.locked_until", leases.SECONDS)}) AS leases
"""
ENABLED = """
SELECT count(*) AS schedules FROM wakeboard.job_definitions WHERE enabled AND schedule IS NOT NULL
"""
# A worker of root registers the type of root's commands.
OF_ROOT = f"""
SELECT d.name FROM wakeboard.job_definitions AS d
WHERE {IS_OF_UNKNOWN_USER} AND EXISTS (
    SELECT FROM wakeboard.workers AS w
    WHERE {worker_states.runs_type("w", f"'{COMMAND_TYPE}'")}
        AND {worker_states.runs_type("w", f"'{command_type('root')}'")} AND {worker_states.is_claiming("w")}
)
ORDER BY d.name
"""


def workers(connection: Connection) -> Iterator[CheckResult]:
    """Count the live workers, and the enabled schedules when there is none."""
    counts, enabled = read_row(connection, WORKERS), read_row(connection, ENABLED)
    assert counts is not None
    assert enabled is not None
    if counts["alive"]:
        silent = f", {counts['silent']} silent for two heartbeats or more" if counts["silent"] else ""
        if counts["claiming"]:
            yield CheckResult("workers", "ok", f"{counts['alive']} alive{silent}.")
            return
        start = "wakeboard worker --app MODULE"
        undrain = f"wakeboard workers undrain WORKER, or {start}" if counts["draining"] else start
        says = f"{counts['alive']} alive{silent}, and none takes new work: they drain or stop."
        yield CheckResult("workers", "warning", says, f"Run: {undrain}")
        return
    waiting = f" and {enabled['schedules']} schedules are enabled" if enabled["schedules"] else ""
    yield CheckResult("workers", "warning", f"None is alive{waiting}.", "Run: wakeboard worker --app MODULE")


def loops(connection: Connection) -> Iterator[CheckResult]:
    """Name each loop that is late, and whether no process fires the schedules."""
    late = heartbeats.late_loops(connection)
    for place, theirs in _by_process(late).items():
        if len(theirs) >= MANY_LOOPS:
            yield _stalled_process(place, theirs)
            continue
        yield from (_late_loop(place, loop) for loop in theirs)
    if heartbeats.is_abandoned(connection):
        says = f"Schedules are enabled and no worker or tick came for {heartbeats.SILENCE_SECONDS} s."
        yield CheckResult(
            "loops", "fail", says, "Run: wakeboard worker --app MODULE, or wakeboard tick from cron"
        )
    elif not late:
        yield CheckResult("loops", "ok", "All are on time.")


def times(connection: Connection) -> Iterator[CheckResult]:
    """Count the rows that were written while the database's clock was ahead and are not repaired yet."""
    row = read_row(connection, TIMES)
    assert row is not None
    counts = ", ".join(f"{name} {count}" for name, count in row.items() if count)
    if counts:
        says = f"{AHEAD}. What lies ahead of it counts as past: {counts}."
        yield CheckResult(
            "times", "warning", says, "A worker puts that right within 10 s. Run: wakeboard worker"
        )


def schedules(connection: Connection) -> Iterator[CheckResult]:
    """Name the enabled schedules that cannot fire, with the reason of each."""
    broken = broken_schedules(connection)
    for each in broken[:NAMED]:
        where = f"Correct it on /schedules/{each.name}/edit"
        correct = "Let the database take its run" if each.is_refused else where
        mend = f"{correct}, or run: wakeboard schedule pause {each.name}"
        yield CheckResult("schedules", "fail", f"{each.name} cannot fire. {each.error}", mend)
    if len(broken) > NAMED:
        count = f"More than {MOST - NAMED}" if len(broken) > MOST else str(len(broken) - NAMED)
        yield CheckResult(
            "schedules", "fail", f"{count} others cannot either.", "See: wakeboard schedule list"
        )
    if not broken:
        yield CheckResult("schedules", "ok", "All that are enabled can fire.")


def commands(connection: Connection) -> Iterator[CheckResult]:
    """Name the commands that were imported from a crontab without their user and that root runs."""
    names = [row["name"] for row in read_rows(connection, OF_ROOT)]
    if not names:
        yield CheckResult("commands", "ok", "None was imported without its user and is run by root.")
        return
    yield CheckResult(
        "commands",
        "warning",
        f"Imported from a crontab without their user, and run by a worker of root: {some_of(names)}.",
        "Import that crontab again with --system: each gets the user of its line.",
    )


def _by_process(loops: Iterable[heartbeats.Loop]) -> dict[str, list[heartbeats.Loop]]:
    found: dict[str, list[heartbeats.Loop]] = {}
    for loop in loops:
        place = f"{loop.hostname}:{loop.pid}" if loop.hostname else loop.process_id
        found.setdefault(place, []).append(loop)
    return found


def _stalled_process(place: str, loops: Sequence[heartbeats.Loop]) -> CheckResult:
    """Return one result for the many late loops of one process."""
    names = ", ".join(sorted(loop.name for loop in loops))
    error = next((f" A last error: {loop.last_error}" for loop in loops if loop.last_error), "")
    seconds = max(loop.ago_seconds for loop in loops)
    since = f"{seconds:.0f} s" if seconds > 0 else "nobody knows how long (the database's clock was ahead)"
    says = f"{place} stands still or is gone, for {since}. Late: {names}.{error}"
    mend = "If that process is alive, restart it: its log says why; if it is gone, start another."
    return CheckResult("loops", "fail", says, mend)


def _late_loop(place: str, loop: heartbeats.Loop) -> CheckResult:
    error = f" Its last error: {loop.last_error}" if loop.last_error else ""
    when = "while the database's clock was ahead" if loop.is_ahead else f"{loop.ago_seconds:.0f} s ago"
    says = f"'{loop.name}' of {place} last succeeded {when}.{error}"
    return CheckResult("loops", "fail", says, _loop_advice(loop))


def _loop_advice(loop: heartbeats.Loop) -> str:
    """Return what to do about a late loop."""
    if loop.name == "listen":
        return (
            "Nothing is lost, work only begins later: let the worker reach the server directly, or through a "
            "pooler in session mode."
        )
    if loop.name == "claim":
        return "Look at the worker's log (a module that cannot be imported?), then restart the worker."
    if loop.name == "write":
        return (
            "Runs have ended and their answers wait to be written: nothing is lost. Fix what the error says "
            "(a privilege that was taken away? a full disk?); they are written then."
        )
    return "If its process is alive, restart it: its log says why; if it is gone, start another worker."
