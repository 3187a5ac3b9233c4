"""View of the system: every loop of every process, the database and its sizes, the settings. Looks only."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import psycopg
from flask import Blueprint, current_app, g
from sqlalchemy import RowMapping, exc

from wakeboard import __version__
from wakeboard.config.settings import HIDDEN, PREFIX, Settings
from wakeboard.core.states import Role
from wakeboard.core.text.redaction import redact
from wakeboard.core.text.sanitize import first_line
from wakeboard.database import migrations, vacuum_blockers
from wakeboard.database.db import DatabaseError
from wakeboard.database.vacuum_blockers import VacuumBlocker
from wakeboard.reporting import heartbeats
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import leases, system, workers
from wakeboard_dashboard.text import formats
from wakeboard_dashboard.web.connection import as_of, database, open_snapshot, reading
from wakeboard_dashboard.web.replica import SHOWN_SECONDS
from wakeboard_dashboard.web.request_metrics import PageMetrics, request_metrics

blueprint = Blueprint("system", __name__)

# Counting late answers stops there.
MOST_REFUSED = 10_000
LONG_LAG_SECONDS = 60
FEW_CONNECTIONS_LEFT = 0.8
MANY_DEAD_ROWS = 100_000
# What is text and yet no address: the rest of the texts is shown to those who may act.
PLAIN_TEXTS = ("timezone", "environment", "log_format", "log_level", "log_moves", "app")

# What each loop does; a worker of another version may have others.
LOOPS = {
    "alerts": "looks at the rules of /alerts and writes their messages",
    "claim": "takes due runs. Late: the worker hangs, cannot reach the database, or cannot import its module",
    "clock": "puts right what was written while the database's clock was ahead",
    "forget": "removes workers that ended or fell silent a week ago",
    "indexes": "builds indexes anew that a long transaction left bloated, beside the work",
    "listen": "hears at once that work has come. Late: work begins at the next poll instead",
    "live output": "shows what handlers print while they run",
    "operations": "moves the runs of /operations, a little at a time. Late: they stand still",
    "outage": "tells people when the database does not answer",
    "pauses": "ends the pauses of types whose end has come",
    "post": "sends the messages that no worker sends",
    "presence": "says that the worker is alive",
    "reap": "takes back runs whose lease ended, of whichever worker",
    "renew": "keeps the leases of what runs. Late: its runs will be taken over",
    "retention": "removes what was kept for long enough",
    "schedule": "fires what is due",
    "statistics": "adds up the numbers of the charts",
    "write": "writes how runs ended. Late: runs that are done still show as running",
}


def find_settings() -> Context:
    """Return what does not change while one looks: settings and versions."""
    return {
        "loop_words": LOOPS,
        "settings": _settings(),
        "versions": {
            "wakeboard": __version__,
            "workers": workers.list_versions(reading()),
            "python": platform.python_version(),
            "schema_needed": migrations.head_revision(),
        },
    }


def find_loops() -> Context:
    """Return the loops, late ones first."""
    loops = [asdict(loop) for loop in heartbeats.loops(reading())]
    loops = [
        loop | {"last_error": loop_error(loop["last_error"]), "numbers": redact(loop["numbers"])}
        for loop in loops
    ]
    return {"loops": sorted(loops, key=lambda loop: not loop["late"])}


def loop_error(error: str | None) -> str | None:
    """Return the last error of a loop as this role may read it: a driver's message may tell addresses."""
    return redact(error) if _may_act() else error and "(for operators)"


def find_server() -> Context:
    """Return how the database stands, and sentences on what should be looked at."""
    server = dict(system.read_server(reading()))
    folder, unrebuilt = server.pop("data_folder"), server.pop("unrebuilt")
    server["is_embedded"] = folder is not None and Path(folder).is_relative_to(_own_settings().data_dir)
    server["address"] = _address() if _may_act() else None
    blockers = [_blocker_item(blocker) for blocker in vacuum_blockers.find_blockers(reading())]
    context = {
        "server": server,
        "oldest_transaction": _oldest(blockers),
        "holders": blockers,
        "sight": vacuum_blockers.read_visibility(reading())._asdict(),
        "replicas": system.list_replicas(reading()),
        "pages_replica": pages_replica() if database().pages is not database().primary else None,
        "installation": system.read_installation(reading()),
        "refused_answers_24h": leases.count_refused(reading(), MOST_REFUSED),
        "unrebuilt": unrebuilt,
    }
    return context | {"warnings": list(warnings(context))}


def pages_replica() -> Context:
    """Return how the replica stands that pages are read from; ``error`` says why it does not answer."""
    try:
        with open_snapshot(database().pages) as connection:
            row = dict(system.read_replica(connection))
            row["behind_seconds"] = database().follower.look(connection, database().primary)
            return row | {"error": None}
    except (exc.SQLAlchemyError, psycopg.Error, DatabaseError) as failure:
        error = first_line(failure) if _may_act() else "(for operators)"
        return {"error": error, "is_replica": None, "behind_seconds": None}


def _blocker_item(blocker: VacuumBlocker) -> Json:
    """Return what holds dead rows back as pages and twins show it; statements are for those who may act."""
    item = asdict(blocker) | {name: getattr(blocker, name) for name in ("title", "is_long", "says", "mend")}
    statement = redact(blocker.statement) if _may_act() else blocker.statement and "(for operators)"
    return item | {"statement": statement}


