"""Measures the time of every request and of its statements, by page, for /system and /metrics.

Numbers are kept by prometheus_client. With several processes they are in files of one folder, which the
environment names (PROMETHEUS_MULTIPROC_DIR), so each process can report all. They begin with the start of the
dashboard.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil
from flask import Flask, Response, current_app, g, has_app_context, request
from sqlalchemy import Engine, event
from sqlalchemy.pool import QueuePool

from wakeboard_dashboard.web import files

if TYPE_CHECKING:
    from prometheus_client import Metric

EXTENSION = "wakeboard_request_metrics"
STATIC = "static files"
NO_PAGE = "no page"
# Seconds: 1 ms, 1.5 ms, 2.25 ms … 11 s.
BUCKETS = tuple(round(0.001 * 1.5**step, 4) for step in range(24))
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
PAGE_METRICS = "wakeboard_page_"


@dataclass(slots=True)
class PageMetrics:
    """What the answers of one page took since the dashboard started; times in seconds."""

    name: str
    answers: int = 0
    refused: int = 0
    failed: int = 0
    statements: int = 0
    seconds: float = 0.0
    database_seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest_address: str = ""
    slowest_pid: int = 0
    # How many answers took no longer than each limit.
    buckets: dict[float, int] = field(default_factory=dict)

    def percentile(self, part: float) -> float:
        """Return a limit that ``part`` of the answers did not exceed; 0 without answers."""
        wanted = part * self.answers
        within = [limit for limit, count in self.buckets.items() if self.answers and count >= wanted]
        return min([*within, self.slowest_seconds])


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the dashboard on this host; ``answers`` and ``failed`` since it started."""

    pid: int
    started_at: datetime
    busy: int
    connections: int
    answers: int
    failed: int
    memory_bytes: int
    is_this: bool


