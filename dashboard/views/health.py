"""The four probes: does this process answer, may it get traffic, is all work on time, and Prometheus.

Open on loopback, by token elsewhere (see ``security``). No version, no address, no error text is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, jsonify
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from dashboard.connection import as_of, reading, writing
from dashboard.queries import alerts, health, leases, overview
from dashboard.scopes import Scope, scoped
from worker import db
from worker.liveness import Loop

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
        revision = db.current_revision(connection)
    ready = revision == db.head_revision()
    return jsonify({"status": "ok" if ready else "schema is not of this version"}), 200 if ready else 503


@blueprint.get("/statusz")
@scoped(Scope.NO_TYPE)
def statusz() -> tuple[Response, int]:
    """Say whether every background duty of every live process is on time and somebody keeps the schedules."""
    duties = health.duties(reading())
    abandoned = health.abandoned(reading())
    late = [loop for loop in duties if loop.late]
    words = "no worker or tick came for 3 minutes" if abandoned else "late" if late else "ok"
    return jsonify({"as_of": as_of(), "status": words, "loops": [_loop(loop) for loop in duties]}), (
        503 if late or abandoned else 200
    )


def _loop(loop: Loop) -> dict[str, Any]:
    return {
        "process": loop.process_id,
        "loop": loop.name,
        "interval_seconds": loop.interval_seconds,
        "last_success_at": loop.last_success_at,
        "late": loop.late,
    }


@blueprint.get("/metrics")
def metrics() -> Response:
    """Return Prometheus' text, read from the database now: right with any number of processes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Tables())
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _Tables(Collector):
    """Reads the gauges on the request's transaction, at scrape time."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counts = overview.counts(reading())
        yield _by_state(counts)
        for name, says, value in (
            ("slots", "Runs that the live workers may execute at once.", counts.slots),
            ("workers", "Workers that are alive.", counts.workers),
            ("missed_fires_24h", "Fires that schedules did not keep in 24 h.", counts.missed),
            ("unconfirmed_effects", "Effects that only a person can confirm.", counts.unconfirmed),
            (
                "refused_answers_24h",
                f"Late answers of stale workers refused in 24 h, counted up to {leases.COUNTED_REFUSED + 1}.",
                leases.refused_count(reading()),
            ),
            ("oldest_due_seconds", "How long the oldest due run has waited.", _waited(counts)),
        ):
            yield GaugeMetricFamily(f"wakeboard_{name}", says, value=value)
        yield from _attempts()
        yield _loops()
        yield _alerts()


def _by_state(counts: overview.Counts) -> Metric:
    family = GaugeMetricFamily(
        "wakeboard_runs", f"Runs by state, counted up to {overview.CAP + 1}.", labels=["state"]
    )
    for state in ("queued", "running", "failed", "dead", "stuck"):
        family.add_metric([state], getattr(counts, state))
    return family


def _waited(counts: overview.Counts) -> float:
    return (as_of() - counts.oldest_due_at).total_seconds() if counts.oldest_due_at else 0.0


def _attempts() -> Iterator[Metric]:
    labels = ["job_type", "outcome"]
    ended = GaugeMetricFamily("wakeboard_attempts_1h", "Attempts that ended in the last hour.", labels=labels)
    worked = GaugeMetricFamily("wakeboard_attempt_seconds_1h", "Their seconds of work.", labels=labels)
    for job_type, outcome, count, seconds in health.attempts_last_hour(reading()):
        ended.add_metric([job_type, outcome], count)
        worked.add_metric([job_type, outcome], seconds)
    yield from (ended, worked)


def _loops() -> Metric:
    family = GaugeMetricFamily(
        "wakeboard_loop_age_seconds",
        "Time since a background duty last succeeded.",
        labels=["process", "loop"],
    )
    for loop in health.duties(reading()):
        family.add_metric([loop.process_id, loop.name], (as_of() - loop.last_success_at).total_seconds())
    return family


def _alerts() -> Metric:
    family = GaugeMetricFamily("wakeboard_alerts_firing", "1 while an alert rule fires.", labels=["rule"])
    for rule, fires in alerts.states(reading()):
        family.add_metric([rule], float(fires))
    return family
