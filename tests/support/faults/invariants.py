"""What must hold after every fault, each as a function that returns its violations in words.

They read the tables and the truth file and change nothing. ``check_invariants`` asks all that can be asked of
every row; the others are for the rows that concern them. ``test_invariants.py`` shows each one failing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support.faults.truth_file import Line, now

Connection = psycopg.Connection[Any]
ENDED = "('succeeded', 'dead', 'cancelled')"
# An attempt that ended its run's life: nothing follows it unless a person retries.
LAST = """(outcome IN ('succeeded', 'cancelled')
    OR (outcome IN ('failed', 'timed_out', 'lost') AND next_run_at IS NULL))"""
# Lives that people opened: a retry of a run that had ended.
REOPENED = """
SELECT target_id::bigint AS run_id, count(*)::int AS lives, max(at) AS latest_at FROM wakeboard.audit_log
WHERE action = 'run.retry' AND target_type = 'run' AND result = 'done'
    AND before->>'status' IN ('dead', 'cancelled') GROUP BY 1
"""
NAMES_OF_TESTS = ("wakeboard test", "wakeboard other", "wakeboard superuser", "wakeboard sampler")
# A duty is late for the status page after three rounds and five seconds; a second more for its reading.
LATE = """
SELECT l.process_id, l.name FROM wakeboard.loops AS l JOIN wakeboard.workers AS w ON w.id = l.process_id
WHERE w.stopped_at IS NULL AND l.last_success_at < now() - make_interval(secs => 3 * l.interval_seconds + 6)
"""


def check_invariants(
    connection: Connection,
    truth: Sequence[Line],
    acknowledged: Mapping[int, str],
    *,
    limits: Mapping[str, int] | None = None,
    fires: Mapping[int, Sequence[datetime]] | None = None,
) -> list[str]:
    """Return every violation of I1 to I4, I7, I10, I13 and I15, once all runs have ended.

    ``acknowledged``: hash of the payload by run id, as told to whoever enqueued. ``limits``: how many of a
    job type may run at once. ``fires``: the slots by definition id that must each have been kept or reported.
    """
    return [
        *i1_acknowledged_runs_end_once(connection, acknowledged),
        *i2_effects_happen_once(connection, truth),
        *i3_no_two_attempts_end_a_run(connection),
        *i4_attempts_are_starts(connection, truth),
        *i7_ends_are_final(connection),
        *i10_fires_are_kept_once(connection, fires or {}),
        *i13_limits_hold([*truth, *_ends_of_the_dead(connection, truth)], limits or {}),
        *i15_payloads_arrive_whole(truth, acknowledged),
    ]


def i1_acknowledged_runs_end_once(connection: Connection, acknowledged: Mapping[int, str]) -> list[str]:
    """Every acknowledged run exists and has ended, and each of its lives ended once."""
    ids = list(acknowledged)
    found = _rows(connection, "SELECT id, status FROM wakeboard.job_runs WHERE id = ANY(%s)", ids)
    missing = set(ids) - {run_id for run_id, _ in found}
    open_ = _rows(connection, f"SELECT id, status FROM wakeboard.job_runs WHERE status NOT IN {ENDED}")
    twice = _rows(
        connection,
        f"""
        SELECT run_id, count(*), 1 + coalesce(min(reopened.lives), 0)
        FROM wakeboard.job_attempts LEFT JOIN ({REOPENED}) AS reopened USING (run_id)
        WHERE {LAST} GROUP BY run_id HAVING count(*) > 1 + coalesce(min(reopened.lives), 0)
        """,
    )
    endless = _rows(
        connection,
        f"""
        SELECT id, status FROM wakeboard.job_runs AS r WHERE status IN ('succeeded', 'dead')
        AND NOT EXISTS (SELECT 1 FROM wakeboard.job_attempts WHERE run_id = r.id AND {LAST})
        """,
    )
    return [
        *(f"I1: run {run_id} was acknowledged and does not exist" for run_id in sorted(missing)),
        *(f"I1: run {run_id} has not ended, it is {status}" for run_id, status in open_),
        *(f"I1: run {run_id} ended {count} times in {lives} lives" for run_id, count, lives in twice),
        *(f"I1: run {run_id} is {status} and no attempt says so" for run_id, status in endless),
    ]


def i2_effects_happen_once(connection: Connection, truth: Sequence[Line]) -> list[str]:
    """No run took effect twice, and ledger and world agree: done happened, what happened is known."""
    happened = Counter(line.run_id for line in truth if line.word == "effect")
    ledger = dict(_rows(connection, "SELECT run_id, status FROM wakeboard.effects"))
    done = {run_id for run_id, status in ledger.items() if status == "done"}
    return [
        *(f"I2: run {run_id} took effect {count} times" for run_id, count in happened.items() if count > 1),
        *(
            f"I2: run {run_id} took effect and the ledger does not know"
            for run_id in happened.keys() - ledger
        ),
        *(
            f"I2: the ledger says done of run {run_id}, and nothing happened"
            for run_id in done - happened.keys()
        ),
    ]


def i3_no_two_attempts_end_a_run(connection: Connection) -> list[str]:
    """A run succeeds at most once, and attempts that nobody took over do not overlap."""
    succeeded = _rows(
        connection,
        "SELECT run_id, count(*) FROM wakeboard.job_attempts WHERE outcome = 'succeeded'"
        " GROUP BY run_id HAVING count(*) > 1",
    )
    overlapping = _rows(
        connection,
        """
        SELECT run_id, lease_epoch, next_epoch FROM (
            SELECT run_id, lease_epoch, finished_at, lead(lease_epoch) OVER of_run AS next_epoch,
                lead(started_at) OVER of_run AS next_started_at
            FROM wakeboard.job_attempts WHERE outcome <> 'lost'
            WINDOW of_run AS (PARTITION BY run_id ORDER BY lease_epoch)
        ) AS attempts WHERE next_started_at < finished_at
        """,
    )
    return [
        *(f"I3: run {run_id} succeeded {count} times" for run_id, count in succeeded),
        *(
            f"I3: run {run_id}: attempts of epochs {one} and {two} overlap"
            for run_id, one, two in overlapping
        ),
    ]


def i4_attempts_are_starts(connection: Connection, truth: Sequence[Line]) -> list[str]:
    """attempts − lost ≤ starts ≤ attempts: only a killed worker may charge a run for a start that was not."""
    starts = Counter(line.run_id for line in truth if line.word == "start")
    counted = _rows(
        connection,
        """
        SELECT r.id, r.attempts, (SELECT count(*) FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id AND a.outcome = 'lost') FROM wakeboard.job_runs AS r
        WHERE r.job_type <> ALL (%s) AND r.job_type NOT LIKE 'command:%%'
        """,
        ["command", "http"],
    )
    return [
        f"I4: run {run_id} has {attempts} attempts, {lost} of them lost, and started {starts[run_id]} times"
        for run_id, attempts, lost in counted
        if not attempts - lost <= starts[run_id] <= attempts
    ]


def i7_ends_are_final(connection: Connection) -> list[str]:
    """What was told to be cancelled never succeeds afterwards; what succeeded stays so."""
    revived = _rows(
        connection,
        f"""
        SELECT a.run_id FROM wakeboard.audit_log AS told
        JOIN wakeboard.job_attempts AS a ON a.run_id::text = told.target_id
        LEFT JOIN ({REOPENED}) AS reopened ON reopened.run_id = a.run_id
        WHERE told.action = 'run.cancel' AND told.result = 'done' AND told.after->>'status' = 'cancelled'
            AND a.outcome = 'succeeded' AND a.finished_at > told.at
            AND (reopened.latest_at IS NULL OR reopened.latest_at < told.at)
        """,
    )
    changed = _rows(
        connection,
        "SELECT r.id, r.status FROM wakeboard.job_runs AS r"
        " JOIN wakeboard.job_attempts AS a ON a.run_id = r.id"
        " WHERE a.outcome = 'succeeded' AND r.status <> 'succeeded'",
    )
    return [
        *(f"I7: run {run_id} was told to be cancelled and succeeded" for (run_id,) in revived),
        *(f"I7: run {run_id} succeeded and is {status}" for run_id, status in changed),
    ]


def i10_fires_are_kept_once(connection: Connection, fires: Mapping[int, Sequence[datetime]]) -> list[str]:
    """Each due slot of a schedule has one run or one missed fire, and nothing else was fired."""
    told: list[str] = []
    for definition_id, slots in fires.items():
        found = Counter(
            at
            for (at,) in _rows(
                connection,
                "SELECT scheduled_for FROM wakeboard.job_runs WHERE definition_id = %(id)s"
                " AND scheduled_for IS NOT NULL UNION ALL"
                " SELECT scheduled_for FROM wakeboard.missed_fires WHERE definition_id = %(id)s",
                {"id": definition_id},
            )
        )
        about = f"I10: schedule {definition_id}"
        told += [f"{about} did not keep {at:%F %T}" for at in sorted(set(slots) - found.keys())]
        told += [f"{about} fired {at:%F %T}, which nobody wanted" for at in sorted(found.keys() - set(slots))]
        told += [f"{about} kept {at:%F %T} {count} times" for at, count in found.items() if count > 1]
    return told


def i11_nothing_is_left(connection: Connection, mark: str, folder: Path) -> list[str]:
    """No process with ``mark`` in its environment, no file in ``folder``, no session of the product."""
    sessions = _rows(
        connection,
        "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND application_name LIKE 'wakeboard%%'"
        " AND application_name <> ALL(%s)",
        list(NAMES_OF_TESTS),
    )
    return [
        *(f"I11: process {process.pid} is left: {_command(process)}" for process in marked(mark)),
        *(f"I11: a file is left: {path.name}" for path in sorted(folder.rglob("*"))),
        *(f"I11: a database session is left: {name} (process {pid})" for pid, name in sessions),
    ]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds: open files, and resident memory in bytes."""

    files: int
    memory_bytes: int


