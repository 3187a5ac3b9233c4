"""Progress, rate and expected end of a run, from what its handler reported. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from wakeboard_dashboard.text.formats import Row, number, stopped_at

# A rate is not shown before the attempt has run for so long.
SETTLED_SECONDS = 2.0
FARTHEST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` (None: not reported); ``per_second`` and ``ends_at`` None where not known."""

    done: int
    total: int | None
    per_second: float | None = None
    ends_at: datetime | None = None

    @property
    def rate(self) -> str:
        """The rate in words: ``12 a second``, ``3.5 a minute``; empty when there is none."""
        if self.per_second is None:
            return ""
        for unit, seconds in (("second", 1), ("minute", 60)):
            if self.per_second * seconds >= 1:
                return f"{_short(self.per_second * seconds)} a {unit}"
        return f"{_short(self.per_second * 3600)} an hour"


def progress(run: Row, reported_at: datetime | None) -> Progress | None:
    """Return the progress of ``run`` (a row of job_runs), None when its handler reported none.

    ``reported_at``: when its worker last wrote it. Rate and end are those of the attempt up to then, so they
    do not change between two heartbeats.
    """
    done, total = run["progress_done"], run["progress_total"]
    if done is None and total is None:
        return None
    done, total = max(0, done or 0), total if total and total > 0 else None
    end = reported_at if run["status"] == "running" else stopped_at(run)
    if end is None or run["started_at"] is None:
        return Progress(done, total)
    seconds = (end - run["started_at"]).total_seconds()
    if seconds < SETTLED_SECONDS or not done:
        return Progress(done, total)
    rate = done / seconds
    left = None if total is None or run["status"] != "running" else max(0, total - done) / rate
    near = left is not None and left < FARTHEST.total_seconds()
    return Progress(done, total, rate, end + timedelta(seconds=left) if near and left is not None else None)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else number(value)
