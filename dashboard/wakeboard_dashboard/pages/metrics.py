"""The metrics of ``/metrics``, read at scrape time; docs/reference.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from wakeboard.reporting import heartbeats
from wakeboard_dashboard.queries import alerts, leases, metrics, overview, types
from wakeboard_dashboard.text.verdict import CAP, Counts
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.request_metrics import request_metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


def text() -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Tables())
    registry.register(_Requests())
    return generate_latest(registry)


class _Tables(Collector):
    """Metrics of the tables, read in the request's transaction."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counts = overview.read_counts(reading())
        yield _by_state(counts)
        for name, says, value in (
            ("slots", "Runs that the live workers may execute at once.", counts.slots),
            ("workers", "Workers that are alive.", counts.workers),
            ("claiming_slots", "Those of workers that neither drain nor stop.", counts.claiming_slots),
            ("claiming_workers", "Workers that are alive and neither drain nor stop.", counts.claiming),
            ("missed_fires_24h", "Runs that schedules missed in 24 h.", counts.missed),
            ("unfireable_schedules", "Enabled schedules that cannot fire.", counts.unfireable),
            ("unconfirmed_effects", "Effects that only a person can confirm.", counts.unconfirmed),
            (
                "refused_answers_24h",
                f"Late answers of stale workers refused in 24 h, counted up to {leases.COUNTED_REFUSED + 1}.",
                leases.count_refused(reading()),
            ),
            ("oldest_due_seconds", "How long the oldest due run has waited.", _waited(counts)),
            (
                "longest_running_seconds",
                "How long the longest running run has run; 0 where none runs.",
                metrics.find_longest_running_seconds(reading()),
            ),
        ):
            yield GaugeMetricFamily(f"wakeboard_{name}", says, value=value)
        yield from _attempts()
        yield from _by_type(metrics.list_types(reading()))
        yield _loops()
        yield _alerts()


class _Requests(Collector):
    """Metrics of the requests to this host's dashboard."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from request_metrics().page_metrics()


def _by_state(counts: Counts) -> Metric:
    family = GaugeMetricFamily(
        "wakeboard_runs",
        f"Runs by state; {CAP + 1} is where the count stops: so many or more.",
        labels=["state"],
    )
    for state in ("queued", "running", "failed", "dead", "stuck"):
        family.add_metric([state], getattr(counts, state))
    return family


def _waited(counts: Counts) -> float:
    return (as_of() - counts.oldest_due_at).total_seconds() if counts.oldest_due_at else 0.0


def _attempts() -> Iterator[Metric]:
    labels = ["job_type", "outcome"]
    ended = GaugeMetricFamily("wakeboard_attempts_1h", "Attempts that ended in the last hour.", labels=labels)
    worked = GaugeMetricFamily("wakeboard_attempt_seconds_1h", "Their seconds of work.", labels=labels)
    for job_type, outcome, count, seconds in metrics.count_attempts_last_hour(reading()):
        ended.add_metric([job_type, outcome], count)
        worked.add_metric([job_type, outcome], seconds)
    yield from (ended, worked)


def _by_type(known: list[str]) -> Iterator[Metric]:
    """Yield a sample for each registered type, so that its first failure is an increase."""
    ended = CounterMetricFamily(
        "wakeboard_attempts",
        "Attempts that succeeded, or failed (timed out, lost), since midnight UTC: there it begins anew.",
        labels=["job_type", "outcome"],
    )
    for job_type, counts in (dict.fromkeys(known, (0, 0)) | metrics.count_attempts_today(reading())).items():
        for outcome, count in zip(("succeeded", "failed"), counts, strict=True):
            ended.add_metric([job_type, outcome], count)
    waiting = GaugeMetricFamily(
        "wakeboard_queued_runs",
        f"Queued runs by type; {types.CAP + 1} is where the count stops: so many or more.",
        labels=["job_type"],
    )
    for job_type, count in metrics.count_queued(reading(), known).items():
        waiting.add_metric([job_type], count)
    yield from (ended, waiting)


def _loops() -> Metric:
    family = GaugeMetricFamily(
        "wakeboard_loop_age_seconds",
        "Time since a background duty last succeeded.",
        labels=["process", "loop"],
    )
    for loop in heartbeats.loops(reading()):
        # Nobody knows when it was where the database's clock was ahead: longer ago than anybody allows.
        ago = inf if loop.is_ahead else (as_of() - loop.last_success_at).total_seconds()
        family.add_metric([loop.process_id, loop.name], ago)
    return family


def _alerts() -> Metric:
    family = GaugeMetricFamily("wakeboard_alerts_firing", "1 while an alert rule fires.", labels=["rule"])
    for rule, fires in alerts.list_rule_states(reading()):
        family.add_metric([rule], float(fires))
    return family
