"""The four probes: does this process answer, may it get traffic, is all work on time, and Prometheus.

Open on loopback, by token elsewhere (see ``security``). No version, no address, no error text is told.
"""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from wakeboard.database import migrations
from wakeboard.reporting import heartbeats
from wakeboard.reporting.broken_schedules import broken_schedules
from wakeboard.reporting.heartbeats import Loop
from wakeboard_dashboard.pages.live import Json
from wakeboard_dashboard.web.connection import as_of, reading, writing
from wakeboard_dashboard.web.scopes import Scope, scoped

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
@scoped(Scope.NO_TYPE)
def healthz() -> Response:
    """Say that this process answers; asks nobody else."""
    return jsonify({"status": "ok"})


@blueprint.get("/readyz")
@scoped(Scope.NO_TYPE)
def readyz() -> tuple[Response, int]:
    """Say whether this process can serve pages: the database answers and has this version's schema."""
    with writing() as connection:
        revision = migrations.current_revision(connection)
    ready = revision == migrations.head_revision()
    return jsonify({"status": "ok" if ready else "schema is not of this version"}), 200 if ready else 503


@blueprint.get("/statusz")
@scoped(Scope.NO_TYPE)
def statusz() -> tuple[Response, int]:
    """Say whether every duty of every live process is on time, and whether all schedules are kept."""
    duties = heartbeats.loops(reading())
    abandoned = heartbeats.is_abandoned(reading())
    late = [loop for loop in duties if loop.late]
    unfireable = len(broken_schedules(reading()))
    problems = (
        ("no worker or tick came for 3 minutes", abandoned),
        ("the database's clock was ahead", any(loop.is_ahead for loop in late)),
        ("late", bool(late)),
        ("schedules cannot fire", unfireable > 0),
    )
    status = next((words for words, is_so in problems if is_so), "ok")
    body = {
        "as_of": as_of(),
        "status": status,
        "schedules_that_cannot_fire": unfireable,
        "loops": [_loop(loop) for loop in duties],
    }
    return jsonify(body), 200 if status == "ok" else 503


def _loop(loop: Loop) -> Json:
    return {
        "process": loop.process_id,
        "loop": loop.name,
        "interval_seconds": loop.interval_seconds,
        "last_success_at": loop.last_success_at,
        "late": loop.late,
        "is_ahead": loop.is_ahead,
    }


@blueprint.get("/metrics")
def metrics() -> Response:
    """Return Prometheus' text, read from the database now: right with any number of processes."""
    # Its library is 1.5 MB, of use to those alone whom Prometheus asks.
    from wakeboard_dashboard.pages.metrics import CONTENT_TYPE, text

    return Response(text(), content_type=CONTENT_TYPE)