def footprint(pid: int) -> Footprint:
    """Return what the process holds now."""
    process = psutil.Process(pid)
    return Footprint(process.num_fds(), process.memory_info().rss)


def i12_footprint_is_steady(before: Footprint, after: Footprint, *, runs: int) -> list[str]:
    """Open files are the same ± 2, memory grew by less than 10 MB for each 100,000 runs (or part of them)."""
    allowed = 10 * 2**20 * max(1.0, runs / 100_000)
    grown = after.memory_bytes - before.memory_bytes
    files = abs(after.files - before.files) > 2
    return [
        *([f"I12: {before.files} open files became {after.files}"] if files else []),
        *([f"I12: memory grew by {grown // 2**20} MB in {runs} runs"] if grown > allowed else []),
    ]


def i13_limits_hold(truth: Sequence[Line], limits: Mapping[str, int]) -> list[str]:
    """No more handlers of a type were between start and end at once than its limit allows."""
    told = []
    for job_type, limit in limits.items():
        most = most_at_once([line for line in truth if line.job_type == job_type])
        if most > limit:
            told.append(f"I13: {most} runs of {job_type} at once, where {limit} may be")
    return told


def _ends_of_the_dead(connection: Connection, truth: Sequence[Line]) -> list[Line]:
    """Return an end for each start whose handler died: the moment at which its attempt was told to be over.

    A run that a person cancelled then never starts again.
    """
    told = {(line.run_id, line.attempt) for line in truth if line.word == "end"}
    age = "extract(epoch FROM clock_timestamp() - finished_at)::float8"
    ended = _rows(connection, f"SELECT run_id, attempt, {age} FROM wakeboard.job_attempts")
    at = {(run_id, attempt): now() - seconds for run_id, attempt, seconds in ended}
    return [
        replace(line, word="end", at=at[key])
        for line in truth
        if line.word == "start" and (key := (line.run_id, line.attempt)) in at and key not in told
    ]


