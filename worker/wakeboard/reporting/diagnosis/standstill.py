"""Why no run of a type starts, whichever it is: its pause, a limit of 0, or nobody to take it.

Plain SQL and the words for it, so that pages and answers say the same. Opens no connection.
"""

from __future__ import annotations

from typing import NamedTuple

from wakeboard.core.builtin_payloads import command_user
from wakeboard.core.time.clock_skew import is_since
from wakeboard.reporting import worker_states
from wakeboard.reporting.heartbeats import SILENCE_SECONDS


class ReasonWords(NamedTuple):
    """A reason in a word or two, as a clause (``{}`` is the type), and what the runs wait for."""

    short: str
    clause: str
    until: str


# By the value of ``standstill``.
WORDS = {
    "paused": ReasonWords("type paused", "its type {} is paused", "until somebody resumes that"),
    "limit": ReasonWords("type limit 0", "the limit of its type {} is 0", "until somebody raises that"),
    "worker": ReasonWords("no worker", "no worker takes its type {}", "for one"),
}


def standstill(job_type: str) -> str:
    """Return the SQL of why no run of ``job_type`` (an expression) starts: a key of WORDS, NULL if one may.

    Each set is read once for all rows. Ticks of a crontab come and go: the last one counts for a while.
    """
    types, workers = "SELECT t.name FROM wakeboard.job_types AS t", "FROM wakeboard.workers AS w"
    ticked = f"w.is_tick AND {is_since('w.seen_at', SILENCE_SECONDS)}"
    return f"""CASE
        WHEN {job_type} IN ({types} WHERE t.paused_at IS NOT NULL) THEN 'paused'
        WHEN {job_type} IN ({types} WHERE coalesce(t.max_running_operator, t.max_running) = 0) THEN 'limit'
        WHEN {job_type} IN (SELECT unnest(w.job_types) {workers} WHERE {worker_states.is_claiming("w")})
            THEN NULL
        WHEN {job_type} IN (SELECT unnest(w.job_types) {workers} WHERE {ticked}) THEN NULL
        ELSE 'worker' END"""


def clause(reason: str, job_type: str) -> str:
    """Return ``its type mail is paused`` of a ``reason`` that ``standstill`` gave."""
    if reason == "worker" and (user := command_user(job_type)) is not None:
        return f"no worker runs commands as {user}"
    return WORDS[reason].clause.format(job_type)