class RequestMetrics:
    """The metrics of one app, which all processes forked from this one share."""

    def __init__(self) -> None:
        # On import, prometheus_client decides where values are kept: ``server`` has named the folder by now.
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = registry = CollectorRegistry()
        self._seconds = Histogram(
            f"{PAGE_METRICS}seconds",
            "Seconds that answers took.",
            ["page"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._answers = Counter(
            f"{PAGE_METRICS}answers", "Answers: done, refused (4xx) or failed (5xx).", ["page", "result"],
            registry=registry,
        )  # fmt: skip
        self._statements = Counter(
            f"{PAGE_METRICS}statements", "Statements sent to the database.", ["page"], registry=registry
        )
        self._database = Counter(
            f"{PAGE_METRICS}database_seconds", "Seconds that statements took.", ["page"], registry=registry
        )
        self._slowest = Gauge(
            "slowest_seconds", "Slowest answer.", ["page", "address"], registry=registry,
            multiprocess_mode="liveall",
        )  # fmt: skip
        self._process = Gauge(
            "process", "Numbers of a process.", ["what"], registry=registry, multiprocess_mode="liveall"
        )
        self._lock = threading.Lock()
        self._slowest_here: dict[str, tuple[float, str]] = {}

    def begin(self) -> None:
        """Count a request that is being answered."""
        self._process.labels("busy").inc()

    def end(
        self, page: str, address: str, status: int, seconds: float, database_seconds: float, statements: int
    ) -> None:
        """Count a request that was answered."""
        is_failed = status >= 500
        result = "failed" if is_failed else "refused" if status >= 400 else "done"
        self._seconds.labels(page).observe(seconds)
        self._answers.labels(page, result).inc()
        self._statements.labels(page).inc(statements)
        self._database.labels(page).inc(database_seconds)
        self._process.labels("busy").dec()
        self._process.labels("answers").inc()
        self._process.labels("failed").inc(is_failed)
        self._note_slowest(page, address, seconds)

    def set_connections(self, count: int) -> None:
        """Note how many database connections this process uses."""
        self._process.labels("connections").set(count)

    def _note_slowest(self, page: str, address: str, seconds: float) -> None:
        with self._lock:
            slowest, former = self._slowest_here.get(page, (0.0, ""))
            if seconds <= slowest:
                return
            self._slowest_here[page] = seconds, address
            if slowest:
                self._slowest.labels(page, former).set(0)
            self._slowest.labels(page, address).set(seconds)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics over all processes."""
        if FOLDER not in os.environ:
            return self._registry.collect()
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        collector = MultiProcessCollector(CollectorRegistry(), os.environ[FOLDER])  # type: ignore[no-untyped-call]
        found: Iterable[Metric] = collector.collect()  # type: ignore[no-untyped-call]
        return found

    def page_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of pages, for Prometheus."""
        for metric in self.collect():
            if metric.name.startswith(PAGE_METRICS):
                metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
                yield metric

    def pages(self) -> list[PageMetrics]:
        """Return what each page took, the most in all first."""
        pages: dict[str, PageMetrics] = {}
        for metric in self.collect():
            for sample in metric.samples:
                if (name := sample.labels.get("page")) is not None:
                    _add(pages.setdefault(name, PageMetrics(name)), sample.name, sample.labels, sample.value)
        found = [page for page in pages.values() if page.answers]
        return sorted(found, key=lambda page: -page.seconds)

    def processes(self) -> list[Process]:
        """Return the processes that live, this one first."""
        numbers: dict[int, dict[str, int]] = {}
        for metric in self.collect():
            for sample in metric.samples:
                if sample.name == "process":
                    pid = int(sample.labels.get("pid", os.getpid()))
                    numbers.setdefault(pid, {})[sample.labels["what"]] = int(sample.value)
        found = [each for pid, known in numbers.items() if (each := _process(pid, known)) is not None]
        return sorted(found, key=lambda each: (not each.is_this, each.started_at))


def _add(page: PageMetrics, name: str, labels: dict[str, str], value: float) -> None:
    """Add one sample to what is known of its page."""
    match name.removeprefix(PAGE_METRICS):
        case "seconds_sum":
            page.seconds = value
        case "seconds_bucket":
            page.buckets[float(labels["le"])] = int(value)
        case "answers_total":
            page.answers += int(value)
            page.refused += int(value) if labels["result"] == "refused" else 0
            page.failed += int(value) if labels["result"] == "failed" else 0
        case "statements_total":
            page.statements = int(value)
        case "database_seconds_total":
            page.database_seconds = value
        case "slowest_seconds" if value > page.slowest_seconds:
            page.slowest_seconds, page.slowest_address = value, labels["address"]
            page.slowest_pid = int(labels.get("pid", os.getpid()))


def _process(pid: int, numbers: dict[str, int]) -> Process | None:
    """Return the process ``pid`` with its ``numbers``, None when it is gone."""
    try:
        process = psutil.Process(pid)
        started_at = datetime.fromtimestamp(process.create_time(), UTC)
        memory_bytes = int(process.memory_info().rss)
    except psutil.Error:
        return None
    return Process(
        pid,
        started_at,
        busy=numbers.get("busy", 0),
        connections=numbers.get("connections", 0),
        answers=numbers.get("answers", 0),
        failed=numbers.get("failed", 0),
        memory_bytes=memory_bytes,
        is_this=pid == os.getpid(),
    )


def install(app: Flask, engines: set[Engine]) -> None:
    """Measure the requests of ``app`` and what its ``engines`` are asked; before any other hook."""
    app.extensions[EXTENSION] = RequestMetrics()
    app.before_request(_begin)
    app.after_request(_note_status)
    app.teardown_request(_end)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", _begin_statement)
        event.listen(engine, "after_cursor_execute", _end_statement)


def request_metrics() -> RequestMetrics:
    """Return the metrics of the running app."""
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, RequestMetrics)
    return found


def page_name(rule: str, method: str) -> str:
    """Return ``/runs/<id>`` for a page, ``POST /runs/<id>/retry`` for an act."""
    if rule.startswith(files.STATIC):
        return STATIC
    path = re.sub(r"<(?:\w+:)?(?:\w+_)?(\w+)>", r"<\1>", rule)
    return f"POST {path}" if method == "POST" else path


def _begin() -> None:
    request_metrics().begin()
    g.measured_from = time.perf_counter()
    g.statements, g.database_seconds = 0, 0.0


def _note_status(response: Response) -> Response:
    g.answered = response.status_code
    return response


def _end(_failure: BaseException | None) -> None:
    """Count the request, also a failed one: after_request hooks are left out when one of them fails."""
    began = g.pop("measured_from", None)
    if began is None:
        return
    metrics, rule = request_metrics(), request.url_rule
    name = NO_PAGE if rule is None else page_name(str(rule), "POST" if request.method == "POST" else "GET")
    seconds = time.perf_counter() - began
    metrics.set_connections(_connections())
    metrics.end(name, _address(), g.get("answered", 500), seconds, g.database_seconds, g.statements)


def _address() -> str:
    """Return the address without the values of its filters: no token, and nobody's search."""
    filters = "&".join(dict.fromkeys(request.args.keys()))
    return (request.path + (f"?{filters}" if filters else ""))[:96]


def _connections() -> int:
    database: Any = current_app.extensions["wakeboard_database"]
    pools = {database.primary.pool, database.pages.pool}
    return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))


def _begin_statement(
    _connection: object, _cursor: object, _sql: str, _values: object, context: Any, _many: bool
) -> None:
    if context is not None:
        context.asked_at = time.perf_counter()


def _end_statement(
    _connection: object, _cursor: object, _sql: str, _values: object, context: Any, _many: bool
) -> None:
    if has_app_context() and "measured_from" in g and context is not None:
        g.statements += 1
        g.database_seconds += time.perf_counter() - context.asked_at
