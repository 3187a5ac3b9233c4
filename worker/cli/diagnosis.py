"""What ``doctor`` looks at: each check → findings, ok / warning / fail, with the mend. Changes nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from worker import db, horizon, liveness
from worker.cli.reach import Connection, one, rows
from worker.embedded.errors import EmbeddedError
from worker.indexes import bloat, state
from worker.leases import IS_HEARD
from worker.settings import Settings

LEVELS = ("ok", "warning", "fail")
APP_SECONDS = 30
# So many late loops of one process are one trouble, not many.
MANY_LOOPS = 4

PRIVILEGES = """
SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'wakeboard' AND c.relkind = 'r'
    AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND (c.relname IN ('audit_log', 'alembic_version') OR has_table_privilege(c.oid, 'UPDATE')))
ORDER BY 1
"""
INDEXES = """
SELECT c.relname AS name, i.indisvalid AND i.indisready AS valid
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'wakeboard'
"""
WORKERS = f"""
SELECT count(*) FILTER (WHERE {IS_HEARD}) AS alive, count(*) FILTER (WHERE NOT {IS_HEARD}) AS silent
FROM wakeboard.workers AS w WHERE w.stopped_at IS NULL AND NOT w.is_tick
"""
UNSERVED = """
SELECT count(*) AS schedules FROM wakeboard.job_definitions WHERE enabled AND schedule IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``mend`` says what to do when it is not ok."""

    check: str
    level: str
    says: str
    mend: str | None = None


def examine(settings: Settings) -> list[Finding]:
    """Return the findings on everything that can be looked at with these settings."""
    changed = sum(origin != "default" for origin in settings.origins.values())
    found = [
        Finding("configuration", "ok", f"Valid; changed from the defaults: {changed} (wakeboard config).")
    ]
    found += _embedded(settings)
    found += _database(settings)
    found += _app(settings)
    return found


def _embedded(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is not None:
        return
    from worker import embedded

    folder = settings.data_dir
    if not folder.exists():
        yield Finding("embedded server", "warning", f"{folder} does not exist yet.", "Run: wakeboard up")
        return
    mode = folder.stat().st_mode & 0o777
    if mode & 0o022:
        yield Finding(
            "embedded server",
            "fail",
            f"Others may write into {folder} (mode {mode:o}).",
            f"chmod go-w {folder}",
        )
    running = embedded.is_running(folder)
    word = "runs" if running else "does not run"
    mend = None if running else "Run: wakeboard up"
    yield Finding(
        "embedded server", "ok" if running else "warning", f"It {word}, with its data in {folder}.", mend
    )


def _database(settings: Settings) -> Iterator[Finding]:
    url = settings.database_url
    try:
        if url is None:
            from worker import embedded

            if not embedded.is_running(settings.data_dir):
                return
            url = embedded.url(settings.data_dir)
        connection = db.connect(url, name="wakeboard doctor")
    except (db.DatabaseError, EmbeddedError) as failure:
        yield Finding("database", "fail", str(failure), "Start it, or correct WAKEBOARD_DATABASE_URL.")
        return
    with connection:
        yield Finding("database", "ok", f"PostgreSQL {connection.info.server_version // 10_000} answers.")
        for check in (_clock, _schema, _privileges, _indexes, _transactions, _workers, _loops):
            yield from _guarded(check, connection)


def _guarded(check: Callable[[Connection], Iterator[Finding]], connection: Connection) -> Iterator[Finding]:
    try:
        yield from check(connection)
    except psycopg.Error as failure:
        said = " ".join(str(failure).split("\n")[0].split())
        yield Finding(
            check.__name__.strip("_"), "fail", f"It cannot be checked: {said}.", "Run: wakeboard db upgrade"
        )


def _clock(connection: Connection) -> Iterator[Finding]:
    before = time.time()
    row = one(connection, "SELECT clock_timestamp() AS now")
    assert row is not None
    here = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    apart = abs((row["now"] - here).total_seconds())
    mend = None if apart < 2 else "Synchronise this machine's clock (NTP); leases go by the database's clock."
    yield Finding(
        "clock", "ok" if apart < 2 else "warning", f"{apart:.2f} s from the database's clock.", mend
    )


def _schema(connection: Connection) -> Iterator[Finding]:
    found, wanted = db.current_revision(connection), db.head_revision()
    if found == wanted:
        yield Finding("schema", "ok", f"It is at {found}, as this version needs.")
    else:
        yield Finding(
            "schema",
            "fail",
            f"It is at {found or 'nothing'}; this version needs {wanted}.",
            "Run: wakeboard db upgrade",
        )


def _privileges(connection: Connection) -> Iterator[Finding]:
    lacking = [row["name"] for row in rows(connection, PRIVILEGES)]
    if lacking:
        yield Finding(
            "privileges",
            "fail",
            f"This role may not use: {', '.join(lacking)}.",
            "Use the role that owns the schema.",
        )
    else:
        yield Finding("privileges", "ok", "This role may read and write the tables.")


def _indexes(connection: Connection) -> Iterator[Finding]:
    known = {row["name"]: row["valid"] for row in rows(connection, INDEXES)}
    rests = bloat.leftovers(connection)
    invalid = sorted({name for name, valid in known.items() if not valid} - {rest.name for rest in rests})
    if "job_runs_claimable" not in known:
        yield Finding(
            "indexes",
            "fail",
            "job_runs_claimable, which claims need, is missing.",
            "Run: wakeboard db upgrade",
        )
    elif invalid:
        mend = f"REINDEX INDEX CONCURRENTLY wakeboard.{invalid[0]}"
        yield Finding("indexes", "fail", f"Not valid: {', '.join(invalid)}.", mend)
    elif not (troubles := [*_half_built(rests), *bloated_ones(connection)]):
        yield Finding("indexes", "ok", f"All {len(known)} are valid, and none is bloated.")
    else:
        yield from troubles


def _half_built(rests: Iterable[bloat.Leftover]) -> Iterator[Finding]:
    """Name what a rebuild has under way, or left when it was cut short."""
    for rest in rests:
        says = f"{rest.name} is being built, or was left by a rebuild that was cut short."
        mend = "If nothing builds it, the next look of a worker at the indexes drops it (each half hour)."
        yield Finding("indexes", "warning", says, mend if rest.may_drop else f"As its owner: {rest.drops}")


def bloated_ones(connection: Connection, floor_bytes: int = bloat.FLOOR_BYTES) -> Iterator[Finding]:
    """Name the indexes of ``floor_bytes`` or more that a long transaction left bloated."""
    for index in bloat.bloated(connection, floor_bytes=floor_bytes):
        yield Finding("indexes", "warning", index.says, f"{_who_rebuilds(index)}: {index.rebuilds}")


def _who_rebuilds(index: bloat.Index) -> str:
    """Say who should, or will, rebuild ``index``, before the statement that does."""
    if not index.is_counted:
        return f"Workers leave it. If it says so again after ANALYZE wakeboard.{index.on_table}"
    if not index.may_rebuild:
        return f"The role {index.role} may not rebuild it. As the owner of its table"
    if index.is_unique:
        return "At a quiet hour, because enqueues with a key may fail meanwhile"
    hours, days = state.REST_SECONDS / 3600, state.GIVEN_UP_SECONDS / 86_400
    return (
        f"A worker rebuilds it, at the latest {hours:g} hours after the last try "
        f"({days:g} days after one that took too long), unless a transaction stays open; or"
    )


def _transactions(connection: Connection) -> Iterator[Finding]:
    holders = [horizon.Holder(**row) for row in rows(connection, horizon.HOLDERS)]
    long = [holder for holder in holders if holder.is_long]
    yield from (Finding("transactions", "warning", holder.says, holder.mend) for holder in long)
    sight = one(connection, horizon.SIGHT)
    assert sight is not None
    if sight["hidden"] and not sight["sees_all"]:
        says = f"Of {sight['hidden']} sessions of other roles this role cannot see how old they are."
        yield Finding("transactions", "warning", says, f"As a superuser: GRANT pg_monitor TO {sight['role']}")
    elif not long:
        yield Finding("transactions", "ok", "None is open for long, and nothing else holds dead rows back.")


def _workers(connection: Connection) -> Iterator[Finding]:
    found, unserved = one(connection, WORKERS), one(connection, UNSERVED)
    assert found is not None
    assert unserved is not None
    if found["alive"]:
        silent = f", {found['silent']} silent for two heartbeats or more" if found["silent"] else ""
        yield Finding("workers", "ok", f"{found['alive']} alive{silent}.")
        return
    waiting = f" and {unserved['schedules']} schedules are enabled" if unserved["schedules"] else ""
    yield Finding("workers", "warning", f"None is alive{waiting}.", "Run: wakeboard worker --app MODULE")


def _loops(connection: Connection) -> Iterator[Finding]:
    """Name each loop that is late, and whether anybody keeps the schedules."""
    late = liveness.late_loops(connection)
    for place, loops in _by_process(late).items():
        if len(loops) >= MANY_LOOPS:
            yield _stands_still(place, loops)
            continue
        yield from (_late(place, loop) for loop in loops)
    if liveness.is_abandoned(connection):
        says = f"Schedules are enabled and no worker or tick came for {liveness.SILENCE_SECONDS} s."
        yield Finding(
            "loops", "fail", says, "Run: wakeboard worker --app MODULE, or wakeboard tick from cron"
        )
    elif not late:
        yield Finding("loops", "ok", "All are on time.")


def _by_process(loops: Iterable[liveness.Loop]) -> dict[str, list[liveness.Loop]]:
    found: dict[str, list[liveness.Loop]] = {}
    for loop in loops:
        place = f"{loop.hostname}:{loop.pid}" if loop.hostname else loop.process_id
        found.setdefault(place, []).append(loop)
    return found


def _stands_still(place: str, loops: Sequence[liveness.Loop]) -> Finding:
    """Say in one line what many late loops of one process come to."""
    names = ", ".join(sorted(loop.name for loop in loops))
    error = next((f" A last error: {loop.last_error}" for loop in loops if loop.last_error), "")
    seconds = max(loop.ago_seconds for loop in loops)
    says = f"{place} stands still or is gone, for {seconds:.0f} s. Late: {names}.{error}"
    mend = "If that process is alive, restart it: its log says why; if it is gone, start another."
    return Finding("loops", "fail", says, mend)


def _late(place: str, loop: liveness.Loop) -> Finding:
    error = f" Its last error: {loop.last_error}" if loop.last_error else ""
    says = f"'{loop.name}' of {place} last succeeded {loop.ago_seconds:.0f} s ago.{error}"
    return Finding("loops", "fail", says, _mend_of(loop))


def _mend_of(loop: liveness.Loop) -> str:
    """Return what brings a late loop back."""
    if loop.name == "listen":
        return (
            "Nothing is lost, work only begins later: let the worker reach the server directly, or through a "
            "pooler in session mode."
        )
    if loop.name == "claim":
        return "Look at the worker's log (a module that cannot be imported?), then restart the worker."
    return "If its process is alive, restart it: its log says why; if it is gone, start another worker."


def _app(settings: Settings) -> Iterator[Finding]:
    """Import the app in a process of its own: importing a user's module may do anything."""
    if settings.app is None:
        yield Finding(
            "app", "warning", "No module with handlers is set.", "Set WAKEBOARD_APP or use --app MODULE."
        )
        return
    code = (
        "import sys; from worker import registry as r; added = r.load_app(sys.argv[1]); "
        "print(added, '' if added else r.without_handlers(sys.argv[1]))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, settings.app],
            capture_output=True, text=True, timeout=APP_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield Finding(
            "app",
            "fail",
            f"Importing {settings.app} takes over {APP_SECONDS} s.",
            "Move slow work out of the import.",
        )
        return
    if done.returncode == 0:
        number, _, complaint = (done.stdout.strip().splitlines() or ["0 "])[-1].partition(" ")
        if complaint:
            mend = f"If it is a file of yours, start in its folder (now {Path.cwd()})."
            yield Finding("app", "fail", complaint, mend)
        else:
            kinds = "1 job type" if number == "1" else f"{number} job types"
            yield Finding("app", "ok", f"{settings.app} is importable: {kinds} of its own.")
        return
    last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    mend = f"Mend the module, or start in its folder (now {Path.cwd()})."
    yield Finding("app", "fail", f"{settings.app} cannot be imported: {last}.", mend)
