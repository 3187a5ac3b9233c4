"""View of the system: every loop of every process, the database and its sizes, the settings. Looks only."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from flask import Blueprint, current_app, g

from dashboard import formats, params
from dashboard.connection import reading
from dashboard.live import add_page
from dashboard.queries import health, system, workers
from worker import __version__, db
from worker.settings import PREFIX, Settings
from worker.states import Role

blueprint = Blueprint("system", __name__)

# Longer than any statement of ours may take; the page looks every 10 s, so it is told within a minute.
LONG_TRANSACTION_SECONDS = 45
LONG_LAG_SECONDS = 60
FEW_CONNECTIONS_LEFT = 0.8
MANY_DEAD_ROWS = 100_000
# What is text and yet no address: the rest of the texts is shown to those who may act.
PLAIN_TEXTS = ("timezone", "environment", "log_format", "app")

# What each loop does; a worker of another version may have others.
LOOPS = {
    "alerts": "looks at the rules of /alerts and writes their messages",
    "claim": "takes due runs. Late: the worker hangs, cannot reach the database, or cannot import its module",
    "forget": "removes workers that ended or fell silent a week ago",
    "listen": "hears at once that work has come. Late: work begins at the next poll instead",
    "live output": "shows what handlers print while they run",
    "presence": "says that the worker is alive",
    "reap": "takes back runs whose lease ended, of whichever worker",
    "renew": "keeps the leases of what runs. Late: its runs will be taken over",
    "retention": "removes what was kept for long enough",
    "schedule": "fires what is due",
    "statistics": "adds up the numbers of the charts",
}


def find() -> dict[str, Any]:
    """Return what does not change while one looks: settings and versions."""
    params.from_request()
    return {
        "loop_words": LOOPS,
        "settings": _settings(),
        "versions": {
            "wakeboard": __version__,
            "workers": workers.versions(reading()),
            "python": platform.python_version(),
            "schema_needed": db.head_revision(),
        },
    }


def find_loops() -> dict[str, Any]:
    """Return the loops, late ones first."""
    params.from_request()
    loops = [asdict(loop) for loop in health.duties(reading())]
    if not _may_act():
        # A driver's message may tell addresses.
        loops = [loop | {"last_error": loop["last_error"] and "(for operators)"} for loop in loops]
    return {"loops": sorted(loops, key=lambda loop: not loop["late"])}


def find_server() -> dict[str, Any]:
    """Return how the database stands, and sentences on what should be looked at."""
    params.from_request()
    server = dict(system.server(reading()))
    folder = server.pop("data_folder")
    server["is_embedded"] = folder is not None and Path(folder).is_relative_to(_own_settings().data_dir)
    server["address"] = _address() if _may_act() else None
    found = {
        "server": server,
        "oldest_transaction": system.oldest_transaction(reading()),
        "replicas": system.replicas(reading()),
        "installation": system.installation(reading()),
        "refused_answers_24h": system.refused_answers(reading()),
    }
    return found | {"warnings": list(warnings(found))}


def find_sizes() -> dict[str, Any]:
    """Return tables and indexes with their sizes."""
    params.from_request()
    return {"tables": system.tables(reading()), "indexes": system.indexes(reading())}


def warnings(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence, with the mend, for each thing of ``find_server`` that will hurt."""
    server, oldest = found["server"], found["oldest_transaction"]
    if oldest is not None and oldest["seconds"] > LONG_TRANSACTION_SECONDS:
        yield (
            f"A transaction of “{formats.visible(oldest['name'])}” (pid {oldest['pid']}) has been open for "
            f"{formats.duration(oldest['seconds'])}: dead rows pile up and claims slow down. If nobody needs "
            f"it: SELECT pg_terminate_backend({oldest['pid']})"
        )
    if (server["connections"] or 0) > FEW_CONNECTIONS_LEFT * server["max_connections"]:
        yield (
            f"{server['connections']} of {server['max_connections']} connections are in use: raise "
            "max_connections, or put a pooler in between."
        )
    for replica in found["replicas"]:
        if (replica["lag_seconds"] or 0) > LONG_LAG_SECONDS:
            yield (
                f"The replica “{formats.visible(replica['name'])}” lags behind by "
                f"{formats.duration(replica['lag_seconds'])}: pages read from it are old by as much."
            )
    if server["fsync"] != "on":
        yield "fsync is off: a power cut can lose the whole database. Set fsync = on."
    if server["is_embedded"] and (not found["installation"] or not found["installation"]["backed_up_at"]):
        yield "This database was never backed up: wakeboard db backup"


def _settings() -> list[dict[str, str | None]]:
    rows = _own_settings().rows()
    return [row if _may_act() or _is_plain(str(row["name"])) else row | {"value": "***"} for row in rows]


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
    find,
    twin=lambda context: {**context, **find_loops(), **_plain(find_server()), **_plain(find_sizes())},
    fragments={
        "loops": ("system/_loops.html", find_loops),
        "server": ("system/_server.html", find_server),
        "sizes": ("system/_sizes.html", find_sizes),
    },
)


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``found`` with rows as dicts, for the twin."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return dict(value) if isinstance(value, Mapping) else value

    return {name: plain(value) for name, value in found.items()}