def most_at_once(lines: Sequence[Line]) -> int:
    """Return how many stretches from start to end overlapped at most.

    A start whose handler died tells no end: it counts until the same process or the same run starts again.
    """
    open_: dict[tuple[int, int], int] = {}
    most = 0
    for line in sorted(lines, key=lambda line: line.at):
        for key in [key for key, pid in open_.items() if pid == line.pid or key[0] == line.run_id]:
            if line.word in ("start", "end"):
                del open_[key]
        if line.word == "start":
            open_[line.run_id, line.attempt] = line.pid
        most = max(most, len(open_))
    return most


def i14_silence_is_visible(connection: Connection, statusz_code: int) -> list[str]:
    """While a duty of a living worker is late, the status page says so; ``statusz_code`` was just read."""
    late = _rows(connection, LATE)
    if statusz_code != 200:
        return []
    return [
        f"I14: the duty {name} of {process} is late and the status page says 200" for process, name in late
    ]


def i15_payloads_arrive_whole(truth: Sequence[Line], acknowledged: Mapping[int, str]) -> list[str]:
    """Each handler got the payload that was enqueued."""
    return [
        f"I15: attempt {line.attempt} of run {line.run_id} got another payload than was enqueued"
        for line in truth
        if line.word == "start" and acknowledged.get(line.run_id, line.payload_hash) != line.payload_hash
    ]


def epochs_fell(known: Mapping[int, int], seen: Mapping[int, int]) -> list[str]:
    """I6: the epoch of a run never falls between two looks; maps of run id to epoch."""
    return [
        f"I6: the epoch of run {run_id} fell from {known[run_id]} to {epoch}"
        for run_id, epoch in seen.items()
        if known.get(run_id, epoch) > epoch
    ]


def i6_epochs_grow(connection: Connection) -> list[str]:
    """Later attempts have higher epochs, and the run's own epoch is not below its attempts'."""
    found = _rows(
        connection,
        "SELECT run_id, array_agg(lease_epoch ORDER BY finished_at, attempt) FROM wakeboard.job_attempts"
        " GROUP BY run_id",
    )
    current = dict(_rows(connection, "SELECT id, lease_epoch FROM wakeboard.job_runs"))
    told = [
        f"I6: run {run_id} had the epochs {epochs} in this order"
        for run_id, epochs in found
        if any(later <= earlier for earlier, later in pairwise(epochs))
    ]
    return told + [
        f"I6: run {run_id} has the epoch {current[run_id]}, its attempts reached {max(epochs)}"
        for run_id, epochs in found
        if current.get(run_id, max(epochs)) < max(epochs)
    ]


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that have ``mark`` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "just gone"


def _rows(connection: Connection, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    given = values if values is None or isinstance(values, dict) else (values,)
    return connection.execute(statement.encode(), given).fetchall()