def _oldest(blockers: Iterable[Context]) -> Json | None:
    """Return the session whose transaction is open for longest, of those that this role may see."""
    sessions = [each for each in blockers if each["kind"] == "session" and each["began_at"]]
    if not sessions:
        return None
    oldest = min(sessions, key=lambda each: each["began_at"])
    return {
        "pid": int(oldest["id"]),
        **{name: oldest[name] for name in ("name", "state", "began_at", "seconds")},
    }


def find_costs() -> Context:
    """Return what the pages of this host's dashboard took since it started, and its processes."""
    as_of()
    metrics = request_metrics()
    return {
        "processes": [asdict(each) for each in metrics.processes()],
        "pages": [_page_item(page) for page in metrics.pages()],
        "host": platform.node(),
    }


def _page_item(page: PageMetrics) -> Json:
    """Return what one page cost, in seconds; ``median`` and ``p95`` are limits that hold."""
    return {
        "name": page.name,
        "answers": page.answers,
        "median_seconds": page.percentile(0.5),
        "p95_seconds": page.percentile(0.95),
        "slowest_seconds": page.slowest_seconds,
        "slowest_address": page.slowest_address,
        "slowest_pid": page.slowest_pid,
        "database_seconds": page.database_seconds / page.answers,
        "statements": page.statements / page.answers,
        "refused": page.refused,
        "failed": page.failed,
    }


def find_sizes() -> Context:
    """Return tables and indexes with their sizes."""
    tables = system.list_tables(reading())
    return {
        "tables": tables,
        "indexes": system.list_indexes(reading()),
        "late_tables": [row["name"] for row in tables if _waits_for_vacuum(row)],
    }


def _waits_for_vacuum(table: RowMapping) -> bool:
    """Whether a table has many dead rows, and twice as many as bring autovacuum, or none ever comes."""
    if table["dead_rows"] <= MANY_DEAD_ROWS:
        return False
    return not table["is_vacuumed"] or table["dead_rows"] > 2 * table["vacuum_at"]


def warnings(context: Context) -> Iterator[str]:
    """Yield a sentence, with the mend, for each thing of ``find_server`` that will hurt."""
    server, follower = context["server"], context["pages_replica"]
    for blocker in context["holders"]:
        if blocker["is_long"]:
            yield f"{blocker['says']} {blocker['mend']}"
    if context["sight"]["hidden"] and not context["sight"]["sees_all"]:
        yield (
            f"Of {context['sight']['hidden']} sessions of other roles it cannot be seen how old they are: as "
            f"a superuser, GRANT pg_monitor TO {formats.visible(context['sight']['role'])}"
        )
    if follower is not None and follower["error"]:
        yield f"The replica that pages are read from does not answer: {follower['error']}"
    elif follower is not None and (follower["behind_seconds"] or 0) > SHOWN_SECONDS:
        yield f"Pages are read from a replica that is {formats.duration(follower['behind_seconds'])} behind."
    if (server["connections"] or 0) > FEW_CONNECTIONS_LEFT * server["max_connections"]:
        yield (
            f"{server['connections']} of {server['max_connections']} connections are in use: raise "
            "max_connections, or put a pooler in between."
        )
    for replica in context["replicas"]:
        if (replica["lag_seconds"] or 0) > LONG_LAG_SECONDS:
            yield (
                f"The replica “{formats.visible(replica['name'])}” lags behind by "
                f"{formats.duration(replica['lag_seconds'])}: pages read from it are old by as much."
            )
    if context["unrebuilt"]:
        yield formats.visible(context["unrebuilt"])
    if server["fsync"] != "on":
        yield "fsync is off: a power cut can lose the whole database. Set fsync = on."
    if server["is_embedded"] and (not context["installation"] or not context["installation"]["backed_up_at"]):
        yield "This database was never backed up: wakeboard db backup"


def _settings() -> list[dict[str, str | None]]:
    rows = _own_settings().rows()
    return [row if _may_act() or _is_plain(str(row["name"])) else row | {"value": HIDDEN} for row in rows]


def _is_plain(variable: str) -> bool:
    """Whether a setting's value is no address: a number, a switch, or one of PLAIN_TEXTS."""
    name = variable.removeprefix(PREFIX).lower()
    value = getattr(_own_settings(), name)
    return value is None or isinstance(value, int | float) or name in PLAIN_TEXTS


def _own_settings() -> Settings:
    settings = current_app.config["SETTINGS"]
    assert isinstance(settings, Settings)
    return settings


def _may_act() -> bool:
    return bool(g.actor.role.covers(Role.OPERATOR))


def _address() -> str:
    """Return where the database is, without user and password."""
    driver = reading().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return f"{driver.info.host}:{driver.info.port}"


add_page(
    blueprint,
    "/system",
    "system/page.html",
    find_settings,
    twin=lambda context: {
        **context,
        **find_loops(),
        **_plain(find_server()),
        **_plain(find_costs()),
        **_plain(find_sizes()),
    },
    fragments={
        "loops": ("system/_loops.html", find_loops),
        "server": ("system/_server.html", find_server),
        "horizon": ("system/_horizon.html", find_server),
        "costs": ("system/_costs.html", find_costs),
        "sizes": ("system/_sizes.html", find_sizes),
    },
)


def _plain(context: Context) -> Json:
    """Return ``context`` with rows as dicts, for the twin."""

    def plain(value: object) -> object:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return dict(value) if isinstance(value, Mapping) else value

    return {name: plain(value) for name, value in context.items()}
